"""The headline of a run as a table of numbers and sparklines, for terminals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from anisoscope.report.answer import answer
from anisoscope.report.formatting import interval
from anisoscope.report.ladder_findings import findings, pooled_rows
from anisoscope.report.plain_words import HEADS
from anisoscope.report.reading import Context
from anisoscope.report.signs import SIGNS
from anisoscope.report.summary import over_training
from anisoscope.vocabulary import ladder_of

BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Line:
    """One model over one null: its course, its last number, and the outcome of its last window."""

    model: str
    over: str
    course: str
    now: str
    outcome: str


def headline_lines(context: Context, view: str = "representation") -> list[Line]:
    """A line a model and null of the ladder."""
    last = {f.subject.label: f for f in findings(context, view) if f.verdict is not None}
    lines = []
    for subject in context.subjects:
        for null in ladder_of(view):
            rows = pooled_rows(subject, null, view=view, proxy=subject.proxy, timing=subject.timing)
            points = [p for p in over_training(context, subject, rows, ratio=True) if p.y is not None]
            if not points:
                continue
            outcome = last[subject.label].outcome(null) if subject.label in last else "not measured"
            end = points[-1]
            course = sparkline([math.log(p.y) for p in points if p.y and p.y > 0])
            said = f"{SIGNS[outcome]} {outcome}"
            lines.append(Line(subject.label, HEADS.get(null, null), course, interval(end.y, end.low, end.high), said))
    return lines


def headline_words(context: Context) -> str:
    """The answer as the page has it."""
    said = answer(findings(context, "representation"))
    return " ".join([said.head, *said.sentences]) if said.head else " ".join(said.sentences)


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """Numbers as bars from the lowest to the highest; more than ``width`` are thinned evenly.

    >>> sparkline([0, 1, 2, 3]), sparkline([2, 2]), sparkline([])
    ('▁▃▆█', '▄▄', '')
    """
    known = [value for value in values if math.isfinite(value)]
    if len(known) > width:
        known = [known[round(i * (len(known) - 1) / (width - 1))] for i in range(width)]
    if not known:
        return ""
    low, high = min(known), max(known)
    if high == low:
        return BARS[3] * len(known)
    return "".join(BARS[round((value - low) / (high - low) * (len(BARS) - 1))] for value in known)
