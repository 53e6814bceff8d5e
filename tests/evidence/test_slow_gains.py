"""Intervals of the isotropy gain and of the captured share over two folds, against covariances made again."""

import numpy as np
import pytest
import torch

from anisoscope import Subspace, cross_fit, cross_fit_weight
from anisoscope.testing import rotation
from reference import slow_jackknife
from reference.slow_evidence import isoscore_star, isotropy_gain

RANK, ZETA = 3, 0.2


def fixed(rows):
    """A proxy that depends on the fold it is fitted on."""
    return Subspace(rotation(rows.shape[1], seed=len(rows))[:, :RANK].contiguous())


def clouds_of_rows(kept):
    return [np.concatenate(fold) for fold in kept]


def clouds_of_weight(kept):
    """The rows of the gradient, which is a sum over tokens."""
    return [sum(np.outer(d, x) for unit in fold for x, d in unit) for fold in kept]


def statistics(clouds_of, bases):
    """Gain and captured share, both means over folds before they are divided."""

    def parts(kept):
        found = []
        for cloud, q in zip(clouds_of(kept), bases, strict=True):
            c = np.cov(cloud, rowvar=False, bias=True)
            before = isoscore_star(c, np.trace(c) / len(c) * np.eye(len(c)), ZETA)
            found.append((before, isotropy_gain(c, q, ZETA)))
        return np.mean(found, 0)

    return (lambda kept: parts(kept)[1]), (lambda kept: parts(kept)[1] / (1 - parts(kept)[0]))


def same(found, folds, clouds_of):
    first, second = (subspace.basis.numpy() for subspace in found.subspaces)
    estimates = found.isotropy_gain_estimate, found.captured_estimate
    for estimate, statistic in zip(estimates, statistics(clouds_of, (second, first)), strict=True):
        assert estimate.value == pytest.approx(statistic(folds), rel=1e-8)
        assert (estimate.low, estimate.high) == pytest.approx(slow_jackknife.interval(folds, statistic), rel=1e-6)
        error, df = slow_jackknife.error_and_df(slow_jackknife.without_each(folds, statistic))
        assert (estimate.se, estimate.df) == pytest.approx((error, df), rel=1e-6)


def sequences(seed, columns, length, n=17):
    generator = torch.Generator().manual_seed(seed)
    g = torch.randn(n, length, columns, generator=generator, dtype=torch.float64) * torch.linspace(3, 0.4, columns)
    return g * torch.randn(n, 1, 1, generator=generator, dtype=torch.float64).mul(0.2).exp() + 0.3


def test_of_rows():
    g, side = sequences(1, 8, 5), torch.arange(17) % 2
    found = cross_fit(g, g, method=fixed, folds=side, resamples=9)
    same(found, [list(g[fold == side].numpy()) for fold in (0, 1)], clouds_of_rows)


def test_of_the_gradient_of_a_weight():
    x, d, side = sequences(2, 8, 6), sequences(3, 5, 6), torch.arange(17) % 2
    found = cross_fit_weight(x, d, method=fixed, folds=side, nulls=("haar",), resamples=9)
    tokens = [[list(zip(a, b, strict=True)) for a, b in zip(x.numpy(), d.numpy(), strict=True)]]
    same(found, [[tokens[0][k] for k in range(17) if int(side[k]) == fold] for fold in (0, 1)], clouds_of_weight)
