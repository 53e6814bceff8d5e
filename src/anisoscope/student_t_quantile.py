"""Quantiles of Student's t without scipy, which takes half a second to load: reports are to be quick."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

_TERMS = 300


@lru_cache(maxsize=1024)
def quantile(level: float, df: float) -> float:
    """The value that a Student's t of ``df`` degrees of freedom stays below with probability ``level``.

    >>> round(quantile(0.975, 10), 3), round(quantile(0.975, math.inf), 3)
    (2.228, 1.96)
    """
    if not df > 0:
        return math.nan
    if level < 0.5:
        return -quantile(1 - level, df)
    if math.isinf(df) or df > 1e7:
        return NormalDist().inv_cdf(level)
    low, high = 0.0, 1.0
    while _above(high, df) > 1 - level:
        low, high = high, 2 * high
    scale = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(df * math.pi)
    t = (low + high) / 2
    for _ in range(200):
        above = _above(t, df) - (1 - level)
        low, high = (t, high) if above > 0 else (low, t)
        step = above / (scale * math.exp(-(df + 1) / 2 * math.log1p(t * t / df)))  # Newton: the density is the slope
        guess = t + step if low < t + step < high else (low + high) / 2
        near, t = abs(guess - t) <= 1e-13 * high, guess
        if near:
            break
    return t


def _above(t: float, df: float) -> float:
    """P(T > t) for t ≥ 0: half of the regularised incomplete beta function at ``df/(df + t²)``."""
    return _beta(df / (df + t * t), df / 2, 0.5) / 2


def _beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (DLMF 8.17.22), evaluated as Lentz does."""
    if x in (0.0, 1.0):
        return x
    if x > (a + 1) / (a + b + 2):  # there the fraction of the complement converges faster
        return 1 - _beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    tiny = 1e-300
    fraction, c, d = 1.0, 1.0, 0.0
    for k in range(_TERMS):
        m = k // 2
        if k == 0:
            step = 1.0
        elif k % 2 == 0:
            step = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            step = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1 / (1 + step * d or tiny)
        c = 1 + step / c or tiny
        fraction *= c * d
        if k and abs(c * d - 1) < 1e-15:
            break
    return front * (fraction - 1)


def mean_and_half(values: Sequence[float], level: float = 0.975) -> tuple[float, float]:
    """The mean of independent values, and half of its interval.

    >>> mean, half = mean_and_half([1.0, 2.0, 3.0])
    >>> mean, round(half, 3)
    (2.0, 2.484)
    """
    n, mean = len(values), sum(values) / len(values)
    error = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1) / n)
    return mean, quantile(level, n - 1) * error
