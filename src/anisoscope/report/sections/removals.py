"""What removing directions from the residual stream costs, by layer: the functional side of enrichment."""

from __future__ import annotations

from collections import Counter

from anisoscope.report.formatting import interval, listed, number
from anisoscope.report.names import short_of, word_of
from anisoscope.report.reading import Context, Row, Subject
from anisoscope.report.sections.emergence import chosen
from anisoscope.report.summary import curve, defined
from anisoscope.report.tree import (
    Axis,
    Block,
    Cell,
    Control,
    Figure,
    Reference,
    Section,
    Series,
    Table,
    Text,
    Tone,
    values_of,
)
from anisoscope.verdict import ABOVE, BELOW
from anisoscope.vocabulary import (
    BINS,
    EQUAL_DISPLACEMENT,
    REMOVAL_CONTROLS,
    SUBSETS,
    WHOLE_STREAM,
    bin_of,
)

_WHOLE, _EQUAL = "both removed whole", "at equal displacement"
_ALL = "all tokens"
_TONES: dict[str, Tone] = {"above": "yes", "below": "no"}


def removals_section(context: Context) -> Section | None:
    """In words, drawn, and in a table; None for runs without removals."""
    if not any(subject.by_measure.get("removal_cost") for subject in context.subjects):
        return None
    blocks: list[Block] = [text for subject in context.subjects for text in _said(subject)]
    blocks += [_costs(context), _excesses(context), _table(context)]
    return Section("removals", "Removing directions from the stream", blocks, _finding(context))


def _finding(context: Context) -> str:
    """In how many layers and ranks the proxy costs more than random directions that move the stream as far."""
    parts = []
    for subject in context.subjects:
        rows = [r for r in _excess_rows(subject, EQUAL_DISPLACEMENT) if _is_whole(r) and r["step"] == _last(subject)]
        outcomes = [_merged(row["outcome"]) for row in rows if row["null"] == "haar"]
        if outcomes:
            parts.append(f"{subject.label} {outcomes.count('above')} of {len(outcomes)}")
    what = "Sites (layers and ranks) where removing the proxy costs more than removing as many random directions"
    return f"{what}: {', '.join(parts)}." if parts else ""


def _said(subject: Subject) -> list[Text]:
    """How many layers come to which outcome against each control, at the last step and each rank."""
    found = []
    rows = [r for r in _excess_rows(subject, EQUAL_DISPLACEMENT) if _is_whole(r) and r["step"] == _last(subject)]
    for rank in sorted({row["rank"] for row in rows}):
        parts = []
        for control in REMOVAL_CONTROLS:
            counts = Counter(_merged(r["outcome"]) for r in rows if r["rank"] == rank and r["null"] == control)
            words = ", ".join(f"{word} {count}" for word, count in counts.most_common())
            parts.append(f"{word_of(control)}: {words}")
        head = f"{subject.label}, rank {rank}:"
        text = (
            "removing the proxy compared with removing a control at equal displacement, layers by outcome: "
            f"{'; '.join(parts)}. Above: the proxy costs more than directions that move the stream equally far."
        )
        found.append(Text(text, head, "plain"))
    return found


def _costs(context: Context) -> Figure:
    series = [s for subject in context.subjects for s in _cost_series(subject)]
    kinds = values_of(series, "removed")
    return _figure(
        "removal-cost",
        "What removing directions costs, by layer",
        "Mean loss per token with directions removed from the stream after one block, minus without removal, in nats. "
        "The proxy is fitted on one fold of the text and removed from the other. Controls of equal rank are removed "
        "whole; random ones are means over draws, and their intervals include the error of the draws. Replacing the "
        "whole "
        f"stream by its mean gives the scale. Removed from {_removed_from(context)}. "
        f"Bands and bars are 95 % intervals, paired, over {context.units}.",
        "loss, nats per token",
        series,
        colour="removed",
        toggle=[Control("removed", "Removed", kinds)],
    )


def _excesses(context: Context) -> Figure:
    series = [s for subject in context.subjects for s in _excess_series(subject)]
    return _figure(
        "removal-excess",
        "What the proxy costs above its controls",
        "Cost of removing the proxy minus that of a control, token by token. Removed whole, a proxy of large variance "
        "costs most because it is large; at equal displacement the larger of the two is removed in part, so that both "
        "move a token equally far (root mean square). By frequency: quantiles of tokens by how often the target "
        f"token occurs in the text. Bands and bars are 95 % intervals, paired, over {context.units}.",
        "difference, nats per token",
        series,
        colour="null",
        choose=[
            Control("compared", "Compared", [_EQUAL, _WHOLE], _EQUAL),
            Control("tokens", "Target tokens", values_of(series, "tokens"), _ALL),
        ],
        toggle=[Control("null", "Controls", list(REMOVAL_CONTROLS))],
    )


def _figure(
    name: str,
    title: str,
    caption: str,
    y: str,
    series: list[Series],
    *,
    colour: str,
    toggle: list[Control],
    choose: list[Control] | None = None,
) -> Figure:
    models, ranks, steps = (values_of(series, key) for key in ("model", "rank", "step"))
    shared = [
        Control("rank", "Rank", ranks, chosen(ranks, "32")),
        Control("step", "Step", steps, steps[-1] if steps else None),
    ]
    return Figure(
        name,
        title,
        caption,
        f"{title} for {listed(models)}.",
        Axis("layer (0: what enters the first block)", fixed=True),
        Axis(y),
        series,
        colour=colour,
        panel="model",
        choose=[*(choose or []), *(control for control in shared if len(control.values) > 1)],
        toggle=[*toggle, Control("model", "Models", models)],
        references=[Reference(0.0, "no change: 0")],
    )


def _cost_series(subject: Subject) -> list[Series]:
    groups: dict[tuple[str, str, int | None], list[Row]] = {}
    whole: dict[str, list[Row]] = {}
    for row in defined(subject.by_measure.get("removal_cost", [])):
        if not _is_whole(row):
            continue
        if row["variant"] == WHOLE_STREAM:
            whole.setdefault(_step(row), []).append(row)
        else:
            groups.setdefault((row["null"] or str(row["proxy"]), _step(row), row["rank"]), []).append(row)
    for step, rows in whole.items():  # of no rank: the same beside each
        for rank in sorted({key[2] or 0 for key in groups if key[1] == step}):
            groups[WHOLE_STREAM, step, rank] = rows
    found = []
    for (removed, step, rank), rows in groups.items():
        tags = {"model": subject.label, "removed": removed, "rank": str(rank), "step": step}
        found.append(Series(f"{subject.label}, {word_of(removed)}", tags, curve(rows, lambda row: row["layer"])))
    return found


def _excess_series(subject: Subject) -> list[Series]:
    found = []
    for variant, compared in ((EQUAL_DISPLACEMENT, _EQUAL), (None, _WHOLE)):
        groups: dict[tuple[str, str, str, str], list[Row]] = {}
        for row in defined(_excess_rows(subject, variant)):
            groups.setdefault((str(row["null"]), _tokens(row), str(row["rank"]), _step(row)), []).append(row)
        for (control, tokens, rank, step), rows in groups.items():
            tags = {"model": subject.label, "null": control, "tokens": tokens, "rank": rank, "step": step}
            line = curve(rows, lambda row: row["layer"])
            found.append(Series(f"{subject.label}, above {word_of(control)}", tags | {"compared": compared}, line))
    return found


def _table(context: Context) -> Table:
    rows = []
    for subject in context.subjects:
        excess = {_key(r): r for r in _excess_rows(subject, EQUAL_DISPLACEMENT) if _is_whole(r)}
        shares = {_key(r): r["value"] for r in subject.by_measure.get("removed_variance", [])}
        for row in subject.by_measure.get("removal_cost", []):
            if row["null"] is not None or row["variant"] is not None or not _is_whole(row):
                continue
            if row["step"] != _last(subject):
                continue
            cells = [Cell(subject.label), Cell(str(row["layer"])), Cell(str(row["rank"]))]
            cells += [Cell(number(shares.get(_key(row)))), Cell(interval(row["value"], row["low"], row["high"]))]
            rows.append([*cells, *(_compared(excess.get((*_key(row)[:-1], control))) for control in REMOVAL_CONTROLS)])
    caption = (
        "The cost of the proxy in nats per token with its 95 % interval, the share of the stream's variance that was "
        "removed, and the difference to each control at equal displacement. Outcomes: above, below or equal (the 90 % "
        "interval lies within the margin declared before the run); q is adjusted over layers. The last step."
    )
    columns = [
        "model",
        "layer",
        "rank",
        "variance removed",
        "cost",
        *(f"above {short_of(c)}" for c in REMOVAL_CONTROLS),
    ]
    return Table("removal-table", "Removals by layer", caption, columns, rows, heads=3)


def _compared(row: Row | None) -> Cell:
    if row is None:
        return Cell("–")
    word = row["outcome"] or "not measured"
    return Cell(interval(row["value"], row["low"], row["high"]), word, _TONES.get(_merged(word)))


def _excess_rows(subject: Subject, variant: str | None) -> list[Row]:
    return [row for row in subject.by_measure.get("removal_excess", []) if row["variant"] == variant]


def _is_whole(row: Row) -> bool:
    """Whether a row is about all tokens that were asked for."""
    return bin_of(row["subset"]) is None


def _tokens(row: Row) -> str:
    found = bin_of(row["subset"])
    return _ALL if found is None else BINS[found[2] - 1]


def _step(row: Row) -> str:
    return f"step {row['step']:,}" if row["step"] is not None else "–"


def _last(subject: Subject) -> int:
    return max((r["step"] for r in subject.by_measure.get("removal_cost", []) if r["step"] is not None), default=0)


def _merged(outcome: str | None) -> str:
    return "above" if outcome in ABOVE else "below" if outcome in BELOW else outcome or "not measured"


def _key(row: Row) -> tuple[object, ...]:
    return row["step"], row["seed"], row["layer"], row["rank"], row["null"]


def _removed_from(context: Context) -> str:
    subsets = {
        r["subset"] or "" for s in context.subjects for r in s.by_measure.get("removal_cost", []) if _is_whole(r)
    }
    return listed([SUBSETS.get(subset, subset) for subset in sorted(subsets)])
