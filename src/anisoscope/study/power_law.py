"""The exponent of a power law, fitted to repeated simulations. Letters: R replicates, K places."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

WIDEST = 0.2  # an interval that reaches further than this from its middle says nothing about an exponent

Said = Literal["holds", "does not hold", "undetermined"]


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted number. The interval holds the statistical error and what a finite radius may still do to it.

    ``shift`` is how the number moves when only the smaller half of the places is used: a law that is exact only in the
    limit gives itself away by it. The interval is widened by twice that. ``r2`` is that of the mean curve.
    """

    value: float
    low: float
    high: float
    n: int
    shift: float
    r2: float | None = None

    def said(self, expected: float) -> Said:
        """Whether the number that a theory gives lies in the interval, if the interval is narrow enough to tell."""
        if not math.isfinite(self.high - self.low):
            return "undetermined"
        if not self.low <= expected <= self.high:
            return "does not hold"
        return "holds" if (self.high - self.low) / 2 <= WIDEST * max(min(abs(expected), 1.0), 1e-12) else "undetermined"


def fit_power(x_K: np.ndarray, y_RK: np.ndarray, *, confidence: float = 0.95) -> Fit:
    """Fit ``y ~ x^p`` by least squares on logarithms, replicate by replicate.

    >>> x = np.geomspace(0.01, 0.1, 10)
    >>> fit = fit_power(x, np.stack([3 * x**2, 5 * x**2]))
    >>> round(fit.value, 6), fit.said(2.0), fit.said(1.0)
    (2.0, 'holds', 'does not hold')
    """
    order = np.argsort(x_K)
    x, y = np.log(x_K[order]), np.log(y_RK[:, order])
    slopes, few = _slopes(x, y), _slopes(_half(x), _half(y))
    line = np.polynomial.Polynomial.fit(x, y.mean(0), 1)
    left = float(((y.mean(0) - line(x)) ** 2).sum() / ((y.mean(0) - y.mean()) ** 2).sum())
    return estimated(slopes, few, confidence=confidence, r2=1 - left)


def fit_limit(x_K: np.ndarray, y_RK: np.ndarray, *, confidence: float = 0.95) -> Fit:
    """Fit ``y ~ y_0 + b·x + c·x²`` and return the limit ``y_0`` at x = 0."""

    def limits(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.polynomial.polynomial.polyfit(x, y.T, 2)[0]

    return estimated(limits(x_K, y_RK), limits(_half(x_K), _half(y_RK)), confidence=confidence)


def estimated(values_R: np.ndarray, few_R: np.ndarray, *, confidence: float, r2: float | None = None) -> Fit:
    """The mean over replicates with its interval (Student's t), widened by twice the shift towards ``few_R``."""
    n = len(values_R)
    error = float(values_R.std(ddof=1)) / math.sqrt(n)
    value, shift = float(values_R.mean()), float((few_R - values_R).mean())
    # Rounding is an error too, and the only one where nothing is left to chance.
    half = float(stats.t.ppf((1 + confidence) / 2, n - 1)) * error + 2 * abs(shift) + 1e-9 * abs(value)
    return Fit(value, value - half, value + half, n, shift, r2)


def _half(places: np.ndarray) -> np.ndarray:
    """The smaller half of the places, at least three of them."""
    return places[..., : max((places.shape[-1] + 1) // 2, 3)]


def _slopes(x_K: np.ndarray, y_RK: np.ndarray) -> np.ndarray:
    centred = x_K - x_K.mean()
    return (y_RK @ centred) / (centred @ centred)
