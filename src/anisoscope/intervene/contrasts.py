"""Effects over seeds: an arm against its control, a trend over doses, and what a plan could find. Letters: n seeds.

Arm and control share a seed, so they are compared seed by seed: the mean difference with Student's interval over seeds,
from three on. Needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize, stats

from anisoscope.errors import broken

FEWEST = 3
_POWER = 0.8


@dataclass(frozen=True, slots=True)
class Contrast:
    """A mean over seeds; intervals and p are None below three seeds, or where a number is not finite."""

    value: float
    n: int
    se: float | None = None
    low: float | None = None
    high: float | None = None
    low90: float | None = None
    high90: float | None = None
    p: float | None = None
    detectable: float | None = None
    note: str | None = None


def contrast(arm: Mapping[int, float], control: Mapping[int, float], *, family: int = 1) -> Contrast:
    """Arm minus control over the seeds that both have.

    >>> found = contrast({0: 2.0, 1: 2.5, 2: 3.0}, {0: 1.0, 1: 1.0, 2: 1.0})
    >>> found.value, round(found.low, 2), round(found.high, 2)
    (1.5, 0.26, 2.74)
    """
    shared = sorted(arm.keys() & control.keys())
    return over_seeds([arm[seed] - control[seed] for seed in shared], family=family)


def trend(doses: Mapping[float, Mapping[int, float]], *, family: int = 1) -> Contrast:
    """The slope over doses, fitted within each seed that has them all."""
    if len(doses) < 2:
        raise broken("a trend must have at least two doses", len(doses), "give more doses, or leave it out")
    at = np.asarray(sorted(doses))
    shared = sorted(set.intersection(*(set(values) for values in doses.values())))
    centred = at - at.mean()
    slopes = [float(centred @ [doses[dose][seed] for dose in at] / (centred @ centred)) for seed in shared]
    return over_seeds(slopes, family=family)


def over_seeds(values: Sequence[float], *, family: int = 1) -> Contrast:
    """Mean of independent values with Student's interval."""
    n = len(values)
    if n == 0:
        return Contrast(math.nan, 0, note="no seed has both")
    mean = float(np.mean(values))
    if not math.isfinite(mean):
        return Contrast(mean, n, note="a value is not finite")
    if n < FEWEST:
        return Contrast(mean, n, note=f"no interval over fewer than {FEWEST} seeds")
    deviation = float(np.std(values, ddof=1))
    error = deviation / math.sqrt(n)
    outer, inner = (float(stats.t.ppf(level, n - 1)) * error for level in (0.975, 0.95))
    p = float(mean == 0) if error == 0 else 2 * float(stats.t.sf(abs(mean) / error, n - 1))
    ends = (mean - outer, mean + outer, mean - inner, mean + inner)
    return Contrast(mean, n, error, *ends, p, smallest_effect(deviation, n, family=family))


def smallest_effect(deviation: float, n: int, *, family: int = 1) -> float | None:
    """The smallest mean difference found in 80 % of plans of ``n`` seeds, whose differences have this deviation.

    Found: Student's interval of level ``1 − 0.05/family`` excludes 0. By the noncentral t distribution.

    >>> round(smallest_effect(1.0, 5), 3), round(smallest_effect(1.0, 20), 3)
    (1.682, 0.66)
    """
    if n < 2 or not math.isfinite(deviation):
        return None
    edge, df = float(stats.t.ppf(1 - 0.025 / family, n - 1)), n - 1

    def lacking(shift: float) -> float:
        # The other tail is far below 1 in 1,000 where the power is 80 %, and scipy has no number for it there.
        return _POWER - float(stats.nct.sf(edge, df, shift))

    upper = 1.0
    while lacking(upper) > 0:
        upper *= 2
    root: Any = optimize.brentq(lacking, 0.0, upper)
    return float(root) * deviation / math.sqrt(n)
