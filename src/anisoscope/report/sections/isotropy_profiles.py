"""Layer profiles of anisotropy and dimension, decoder against encoder, with the bell measured."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

from anisoscope.report.formatting import counted, listed, number
from anisoscope.report.reading import Context, Row, Subject
from anisoscope.report.sections.emergence import chosen
from anisoscope.report.summary import BellShape, comparable, curve, defined, errors, shape, spread_out
from anisoscope.report.tree import (
    Axis,
    Block,
    Cell,
    Control,
    Figure,
    Gap,
    Point,
    Reference,
    Section,
    Series,
    Table,
    Text,
    values_of,
)
from anisoscope.vocabulary import MEASURES, SUBSETS, Measure, shown_in

WHENS = {"start": 0.0, "30 %": 0.3, "half": 0.5, "70 %": 0.7, "last": 1.0}


def profiles_section(context: Context) -> Section:
    """Two figures and the table of shapes."""
    table = _bells(context)
    if not context.drawn:
        unlike: list[Block] = [*_unequal(context), *([table] if table is not None else [])]
        return Section("profiles", "Layer profiles", [Gap("dimension-layers"), *unlike], _finding(table))
    isotropy = [s for subject in context.subjects for s in _profiles(subject, shown_in("isotropy"))]
    dimension = [s for subject in context.subjects for s in _profiles(subject, shown_in("dimension"))]
    blocks: list[Block] = [_isotropy(context, isotropy)] if isotropy else [Text("The run has no isotropy measures.")]
    blocks.append(_dimension(context, dimension) if dimension else Text("The run has no rows of intrinsic dimension."))
    blocks += _unequal(context)
    if table is not None:
        blocks.append(table)
    return Section("profiles", "Layer profiles", blocks, _finding(table))


def _unequal(context: Context) -> list[Block]:
    """Numbers that may not be compared."""
    given = [Text(text, "Unequal n.", "open") for text in map(unequal, context.subjects) if text is not None]
    return [*given, *(Text(t, "Below 1.", "open") for t in map(below_one, context.subjects) if t is not None)]


def _finding(table: Table | None) -> str:
    """The shapes of two profiles at the last observation."""
    wanted = (MEASURES["average_cosine"].label, MEASURES["two_nn"].label)
    found: dict[str, list[str]] = {}
    for row in table.rows if table is not None else []:
        if row[0].text in wanted:
            found.setdefault(row[0].text, []).append(f"{row[1].text} {row[3].text}")
    return (
        f"Shape at the end: {'; '.join(f'{name} {listed(parts)}' for name, parts in found.items())}." if found else ""
    )


def definitions(labels: Sequence[str]) -> str:
    """What the measures of a figure are."""
    words = [word for word in MEASURES.values() if word.about and word.label in labels]
    return " ".join(f"{word.label[:1].upper()}{word.label[1:]}: {word.about}." for word in words)


def no_effects(labels: Sequence[str]) -> list[Reference]:
    """Levels that a cloud without effect has, where that is one number."""
    return [
        Reference(word.no_effect, word.no_effect_label, {"measure": word.label})
        for word in MEASURES.values()
        if word.no_effect is not None and word.label in labels
    ]


def unequal(subject: Subject) -> str | None:
    """Say which layers rest on far fewer points than the others."""
    rows = subject.pick("two_nn", subset="all")
    kept = {row["layer"] for row in comparable(rows)}
    left = [row for row in rows if row["layer"] not in kept]
    if not left or not kept:
        return None
    layers = listed([str(layer) for layer in sorted({row["layer"] for row in left if row["layer"] is not None})])
    fewest, most = (
        min(row["n"] for row in left if row["n"] is not None),
        max(row["n"] for row in rows if row["n"] is not None),
    )
    return (
        f"{subject.label}: layer {layers} has {fewest:,} distinct points at least, where others have {most:,} "
        "(duplicates are removed, and a layer without context has one vector per type). Dimensions are comparable only "
        "at equal n, so this layer is drawn but left out of the bell and of the median over layers."
    )


def below_one(subject: Subject) -> str | None:
    """Say where TwoNN is below 1, which no manifold has."""
    rows = [
        row for row in defined(subject.pick("two_nn", subset="all")) if row["value"] < 1 and row["layer"] is not None
    ]
    if not rows:
        return None
    layers = listed([str(layer) for layer in sorted({row["layer"] for row in rows})])
    steps = sorted({row["step"] for row in rows if row["step"] is not None})
    when = f", {counted(len(steps), 'observation')} from step {steps[0]:,} to {steps[-1]:,}" if len(steps) > 1 else ""
    when = f", step {steps[0]:,}" if len(steps) == 1 else when
    return (
        f"{subject.label}: TwoNN is below 1 at layer {layers}{when} (lowest "
        f"{number(min(row['value'] for row in rows))}). "
        "No manifold has such a dimension. It occurs where nearest neighbours are almost copies of one another, such "
        "as one token in nearly one place; the number then describes how unevenly close they are."
    )


def _profiles(subject: Subject, measures: Sequence[Measure]) -> list[Series]:
    found = []
    for word in measures:
        rows = [
            row for row in subject.by_measure.get(word.name, []) if row["layer"] is not None and row["step"] is not None
        ]
        at_start = min((row["step"] for row in rows), default=0)
        for label, subset, tensor in itertools.product(_labels(word, rows), SUBSETS, ("activations", "gradients")):
            tokens = SUBSETS[subset]
            chosen_rows = [row for row in rows if row["subset"] == subset and row["tensor"] == tensor]
            chosen_rows = [row for row in chosen_rows if _label(word, row) == label]
            if chosen_rows:
                for when, step in observed_at(subject, chosen_rows).items():
                    tags = {"model": subject.label, "measure": label, "tensor": tensor}
                    tags |= {"subset": tokens, "when": when}
                    line = curve((row for row in chosen_rows if row["step"] == step), lambda row: row["layer"])
                    if line:
                        found.append(Series(f"{subject.label}, step {step:,}", tags, line))
                    control = _controls_of(word, chosen_rows, step)
                    if control:
                        name = f"{subject.label}, Gaussian of equal covariance"
                        found.append(Series(name, tags, control, null=True))
                    if line and step == at_start == 0:
                        own = {key: value for key, value in tags.items() if key != "when"}
                        found.append(Series(f"{subject.label} before training", own, line, null=True))
    return found


def _labels(word: Measure, rows: Sequence[Row]) -> list[str]:
    """A measure in each of the variants that rows hold."""
    return list(dict.fromkeys(_label(word, row) for row in rows))


def _label(word: Measure, row: Row) -> str:
    """The measure of a row with its variant; the probe of a training is no other way to measure."""
    return word.label if row["variant"] == "probe" else word.variant_label(row["variant"])


def _controls_of(word: Measure, rows: list[Row], step: int) -> list[Point]:
    """What a Gaussian cloud of the same covariance and as many rows reads, where the measure is a dimension."""
    if "dimension" not in word.shown:
        return []
    known = [{**row, "value": row["floor"], "low": None, "high": None} for row in rows if row["floor"] is not None]
    return curve((row for row in known if row["step"] == step), lambda row: row["layer"])


def observed_at(subject: Subject, rows: list[Row]) -> dict[str, int]:
    """The observations nearest to the start, 30 %, half, 70 % and the last, each once."""
    steps = sorted({row["step"] for row in rows})
    found: dict[str, int] = {}
    for when, fraction in WHENS.items():
        if steps:
            wanted = fraction * subject.source.steps
            step = steps[-1] if when == "last" else min(steps, key=lambda s: abs(s - wanted))
            if step not in found.values():
                found[when] = step
            elif when == "last":
                found = {name: at for name, at in found.items() if at != step} | {when: step}
    return found


def _controls(series: list[Series], **wanted: str) -> list[Control]:
    names = {"measure": "Measure", "tensor": "Vectors", "subset": "Tokens", "when": "Observation"}
    found = []
    for key, label in names.items():
        values = values_of(series, key)
        if key == "when":
            values = [when for when in WHENS if when in values]
        if len(values) > 1:
            found.append(Control(key, label, values, chosen(values, wanted.get(key, values[0]))))
    return found


def _isotropy(context: Context, series: list[Series]) -> Figure:
    measures = values_of(series, "measure")
    return Figure(
        "isotropy",
        "Anisotropy by layer",
        f"{definitions(measures)} Grey dashed: what an isotropic cloud of this shape scores; coloured dashed: the same "
        "model before training. "
        + (
            errors(context, ratio=False)
            if context.seeded > 1 or any(p.low is not None for s in series for p in s.points)
            else "The rows of these measures have no intervals here, so there are no bars."
        ),
        f"Layer profiles of {', '.join(measures)} for {' and '.join(values_of(series, 'model'))}.",
        Axis("layer (0: what enters the first block)", fixed=True),
        Axis("value", by={"key": "measure"}),
        series,
        colour="model",
        choose=_controls(series, measure="average cosine", tensor="activations", when="last"),
        toggle=[Control("model", "Models", values_of(series, "model"))],
        references=[*no_effects(measures), *_floors(context, measures)],
    )


def _floors(context: Context, measures: Sequence[str]) -> list[Reference]:
    """What noise of the same shape scores, from the rows; of measures that have one number for it, that is drawn."""
    found = []
    for word in shown_in("isotropy"):
        rows = [row for s in context.subjects for row in s.pick(word.name, subset="all", variant=None)]
        floors = [row["floor"] for row in rows if row["floor"] is not None and row["tensor"] == "activations"]
        if floors and word.no_effect is None and word.label in measures:
            found.append(Reference(statistics.median(floors), "isotropic noise", {"measure": word.label}))
    return found


def _dimension(context: Context, series: list[Series]) -> Figure:
    return Figure(
        "dimension-layers",
        "Intrinsic dimension by layer",
        f"On a fixed held-out probe. {definitions(values_of(series, 'measure'))} Dimension is biased downwards at "
        "finite n (a Gaussian of 40 dimensions reads 27 to 28 at 2,000 points), so compare it only at equal n. Nulls "
        "(dashed): a Gaussian cloud of the same covariance and n, which has no manifold, and the untrained model. "
        + errors(context, ratio=False, rows="the points of the probe"),
        f"Intrinsic dimension by layer for {' and '.join(values_of(series, 'model'))}.",
        Axis("layer (0: what enters the first block)", fixed=True),
        Axis("dimension", log=spread_out(series), by={"key": "measure"}),
        series,
        colour="model",
        choose=_controls(series, measure=MEASURES["two_nn"].label, when="last"),
        toggle=[Control("model", "Models", values_of(series, "model"))],
        references=no_effects(values_of(series, "measure")),
    )


def _bells(context: Context) -> Table | None:
    rows = []
    for word in [*shown_in("dimension"), *shown_in("isotropy")]:
        measure = word.name
        of_model = [(s, s.pick(measure, subset="all", tensor="activations")) for s in context.subjects]
        labels = _labels(word, [row for _, found in of_model for row in found])
        for words, (subject, found) in itertools.product(labels, of_model):
            given = [r for r in found if r["step"] is not None and _label(word, r) == words]
            if measure == "two_nn":
                given = comparable(given)
            steps = sorted({row["step"] for row in given})
            lines = [curve((row for row in given if row["step"] == step), lambda row: row["layer"]) for step in steps]
            shapes = [shape(line) for line in lines]
            if shapes and shapes[-1] is not None:
                rows.append([Cell(words), Cell(subject.label), *_bell(shapes, steps)])
    caption = (
        "A profile is a bell if its peak is at an inner layer and exceeds both ends by more than the error of the "
        "difference, adjusted for the number of layers, and by at least 5 % of the largest size; a valley is the same "
        "upside down. Otherwise it is rising or falling if its ends differ by that much, flat if all of it lies within "
        "5 %, and otherwise “cannot tell”. At most 5 % of pure-noise profiles are called a bell or a valley "
        "(docs/calibration.md). Prominence: peak minus the higher end (valley: trough minus the lower end). Peak, ends "
        "and prominence are those of the last observation. Activations, all tokens."
    )
    columns = ["measure", "model", "before training", "last", "a bell in", "peak layer", "peak", "ends", "prominence"]
    return Table("bells", "The bell, measured", caption, columns, rows, heads=2) if rows else None


def _bell(shapes: list[BellShape | None], steps: list[int]) -> list[Cell]:
    last = shapes[-1]
    assert last is not None
    first = shapes[0].word if shapes[0] is not None and steps[0] == 0 else "–"
    bells = sum(found is not None and found.word == "bell" for found in shapes)
    at, turned = (last.trough if last.word == "valley" else last.peak), last.word in ("bell", "valley")
    return [
        Cell(first),
        Cell(last.word, f"step {steps[-1]:,}", tone="yes" if last.word == "bell" else None),
        Cell(f"{bells} of {len(shapes)}", "observations"),
        Cell(number(at.x) if turned else "–"),
        Cell(number(at.y) if turned else "–"),
        Cell(f"{number(last.first.y)} and {number(last.last.y)}"),
        Cell(number(last.prominence) if turned else "–"),
    ]
