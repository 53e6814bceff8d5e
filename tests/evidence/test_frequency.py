"""Evidence by frequency: bins, correlations and trends against closed forms, slow loops and planted truths."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from anisoscope.errors import BrokenRuleError
from anisoscope.evidence.correlation import FEWEST_FOR_TAILS, correlations
from anisoscope.evidence.energy import row_energies
from anisoscope.evidence.frequency_evidence import (
    ByUnit,
    by_type,
    enrichment_by_bin,
    frequency_bins,
    isotropy_losses,
    ratio_by_bin,
    shares_by_bin,
)
from anisoscope.geometry.subspace import Subspace
from reference import slow_types as slow


def zipf(vocabulary, tokens=20000):
    weights = 1 / torch.arange(1, vocabulary + 1).double()
    return (tokens * weights / weights.sum()).round().long()


def test_bins_hold_equal_tokens_or_equal_types_and_never_cut_a_type():
    counts = zipf(2000)
    counts[7] = 0
    tokens, types = (frequency_bins(counts, by=by) for by in ("tokens", "types"))
    assert tokens[7] == types[7] == -1
    held = torch.stack([counts[tokens == k].sum() for k in range(5)]).double() / counts.sum()
    assert (held - 0.2).abs().max() < counts.max() / counts.sum()
    sizes = torch.stack([(types == k).sum() for k in range(5)])
    assert sizes.max() - sizes.min() <= 1
    for bins in (tokens, types):  # the more frequent a type, the higher its bin
        seen = counts > 0
        order = counts[seen].argsort(stable=True)
        assert (bins[seen][order].diff() >= 0).all()


def test_one_type_may_fill_several_bins_and_leave_others_empty():
    bins = frequency_bins(torch.tensor([1, 1, 98]), by="tokens")
    assert bins.tolist() == [0, 0, 2]


def test_a_single_bin_is_refused():
    with pytest.raises(BrokenRuleError, match="2 bins"):
        frequency_bins(torch.tensor([1, 2]), by="tokens", bins=1)


def test_counts_of_nothing_are_refused():
    with pytest.raises(BrokenRuleError, match="seen"):
        frequency_bins(torch.zeros(5), by="types")


def test_correlations_are_those_of_scipy_and_of_regression():
    torch.manual_seed(0)
    norm = torch.randn(300).double()
    x = norm + torch.randn(300).double()
    y = 0.5 * norm - 0.3 * x + torch.randn(300).double()
    y[:40] = y[0]  # ties
    found = correlations(x, y, norm)
    assert float(found["pearson"]) == pytest.approx(stats.pearsonr(x, y)[0])
    assert float(found["spearman"]) == pytest.approx(stats.spearmanr(x, y)[0])

    def without(a, b):
        design = np.stack([np.ones(len(b)), b], 1)
        return a - design @ np.linalg.lstsq(design, a, rcond=None)[0]

    rest = [without(part.numpy(), norm.numpy()) for part in (x, y)]
    assert float(found["pearson, norm held"]) == pytest.approx(stats.pearsonr(*rest)[0])
    ranks = [stats.rankdata(part) for part in (x, y, norm)]
    rest = [without(part, ranks[2]) for part in ranks[:2]]
    assert float(found["spearman, norm held"]) == pytest.approx(stats.pearsonr(*rest)[0])


@pytest.mark.parametrize("n", [12, 30, 200])
@pytest.mark.parametrize("law", ["gaussian", "zipf"])
def test_intervals_of_correlations_cover_the_truth_or_are_refused(n, law):
    trials, truth = 300, -0.5

    def drawn(size, seed):
        generator = torch.Generator().manual_seed(seed)
        a, b = torch.randn(2, size, generator=generator).double()
        y = truth * a + math.sqrt(1 - truth**2) * b
        return (a if law == "gaussian" else (1.5 * a).exp()), y

    many = drawn(200_000, 10**6)
    known = {"spearman": stats.spearmanr(*many)[0], "pearson": stats.pearsonr(*many)[0]}
    missed, refused = dict.fromkeys(known, 0), dict.fromkeys(known, 0)
    for seed in range(trials):
        for name, found in correlations(*drawn(n, seed)).items():
            if found.low is None:
                refused[name] += 1
            else:
                missed[name] += not found.low <= known[name] <= found.high
    assert refused["spearman"] == 0
    for name, count in missed.items():
        assert stats.binom.sf(count - 1, trials, 0.07) > 1e-3, (name, count)
    if law == "zipf" and n == 200:
        assert refused["pearson"] > 0.9 * trials
    if n < FEWEST_FOR_TAILS:
        assert refused["pearson"] == trials
    elif law == "gaussian":
        assert refused["pearson"] < 0.1 * trials


def test_few_or_constant_types_give_no_number():
    assert math.isnan(float(correlations(torch.arange(5.0), torch.arange(5.0))["pearson"]))
    found = correlations(torch.arange(50.0), torch.ones(50))["spearman"]
    assert math.isnan(float(found))
    assert "constant" in found.note
    with pytest.raises(BrokenRuleError, match="finite"):
        correlations(torch.full((50,), -math.inf), torch.arange(50.0))


def cloud(boost, *, sequences=40, length=30, width=24, rank=4, seed=0):
    """Gradients whose energy inside the first axes grows by a factor from bin to bin."""
    generator = torch.Generator().manual_seed(seed)
    n = sequences * length
    bins = torch.randint(0, 5, (n,), generator=generator)
    rows = torch.randn(n, width, generator=generator).double()
    # Sequences differ as wholes, so that tokens of one are not independent.
    rows = rows * (0.3 * torch.randn(sequences, 1, generator=generator)).exp().repeat_interleave(length, 0)
    rows[:, :rank] *= (boost ** (bins.double() / 2))[:, None]
    groups = torch.arange(n) // length
    return rows, bins, groups, Subspace(torch.eye(width)[:, :rank].double())


def judged(rows, bins, groups, subspace):
    inside, outside, _ = row_energies(rows, subspace)
    units = ByUnit.of({"inside": inside, "outside": outside}, bins, groups)
    return enrichment_by_bin(units, rank=subspace.rank, width=subspace.width)


def test_enrichment_by_bin_is_what_a_loop_finds_and_the_trend_is_the_planted_one():
    rows, bins, groups, subspace = cloud(2.0)
    found, trend = judged(rows, bins, groups, subspace)
    for k, estimate in enumerate(found):
        chosen = rows[bins == k]
        inside = float(chosen[:, :4].square().sum())
        outside = float(chosen[:, 4:].square().sum())
        assert float(estimate) == pytest.approx((inside / 4) / (outside / 20))
        assert estimate.n == len(chosen)
    assert trend.p < 1e-6


def test_intervals_of_bins_and_of_the_trend_cover_the_planted_truth():
    bins = slopes = 0
    for seed in range(60):
        found, trend = judged(*cloud(2.0, seed=seed))
        bins += sum(estimate.low < 2.0**k < estimate.high for k, estimate in enumerate(found))
        slopes += trend.slope.low < math.log(2) < trend.slope.high
    assert stats.binom.cdf(bins, 300, 0.95) > 1e-3  # 0.94 over 200 clouds
    assert stats.binom.cdf(slopes, 60, 0.95) > 1e-3
    assert bins < 300


def test_the_trend_is_calibrated_where_there_is_none():
    found = [judged(*cloud(1.0, seed=seed))[1].p for seed in range(150)]
    below = sum(p < 0.05 for p in found)
    assert below > 0
    assert stats.binom.sf(below - 1, 150, 0.05) > 1e-3


def test_an_empty_bin_says_so():
    rows, bins, groups, subspace = cloud(2.0)
    bins[bins == 3] = 2
    found, trend = judged(rows, bins, groups, subspace)
    assert math.isnan(float(found[3]))
    assert found[3].note == "no tokens in this bin"
    assert math.isfinite(float(trend.slope))
    nothing, trend = judged(rows, torch.full_like(bins, -1), groups, subspace)
    assert all(math.isnan(float(estimate)) for estimate in nothing)
    assert trend.p is None


def test_folds_are_pooled_as_units():
    rows, bins, groups, subspace = cloud(2.0)
    inside, outside, _ = row_energies(rows, subspace)
    columns = {"inside": inside, "outside": outside}
    half = groups < 20
    first, second = (
        ByUnit.of({name: c[part] for name, c in columns.items()}, bins[part], groups[part]) for part in (half, ~half)
    )
    together = first.and_also(second)
    whole = ByUnit.of(columns, bins, groups)
    pairs = (ratio_by_bin(each, "inside", "outside")[0] for each in (together, whole))
    for a, b in zip(*pairs, strict=True):
        assert (float(a), a.low, a.high) == pytest.approx((float(b), b.low, b.high))


def test_shares_add_up_and_isotropy_is_lost_where_it_was_planted():
    rows, bins, groups, _ = cloud(3.0)
    second = rows.T @ rows
    losses = isotropy_losses(rows, second)
    traceless = second - second.trace() / 24 * torch.eye(24).double()
    assert float(losses.sum()) == pytest.approx(float(traceless.square().sum()))
    tiny = isotropy_losses(rows * 1e-12, second * 1e-24)  # as gradients are: shares do not depend on their scale
    torch.testing.assert_close(tiny * 1e48, losses)
    units = ByUnit.of({"energy": rows.square().sum(1), "loss": losses}, bins, groups)
    for what in ("energy", "loss"):
        *shares, rest = shares_by_bin(units, what)
        assert sum(map(float, shares)) == pytest.approx(1)
        assert all(share.low < float(share) < share.high for share in shares)
        assert rest.note == "every token is in a bin"
        assert all(share.low is None for share in shares_by_bin(units, what, intervals=False))
    of_energy, of_loss = (list(map(float, shares_by_bin(units, what))) for what in ("energy", "loss"))
    assert of_loss[4] > of_energy[4] > of_energy[0] > of_loss[0]


def test_spread_and_distance_of_types_are_unbiased_for_few_vectors():
    generator = torch.Generator().manual_seed(0)
    width, types = 40, 400
    centres = 3 * torch.nn.functional.normalize(torch.randn(types, width, generator=generator), dim=1)
    number = torch.tensor([4, 40]).repeat(types // 2)
    tokens = torch.arange(types).repeat_interleave(number)
    rows = centres[tokens] + torch.randn(len(tokens), width, generator=generator) / math.sqrt(width)
    sequences = torch.cat([torch.arange(int(n)) for n in number])
    found = by_type(rows, tokens, sequences, least=4)
    distance, spread = found.distance(torch.zeros(width)), found.spread
    for few in (True, False):
        chosen = (number == 4) == few
        assert float(spread[chosen].square().mean()) == pytest.approx(1.0, rel=0.02)
        assert float(distance[chosen].square().mean()) == pytest.approx(9.0, rel=0.02)
    fewer = by_type(rows, tokens, sequences, least=5)
    assert len(fewer.ids) == types // 2
    assert (fewer.place >= 0).sum() == 40 * types // 2


def test_bursts_do_not_look_like_small_spread():
    """Types of one spread, half of it between sequences; some come in bursts of 5, 3, 2, 1 and 1 within a sequence."""
    generator = torch.Generator().manual_seed(1)
    width, types = 30, 600
    bursty = torch.arange(types) % 2 == 0
    tokens = torch.arange(types).repeat_interleave(12)
    burst = torch.tensor([0, 0, 0, 0, 0, 5, 5, 5, 8, 8, 10, 11]).repeat(types)
    alone = torch.arange(len(tokens))
    sequences = torch.where(bursty[tokens], tokens * 12 + burst, alone)
    shared = torch.randn(len(tokens), width, generator=generator)[sequences]
    rows = (shared + torch.randn(len(tokens), width, generator=generator)) / math.sqrt(2 * width)
    found = by_type(rows, tokens, sequences)
    assert found.ids.tolist() == list(range(types))
    for chosen in (bursty, ~bursty):
        assert float(found.spread[chosen].square().mean()) == pytest.approx(1.0, rel=0.02)
        true = found.means[chosen].square().sum(1).mean()  # all means are 0 but for their noise
        assert float(found.noise[chosen].mean()) == pytest.approx(float(true), rel=0.05)
    k = 7
    own = tokens == k
    assert float(found.spread[k]) == pytest.approx(slow.spread(rows[own].double(), sequences[own]), rel=1e-6)
    assert float(found.noise[k]) == pytest.approx(slow.noise(rows[own].double(), sequences[own]), rel=1e-6)


def test_rows_in_no_bin_have_their_share():
    rows, bins, groups, _ = cloud(3.0)
    energy = rows.square().sum(1)
    bins[(bins == 1) & (groups % 2 == 0)] = -1
    bins[bins == 3] = 2
    shares = shares_by_bin(ByUnit.of({"energy": energy}, bins, groups), "energy")
    for k, share in zip((0, 1, 2, 4, -1), (*shares[:3], *shares[4:]), strict=True):
        assert float(share) == pytest.approx(float(energy[bins == k].sum() / energy.sum()))
    assert math.isnan(float(shares[3]))
    assert shares[3].note == "no tokens in this bin"
    assert shares[5].n == int((bins == -1).sum())
