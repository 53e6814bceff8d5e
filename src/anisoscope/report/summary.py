"""Many rows as one number: the median row of a group, the mean over seeds, the shape of a profile."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from anisoscope.report.reading import Context, Row, Subject
from anisoscope.report.tree import Point, Series

WIDE = 8
MARGIN = 0.05
"""Without intervals, two numbers differ if they do so by more than this share of the largest."""


def defined(rows: Iterable[Row]) -> list[Row]:
    """Rows that have a finite number."""
    return [row for row in rows if row["value"] is not None and math.isfinite(row["value"])]


def median_row(rows: Iterable[Row]) -> Row | None:
    """The row whose value is the median (the lower of the middle two), so that its interval is a measured one."""
    ordered = sorted(defined(rows), key=lambda row: row["value"])
    return ordered[(len(ordered) - 1) // 2] if ordered else None


def summarise(rows: Iterable[Row], x: float = 0.0, *, ratio: bool = False) -> Point | None:
    """One point from rows of any number of layers, observations and seeds.

    Within a seed it is the median row with that row's own interval. Of several seeds it is the mean of their medians
    (the geometric one for a ratio), and the interval becomes the range over seeds.
    """
    by_seed: dict[int | None, list[Row]] = {}
    for row in rows:
        by_seed.setdefault(row["seed"], []).append(row)
    found = [row for row in map(median_row, by_seed.values()) if row is not None]
    if not found:
        return None
    if len(found) == 1:
        only = found[0]
        return Point(x, only["value"], only["low"], only["high"], only["n"], only["q"])
    values = [row["value"] for row in found]
    logarithmic = ratio and min(values) > 0
    mean = math.exp(sum(map(math.log, values)) / len(values)) if logarithmic else sum(values) / len(values)
    units = [row["n"] for row in found if row["n"] is not None]
    adjusted = [row["q"] for row in found if row["q"] is not None]
    worst = max(adjusted) if len(adjusted) == len(found) else None
    return Point(x, mean, min(values), max(values), min(units, default=None), worst)


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


def errors(context: Context, *, ratio: bool = True, rows: str = "sequences") -> str:
    """What bands and bars are over, in the words of a caption."""
    if context.seeded > 1:
        mean = "geometric mean" if ratio else "mean"
        return f"Lines are the {mean} over seeds ({context.seeded} at most), bands and bars the range over seeds."
    return f"Bands and bars are the 95 % intervals of the rows, over {rows}; one seed of training, so none over seeds."


def spread_out(series: Iterable[Series]) -> bool:
    """Whether values differ so much that a logarithmic axis is the better beginning."""
    values = [point.y for s in series for point in s.points if point.y is not None]
    return bool(values) and min(values) > 0 and max(values) > WIDE * min(values)


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a profile by rule: ``bell``, ``valley``, ``rising``, ``falling`` or ``flat``."""

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


def shape(points: Sequence[Point]) -> Shape | None:
    """Judge a profile.

    A *bell* has its peak inside and stands above both ends by more than the error; a *valley* the same below. Else it
    is *rising* or *falling* if its ends differ by more than the error, and else *flat*. The error of a difference is
    the sum of the half-intervals that face each other; without intervals it is 5 % of the largest size.

    >>> shape([Point(0, 4.0), Point(1, 9.0), Point(2, 5.0)]).word
    'bell'
    >>> shape([Point(0, 4.0, 3.0, 5.0), Point(1, 5.0, 4.0, 6.0), Point(2, 4.5, 3.5, 5.5)]).word
    'flat'
    """
    known = [point for point in points if point.y is not None]
    if len(known) < 3:
        return None
    first, last = known[0], known[-1]
    peak, trough = max(known, key=_y), min(known, key=_y)
    size = max(abs(_y(peak)), abs(_y(trough)))
    if above(peak, first, size) and above(peak, last, size):
        word = "bell"
    elif above(first, trough, size) and above(last, trough, size):
        word = "valley"
    elif above(last, first, size):
        word = "rising"
    else:
        word = "falling" if above(first, last, size) else "flat"
    return Shape(word, peak, trough, first, last)


def above(a: Point, b: Point, size: float) -> bool:
    """Whether ``a`` exceeds ``b`` by more than the error of their difference."""
    intervals = a.low is not None and b.high is not None
    error = (_y(a) - a.low) + (b.high - _y(b)) if a.low is not None and b.high is not None else MARGIN * size
    return _y(a) - _y(b) > (max(error, 0.0) if intervals else error)


def _y(point: Point) -> float:
    assert point.y is not None, "only points with a number are judged"
    return point.y
