"""What earlier runs led one to expect, and whether this one shows it: said by the report, never assumed by the code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from anisoscope.report.reading import Context, Row, Subject
from anisoscope.report.summary import curve, summarise
from anisoscope.report.tree import Block, Cell, Point, Table
from anisoscope.report.words import interval, number


@dataclass(frozen=True, slots=True)
class Expectation:
    """A sentence, the rows that speak to it, and the rule on their median."""

    says: str
    rule: str
    rows: Callable[[Subject], list[Row]]
    holds: Callable[[float], bool]


def _start(subject: Subject, view: str) -> list[Row]:
    return [row for row in subject.main("enrichment", view=view, null="haar") if row["step"] == 0]


def _early(subject: Subject, view: str, null: str) -> list[Row]:
    rows = subject.window(subject.main("enrichment", view=view, null=null), "early")
    return [row for row in rows if row["step"] > 0]


def _highest(rows: list[Row]) -> list[Row]:
    """The rows of the observation with the highest median; a median over all would hang on the schedule."""
    line = curve(rows, lambda row: row["step"], ratio=True)
    peak = max(line, key=lambda point: point.y or 0.0, default=None)
    return [] if peak is None else [row for row in rows if row["step"] == peak.x]


LEARNED = "last loss (held-out, or else training) below the unigram entropy"
EXPECTED = [
    Expectation(
        "Before training, the representation view shows next to nothing over random directions",
        "enrichment over haar at step 0 within 0.5 … 2",
        lambda s: _start(s, "representation"),
        lambda value: 0.5 <= value <= 2,
    ),
    Expectation(
        "Early in training it rises well above",
        "enrichment over haar at its highest early observation above 2",
        lambda s: _highest(_early(s, "representation", "haar")),
        lambda value: value > 2,
    ),
    Expectation(
        "An error signal with the same unigram law lands there as well",
        "enrichment over targets, early, at most 1.1",
        lambda s: _early(s, "representation", "targets"),
        lambda value: value <= 1.1,
    ),
    Expectation(
        "The weight view is high before anything was learned: its construction forces it",
        "enrichment over haar at step 0 above 2",
        lambda s: _start(s, "weight"),
        lambda value: value > 2,
    ),
    Expectation(
        "Little of the weight view is left once gradients and inputs are paired anew",
        "enrichment over pairing, early, at most 3.5",
        lambda s: _early(s, "weight", "pairing"),
        lambda value: value <= 3.5,
    ),
]


def expectations(context: Context) -> list[Block]:
    """A table of expectations, each with what was found; nothing if no model has rows for any."""
    subjects = context.subjects
    found = {e.says: [summarise(e.rows(subject), ratio=True) for subject in subjects] for e in EXPECTED}
    rows = [
        [Cell(e.says, e.rule), *(_cell(e, s, point) for s, point in zip(subjects, found[e.says], strict=True))]
        for e in EXPECTED
    ]
    learned = [_learned(subject) for subject in subjects]
    if any(cell.small is not None for cell in learned):
        rows.append([Cell("The model learns more than how often each token occurs", LEARNED), *learned])
    if all(cell.small is None for row in rows for cell in row[1:]):
        return []
    broken = any(cell.text.startswith("does not hold") for row in rows for cell in row[1:])
    caption = (
        "Expectations come from earlier runs of other models; they are not part of the verdict. Numbers are medians "
        "over layers and observations with the interval of that row (over seeds, where there are several, mean and "
        "range). "
        + (
            "Where one does not hold, this machine, corpus or model differs, and the difference is worth a look."
            if broken
            else "Nothing that was measured here speaks against them."
        )
    )
    columns = ["expectation", *(subject.label for subject in subjects)]
    return [Table("expected", "Expected, and found", caption, columns, rows)]


def _cell(expected: Expectation, subject: Subject, found: Point | None) -> Cell:
    if found is None or found.y is None:
        return Cell("not measured", tone="open")
    return _judged(expected.holds(found.y), interval(found.y, found.low, found.high), subject)


def _judged(holds: bool, numbers: str, subject: Subject) -> Cell:
    if not holds and subject.source.status == "running":
        return Cell("does not hold so far", numbers, tone="open")
    return Cell("holds", numbers, tone="yes") if holds else Cell("does not hold", numbers, tone="no")


def _learned(subject: Subject) -> Cell:
    """Whether the loss went below what knowing the unigram law alone gives."""
    entropy = subject.unigram_entropy
    losses = subject.pick("loss", variant="held-out") or subject.pick("loss", variant="train")
    steps = [row["step"] for row in losses if row["step"] is not None]
    last = summarise(row for row in losses if row["step"] == max(steps)) if steps else None
    if entropy is None or last is None or last.y is None:
        return Cell("not measured", tone="open")
    numbers = f"{number(last.y)} against {number(entropy)} nats"
    return _judged(last.y < entropy, numbers, subject)
