"""What earlier runs led one to expect, and whether this one shows it: said by the report, never assumed by the code."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from anisoscope.report.reading import Context, Row, Subject
from anisoscope.report.summary import curve, summarise
from anisoscope.report.tree import Block, Cell, Table
from anisoscope.report.words import interval, number

Finding = tuple[bool, str] | None  # whether it holds and the numbers; None: not measured


@dataclass(frozen=True, slots=True)
class Expectation:
    """A sentence, its rule, and what the rows of a model say to it."""

    says: str
    rule: str
    found: Callable[[Subject], Finding]


def _all_within(rows: list[Row], low: float, high: float) -> Finding:
    """Whether every row lies inside."""
    values = [row["value"] for row in rows if row["value"] is not None]
    if not values:
        return None
    finite = [value for value in values if math.isfinite(value)]
    whole = len(finite) == len(values)
    holds = whole and all(low < value < high for value in finite)
    numbers = f"{number(min(finite))} to {number(max(finite))}" if finite else "undefined"
    return holds, numbers if whole else f"{numbers}; some are undefined"


def _before_training(subject: Subject) -> Finding:
    rows = subject.main("enrichment", view="representation", null="haar")
    return _all_within([row for row in rows if row["step"] == 0], 0.85, 1.15)


def _rises(subject: Subject) -> Finding:
    rows = subject.main("enrichment", view="representation", null="haar")
    if subject.role == "decoder":
        rows = [row for row in rows if row["step"] <= subject.source.steps / 2]
    line = [point for point in curve(rows, lambda row: row["step"], ratio=True) if point.y is not None]
    if not line:
        return None
    peak = max(line, key=lambda point: point.y or 0.0)
    numbers = f"{interval(peak.y, peak.low, peak.high)} at step {round(peak.x)}"
    return (peak.y or 0.0) >= (5 if subject.role == "decoder" else 2), numbers


def _same_under_other_labels(subject: Subject) -> Finding:
    rows = subject.window(subject.main("enrichment", view="representation", null="targets"), "early")
    found = summarise((row for row in rows if row["step"] > 0), ratio=True)
    if found is None or found.y is None:
        return None
    return found.y <= 1.1, interval(found.y, found.low, found.high)


def _forced(subject: Subject) -> Finding:
    return _all_within(subject.main("enrichment", view="weight", proxy="svd", null="haar"), 5, math.inf)


def _paired_anew(subject: Subject) -> Finding:
    rows = subject.main("enrichment", view="weight", proxy="svd", null="pairing")
    told = [row for row in rows if row["low"] is not None]  # too few sequences of one length tell nothing
    return _all_within(told, 0.05, 20)


def _radial(subject: Subject) -> Finding:
    rows = subject.main("radial", view="representation")
    last, width = max((row["layer"] for row in rows), default=None), subject.width
    if last is None or width is None:
        return None
    found = _all_within([row for row in rows if row["layer"] == last], -1, 0.1 / width)
    return None if found is None else (found[0], f"{found[1]}; chance is {number(1 / width)}")


def _learned(subject: Subject) -> Finding:
    """Whether the loss went below what knowing the unigram law alone gives."""
    entropy = subject.unigram_entropy
    losses = subject.pick("loss", variant="held-out") or subject.pick("loss", variant="train")
    steps = [row["step"] for row in losses if row["step"] is not None]
    last = summarise(row for row in losses if row["step"] == max(steps)) if steps else None
    if entropy is None or last is None or last.y is None:
        return None
    return last.y < entropy, f"{number(last.y)} against {number(entropy)} nats"


EXPECTED = [
    Expectation(
        "Before training, the representation view shows nothing over random directions",
        "enrichment over haar at step 0 within 0.85 to 1.15 on every layer",
        _before_training,
    ),
    Expectation(
        "In training it rises well above",
        "median over layers of enrichment over haar: at least 5 at some step of a decoder's first half, 2 at some step "
        "of an encoder",
        _rises,
    ),
    Expectation(
        "An error signal with the same unigram law lands there as well",
        "enrichment over targets, early, at most 1.1",
        _same_under_other_labels,
    ),
    Expectation(
        "The weight view is high always, before anything was learned too: its construction forces it",
        "enrichment of svd over haar above 5 on every layer at every observation",
        _forced,
    ),
    Expectation(
        "Little of the weight view is left once gradients and inputs are paired anew",
        "enrichment of svd over pairing, where it has an interval, within 0.05 to 20 on every layer",
        _paired_anew,
    ),
    Expectation(
        "Normalisation leaves no gradient along the activation after the last block",
        "radial share of the last block below a tenth of chance",
        _radial,
    ),
    Expectation(
        "The model learns more than how often each token occurs",
        "last loss (held-out, or else training) below the unigram entropy",
        _learned,
    ),
]


def expectations(context: Context) -> list[Block]:
    """A table of expectations, each with what was found; nothing if no model has rows for any."""
    subjects = context.subjects
    rows = [[Cell(e.says, e.rule), *(_cell(e.found(subject), subject) for subject in subjects)] for e in EXPECTED]
    if all(cell.small is None for row in rows for cell in row[1:]):
        return []
    broken = any(cell.text.startswith("does not hold") for row in rows for cell in row[1:])
    caption = (
        "Expectations come from earlier runs of small twins; they are not part of the verdict. A range is over layers "
        "and observations; a number with brackets is a median over layers with the interval of its row (over seeds, "
        "where there are several, mean and range). "
        + (
            "Where one does not hold, this machine, corpus or model differs, and the difference is worth a look."
            if broken
            else "Nothing that was measured here speaks against them."
        )
    )
    columns = ["expectation", *(subject.label for subject in subjects)]
    return [Table("expected", "Expected, and found", caption, columns, rows)]


def _cell(found: Finding, subject: Subject) -> Cell:
    if found is None:
        return Cell("not measured", tone="open")
    holds, numbers = found
    if not holds and subject.source.status == "running":
        return Cell("does not hold so far", numbers, tone="open")
    return Cell("holds", numbers, tone="yes") if holds else Cell("does not hold", numbers, tone="no")
