"""What earlier runs led one to expect, and whether this one shows it: said by the report, never assumed by the code."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from anisoscope.report.formatting import number
from anisoscope.report.ladder_findings import LadderFinding, finding, smallest_ratio
from anisoscope.report.reading import Context, Subject
from anisoscope.report.summary import summarise
from anisoscope.report.tree import Block, Cell, Table, Tone
from anisoscope.vocabulary import WINDOWS

Found = tuple[str, str] | None  # holds, does not hold, cannot tell or no verdict, and the numbers; None: not measured
HOLDS, FAILS, OPEN, NUMBER = "holds", "does not hold", "cannot tell", "no verdict"


@dataclass(frozen=True, slots=True)
class Expectation:
    """A sentence, its rule, and what the rows of a model say to it."""

    says: str
    rule: str
    found: Callable[[Subject], Found]


def _by_outcome(f: LadderFinding, null: str, *, holds: set[str], fails: set[str]) -> Found:
    """By the commonest outcome of the layers over a null; it must be that of more than half of them."""
    if f.verdict is None or not f.verdict.merged(null):
        return None
    counts, total = f.verdict.merged(null), f.verdict.total
    effect = f.effects.get(null)
    said = ", ".join(f"{name} {count:.3g}" for name, count in counts.items())
    numbers = f"{'' if effect is None else f'odds ratio {effect}; '}of {total:.3g} layers: {said}"
    if set(counts) == {"not measured"}:
        return None
    for word, outcomes in ((HOLDS, holds), (FAILS, fails)):
        if sum(counts.get(name, 0.0) for name in outcomes) > total / 2:
            return word, numbers
    least = smallest_ratio([f], null)
    return OPEN, numbers + ("" if least is None else f"; found in 80 % of repetitions: an odds ratio of {least}")


def _before_training(subject: Subject) -> Found:
    return _by_outcome(finding(subject, "representation", "before"), "haar", holds={"equal"}, fails={"above", "below"})


def _rises(subject: Subject) -> Found:
    """Over step 0, in each window; a rise that is lost again is no rise of the end."""
    found = {name: finding(subject, "representation", name) for name in WINDOWS if name != "before"}
    effects = {name: f.effects["init"] for name, f in found.items() if "init" in f.effects}
    if not effects:
        return None
    numbers = "; ".join(f"{name} {effect}" for name, effect in effects.items())
    end = _by_outcome(found["late"], "init", holds={"above"}, fails={"equal", "below"})
    if end is None:
        return OPEN, numbers
    return end[0], f"{numbers}; late, {end[1]}" if end[0] == OPEN else numbers


def _same_under_other_labels(subject: Subject) -> Found:
    return _by_outcome(
        finding(subject, "representation", "early"), "targets", holds={"equal", "below"}, fails={"above"}
    )


def _forced(subject: Subject) -> Found:
    return _by_outcome(
        finding(subject, "weight", "before", proxy="svd"), "haar", holds={"above"}, fails={"equal", "below"}
    )


def _paired_anew(subject: Subject) -> Found:
    return _by_outcome(
        finding(subject, "weight", "late", proxy="svd"), "pairing", holds={"equal", "below"}, fails={"above"}
    )


def _radial(subject: Subject) -> Found:
    """The range over observations beside chance; rows have no interval to judge it by."""
    rows = subject.main("radial", view="representation")
    last, width = max((row["layer"] for row in rows), default=None), subject.width
    if last is None or width is None:
        return None
    values = [row["value"] for row in rows if row["layer"] == last and row["value"] is not None]
    if not values or not all(math.isfinite(value) for value in values):
        return None
    low, high = number(min(values)), number(max(values))
    return NUMBER, f"{low if low == high else f'{low} to {high}'}; chance is {number(1 / width)}"


def _loss(subject: Subject) -> Found:
    """The last loss beside what knowing the unigram law alone gives; there is no margin for a loss."""
    entropy = subject.unigram_entropy
    losses = subject.pick("loss", variant="held-out") or subject.pick("loss", variant="train")
    steps = [row["step"] for row in losses if row["step"] is not None]
    end = max(steps, default=None)
    last = None if end is None else summarise(row for row in losses if row["step"] == end)
    if entropy is None or last is None or last.y is None:
        return None
    return NUMBER, f"{number(last.y)} nats; unigram entropy {number(entropy)} nats"


EXPECTED = [
    Expectation(
        "Before training, the proxy holds as much as random directions, within the margin (representation view)",
        "step 0: over random directions, more than half of the layers are equal within the margin",
        _before_training,
    ),
    Expectation(
        "At the end of training, it is above its value before training",
        "late: over the untrained network, more than half of the layers are above; shown is the effect in each window",
        _rises,
    ),
    Expectation(
        "Permuted labels, with the same unigram law, put as much energy there within the margin, or more",
        "early: over shuffled targets, more than half of the layers are equal within the margin, or below",
        _same_under_other_labels,
    ),
    Expectation(
        "The weight view is above random directions before the first step, as the construction of G = Σ δxᵀ implies",
        "step 0: SVD over random directions, more than half of the layers above",
        _forced,
    ),
    Expectation(
        "With error signals and inputs re-paired, the weight view gives as much within the margin, or more",
        "late: SVD over inputs of other sequences, more than half of the layers equal within the margin, or below",
        _paired_anew,
    ),
    Expectation(
        "Little of the gradient lies along the activation after the last block, as normalisation implies",
        "radial share of the last block over the observations, and chance (1/D); its rows have no interval",
        _radial,
    ),
    Expectation(
        "The final loss is below that of a model that knows only how often each token occurs",
        "last loss (held-out, or else training) and the unigram entropy; no margin was declared for a loss",
        _loss,
    ),
]


def expectations(context: Context) -> list[Block]:
    """A table of expectations, each with what was found; only for trainings of pairs, which they are about."""
    subjects = [subject for subject in context.subjects if subject.source.manifest.get("kind") == "pair"]
    rows = [[Cell(e.says, e.rule), *(_cell(e.found(subject), subject) for subject in subjects)] for e in EXPECTED]
    if not subjects or all(cell.small is None for row in rows for cell in row[1:]):
        return []
    caption = (
        "These expectations come from earlier training runs of small pairs; they are not part of the verdict. Those "
        "that name a null are judged by the outcome of more than half of the layers over it, with the rule and the "
        "declared margin above. The others are numbers without a verdict, left to the reader. Where an expectation "
        "does not hold, this run differs from those."
    )
    columns = ["expectation", *(subject.label for subject in subjects)]
    return [Table("expected", "Expected and found", caption, columns, rows)]


def _cell(found: Found, subject: Subject) -> Cell:
    if found is None:
        return Cell("not measured", tone="open")
    word, numbers = found
    if word == NUMBER:
        return Cell(numbers, NUMBER)
    if word != OPEN and subject.source.status == "running":
        return Cell(f"{word} so far", numbers, tone="open")
    tones: dict[str, Tone] = {HOLDS: "yes", FAILS: "no"}
    return Cell(word, numbers, tone=tones.get(word, "open"))
