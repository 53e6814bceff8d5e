"""Effects over a window of training: pooled over layers, weighed over observations, and over seeds.

An effect is an odds ratio over a null, so everything is averaged as a logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from anisoscope.report.formatting import interval, listed, number
from anisoscope.report.reading import Row, Subject
from anisoscope.student_t_quantile import mean_and_half, quantile
from anisoscope.verdict import weights_of
from anisoscope.vocabulary import window_bounds

FEWEST_SEEDS = 3


@dataclass(frozen=True, slots=True)
class WindowEffect:
    """A ratio with its interval, and what that is over: ``units`` within a seed, or ``seeds``; else there is none.

    ``points`` are the values of the single seeds where there are several.
    """

    value: float
    low: float | None = None
    high: float | None = None
    low90: float | None = None
    high90: float | None = None
    over: str = ""
    points: tuple[float, ...] = ()

    def within(self, margin: float) -> bool:
        """Whether the 90 % interval lies inside the margin."""
        low, high = self.low90, self.high90
        return low is not None and high is not None and 1 / margin <= low and high <= margin

    def __str__(self) -> str:
        if len(self.points) > 1 and self.low is None:
            return f"{number(self.value)} (seeds: {listed([number(point) for point in self.points])})"
        if self.low is None:
            return f"{number(self.value)}, no interval"
        said = interval(self.value, self.low, self.high)
        return f"{said} over {len(self.points)} seeds" if self.over == "seeds" else said


def window_effect(subject: Subject, rows: Sequence[Row], window: str) -> WindowEffect | None:
    """The effect of a window from pooled rows of one null (or of any number that is a ratio), all seeds together."""
    by_seed: dict[int | None, list[Row]] = {}
    for row in subject.window(rows, window):
        if row["value"] is not None and math.isfinite(row["value"]) and row["value"] > 0:
            by_seed.setdefault(row["seed"], []).append(row)
    effects = [_over_observations(subject, found, window) for found in by_seed.values()]
    return over_seeds(effects) if effects else None


def over_seeds(effects: Sequence[WindowEffect]) -> WindowEffect:
    """Mean and Student's t interval over seeds from three on; below that the points."""
    if len(effects) == 1:
        return effects[0]
    logs = [math.log(effect.value) for effect in effects]
    n, mean = len(logs), sum(logs) / len(logs)
    points = tuple(effect.value for effect in effects)
    if n < FEWEST_SEEDS:
        return WindowEffect(math.exp(mean), points=points)
    ends = [_exp(mean + sign * mean_and_half(logs, level)[1]) for level in (0.975, 0.95) for sign in (-1, 1)]
    return WindowEffect(math.exp(mean), *ends, over="seeds", points=points)


def _over_observations(subject: Subject, rows: Sequence[Row], window: str) -> WindowEffect:
    """One seed: observations weigh by the steps they stand for; they see different text, so their variances add up."""
    weights = weights_of([row["step"] for row in rows], *window_bounds(window, subject.source.steps))
    total = sum(weights)
    weights = [w / total for w in weights] if total > 0 else [1 / len(rows)] * len(rows)
    mean = sum(w * math.log(row["value"]) for row, w in zip(rows, weights, strict=True))
    parts = [(w * row["se"], row["df"]) for row, w in zip(rows, weights, strict=True) if row["se"] and row["df"]]
    if len(parts) < len(rows) or not all(math.isfinite(error) and own > 0 for error, own in parts):
        return WindowEffect(_exp(mean))
    if rows[0]["null"] == "init":  # every observation is compared with the same step 0: errors may go all together
        error, df = sum(error for error, _ in parts), min(own for _, own in parts)
    else:
        error = math.hypot(*(error for error, _ in parts))
        df = 1 / sum((own_error / error) ** 4 / own for own_error, own in parts) if error > 0 else math.inf
    ends = [_exp(mean + sign * quantile(level, df) * error) for level in (0.975, 0.95) for sign in (-1, 1)]
    return WindowEffect(_exp(mean), *ends, over="units")


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf
