"""Where the embedding goes: its updates and its changes between checkpoints, beside its gradients, over training."""

from __future__ import annotations

from collections.abc import Sequence

from anisoscope.report.formatting import number
from anisoscope.report.plain_words import percent
from anisoscope.report.reading import Context, Row, Subject
from anisoscope.report.sections.emergence import NULL_AT_ONE, Fit, chosen, fit_controls, fit_of, fit_tags
from anisoscope.report.summary import errors, over_training, summarise
from anisoscope.report.tree import Axis, Block, Cell, Control, Figure, Gap, Section, Series, Table, Text, values_of
from anisoscope.report.window_effects import FEWEST_SEEDS
from anisoscope.vocabulary import NULLS, PROXIES, TENSORS, VIEWS, WINDOWS, rank_of

TITLE = "Where the embedding moves"
RULE = (
    "An update depends on more than the observed sequences (on the optimiser's state from earlier steps), so there "
    "is no "
    "interval within a seed, and no null of permuted labels: no step was taken on those. Intervals are over "
    f"seeds, from {FEWEST_SEEDS} on."
)


def updates_section(context: Context, view: str = "representation") -> Section | None:
    """Enrichment of updates over training and in numbers; None where no update was judged."""
    judged = [subject for subject in context.subjects if _moved(subject)]
    if not judged:
        return None
    if not context.drawn:
        return Section("updates", TITLE, [Gap("updates"), Gap("updates-numbers")], _finding(judged))
    blocks: list[Block] = [Text(RULE, small=True)]
    series = [one for subject in judged for one in _curves(context, subject)]
    if series:
        blocks.append(_figure(context, judged[0], series))
    blocks.append(_table(judged))
    return Section("updates", TITLE, blocks, _finding(judged))


def _tensors() -> tuple[str, ...]:
    """What the embedding view judges, updates first."""
    return tuple(sorted(VIEWS["embedding"].judged_on, key=lambda tensor: tensor.startswith("gradients")))


def _moved(subject: Subject) -> list[Row]:
    """Rows of updates and changes."""
    rows = subject.pick("enrichment", view="embedding")
    moved = [tensor for tensor in _tensors() if not tensor.startswith("gradients")]
    return [row for row in rows if row["tensor"] in moved and row["step"] is not None]


def _main(subject: Subject, measure: str, **where: str) -> list[Row]:
    rows = subject.main(measure, view="embedding", **where)
    return [row for row in rows if row["layer"] is not None]


def _finding(subjects: Sequence[Subject]) -> str:
    """The last window of each model, over random directions."""
    parts = []
    for subject in subjects:
        for tensor in _tensors():
            if not tensor.startswith("gradients"):
                rows = subject.window(_main(subject, "enrichment", null="haar", tensor=tensor), "late")
                point = summarise(rows, ratio=True)
                if point is not None and point.y is not None:
                    parts.append(f"{subject.label} {tensor} {number(point.y)}")
    return f"Late, over random directions: {', '.join(parts)}." if parts else ""


def _curves(context: Context, subject: Subject) -> list[Series]:
    groups: dict[tuple[str, str, Fit], list[Row]] = {}
    for row in subject.pick("enrichment", view="embedding"):
        fit = fit_of(row)
        known = row["tensor"] in _tensors() and row["null"] in NULLS and row["null"] != "normal"
        fixed = PROXIES[row["proxy"]].rank if row["proxy"] in PROXIES else None
        if known and fit is not None and row["layer"] is not None and rank_of(row) == (fixed or subject.rank):
            groups.setdefault((row["tensor"], row["null"], fit), []).append(row)
    found = []
    tensors, nulls = _tensors(), list(NULLS)
    for tensor, null, fit in sorted(groups, key=lambda key: (tensors.index(key[0]), nulls.index(key[1]), key[2])):
        points = over_training(context, subject, groups[tensor, null, fit], ratio=True)
        if points:
            tags = {"model": subject.label, "tensor": tensor, "null": null, **fit_tags(fit)}
            found.append(Series(f"{subject.label}, {tensor}", tags, points))
    return found


def _figure(context: Context, subject: Subject, series: list[Series]) -> Figure:
    nulls, tensors = values_of(series, "null"), values_of(series, "tensor")
    controls = [Control("null", "Null", nulls, chosen(nulls, "haar")), *fit_controls(series, subject)]
    meanings = "; ".join(f"`{tensor}`: {TENSORS[tensor]}" for tensor in tensors)
    return Figure(
        "updates",
        "Enrichment of the embedding's updates",
        "Energy of rows of the embedding's update inside the proxy fitted on the embedding before it, as an "
        f"odds ratio over the null (dashed: 1), one row per type, folds by type. {meanings}. {errors(context)}",
        f"Enrichment of the embedding's updates and gradients against {context.x_label}.",
        Axis(context.x_label, log=context.x_log),
        Axis("enrichment (odds ratio)", log=True),
        series,
        colour="tensor",
        panel="model",
        choose=[control for control in controls if len(control.values) > 1],
        toggle=[
            Control("tensor", "Of what", tensors),
            Control("model", "Models", values_of(series, "model")),
        ],
        references=[NULL_AT_ONE],
        zones=context.zones,
    )


def _table(subjects: Sequence[Subject]) -> Table:
    rows: list[list[Cell]] = []
    nulls = [null for null in NULLS if null != "normal" and any(_of(s, null) for s in subjects)]
    for subject in subjects:
        for tensor in _tensors():
            for window in WINDOWS:
                energy = summarise(subject.window(_main(subject, "energy", tensor=tensor), window))
                if energy is None or energy.y is None:
                    continue
                floors = [row["floor"] for row in _main(subject, "energy", tensor=tensor) if row["floor"] is not None]
                chance = f"K/D = {number(sorted(floors)[len(floors) // 2])}" if floors else None
                cells = [Cell(subject.label), Cell(tensor), Cell(window), Cell(percent(energy.y), chance)]
                rows.append(cells + [_cell(subject, tensor, window, null) for null in nulls])
    caption = (
        "Share of the energy inside the proxy, and odds ratios over each null: medians over the observations of a "
        "window, for the proxy, timing and tokens of the verdict. –: the null is not available."
    )
    columns = ["model", "tensor", "window", "energy share", *(f"over {null}" for null in nulls)]
    return Table("updates-numbers", "Updates in numbers", caption, columns, rows, heads=3)


def _of(subject: Subject, null: str) -> bool:
    return any(_main(subject, "enrichment", null=null, tensor=tensor) for tensor in _tensors())


def _cell(subject: Subject, tensor: str, window: str, null: str) -> Cell:
    rows = subject.window(_main(subject, "enrichment", null=null, tensor=tensor), window)
    point = summarise(rows, ratio=True)
    if point is None or point.y is None:
        return Cell("–", next((row["note"] for row in rows if row["note"]), "not measured"))
    ends = None if point.low is None else f"[{number(point.low)}, {number(point.high)}]"
    return Cell(number(point.y), ends)
