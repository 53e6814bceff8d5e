"""A table per view: models and windows, every number beside its nulls, as in Bernas et al. (2026)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from anisoscope.report.claim_table import claim_table
from anisoscope.report.formatting import number
from anisoscope.report.ladder_findings import windows_of
from anisoscope.report.names import short_of, word_of
from anisoscope.report.reading import Context, Row, Subject
from anisoscope.report.sections.gains import gain_figure
from anisoscope.report.summary import defined, seed_rows, summarise
from anisoscope.report.tree import Block, Cell, Gap, Section, Table, Text
from anisoscope.report.window_effects import FEWEST_SEEDS
from anisoscope.vocabulary import NULLS, SUBSETS, TIMINGS, VIEWS


def numbers_section(context: Context, begins: str = "representation") -> Section:
    """One table a view."""
    blocks: list[Block] = []
    for view in VIEWS:
        table = _table(context, view, brief=bool(blocks))
        if table is not None:
            blocks.append(table)
    others = (claim_table(context, view) for view in VIEWS if view != begins)
    blocks += [table for table in others if table is not None]
    gains = gain_figure(context) if context.drawn else Gap("gains")
    if gains is not None:
        blocks.append(gains)
    found = _finding(context, begins)
    blocks = blocks or [Text("The run has no judged observations in either window, so there is nothing to tabulate.")]
    return Section("numbers", "In numbers", blocks, found)


def _finding(context: Context, view: str) -> str:
    """Shares and gains of the last window."""
    parts = []
    for subject in context.subjects:
        energy = subject.window(subject.main("energy", view=view), "late")
        gains = [r for r in subject.main("isotropy_gain", view=view) if r["variant"] is None]
        share, gain = summarise(energy), summarise(subject.window(gains, "late"))
        if share is not None:
            more = "" if gain is None else f", isotropy gain {number(gain.y)}"
            parts.append(f"{subject.label} {number(share.y)} of the energy{more}")
    return f"Medians at the end: {'; '.join(parts)}." if parts else ""


def _table(context: Context, view: str, *, brief: bool) -> Table | None:
    subjects = [subject for subject in context.subjects if subject.main("energy", view=view)]
    if not subjects:
        return None
    present = {row["null"] for subject in subjects for row in subject.main("enrichment", view=view)}
    nulls = [null for null in NULLS if null in present]
    rows = [_line(subject, view, window, nulls) for subject in subjects for window in windows_of(subject)]
    first = subjects[0]
    full = (
        f"Proxy {word_of(first.proxy)} of rank {first.rank}, {TIMINGS.get(first.timing, first.timing)} "
        f"({first.timing}), {SUBSETS.get(first.subset, first.subset)}. Energy share: "
        "part of the gradient's energy tr(QᵀMQ)/tr M inside the proxy Q; below it, the share K/D that a random "
        "subspace of the same rank has. Enrichment: odds ratio of that share over the null's; 1 is the null. "
        "Orthogonal directions: the control of Bernas et al. (2026), without a p. Isotropy gain: IsoScore* of the "
        "gradient cloud after the proxy (tangent) or random directions orthogonal to it (normal) were removed, minus "
        "before; 0 is no gain, p is from random frames. Every entry is the median over layers and observations of the "
        "window, with equal weights here; in the verdict, observations are weighted by the steps they stand for, "
        f"so the numbers differ. {_brackets(context)} p and q are those of the median row, the largest over seeds."
    )
    about = f"{VIEWS[view].about} Units of intervals: {context.units}."
    caption = f"{about} {'Columns as in the table above.' if brief else full}"
    columns = [
        "model",
        "window",
        "energy share",
        *(f"over {short_of(null)}" for null in nulls),
        "gain, tangent",
        "gain, normal",
    ]
    return Table(f"numbers-{view}", f"{view.capitalize()} view", caption, columns, rows, heads=2)


def _brackets(context: Context) -> str:
    if context.seeded >= FEWEST_SEEDS:
        return (
            "Brackets: 95 % interval over seeds of the medians (Student's t), and, named as within a seed, that of the "
            f"median row of the seed in the middle, over {context.units}. Of two seeds both values are given instead."
        )
    if context.seeded > 1:
        return (
            f"Both seeds' values are given: there is no interval over fewer than {FEWEST_SEEDS} seeds. Brackets: 95 % "
            f"interval of the median row within each seed, over {context.units}."
        )
    return f"Brackets: 95 % interval of the median row, over {context.units}."


def _line(subject: Subject, view: str, window: str, nulls: list[str]) -> list[Cell]:
    """One model and window; asked for again under the same choices, it is found at once."""
    key = ("numbers", view, window, tuple(nulls), subject.proxy, subject.timing, subject.subset)
    if key not in subject.kept:
        subject.kept[key] = _cells(subject, view, window, nulls)
    return subject.kept[key]


def _cells(subject: Subject, view: str, window: str, nulls: list[str]) -> list[Cell]:
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
    point, medians = summarise(rows, ratio=ratio), seed_rows(rows)
    if point is None:
        return Cell("–", "not measured")
    few = 1 < len(medians) < FEWEST_SEEDS
    parts = [] if small is None else [small]
    parts += _ends([point.low], [point.high])
    if len(medians) > 1:
        shown = medians if few else sorted(medians, key=lambda row: row["value"])[(len(medians) - 1) // 2 :][:1]
        within = _ends([row["low"] for row in shown], [row["high"] for row in shown])
        parts += [f"within {'seeds' if few else 'a seed'} {ends}" for ends in within]
    given = {name: [row[name] for row in medians if row[name] is not None] for name in ("p", "q")}
    parts += [f"{name} = {number(max(values))}" for name, values in given.items() if values]
    said = ", ".join(number(row["value"]) for row in medians) if few else number(point.y)
    return Cell(said, "\n".join(parts) or None)


def _ends(low: Sequence[float | None], high: Sequence[float | None]) -> list[str]:
    """Intervals in brackets, as one text; none where an end is missing."""
    known = [end for end in (*low, *high) if end is not None and not math.isnan(end)]
    if len(known) < 2 * len(low):
        return []
    return [", ".join(f"[{number(a)}, {number(b)}]" for a, b in zip(low, high, strict=True))]


def null_share(energy: list[Row], haar: list[Row]) -> float | None:
    """The mean share of ``haar``, from an energy and its odds ratio at the same place."""
    places = {(r["seed"], r["step"], r["layer"]): r["value"] for r in defined(energy)}
    for row in defined(haar):
        share = places.get((row["seed"], row["step"], row["layer"]))
        if share is not None and 0 < share < 1 and row["value"] > 0:
            odds = share / (1 - share) / row["value"]
            return odds / (1 + odds) if math.isfinite(odds) else None
    return None
