"""Intrinsic dimension from distances to neighbours.

Letters: N distinct points; r₁ ≤ r₂ ≤ … distances of a point to its neighbours.

All three estimators rest on one law: if density is constant over the neighbourhood, ``d·log(r_b/r_a)`` has a known
distribution whatever the density is. Duplicates break it and are removed first; so do lattices and rounded numbers,
whose neighbours tie: there the dimension is undefined. Finite samples bias every estimate down (a true 40 measures
27-28 at N = 2 000): compare at equal N only. An interval is the sampling error of the estimator at this N; it does not
cover the dimension itself, which the bias puts outside. How large the bias is shows in the same estimate on
``gaussian_like(x)``, a Gaussian cloud of the same covariance and N (the ``floor`` of dimensions in every table): an
estimate at that level says no more than the covariance does, one clearly below it is owed to structure.

Each takes the rows, or a ``Neighbours`` computed once for several measures.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from scipy import optimize, stats

from anisoscope.errors import broken
from anisoscope.geometry.cloud import Cloud
from anisoscope.geometry.neighbours import Neighbours, as_neighbours
from anisoscope.geometry.results import DimensionEstimate, ScaleCurve, ScalePoint

_Z95 = 1.959964
DISCARD = 0.1
_EQUAL_DISTANCES = "all neighbours of a point are equally far (a lattice?), so their ratios carry no dimension"
_MOST_TIES = 0.05  # of points whose two nearest neighbours are equally far: a continuous law has none
_TIED = 1e-9


def two_nn(
    x: Cloud | Neighbours, discard: float = DISCARD, variant: Literal["fit", "mle"] = "fit"
) -> DimensionEstimate:
    """TwoNN (Facco et al. 2017): the dimension from ``μ = r₂/r₁`` alone.

    ``"fit"`` is the slope through the origin of ``−log(1−F)`` on ``log μ`` over the smallest ``1 − discard`` of the
    ratios; ``"mle"`` is ``(N−1)/Σ log μ`` over all of them. Intervals come from the gamma law for ``"mle"`` and from
    exponential order statistics for ``"fit"``, both widened because neighbours share neighbours.

    >>> import torch
    >>> x = torch.rand(2000, 3, generator=torch.Generator().manual_seed(0))
    >>> 2.8 < float(two_nn(x)) < 3.2
    True
    """
    if not 0 <= discard < 1:
        raise broken("discard must lie in 0 ≤ discard < 1", discard, "use 0.1")
    if variant not in ("fit", "mle"):
        raise broken("variant must be 'fit' or 'mle'", repr(variant), "use 'fit'")
    found = as_neighbours(x, 2)
    problem = _problem(found)
    if problem:
        return _undefined(found, problem)
    log_mu = _log_ratio(found, 2, 1)
    n = log_mu.size
    if not log_mu.any():
        return _undefined(found, _EQUAL_DISTANCES)
    widening = _widening(found, log_mu, 2)
    log_mu.sort()
    if variant == "mle":
        total = log_mu.sum()
        value = (n - 1) / total
        factors = stats.chi2.ppf([0.025, 0.975], 2 * n) / (2 * total) / value
        low, high = value * factors**widening
        return _estimate(found, value, low, high)
    keep = min(math.floor(n * (1 - discard) + 1e-9), n - 1)
    ranks = np.arange(1, keep + 1)
    y = -np.log1p(-ranks / n)
    if not log_mu[:keep].any():
        return _undefined(found, f"the {keep} ratios kept are all 1; lower discard or pass more points")
    slope = float(y @ log_mu[:keep] / (log_mu[:keep] @ log_mu[:keep]))
    half = _Z95 * widening * _slope_error(y, n)
    return _estimate(found, slope, slope * math.exp(-half), slope * math.exp(half))


def levina_bickel(x: Cloud | Neighbours, k: int = 20) -> DimensionEstimate:
    """Levina & Bickel (2004), averaged as MacKay & Ghahramani (2005) advise: inverse of the mean ``log(r_k/r_j)``.

    The mean is over points and ``j < k``. The interval allows for neighbourhoods that share points.
    """
    if k < 2:
        raise broken("k must be at least 2", k, "use 20")
    found = as_neighbours(x, k)
    problem = _problem(found)
    if problem:
        return _undefined(found, problem)
    if found.n <= k:
        raise broken(f"k must be at most {found.n - 1} for {found.n} distinct rows", k, "lower k or pass more points")
    logs = np.log(found.distances[:, :k].cpu().numpy())
    means = (logs[:, -1:] - logs[:, :-1]).mean(1)
    mean = float(means.mean())
    if mean == 0:
        return _undefined(found, _EQUAL_DISTANCES)
    half = _Z95 * math.sqrt(_variance_of_sum(found, means, k)) / found.n / mean
    return _estimate(found, 1 / mean, math.exp(-half) / mean, math.exp(half) / mean)


def gride(x: Cloud | Neighbours) -> ScaleCurve:
    """Gride (Denti et al. 2022): the dimension from ``r_2n/r_n`` for n = 1, 2, 4, … ≤ min(32, (N−1)/4).

    One dimension at all scales makes a flat curve; noise at small scales makes it fall, curvature or structure can make
    it rise. Intervals are those of the likelihood, widened because neighbours share neighbours.
    """
    found = as_neighbours(x, 64)
    n = found.n
    orders = [order for order in (1, 2, 4, 8, 16, 32) if order <= (n - 1) / 4]
    problem = _problem(found) or (None if orders else f"only {n} distinct rows are left; at least 5 are needed")
    points = () if problem else tuple(_gride_point(found, order) for order in orders)
    first = points[0] if points else None
    return ScaleCurve(
        value=first.value if first else math.nan,
        low=first.low if first else None,
        high=first.high if first else None,
        n=n,
        note=problem or (first.note if first else None),
        exact_duplicates=found.exact_duplicates,
        near_duplicates=found.near_duplicates,
        points=points,
    )


def _gride_point(found: Neighbours, order: int) -> ScalePoint:
    every = _log_ratio(found, 2 * order, order)
    radius = float(found.distances[:, 2 * order - 1].mean())
    if not every.any():
        return ScalePoint(value=math.nan, n=found.n, note=_EQUAL_DISTANCES, order=order, radius=radius)
    kept = every > 0 if order > 1 else np.ones(every.size, dtype=bool)
    log_mu = every[kept]
    total = log_mu.sum()

    def log_likelihood(dimension: float) -> float:
        # log of d(μ^d − 1)^(n−1) / μ^(d(2n−1)+1), with μ^d − 1 = μ^d (1 − μ^−d); terms free of d are left out
        inner = np.log(-np.expm1(-dimension * log_mu)).sum() if order > 1 else 0.0
        return log_mu.size * math.log(dimension) + (order - 1) * inner - dimension * order * total

    def scores(t: float) -> np.ndarray:
        dimension = math.exp(t)
        inner = log_mu / np.expm1(dimension * log_mu) if order > 1 else 0.0
        return 1 + dimension * ((order - 1) * inner - order * log_mu)

    def score(t: float) -> float:
        return float(scores(t).sum())

    # E[log μ] = (1/d)·Σ_{j=n}^{2n−1} 1/j: the method of moments starts the search beside the peak.
    start = math.log(log_mu.size * sum(1 / j for j in range(order, 2 * order)) / total)
    below, above = _beyond(lambda t: -score(t), start, -0.01), _beyond(score, start, 0.01)
    peak = _root(score, below, above)
    top = log_likelihood(math.exp(peak))
    drop = float(stats.chi2.ppf(0.95, 1)) / 2

    def excess(t: float) -> float:
        return log_likelihood(math.exp(t)) - top + drop

    by_point = np.zeros(found.n)
    by_point[kept] = scores(peak)
    widening = _widening(found, by_point, 2 * order)
    low, high = (peak + widening * (_root(excess, peak, _beyond(excess, peak, step)) - peak) for step in (-0.01, 0.01))
    return ScalePoint(
        value=math.exp(peak), low=math.exp(low), high=math.exp(high), n=found.n, order=order, radius=radius
    )


def _problem(found: Neighbours) -> str | None:
    """Why no dimension should be read off these neighbours, if so."""
    if found.problem or found.distances.shape[1] < 2:
        return found.problem
    log_mu = _log_ratio(found, 2, 1)
    if not log_mu.any():
        return _EQUAL_DISTANCES
    ties = float((log_mu < _TIED).mean())
    if ties <= _MOST_TIES:
        return None
    return f"{ties:.0%} of the points have two nearest neighbours equally far: a lattice, or rounded numbers"


def _beyond(function: Callable[[float], float], start: float, step: float) -> float:
    """A point past which a falling function is negative, by doubling steps."""
    while function(start + step) > 0:
        step *= 2
    return start + step


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    found: Any = optimize.brentq(function, low, high, xtol=1e-14)
    return float(found)


def _log_ratio(found: Neighbours, outer: int, inner: int) -> np.ndarray:
    distances = found.distances.cpu().numpy()
    return np.log(distances[:, outer - 1] / distances[:, inner - 1])


def _variance_of_sum(found: Neighbours, score_N: np.ndarray, k: int) -> float:
    """Variance of ``Σ score`` when points that share neighbours are correlated.

    Each point hands its deviation to itself and its k neighbours; the sum of squares of what arrives, over k + 1,
    counts a pair of points by the share of neighbours they have in common. It cannot be negative. On flat tori of
    dimension 1 to 6 (150 clouds each) it gave 0.87 to 1.19 of the true standard error, independence 0.68 to 0.86.
    """
    deviation_N = score_N - score_N.mean()
    arriving_N = deviation_N.copy()
    np.add.at(arriving_N, found.indices[:, :k].cpu().numpy().ravel(), np.repeat(deviation_N, k))
    return float(arriving_N @ arriving_N) / (k + 1)


def _widening(found: Neighbours, score_N: np.ndarray, k: int) -> float:
    """By how much the error of ``Σ score`` exceeds that of independent points; never below 1."""
    spread = found.n * float(score_N.var())
    return max(1.0, math.sqrt(_variance_of_sum(found, score_N, k) / spread)) if spread > 0 else 1.0


def _slope_error(y: np.ndarray, n: int) -> float:
    """Standard error of ``log slope`` when ``d·log μ`` are order statistics of n unit exponentials.

    By Rényi's representation the i-th is ``Σ_{j≤i} E_j/(n−j+1)``; the slope moves by ``−Σ e_i y_i/Σ y²`` with ``e`` the
    deviations, so each ``E_j`` enters with weight ``Σ_{i≥j} y_i/(n−j+1)``.
    """
    tail = np.cumsum(y[::-1])[::-1]
    weights = tail / (n - np.arange(1, y.size + 1) + 1)
    return float(np.sqrt(weights @ weights) / (y @ y))


def _estimate(found: Neighbours, value: float, low: float, high: float) -> DimensionEstimate:
    return DimensionEstimate(
        value=float(value),
        low=float(low),
        high=float(high),
        n=found.n,
        exact_duplicates=found.exact_duplicates,
        near_duplicates=found.near_duplicates,
    )


def _undefined(found: Neighbours, note: str) -> DimensionEstimate:
    return DimensionEstimate(
        value=math.nan,
        n=found.n,
        note=note,
        exact_duplicates=found.exact_duplicates,
        near_duplicates=found.near_duplicates,
    )
