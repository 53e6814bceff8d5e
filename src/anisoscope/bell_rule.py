"""The shape of a profile over layers, or of a curve over training: the one rule by which a bell is called a bell.

The rule. Take the highest point. The profile is a *bell* if that point is an inner one and exceeds both ends by more
than ``t`` standard errors of the difference, t being the ``1 − 0.025/(L − 2)`` quantile for L points, and by at least
5 % of the largest size. A *valley* is a bell upside down. Else the profile is *rising* or *falling* if its ends differ
by more than the 97.5 % quantile and 5 %. It is *flat* if every difference to the ends is within 5 % with its 90 %
interval; else, and without standard errors, the shape *cannot be told*.

The highest of L − 2 inner points is a selection, which the quantile allows for: of profiles that are noise, at most 5 %
are called a bell or a valley (measured in ``docs/calibration.md``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anisoscope.student_t_quantile import quantile

SMALLEST = 0.05
FEWEST = 3
Error = Callable[[int, int], tuple[float, float] | None]
"""Standard error and degrees of freedom of the difference of two points, None where they are not known."""


@dataclass(frozen=True, slots=True)
class Named:
    """A shape by name, with the places of the highest and the lowest point."""

    word: str
    peak: int
    trough: int


def name_shape(values: Sequence[float], error: Error) -> Named | None:
    """Name the shape of at least three points.

    >>> name_shape([4.0, 9.0, 5.0], lambda i, j: (0.5, math.inf)).word
    'bell'
    >>> name_shape([4.0, 5.0, 4.5], lambda i, j: (0.7, math.inf)).word, name_shape([1, 2, 1], lambda i, j: None).word
    ('cannot tell', 'cannot tell')
    """
    last = len(values) - 1
    if last + 1 < FEWEST:
        return None
    peak = max(range(last + 1), key=lambda i: values[i])
    trough = min(range(last + 1), key=lambda i: values[i])
    if not all(math.isfinite(value) for value in values):
        return Named("cannot tell", 0, 0)
    if any(error(i, j) is None for i, j in ((peak, 0), (peak, last), (0, trough), (last, trough)) if i != j):
        return Named("cannot tell", peak, trough)
    level = 1 - 0.025 / (last - 1)
    if 0 < peak < last and all(_exceeds(values, error, peak, end, level) for end in (0, last)):
        return Named("bell", peak, trough)
    if 0 < trough < last and all(_exceeds(values, error, end, trough, level) for end in (0, last)):
        return Named("valley", peak, trough)
    if _exceeds(values, error, last, 0, 0.975):
        return Named("rising", peak, trough)
    if _exceeds(values, error, 0, last, 0.975):
        return Named("falling", peak, trough)
    flat = all(_near(values, error, i, end) for i in range(last + 1) for end in (0, last) if i != end)
    return Named("flat" if flat else "cannot tell", peak, trough)


def _exceeds(values: Sequence[float], error: Error, i: int, j: int, level: float) -> bool:
    """Whether point i is above point j, beyond the error of their difference and by a size that matters."""
    found, difference = error(i, j), values[i] - values[j]
    if found is None or not difference > 0:
        return False
    size = max(map(abs, values))
    return difference > quantile(level, found[1]) * found[0] and difference >= SMALLEST * size


def _near(values: Sequence[float], error: Error, i: int, j: int) -> bool:
    """Whether the 90 % interval of the difference of two points lies within the size that matters."""
    found = error(i, j)
    reach = math.inf if found is None else abs(values[i] - values[j]) + quantile(0.95, found[1]) * found[0]
    return reach <= SMALLEST * max(map(abs, values))


def independent(errors: Sequence[float | None]) -> Error:
    """Errors of points that were measured apart, from the standard error of each."""

    def error(i: int, j: int) -> tuple[float, float] | None:
        a, b = errors[i], errors[j]
        return None if a is None or b is None else (math.hypot(a, b), math.inf)

    return error
