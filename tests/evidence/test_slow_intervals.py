"""Intervals of every view against units really taken away: documents, tables by type, other labels, step 0, layers."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from anisoscope import Subspace, cross_fit, cross_fit_weight, judge
from anisoscope.evidence import typed_units
from anisoscope.evidence.energy import energy_share
from anisoscope.evidence.measure_fold import Fold
from anisoscope.evidence.pool_folds import pool_folds
from anisoscope.evidence.pooled import PooledLayer, pool
from anisoscope.evidence.typed_units import TypedUnits
from anisoscope.stats.moments import Moments
from anisoscope.testing import rotation
from reference import slow_energy, slow_jackknife

WIDTH, RANK, OUT = 7, 2, 4
DOCUMENTS = torch.tensor([3, 3, 5, 8, 8, 8, 11, 12, 14, 15, 15, 20, 21, 22, 23, 24, 25, 26, 27, 28])
SIDE = torch.tensor([0, 0, 1, 0, 0, 0, 1, 1, 0, 1, 1, 0, 1, 0, 1, 1, 0, 1, 1, 1])


def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradients(seed, columns=WIDTH, length=3):
    """Sequences that differ in size and in direction, of which some share a document."""
    g = normal(len(DOCUMENTS), length, columns, seed=seed) * torch.linspace(2, 0.5, columns)
    return g * normal(40, 1, 1, seed=seed + 1)[DOCUMENTS].mul(0.15).exp() + 0.2


def by_document(g):
    """Two folds of documents, each with all rows of its sequences."""
    found = []
    for fold in (0, 1):
        ids = dict.fromkeys(DOCUMENTS[fold == SIDE].tolist())
        found.append([g[id_ == DOCUMENTS].flatten(0, 1).numpy() for id_ in ids])
    return found


def fixed(rows):
    """A proxy that depends on the fold it is fitted on, and on nothing else."""
    turn = rotation(rows.shape[1], seed=len(rows))
    return Subspace(turn[:, :RANK].contiguous())


def judging_bases(found):
    """The proxy that each fold is judged by: the one fitted on the other."""
    first, second = (subspace.basis.numpy() for subspace in found.subspaces)
    return second, first


def same(estimate, centre, error, df):
    assert math.log(estimate.value) == pytest.approx(centre, rel=1e-9, abs=1e-12)
    assert estimate.se == pytest.approx(error, rel=1e-6)
    assert estimate.df == pytest.approx(df, rel=1e-6)
    for level, names in ((0.95, ("low", "high")), (0.9, ("low90", "high90"))):
        expected = slow_jackknife.ends(centre, error, df, level)
        assert [math.log(getattr(estimate, name)) for name in names] == pytest.approx(expected, rel=1e-6)


CHANCE = math.log(RANK / (WIDTH - RANK))


def test_documents_over_haar_and_over_axes():
    x, g = gradients(10), gradients(20)
    found = cross_fit(x, g, method=fixed, groups=DOCUMENTS, folds=SIDE, nulls=("haar", "axes"), resamples=9)
    folds, bases = by_document(g), judging_bases(found)
    assert found.units == sum(len(fold) for fold in folds) == 16
    sizes = np.array([(unit**2).sum() for fold in folds for unit in fold])
    assert found.effective_units == pytest.approx(sizes.sum() ** 2 / (sizes**2).sum())

    def over_haar(kept):
        return slow_energy.odds_of_rows(kept, bases) - CHANCE

    def over_axes(kept):
        return slow_energy.odds_of_rows(kept, bases) - slow_energy.axes_odds_of_rows(kept, bases)

    for null, statistic in (("haar", over_haar), ("axes", over_axes)):
        lost = slow_jackknife.without_each(folds, statistic)
        same(found.enrichment[null], statistic(folds), *slow_jackknife.error_and_df(lost))


def test_documents_in_the_weight_view_and_other_labels():
    x, d, other = gradients(34, length=9), gradients(44, OUT, 9), gradients(54, OUT, 9)
    found = cross_fit_weight(
        x, d, method=fixed, groups=DOCUMENTS, folds=SIDE, nulls=("haar", "targets"), others={"targets": other},
        resamples=9, isotropy=False,
    )  # fmt: skip
    bases = judging_bases(found)
    triples = [
        [list(zip(*unit, strict=True)) for unit in zip(*parts, strict=True)]
        for parts in zip(by_document(x), by_document(d), by_document(other), strict=True)
    ]

    def odds(kept, which):
        pairs = [[[(token[0], token[which]) for token in unit] for unit in fold] for fold in kept]
        return slow_energy.odds_of_weight(pairs, bases)

    statistics = {"haar": lambda kept: odds(kept, 1) - CHANCE, "targets": lambda kept: odds(kept, 1) - odds(kept, 2)}
    for null, statistic in statistics.items():
        lost = slow_jackknife.without_each(triples, statistic)
        same(found.enrichment[null], statistic(triples), *slow_jackknife.error_and_df(lost))


def test_step_0_of_other_text_is_an_independent_side():
    proxy, early = fixed(torch.zeros(3, WIDTH)), fixed(torch.zeros(4, WIDTH))
    first, now = gradients(60), gradients(70)[:17]
    initial = judge(first, early, resamples=9, isotropy=False)
    found = judge(now, proxy, nulls=("init",), initial=initial, resamples=9, isotropy=False)
    sides = [([list(now.numpy())], [proxy.basis.numpy()]), ([list(first.numpy())], [early.basis.numpy()])]
    lost = [
        slow_jackknife.without_each(folds, lambda kept, bases=bases: slow_energy.odds_of_rows(kept, bases))
        for folds, bases in sides
    ]
    centre = slow_energy.odds_of_rows(*sides[0]) - slow_energy.odds_of_rows(*sides[1])
    same(found.enrichment["init"], centre, *slow_jackknife.welch(*lost))


def test_what_could_have_been_seen_is_its_formula():
    found = judge(gradients(80), fixed(torch.zeros(5, WIDTH)), resamples=199, isotropy=False)
    e = found.enrichment["haar"]
    least = stats.t.ppf(0.975, e.df) * e.se + stats.t.ppf(0.8, e.df) * e.se
    assert math.log(found.detectable["haar"]) >= least * (1 - 1e-9)


def typed(seed, sequences=14, length=9, types=11):
    """Tokens of some types, with gradients that types and sequences share."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.randint(0, types, (sequences, length), generator=generator)
    own = torch.randn(types, WIDTH, generator=generator, dtype=torch.float64)
    rows = own[kinds] + torch.randn(sequences, length, WIDTH, generator=generator, dtype=torch.float64)
    return kinds, rows * torch.randn(sequences, 1, 1, generator=generator, dtype=torch.float64).mul(0.3).exp()


@pytest.mark.parametrize(("seed", "most_kept"), [(1, 1 << 24), (2, 1 << 24), (2, 0)])
def test_the_table_of_an_embedding_is_made_again_without_each_sequence(seed, most_kept, monkeypatch):
    monkeypatch.setattr(typed_units, "_MOST_KEPT", most_kept)
    kinds, rows = typed(seed)
    bases = [rotation(WIDTH, seed=k)[:, :RANK].contiguous() for k in (1, 2)]
    n, length = kinds.shape
    sides = {kind: int(kind % 3 == 0) for kind in range(11)}
    side = torch.tensor([sides[int(kind)] for kind in kinds.flatten()])
    units = TypedUnits.of(rows.flatten(0, 1), kinds.flatten(), torch.arange(n).repeat_interleave(length), side, bases)
    folds = []
    for held in (0, 1):
        table = torch.zeros(11, WIDTH, dtype=torch.float64).index_add_(0, kinds.flatten(), rows.flatten(0, 1))
        here = torch.tensor([kind for kind in range(11) if sides[kind] == held])
        moments, subspace = Moments.of(table[here], higher=False), Subspace(bases[held])
        folds.append(
            Fold(subspace, energy_share(moments, subspace), moments.second, moments.covariance, len(here), units)
        )
    found = pool_folds(folds, nulls=("haar",), initial=None, resamples=9, seed=0, isotropy=False)
    sequences = [[(int(k), row.numpy()) for k, row in zip(*one, strict=True)] for one in zip(kinds, rows, strict=True)]

    def statistic(kept):
        return slow_energy.odds_of_table(kept[0], sides, [basis.numpy() for basis in bases]) - CHANCE

    lost = slow_jackknife.without_each([sequences], statistic)
    same(found.enrichment["haar"], statistic([sequences]), *slow_jackknife.error_and_df(lost))
    assert found.units == n


@pytest.mark.parametrize("null", ["haar", "axes"])
def test_layers_are_pooled_by_leaving_a_document_out_of_all_of_them(null):
    clouds = [gradients(90 + 10 * k) for k in range(3)]
    layers = [
        cross_fit(g, g, method=fixed, groups=DOCUMENTS, folds=SIDE, nulls=("haar", "axes"), resamples=9) for g in clouds
    ]
    bases = judging_bases(layers[0])
    together = [list(zip(*parts, strict=True)) for parts in zip(*(by_document(g) for g in clouds), strict=True)]

    def statistic(kept):
        logs = []
        for layer in range(3):
            own = [[unit[layer] for unit in fold] for fold in kept]
            beside = CHANCE if null == "haar" else slow_energy.axes_odds_of_rows(own, bases)
            logs.append(slow_energy.odds_of_rows(own, bases) - beside)
        return np.mean(logs)

    lost = slow_jackknife.without_each(together, statistic)
    same(pool([PooledLayer.of(e) for e in layers], null), statistic(together), *slow_jackknife.error_and_df(lost))
