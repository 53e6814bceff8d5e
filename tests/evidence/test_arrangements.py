"""The smallest p where few arrangements exist: exact p by enumeration, and the floor that is printed."""

import math

import pytest
import torch

from anisoscope import Subspace, cross_fit_weight, judge
from anisoscope.evidence.measure_fold import measure_fold
from anisoscope.evidence.pool_folds import pool_folds
from anisoscope.testing import rotation
from anisoscope.verdict import outcome_of
from reference import slow_arrangements as slow
from reference import slow_jackknife
from reference.slow_evidence import classes

DRAWS = 4999


def sequences(seed, *, signal=0.0):
    """Two classes of four sequences: of 9 and of 17 positions."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(8, 17, 5, generator=generator, dtype=torch.float64)
    d = torch.randn(8, 17, 3, generator=generator, dtype=torch.float64)
    common = torch.randn(8, 1, 1, generator=generator, dtype=torch.float64)
    x[..., :2] += signal * common
    d += signal * common
    strata = torch.zeros(8, 17, dtype=torch.int64)
    strata[:4, 9:] = -1
    inside = (strata >= 0)[..., None]
    return x * inside, d * inside, strata


def judged(x, d, strata, proxy):
    options = {"inputs": x, "deltas": d, "strata": strata, "resamples": DRAWS, "isotropy": False}
    return judge(d.flatten(0, 1).T @ x.flatten(0, 1), proxy, nulls=("pairing",), **options)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_pairing_is_the_exact_test_up_to_its_draws(seed):
    proxy = Subspace(rotation(5, seed=seed)[:, :2].contiguous())
    x, d, strata = sequences(seed)
    odds = slow.pairing_odds(x.numpy(), d.numpy(), classes(strata.numpy()), proxy.basis.numpy())
    assert len(odds) == 576
    p = slow.two_sided(odds)
    error = 2 * math.sqrt(p / 2 / DRAWS)
    assert judged(x, d, strata, proxy).p["pairing"] == pytest.approx(p, abs=4 * error + 2 / DRAWS)


def test_few_arrangements_leave_no_small_p():
    """The pairing that was observed is one of 576, so no p is below 2/576, and the floor says so."""
    proxy = Subspace(torch.eye(5, 2, dtype=torch.float64))
    x, d, strata = sequences(4, signal=3.0)
    found = judged(x, d, strata, proxy)
    assert found.p_floor["pairing"] == pytest.approx(2 / 576)
    assert found.p["pairing"] >= found.p_floor["pairing"]
    row = {"null": "pairing", "value": 3.0, "low": 2.0, "high": 4.0, "low90": 2.1, "high90": 3.9}
    row |= {"p": 2 / 576, "q": 31 * 2 / 576, "q_floor": 31 * found.p_floor["pairing"]}
    assert "too few arrangements" in outcome_of(row).why


def test_many_arrangements_leave_the_draws_to_decide():
    x, d, _ = sequences(5)
    proxy = Subspace(torch.eye(5, 2, dtype=torch.float64))
    gradient = d.flatten(0, 1).T @ x.flatten(0, 1)
    found = judge(gradient, proxy, nulls=("pairing",), inputs=x, deltas=d, resamples=99, isotropy=False)
    assert found.p_floor["pairing"] == pytest.approx(2 / 100)


@pytest.mark.parametrize(("family", "resamples", "frames"), [(1, 999, 199), (31, 1239, 1239), (31, 99, 99)])
def test_a_lone_layer_can_be_told_by_its_isotropy_gain_among_all(family, resamples, frames):
    g = torch.randn(64, 9, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    proxy = Subspace(torch.eye(6, 2, dtype=torch.float64))
    fold = measure_fold(g, proxy, nulls=(), groups=None, others={}, resamples=resamples, seed=0)
    found = pool_folds([fold], nulls=(), initial=None, resamples=resamples, seed=0, family=family)
    assert found.isotropy_gain_p_floor == pytest.approx(2 / (frames + 1))
    assert (family * found.isotropy_gain_p_floor <= 0.05) == (resamples != 99)


@pytest.mark.parametrize("seed", [0, 1])
def test_axes_is_the_exact_test_up_to_its_draws(seed):
    generator = torch.Generator().manual_seed(seed)
    g = torch.randn(40, 6, generator=generator, dtype=torch.float64) @ rotation(6, seed=seed)
    proxy = Subspace(rotation(6, seed=seed + 9)[:, :2].contiguous())
    p = slow.two_sided(slow.axes_odds((g.T @ g).numpy(), proxy.basis.numpy()))
    found = judge(g, proxy, nulls=("axes",), resamples=DRAWS, isotropy=False)
    assert found.p["axes"] == pytest.approx(p, abs=8 * math.sqrt(p / 2 / DRAWS) + 2 / DRAWS)
    assert found.p_floor["axes"] == pytest.approx(2 / 32)


def test_the_interval_over_pairing_is_that_of_arrangements_without_each_sequence():
    """Two folds, each of two classes of four: the classes stay what they were when a sequence goes."""
    x, d, strata = (torch.cat(pair) for pair in zip(sequences(21), sequences(22), strict=True))
    side = torch.arange(16) // 8
    bases = [rotation(5, seed=fold)[:, :2].contiguous() for fold in (0, 1)]

    def other_fold(rows):
        """Each fold is judged by its own of the two bases."""
        return Subspace(bases[0] if torch.equal(rows, x[side == 1].flatten(0, 1)) else bases[1])

    options = {"method": other_fold, "folds": side, "nulls": ("pairing",), "strata": strata, "resamples": 9}
    found = cross_fit_weight(x, d, isotropy=False, **options)
    given = [(x[fold == side].numpy(), d[fold == side].numpy()) for fold in (0, 1)]
    grouped = [classes(strata[fold == side].numpy()) for fold in (0, 1)]
    members = [[member[0] for group in fold for member in group] for fold in grouped]

    def statistic(kept):
        folds = []
        for (inputs, deltas), groups, stay in zip(given, grouped, kept, strict=True):
            folds.append((inputs, deltas, [[m for m in group if m[0] in stay] for group in groups]))
        return slow.odds_over_pairing(folds, [basis.numpy() for basis in bases])

    e = found.enrichment["pairing"]
    error, df = slow_jackknife.error_and_df(slow_jackknife.without_each(members, statistic))
    assert math.log(e.value) == pytest.approx(statistic(members), rel=1e-6)
    assert (e.se, e.df) == pytest.approx((error, df), rel=1e-6)
