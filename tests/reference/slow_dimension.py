"""Intervals of dimensions and the notice of ties, by loops over pairs of points."""

import math

import numpy as np
from scipy import stats


def neighbours(x, k):
    """Distances and numbers of the k nearest other rows, by sorting all of them."""
    found = []
    for i, row in enumerate(x):
        order = sorted((float(np.linalg.norm(row - other)), j) for j, other in enumerate(x) if j != i)[:k]
        found.append(order)
    return np.array([[r for r, _ in row] for row in found]), [[j for _, j in row] for row in found]


def tied(x, slack=1e-9):
    """Share of points whose two nearest neighbours are equally far."""
    r, _ = neighbours(x, 2)
    return sum(math.log(second / first) < slack for first, second in r) / len(x)


def widening(score, near):
    """Error of a sum of scores over that of independent ones: two points go together by the neighbours they share."""
    off, balls = np.array(score) - np.mean(score), [{i, *js} for i, js in enumerate(near)]
    k = len(near[0])
    total = sum(
        a * b * len(p & q) / (k + 1) for a, p in zip(off, balls, strict=True) for b, q in zip(off, balls, strict=True)
    )
    return max(1.0, math.sqrt(total / (off @ off)))


def two_nn_interval(x):
    """Of the maximum-likelihood TwoNN: the gamma law, widened."""
    r, near = neighbours(x, 2)
    log_mu = [math.log(second / first) for first, second in r]
    n, total = len(x), sum(log_mu)
    value, w = (n - 1) / total, widening(log_mu, near)
    ends = [stats.gamma.ppf(share, n) / total for share in (0.025, 0.975)]
    return value, *(value * (end / value) ** w for end in ends)


def gride_interval(x, order):
    """The peak of the likelihood of ``r_2n/r_n`` and where it has lost 1.92, by bisection; widened."""
    r, near = neighbours(x, 2 * order)
    mu = [row[2 * order - 1] / row[order - 1] for row in r]

    def likelihood(d):
        return sum(math.log(d) + (order - 1) * math.log(m**d - 1) - (d * (2 * order - 1) + 1) * math.log(m) for m in mu)

    def slope(d):
        return (likelihood(d * (1 + 1e-5)) - likelihood(d * (1 - 1e-5))) / 2e-5

    peak = _bisect(slope, 0.2, 60.0)
    drop = stats.chi2.ppf(0.95, 1) / 2
    low = _bisect(lambda d: drop - likelihood(peak) + likelihood(d), peak, 0.2)
    high = _bisect(lambda d: drop - likelihood(peak) + likelihood(d), peak, 60.0)
    step = 1e-6
    score = [(_single(m, order, peak * (1 + step)) - _single(m, order, peak * (1 - step))) / (2 * step) for m in mu]
    w = widening(score, near)
    return peak, *(peak * (end / peak) ** w for end in (low, high))


def _single(m, order, d):
    return math.log(d) + (order - 1) * math.log(m**d - 1) - (d * (2 * order - 1) + 1) * math.log(m)


def _bisect(function, positive, negative):
    for _ in range(60):
        middle = (positive + negative) / 2
        positive, negative = (middle, negative) if function(middle) > 0 else (positive, middle)
    return positive


def gaussian_of_equal_moments(x, rng):
    """Rows mixed by an explicit random rotation of R^N that leaves the mean alone."""
    n, middle = len(x), x.mean(0)
    basis = np.linalg.qr(np.column_stack([np.ones(n), rng.normal(size=(n, n - 1))]))[0][:, 1:]
    q, r = np.linalg.qr(rng.normal(size=(n - 1, n - 1)))
    turn = q * np.sign(np.diag(r))
    return middle + basis @ (turn @ (basis.T @ (x - middle)))
