"""A table per view: models and windows, every number beside its nulls, as in Bernas et al. (2026)."""

from __future__ import annotations

import math

from anisoscope.report.claim_table import claim_table
from anisoscope.report.effects import FEWEST_SEEDS
from anisoscope.report.findings import windows_of
from anisoscope.report.gains import gain_figure
from anisoscope.report.reading import Context, Row, Subject
from anisoscope.report.summary import defined, median_row, summarise
from anisoscope.report.tree import Block, Cell, Section, Table, Text
from anisoscope.report.words import interval, number
from anisoscope.vocabulary import NULLS, VIEWS


def numbers_section(context: Context) -> Section:
    """One table a view."""
    blocks: list[Block] = []
    for view in VIEWS:
        table = _table(context, view, brief=bool(blocks))
        if table is not None:
            blocks.append(table)
    others = (claim_table(context, view) for view in VIEWS if view != "representation")
    blocks += [table for table in others if table is not None]
    gains = gain_figure(context)
    if gains is not None:
        blocks.append(gains)
    blocks = blocks or [Text("The run has no judged observations in either window, so there is nothing to tabulate.")]
    return Section("numbers", "In numbers", blocks)


def _table(context: Context, view: str, *, brief: bool) -> Table | None:
    subjects = [subject for subject in context.subjects if subject.main("energy", view=view)]
    if not subjects:
        return None
    present = {row["null"] for subject in subjects for row in subject.main("enrichment", view=view)}
    nulls = [null for null in NULLS if null in present]
    rows = [_line(subject, view, window, nulls) for subject in subjects for window in windows_of(subject)]
    first = subjects[0]
    full = (
        f"Proxy {first.proxy} of rank {first.rank}, refitted at each observation (rolling), all tokens. Energy share: "
        "part of the gradient's energy tr(QᵀMQ)/tr M inside the proxy Q; below it, the share K/D that a random "
        "subspace of the same rank has. Enrichment: odds ratio of that share over the null's; 1 is the null. "
        "`normal` is the control of Bernas et al. (2026) and has no p that could decide. Isotropy gain: IsoScore* of "
        "the gradient cloud after the proxy (tangent) or random directions orthogonal to it (normal) were removed, "
        "minus before; 0 is no gain, p is from random frames. Every entry is the median over layers and observations "
        "of the window, which count alike here; in the verdict an observation weighs as many steps as it stands for, "
        f"so numbers differ. {_brackets(context)} p and q are those of the median row, the largest over seeds."
    )
    about = f"{VIEWS[view].about} Units of intervals: {context.units}."
    caption = f"{about} {'Columns as in the table above.' if brief else full}"
    columns = ["model", "window", "energy share", *(f"over {null}" for null in nulls), "gain, tangent", "gain, normal"]
    return Table(f"numbers-{view}", f"{view.capitalize()} view", caption, columns, rows, heads=2)


def _brackets(context: Context) -> str:
    if context.seeded >= FEWEST_SEEDS:
        return "Brackets: 95 % interval over seeds of the medians (Student's t)."
    if context.seeded > 1:
        return f"No brackets: there is no interval over fewer than {FEWEST_SEEDS} seeds."
    return f"Brackets: 95 % interval of the median row, over {context.units}."


def _line(subject: Subject, view: str, window: str, nulls: list[str]) -> list[Cell]:
    cells = [Cell(subject.label), Cell("the model" if subject.source.is_profile else window)]
    energy = subject.window(subject.main("energy", view=view), window)
    haar = subject.window(subject.main("enrichment", view=view, null="haar"), window)
    floor = null_share(energy, haar)
    cells.append(_cell(energy, small=None if floor is None else f"K/D = {number(floor)}"))
    for null in nulls:
        rows = subject.window(subject.main("enrichment", view=view, null=null), window)
        cells.append(_cell(rows, ratio=True))
    gains = [r for r in subject.main("isotropy_gain", view=view) if r["variant"] is None]
    cells.append(_cell(subject.window(gains, window)))
    cells.append(_cell(subject.window(subject.main("isotropy_gain_normal", view=view), window)))
    return cells


def _cell(rows: list[Row], *, ratio: bool = False, small: str | None = None) -> Cell:
    point = summarise(rows, ratio=ratio)
    if point is None:
        return Cell("–", "not measured")
    by_seed: dict[int | None, list[Row]] = {}
    for row in rows:
        by_seed.setdefault(row["seed"], []).append(row)
    medians = [row for row in map(median_row, by_seed.values()) if row is not None]
    parts = [] if point.low is None else [interval(point.y, point.low, point.high).partition(" ")[2]]
    given = {name: [row[name] for row in medians if row[name] is not None] for name in ("p", "q")}
    parts += [f"{name} = {number(max(values))}" for name, values in given.items() if values]
    return Cell(number(point.y), small or ("\n".join(parts) or None))


def null_share(energy: list[Row], haar: list[Row]) -> float | None:
    """The mean share of ``haar``, from an energy and its odds ratio at the same place."""
    places = {(r["seed"], r["step"], r["layer"]): r["value"] for r in defined(energy)}
    for row in defined(haar):
        share = places.get((row["seed"], row["step"], row["layer"]))
        if share is not None and 0 < share < 1 and row["value"] > 0:
            odds = share / (1 - share) / row["value"]
            return odds / (1 + odds) if math.isfinite(odds) else None
    return None
