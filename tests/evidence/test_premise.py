"""The theory's premise at a linear layer, against loops over tokens and planted cancellation."""

import math

import pytest
import torch

from anisoscope.evidence.premise import premise
from anisoscope.evidence.units import BilinearUnits

SEQUENCES, LENGTH, WIDTH, OUT, RANK = 24, 16, 10, 6, 3
BASIS = torch.eye(WIDTH, dtype=torch.float64)[:, :RANK]


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def units(x, d):
    n = torch.arange(len(x))
    return BilinearUnits(n, x, d, BASIS, n)


def slow(x, d):
    """γ of both parts, token by token."""
    found = []
    for part in (slice(RANK), slice(RANK, None)):
        parts = [torch.outer(b, a) for a, b in zip(x.flatten(0, 1)[:, part], d.flatten(0, 1), strict=True)]
        found.append(float(sum(parts).norm() / sum(p.norm() for p in parts)))
    return found


def test_it_is_that_of_loops_over_tokens():
    x, d = normal(SEQUENCES, LENGTH, WIDTH) + 0.5, normal(SEQUENCES, LENGTH, OUT, seed=1) + 0.3
    tangent, other = slow(x, d)
    found = premise([units(x, d)])
    assert float(found.tangent) == pytest.approx(tangent)
    assert float(found.normal) == pytest.approx(other)
    assert float(found.quotient) == pytest.approx(tangent / other)
    assert found.tangent.n == SEQUENCES * LENGTH
    both = premise([units(x[:12], d[:12]), units(x[12:], d[12:])])
    halves = [slow(x[:12], d[:12])[0], slow(x[12:], d[12:])[0]]
    assert float(both.tangent) == pytest.approx(math.sqrt(sum(h * h for h in halves) / 2))


def planted(tangent_mean, normal_mean, seed):
    """Inputs with a mean of their own in either part, against error signals that all point one way."""
    x = normal(SEQUENCES, LENGTH, WIDTH, seed=seed)
    x[..., :RANK] += tangent_mean
    x[..., RANK:] += normal_mean
    d = 1 + 0.3 * normal(SEQUENCES, LENGTH, OUT, seed=1000 + seed)
    return premise([units(x[::2], d[::2]), units(x[1::2], d[1::2])], seed=seed)


def test_it_holds_and_fails_where_that_was_planted():
    assert planted(2.0, 0.1, 0).verdict == "holds"
    fails = planted(0.0, 2.0, 0)
    assert fails.verdict == "fails"
    assert fails.p > 0.01  # what is left of the tangent parts is what random signs leave
    assert planted(2.0, 0.1, 0).p < 0.01
    assert fails.tangent.low == 0.0


def test_equal_parts_are_rarely_told_apart():
    """The two parts have the same γ here, and an interval of 95 % may miss that in about 5 % of cases."""
    x_mean, cases = 0.6, 120
    missed = 0
    for seed in range(cases):
        x = normal(SEQUENCES, LENGTH, 2 * RANK, seed=seed) + x_mean
        d = 1 + 0.3 * normal(SEQUENCES, LENGTH, OUT, seed=5000 + seed)
        n = torch.arange(12)
        basis = torch.eye(2 * RANK, dtype=torch.float64)[:, :RANK]
        folds = [BilinearUnits(n, x[k::2], d[k::2], basis, n) for k in (0, 1)]
        missed += premise(folds, draws=9).verdict != "cannot tell"
    assert missed <= 14  # 97.5 % of binomial(120, 0.07)


def test_the_counter_example_fails():
    """x = (u, u²) on mirrored u: every token's tangent part is larger, and in the sum it is gone."""
    u = 0.1 * (2 * torch.rand(SEQUENCES, LENGTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1)
    u = torch.cat([u, -u], 1)
    basis, n = torch.eye(2, dtype=torch.float64)[:, :1], torch.arange(SEQUENCES)
    found = premise([BilinearUnits(n, torch.stack([u, u * u], 2), torch.ones(*u.shape, 1).double(), basis, n)])
    assert float(found.tangent) < 1e-12
    assert float(found.normal) == pytest.approx(1.0)
    assert found.verdict != "holds"


def test_too_little_says_so():
    x, d = normal(1, LENGTH, WIDTH), normal(1, LENGTH, OUT, seed=1)
    found = premise([units(x, d)])
    assert found.quotient.note == "fewer than 2 sequences"
    assert found.verdict == "cannot tell"
    x, d = normal(SEQUENCES, LENGTH, WIDTH), normal(SEQUENCES, LENGTH, OUT, seed=1)
    x[..., :RANK] = 0
    assert premise([units(x, d)]).quotient.note == "one of the two parts is 0 everywhere"
