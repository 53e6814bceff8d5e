"""The theory's premise at a linear layer, against loops over tokens and planted cancellation."""

import math

import numpy as np
import pytest
import torch
from tests.reference import slow_premise

from anisoscope.evidence.premise import Premise, premise
from anisoscope.evidence.units import BilinearUnits
from anisoscope.geometry.results import Estimate

SEQUENCES, LENGTH, WIDTH, OUT, RANK = 24, 16, 10, 6, 3
REFUSED = "no quotient, the {} parts may cancel completely"


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def units(x, d):
    n, basis = torch.arange(len(x)), torch.eye(x.shape[2], dtype=torch.float64)[:, :RANK]
    return BilinearUnits(n, x, d, basis, n)


def slow(x, d):
    """γ of both parts, token by token."""
    found = []
    for part in (slice(RANK), slice(RANK, None)):
        parts = [torch.outer(b, a) for a, b in zip(x.flatten(0, 1)[:, part], d.flatten(0, 1), strict=True)]
        found.append(float(torch.stack(parts).sum(0).norm() / sum(p.norm() for p in parts)))
    return found


def test_both_parts_are_those_of_loops_over_tokens():
    x, d = normal(SEQUENCES, LENGTH, WIDTH) + 0.5, normal(SEQUENCES, LENGTH, OUT, seed=1) + 0.3
    tangent, other = slow(x, d)
    found = premise([units(x, d)])
    assert float(found.tangent) == pytest.approx(tangent)
    assert float(found.normal) == pytest.approx(other)
    assert found.tangent.n == SEQUENCES * LENGTH
    both = premise([units(x[:12], d[:12]), units(x[12:], d[12:])])
    halves = [slow(x[:12], d[:12])[0], slow(x[12:], d[12:])[0]]
    assert float(both.tangent) == pytest.approx(math.sqrt(sum(h * h for h in halves) / 2))


@pytest.mark.parametrize("shift", [(0.9, 0.5), (0.5, 0.9)])
def test_the_quotient_is_that_of_pairs_of_sequences(shift):
    """Another route: pairs of different sequences, sequences really left out, the interval by a scan."""
    x = normal(14, 5, 7, seed=2)
    x[..., :RANK] += shift[0]
    x[..., RANK:] += shift[1]
    d = (1 + 0.4 * normal(14, 5, 3, seed=3)) * normal(14, 1, 1, seed=4).mul(0.4).exp()
    found = premise([units(x[:8], d[:8]), units(x[8:], d[8:])])
    folds = [(x[:8].numpy(), d[:8].numpy()), (x[8:].numpy(), d[8:].numpy())]
    value, low, high = slow_premise.quotient(folds, RANK)
    assert [found.quotient.value, found.quotient.low, found.quotient.high] == pytest.approx([value, low, high])
    above, below = slow_premise.both_squares(folds, RANK)
    assert found.difference.value == pytest.approx(above - below)


def test_without_noise_it_is_the_closed_form():
    """δ = 1 and x = (±1 with probability p of +1, 1): γ^T is 2p − 1 and γ^N is 1, whatever the sequences are."""
    basis, n = torch.eye(2, dtype=torch.float64)[:, :1], torch.arange(10)
    x = torch.ones(10, 8, 2, dtype=torch.float64)
    x[:, :2, 0] = -1  # in every sequence a quarter
    found = premise([BilinearUnits(n, x, torch.ones(10, 8, 1).double(), basis, n)])
    assert found.quotient.value == pytest.approx(0.5)
    assert (found.quotient.low, found.quotient.high) == pytest.approx((0.5, 0.5))
    assert found.outcome() == "below"


def planted(n, tangent, other, seed, *, noise=0.0, tails=0.0):
    """Folds of n sequences: a common part by mean, noise of tokens and of sequences, sizes with tails."""
    folds = []
    for fold in range(2):
        rng = np.random.default_rng((seed, n, fold))
        means = np.repeat([tangent, other], RANK)
        x = rng.normal(size=(n, 12, 2 * RANK)) + noise * rng.normal(size=(n, 1, 2 * RANK)) + means
        d = 1 + 0.5 * rng.normal(size=(n, 12, 4)) + noise * rng.normal(size=(n, 1, 4))
        d *= np.exp(tails * rng.normal(size=(n, 1, 1)))
        folds.append(units(torch.tensor(x), torch.tensor(d)))
    return premise(folds, draws=1)


def true_gammas(tangent, other, noise):
    """``‖E S‖/E L`` of either side: sizes of sequences, error signals and inputs are independent of one another."""
    rng = np.random.default_rng(0)
    x = math.hypot(1, noise) * rng.normal(size=(400_000, RANK))
    delta = np.linalg.norm(1 + math.hypot(0.5, noise) * rng.normal(size=(400_000, 4)), axis=1).mean()
    return [2 * m * math.sqrt(RANK) / (delta * np.linalg.norm(x + m, axis=1).mean()) for m in (tangent, other)]


def true_quotient(tangent, other, noise):
    above, below = true_gammas(tangent, other, noise)
    return above / below


def test_the_quotient_does_not_depend_on_how_many_sequences_there_are():
    """The plain one does: few sequences carry it towards 1."""
    above, below = true_gammas(0.3, 0.8, 0.5)
    by_number = {n: [planted(n, 0.3, 0.8, seed, noise=0.5) for seed in range(150)] for n in (8, 32)}
    for found in by_number.values():
        differences = [f.difference.value for f in found]
        error = np.std(differences) / math.sqrt(len(differences))
        assert np.mean(differences) == pytest.approx(above**2 - below**2, abs=4 * error)
    issued = [f.quotient.value for f in by_number[32] if f.quotient.low is not None]
    assert len(issued) > 120
    assert np.median(issued) == pytest.approx(above / below, rel=0.05)
    plain = np.median([f.tangent.value / f.normal.value for f in by_number[8]])
    assert plain > 1.1 * above / below


@pytest.mark.parametrize(
    ("n", "tangent", "other", "noise", "tails"),
    [(16, 0.6, 0.6, 0.3, 0.0), (32, 0.5, 0.5, 0.5, 0.7), (32, 0.3, 0.8, 0.5, 0.0), (32, 0.8, 0.3, 0.5, 0.5)],
)
def test_the_interval_covers_and_the_verdict_is_rarely_wrong(n, tangent, other, noise, tails):
    truth = true_quotient(tangent, other, noise)
    found = [planted(n, tangent, other, seed, noise=noise, tails=tails) for seed in range(150)]
    issued = [f.quotient for f in found if f.quotient.low is not None]
    covered = sum(q.low <= truth <= q.high for q in issued)
    assert len(issued) > 60
    assert covered >= 0.9 * len(issued)
    right = {"cannot tell", "equal" if tangent == other else "above" if tangent > other else "below"}
    assert sum(f.outcome() not in right for f in found) <= 14  # 99 % of binomial(150, 0.05)


def test_a_quotient_of_noise_is_refused():
    """Where nothing is common to the sequences there is no quotient, and no verdict either."""
    found = [planted(16, 0.0, 0.0, seed, noise=0.5) for seed in range(100)]
    assert sum(f.quotient.low is not None for f in found) <= 2
    assert all(math.isnan(f.quotient.value) for f in found if f.quotient.low is None)
    assert sum(f.outcome() != "cannot tell" for f in found) <= 11  # 99 % of binomial(100, 0.05)
    assert found[0].quotient.note == REFUSED.format("tangent and the normal")


def test_a_verdict_needs_no_quotient():
    """One part cancels, the other does not: no quotient, but which is larger is clear."""
    fails, holds = planted(24, 0.0, 1.5, 0), planted(24, 1.5, 0.0, 1)
    assert fails.quotient.note == REFUSED.format("tangent")
    assert fails.outcome() == "below"
    assert fails.tangent.low == 0.0
    assert fails.normal.low > 0.5
    assert holds.quotient.note == REFUSED.format("normal")
    assert holds.outcome() == "above"


def test_what_would_have_been_seen_lies_beyond_the_interval_and_shrinks_with_sequences():
    few, many = (planted(n, 0.6, 0.6, 0, noise=0.3) for n in (16, 64))
    for found in (few, many):
        q = found.quotient
        assert found.detectable > max(q.high / q.value, q.value / q.low)
    assert many.detectable < few.detectable
    assert planted(16, 0.0, 0.0, 0, noise=0.5).detectable is None


def test_it_holds_and_fails_where_that_was_planted():
    def made(tangent_mean, normal_mean):
        x = normal(SEQUENCES, LENGTH, WIDTH)
        x[..., :RANK] += tangent_mean
        x[..., RANK:] += normal_mean
        d = 1 + 0.3 * normal(SEQUENCES, LENGTH, OUT, seed=1000)
        return premise([units(x[::2], d[::2]), units(x[1::2], d[1::2])])

    assert made(2.0, 0.5).outcome() == "above"
    assert made(2.0, 0.5).quotient.low > 1
    assert made(2.0, 0.5).p < 0.01
    fails = made(0.0, 2.0)
    assert fails.outcome() == "below"
    assert fails.p > 0.01  # what is left of the tangent parts is what random signs leave


def test_the_counter_example_fails():
    """x = (u, u²) on mirrored u: every token's tangent part is larger, and in the sum it is gone."""
    u = 0.1 * (2 * torch.rand(SEQUENCES, LENGTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1)
    u = torch.cat([u, -u], 1)
    basis, n = torch.eye(2, dtype=torch.float64)[:, :1], torch.arange(SEQUENCES)
    found = premise([BilinearUnits(n, torch.stack([u, u * u], 2), torch.ones(*u.shape, 1).double(), basis, n)])
    assert float(found.tangent) < 1e-12
    assert float(found.normal) == pytest.approx(1.0)
    assert found.quotient.note == REFUSED.format("tangent")
    assert found.outcome() == "below"


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.0, 2.0, "above"),
        (0.99, 2.0, "cannot tell"),
        (0.5, 1.0, "cannot tell"),
        (0.5, 0.99, "below"),
        (0.9, 1.1, "equal"),
        (1.0, 1.2, "equal, above 1"),
    ],
)
def test_the_outcome_follows_the_quotient_where_there_is_one(low, high, verdict):
    nothing = Estimate(value=math.nan, n=1)
    quotient = Estimate(value=1.0, low=low, high=high, n=1)
    against = Estimate(value=0.1, low=-0.3, high=-0.2, n=1)
    assert Premise(tangent=nothing, normal=nothing, quotient=quotient, difference=against, p=1).outcome() == verdict


def test_too_little_says_so():
    x, d = normal(1, LENGTH, WIDTH), normal(1, LENGTH, OUT, seed=1)
    found = premise([units(x, d)])
    assert found.quotient.note == "fewer than 2 sequences"
    assert found.outcome() == "not measured"
    x, d = normal(SEQUENCES, LENGTH, WIDTH), normal(SEQUENCES, LENGTH, OUT, seed=1)
    few = premise([units(x[:2] + 1, d[:2] + 1)])
    assert few.quotient.note == "2 sequences in a fold, fewer than 4"
    assert few.tangent.value > 0
    assert few.tangent.low is None
    large = d + 1
    large[:3] *= 100
    dominated = premise([units(x + 1, large)])
    assert "effective units, fewer than 8" in dominated.quotient.note
    assert dominated.outcome() == "cannot tell"
    x[..., :RANK] = 0
    assert premise([units(x, d)]).quotient.note == "one of the two parts is 0 everywhere"
