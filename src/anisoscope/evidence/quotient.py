"""Estimates with their values when one unit is left out, and the quotient of two, either of which may be near 0.

Letters: n units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from anisoscope.evidence.inference import Spread, bounded_exp


@dataclass(frozen=True, slots=True, eq=False)
class Jackknifed:
    """An estimate, and its values ``(n,)`` with each unit left out."""

    value: float
    left_out: Tensor

    @classmethod
    def mean(cls, parts: Sequence[Jackknifed]) -> Jackknifed:
        """Of parts that share no unit, such as folds: a unit is left out of one of them at a time."""
        whole = sum(part.value for part in parts)
        left_out = [whole - part.value + part.left_out for part in parts]
        return cls(whole / len(parts), torch.cat(left_out) / len(parts))

    def minus(self, other: Jackknifed, times: float = 1.0) -> Jackknifed:
        """``self − times·other``, of the same units."""
        return Jackknifed(self.value - times * other.value, self.left_out - times * other.left_out)

    def interval(self) -> tuple[float, float] | None:
        """95 %, jackknife-t with effective degrees of freedom."""
        return Spread.of(self.left_out).interval(self.value)


def quotient_interval(above: Jackknifed, below: Jackknifed) -> tuple[float, float] | None:
    """95 % interval of ``above/below``, both positive; None where there is none that ends.

    The hull of two. Fieller's set, all c at which ``above − c·below`` may be 0, is right where an estimate is only just
    above 0, and the logarithm is not: what has passed for positive is then too large. The jackknife-t of the logarithm
    of the quotient is better where a few units hold most of both, because it is not symmetric.

    Fieller's set has one number of degrees of freedom, the smaller one of c = 1 and of c = the quotient itself.
    """
    ratio = above.value / below.value
    own, lost_log = above.minus(below, ratio), (above.left_out / below.left_out).log()
    df = min(Spread.of(above.minus(below).left_out).df, Spread.of(own.left_out).df)
    ends = _fieller(above, below, float(stats.t.ppf(0.975, df)))
    logs = Spread.of(lost_log).interval(math.log(ratio)) if bool(lost_log.isfinite().all()) else None
    if ends is None or logs is None:
        return None
    return min(ends[0], bounded_exp(logs[0])), max(ends[1], bounded_exp(logs[1]))


def quotient_detectable(above: Jackknifed, below: Jackknifed) -> float | None:
    """About the smallest ``above/below`` over 1 that would have been found in 80 % of repetitions; None where unknown.

    The half-width of the interval in logarithms, the wider side, and what its error takes away in one of five.
    """
    ends, ratio = quotient_interval(above, below), above.value / below.value
    if ends is None or not ends[0] > 0:
        return None
    spread = Spread.of((above.left_out / below.left_out).log())
    half = max(math.log(ends[1] / ratio), math.log(ratio / ends[0]))
    return bounded_exp(half + float(stats.t.ppf(0.8, spread.df)) * spread.error)


def _fieller(above: Jackknifed, below: Jackknifed, quantile: float) -> tuple[float, float] | None:
    """All c with ``(a − cb)² ≤ t²·(v_a − 2c·v_ab + c²·v_b)``: between the roots where b² > t²·v_b, else without end."""
    n = above.left_out.numel()
    a, b = (part.left_out - part.left_out.mean() for part in (above, below))
    v_a, v_b, v_ab = (float((x * y).sum()) * (n - 1) / n * quantile**2 for x, y in ((a, a), (b, b), (a, b)))
    square = below.value**2 - v_b
    if not square > 0:
        return None
    middle = above.value * below.value - v_ab
    root = math.sqrt(max(middle**2 - square * (above.value**2 - v_a), 0.0))
    return (middle - root) / square, (middle + root) / square
