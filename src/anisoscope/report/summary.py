"""Many rows as one number: the median row of a group, the mean over seeds, the shape of a profile."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from anisoscope.bell_rule import independent, name_shape
from anisoscope.report.reading import Context, Row, Subject
from anisoscope.report.tree import Point, Series
from anisoscope.report.window_effects import FEWEST_SEEDS
from anisoscope.student_t_quantile import mean_and_half, quantile

WIDE = 8
CROWD = 10
"""Lines in a panel from which on single seeds are not drawn; `assets/chart.js` has the same number."""


def defined(rows: Iterable[Row]) -> list[Row]:
    """Rows that have a finite number."""
    return [row for row in rows if row["value"] is not None and math.isfinite(row["value"])]


def median_row(rows: Iterable[Row]) -> Row | None:
    """The row whose value is the median (the lower of the middle two), so that its interval is a measured one."""
    ordered = sorted(defined(rows), key=lambda row: row["value"])
    return ordered[(len(ordered) - 1) // 2] if ordered else None


def seed_rows(rows: Iterable[Row]) -> list[Row]:
    """The median row of each seed that has one, in the order of the seeds."""
    by_seed: dict[int | None, list[Row]] = {}
    for row in rows:
        by_seed.setdefault(row["seed"], []).append(row)
    ordered = sorted(by_seed, key=lambda seed: (seed is None, seed or 0))
    return [row for row in (median_row(by_seed[seed]) for seed in ordered) if row is not None]


def summarise(rows: Iterable[Row], x: float = 0.0, *, ratio: bool = False) -> Point | None:
    """One point from rows of any number of layers, observations and seeds.

    Within a seed it is the median row with that row's own interval. Of several seeds it is the mean of their medians
    (the geometric one for a ratio), with Student's interval over seeds from three on; two seeds have none. The point
    then has each seed's median row beside it, with the interval within that seed.
    """
    found = seed_rows(rows)
    if not found:
        return None
    if len(found) == 1:
        only = found[0]
        return Point(x, only["value"], only["low"], only["high"], only["n"], only["q"])
    values = [row["value"] for row in found]
    logarithmic = ratio and min(values) > 0
    scaled = [math.log(value) for value in values] if logarithmic else values
    mean, low, high = sum(scaled) / len(scaled), None, None
    if len(scaled) >= FEWEST_SEEDS:
        mean, half = mean_and_half(scaled)
        low, high = mean - half, mean + half
    if logarithmic:
        mean, low, high = math.exp(mean), *(None if end is None else math.exp(end) for end in (low, high))
    units = [row["n"] for row in found if row["n"] is not None]
    adjusted = [row["q"] for row in found if row["q"] is not None]
    worst = max(adjusted) if len(adjusted) == len(found) else None
    each = tuple((row["value"], row["low"], row["high"], row["seed"]) for row in found)
    return Point(x, mean, low, high, min(units, default=None), worst, each)


def comparable(rows: Sequence[Row]) -> list[Row]:
    """Rows of layers that rest on about as many points as the others: dimension may be compared at equal n only.

    A layer is left out if some row of it has less than half of the largest n. Layer 0 of a rotary model is one: it has
    one vector a type, and duplicates are taken out.
    """
    largest = max((row["n"] for row in rows if row["n"] is not None), default=0)
    few = {row["layer"] for row in rows if row["n"] is not None and 2 * row["n"] < largest}
    return [row for row in rows if row["layer"] not in few]


def curve(rows: Iterable[Row], place: Callable[[Row], float | None], *, ratio: bool = False) -> list[Point]:
    """Points in the order of where ``place`` puts their rows."""
    groups: dict[float, list[Row]] = {}
    for row in rows:
        x = place(row)
        if x is not None:
            groups.setdefault(x, []).append(row)
    points = (summarise(group, x, ratio=ratio) for x, group in sorted(groups.items()))
    return [point for point in points if point is not None]


def over_training(context: Context, subject: Subject, rows: Iterable[Row], *, ratio: bool = False) -> list[Point]:
    """A curve over the steps of training, thinned evenly where the page would be too large."""
    points = curve(rows, lambda row: None if row["step"] is None else context.x(subject, row["step"]), ratio=ratio)
    if context.at_most is None or len(points) <= context.at_most:
        return points
    last = len(points) - 1
    kept = sorted({round(i * last / (context.at_most - 1)) for i in range(context.at_most)})
    return [points[i] for i in kept]


def errors(context: Context, *, ratio: bool = True, rows: str | None = None) -> str:
    """What bands and bars are over, in the words of a caption; by default the units of the run."""
    over = rows or context.units
    if context.seeded > 1:
        mean = "geometric mean" if ratio else "mean"
        lines = f"Lines are the {mean} over seeds ({context.seeded} at most)"
        within = (
            f"Small dots are the single seeds; thin lines through them, where rows have one, the 95 % interval within "
            f"that seed, over {over}. In panels of more than {CROWD} lines, both are only in the read-out and the CSV."
        )
        if context.seeded < FEWEST_SEEDS:
            return f"{lines}, without an interval: fewer than {FEWEST_SEEDS} seeds give none. {within}"
        return f"{lines}, bands and bars the 95 % interval over seeds (Student's t). {within}"
    return f"Bands and bars are the 95 % intervals of the rows, over {over}; with one seed there is none over seeds."


def spread_out(series: Iterable[Series]) -> bool:
    """Whether values differ so much that a logarithmic axis is the better beginning."""
    values = [point.y for s in series for point in s.points if point.y is not None]
    return bool(values) and min(values) > 0 and max(values) > WIDE * min(values)


@dataclass(frozen=True, slots=True)
class BellShape:
    """The shape of a profile by the rule of ``anisoscope.bell_rule``."""

    word: str
    peak: Point
    trough: Point
    first: Point
    last: Point

    @property
    def prominence(self) -> float:
        """How far the peak stands above the higher end (for a valley, the trough below the lower one: negative)."""
        ends = [_y(self.first), _y(self.last)]
        return _y(self.trough) - min(ends) if self.word == "valley" else _y(self.peak) - max(ends)


def shape(points: Sequence[Point]) -> BellShape | None:
    """Judge a profile whose points carry 95 % intervals.

    >>> shape([Point(0, 4.0, 3.9, 4.1), Point(1, 9.0, 8.8, 9.2), Point(2, 5.0, 4.9, 5.1)]).word
    'bell'
    >>> shape([Point(0, 4.0), Point(1, 9.0), Point(2, 5.0)]).word
    'cannot tell'
    """
    known = [point for point in points if point.y is not None]
    errors = [
        None if point.low is None or point.high is None else (point.high - point.low) / 2 / quantile(0.975, math.inf)
        for point in known
    ]
    named = name_shape([_y(point) for point in known], independent(errors))
    return None if named is None else BellShape(named.word, known[named.peak], known[named.trough], known[0], known[-1])


def _y(point: Point) -> float:
    assert point.y is not None, "only points with a number are judged"
    return point.y
