"""Dimension over training, and whether it has two phases."""

from __future__ import annotations

from collections.abc import Sequence

from anisoscope.report.formatting import interval, number
from anisoscope.report.reading import Context, Subject
from anisoscope.report.summary import comparable, curve, errors, over_training, shape, spread_out, summarise
from anisoscope.report.tree import (
    Axis,
    Block,
    Control,
    Figure,
    Gap,
    Point,
    Reference,
    Section,
    Series,
    Text,
    Tone,
    values_of,
)

RULE = (
    "The rule: take the median over layers of about equal n at each observation. Two phases are seen if its highest "
    "(or lowest) value lies strictly inside training and differs from both the first and the last by more than the "
    "error of the difference, adjusted for the number of observations, and by at least 5 % of the largest size "
    "(docs/report.md)."
)
WORDS = {
    "bell": "two phases: it first rises, then falls",
    "valley": "two phases: it first falls, then rises",
    "rising": "two phases are not shown: it rises from the first to the last observation",
    "falling": "two phases are not shown: it falls from the first to the last observation",
    "flat": "no two phases: it stays within 5 % of both ends",
    "cannot tell": "cannot tell whether it has two phases",
}


def phases_section(context: Context) -> Section:
    """Curves by layer, and the phases in words."""
    if not context.drawn:
        told: list[Block] = [phase(context, s) for s in context.subjects if s.pick("two_nn", subset="all")]
        words = [*told, Gap("dimension"), Text(RULE, small=True)]
        return Section("phases", "Dimension over training", words, _finding(told))
    series = [s for subject in context.subjects for s in _curves(context, subject)]
    if not series:
        text = "The run has no rows of intrinsic dimension, so its course over training is unknown."
        return Section("phases", "Dimension over training", [Text(text)])
    blocks: list[Block] = [phase(context, subject) for subject in context.subjects]
    layers = sorted((v for v in values_of(series, "layer") if v != "median"), key=int)
    start = {subject.label: _at_start(subject) for subject in context.subjects}
    references = [
        Reference(level, "before training (median)", {"model": label})
        for label, level in start.items()
        if level is not None
    ]
    figure = Figure(
        "dimension",
        "Intrinsic dimension over training",
        "TwoNN dimension of a fixed held-out probe, one line per layer, and the median over layers. The null (dashed) "
        "is the median before training, the `init` of this measure. Finite samples bias it downwards, equally at equal "
        "n. " + errors(context, ratio=False, rows="the points of the probe"),
        f"TwoNN dimension against {context.x_label}, one line per layer, for "
        f"{' and '.join(values_of(series, 'model'))}.",
        Axis(context.x_label, log=context.x_log),
        Axis("TwoNN dimension", log=spread_out(series)),
        series,
        colour="layer",
        panel="model",
        toggle=[
            Control("layer", "Layers", [*layers, "median"]),
            Control("model", "Models", values_of(series, "model")),
        ],
        references=references,
        zones=context.zones,
    )
    return Section("phases", "Dimension over training", [*blocks, figure, Text(RULE, small=True)], _finding(blocks))


def _finding(blocks: Sequence[Block]) -> str:
    """The outcome of each model, without its numbers."""
    heads = [f"{b.head} {b.text.split(' (median')[0]}" for b in blocks if isinstance(b, Text)]
    return "; ".join(heads).removesuffix(".") + "."


def _curves(context: Context, subject: Subject) -> list[Series]:
    rows = [row for row in subject.pick("two_nn", subset="all") if row["layer"] is not None]
    found = []
    for layer in sorted({row["layer"] for row in rows}):
        points = over_training(context, subject, [row for row in rows if row["layer"] == layer])
        if points:
            tags = {"model": subject.label, "layer": str(layer)}
            found.append(Series(f"{subject.label}, layer {layer}", tags, points))
    if len(found) > 1:
        tags, median = {"model": subject.label, "layer": "median"}, over_training(context, subject, comparable(rows))
        found.append(Series(f"{subject.label}, median over layers", tags, median))
    return found


def _at_start(subject: Subject) -> float | None:
    found = summarise(row for row in comparable(subject.pick("two_nn", subset="all")) if row["step"] == 0)
    return None if found is None else found.y


def phase(context: Context, subject: Subject) -> Text:
    """The two phases of one model, by the rule."""
    rows = [row for row in subject.pick("two_nn", subset="all") if row["layer"] is not None]
    line = curve(comparable(rows), lambda row: row["step"])
    judged = shape(line)
    if judged is None:
        return Text(
            "fewer than three observations of the dimension: its phases cannot be judged.", subject.label, "open"
        )
    turn = judged.trough if judged.word == "valley" else judged.peak
    parts = [f"from {_said(judged.first)} at step {number(judged.first.x)}"]
    if judged.word in ("bell", "valley"):
        parts.append(f"to {_said(turn)} at step {number(turn.x)}")
    parts.append(f"to {_said(judged.last)} at step {number(judged.last.x)}")
    running = (
        "" if subject.source.status == "finished" else " The run is not finished, so a second phase may still come."
    )
    tone: Tone = "yes" if judged.word in ("bell", "valley") else "plain"
    return Text(f"{WORDS[judged.word]} (median over layers {' '.join(parts)}).{running}", f"{subject.label}:", tone)


def _said(point: Point) -> str:
    return interval(point.y, point.low, point.high)
