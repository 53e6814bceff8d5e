"""What isotropic Gaussian noise of the same shape scores: the floor beside each number. Letters: N rows, D width.

The spectrum of noise follows Marchenko & Pastur (1967) with ratio ``γ = D/N``. Where N < D the bulk has N eigenvalues;
exchanging the two sides of the cloud leaves its singular values unchanged, so ``γ`` may always be taken ≤ 1.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

_NODES = 2000
_FEWEST = 32  # singular values: with fewer, the largest is far from the edge of the law
_DRAWS = 400


@lru_cache(maxsize=256)
def _bulk(small: int, large: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of the Marchenko-Pastur law of the ``small`` nonzero eigenvalues, scaled by ``1/large``."""
    gamma = small / large
    low, high = (1 - math.sqrt(gamma)) ** 2, (1 + math.sqrt(gamma)) ** 2
    # λ = mid − half·cos θ turns the square-root edges into a smooth periodic integrand, for which midpoints are exact.
    theta = (np.arange(_NODES) + 0.5) * math.pi / _NODES
    half = (high - low) / 2
    nodes = (high + low) / 2 - half * np.cos(theta)
    weights = half**2 * np.sin(theta) ** 2 / (2 * math.pi * gamma * nodes) * (math.pi / _NODES)
    return nodes, weights / weights.sum()


def noise_top_share(n: int, width: int, power: float = 2, *, centre: bool = True) -> float:
    """Expected share of the largest singular value of noise; ``(1 + √(D/N))²/D`` at ``p = 2`` and N ≥ D ≥ 32.

    Below that it is the mean over seeded draws.
    """
    small, large = min(n, width), max(n, width)
    if small == 1:
        return 1.0
    if small < _FEWEST:
        strengths = _simulated(n - centre, width) ** power
        return float((strengths[:, 0] / strengths.sum(1)).mean())
    nodes, weights = _bulk(small, large)
    edge = (1 + math.sqrt(small / large)) ** power
    return min(1.0, edge / (small * float(weights @ nodes ** (power / 2))))


@lru_cache(maxsize=256)
def _simulated(degrees: int, width: int) -> np.ndarray:
    """Singular values of some draws, through a Wishart matrix of the smaller side: no cost grows with the rows."""
    generator = np.random.default_rng(0)
    size, rows = min(max(degrees, 1), width), max(degrees, width)
    # Bartlett: a triangle with chi-distributed diagonal has the law of the factor of a Gaussian Gram matrix.
    lower = np.tril(generator.standard_normal((_DRAWS, size, size)), -1)
    chi = np.sqrt(generator.chisquare(rows - np.arange(size), size=(_DRAWS, size)))
    lower[:, np.arange(size), np.arange(size)] = chi
    return np.linalg.svd(lower, compute_uv=False)


def noise_effective_rank(n: int, width: int, power: float = 1, *, centre: bool = True) -> float:
    """Expected entropy rank of the singular values to the ``power``; by draws below 32 of them.

    Centring takes one degree of freedom, and with it one direction where N ≤ D.
    """
    small, large = min(n - centre, width), max(n - centre, width)
    if small <= 1:
        return 1.0
    if small < _FEWEST:
        shares = _simulated(n - centre, width) ** power
        shares = shares / shares.sum(1, keepdims=True)
        return float(np.exp(-(shares * np.log(shares)).sum(1)).mean())
    nodes, weights = _bulk(small, large)
    strengths = nodes ** (power / 2)
    mean = float(weights @ strengths)
    # With s = strength/(small·mean): H = log(small·mean) − E[strength·log strength]/mean.
    return small * mean * math.exp(-float(weights @ (strengths * np.log(strengths))) / mean)


def noise_participation(n: int, width: int) -> float:
    """Expected plain participation ratio: second moments of a Wishart matrix with N−1 degrees, in ratio."""
    return (width + 2 / (n - 1)) / (1 + (width + 1) / (n - 1))


def noise_isoscore_star(n: int, width: int, zeta: float) -> float:
    """The IsoScore* that follows from it: shrinking towards ``(tr C/D)·I`` leaves the trace as it is."""
    kept = (1 - zeta) ** 2
    participation = 1 / (kept / noise_participation(n, width) + (1 - kept) / width)
    return (participation - 1) / (width - 1)


def noise_eigenvalues(n: int, width: int) -> np.ndarray:
    """The eigenvalues that noise is expected to have, in descending order, up to a factor: quantiles of its law."""
    small, large = min(n - 1, width), max(n - 1, width)
    nodes, weights = _bulk(small, large)
    middles = np.cumsum(weights) - weights / 2
    return np.interp(1 - (np.arange(small) + 0.5) / small, middles, nodes)
