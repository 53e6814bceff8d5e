"""The exponent of a power law, fitted to repeated simulations. Letters: R replicates, K places."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from anisoscope.verdict import outcome_of_fit


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted number. The interval holds the statistical error and what a finite radius may still do to it.

    ``shift`` is how the number moves when only the smaller half of the places is used: a law that is exact only in the
    limit gives itself away by it. The interval is widened by twice that. ``r2`` is that of the mean curve, ``se`` the
    standard error over replicates.
    """

    value: float
    low: float
    high: float
    n: int
    shift: float
    r2: float | None = None
    se: float = math.nan

    def outcome(self, expected: float) -> str:
        """Of the number against the one that a theory gives, by the interval and the margin."""
        return outcome_of_fit(self.value, self.low, self.high, expected)

    @property
    def detectable(self) -> float:
        """About the smallest distance from the theory's number that would have been found in 80 % of repetitions."""
        return (self.high - self.low) / 2 + float(stats.t.ppf(0.8, self.n - 1)) * self.se


def fit_power(x_K: np.ndarray, y_RK: np.ndarray, *, confidence: float = 0.95) -> Fit:
    """Fit ``y ~ x^p`` by least squares on logarithms, replicate by replicate.

    >>> x = np.geomspace(0.01, 0.1, 10)
    >>> fit = fit_power(x, np.stack([3 * x**2, 5 * x**2]))
    >>> round(fit.value, 6), fit.outcome(2.0), fit.outcome(1.0)
    (2.0, 'equal', 'above')
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
    return Fit(value, value - half, value + half, n, shift, r2, error)


def _half(places: np.ndarray) -> np.ndarray:
    """The smaller half of the places, at least three of them."""
    return places[..., : max((places.shape[-1] + 1) // 2, 3)]


def _slopes(x_K: np.ndarray, y_RK: np.ndarray) -> np.ndarray:
    centred = x_K - x_K.mean()
    return (y_RK @ centred) / (centred @ centred)
