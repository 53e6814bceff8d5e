"""The referee's checks as one page: an answer to each question in words, then the numbers layer by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from anisoscope.report.formatting import counted, interval, number
from anisoscope.report.names import word_of
from anisoscope.report.reading import Context, Row, Subject
from anisoscope.report.tree import Block, Cell, Section, Table, Text, Tone
from anisoscope.vocabulary import MEASURES

CHECKS = dict(MEASURES["check"].variants)
RULE = (
    "The rule: a proxy is fitted on one half of the sequences and checked on the other, both ways. Random directions "
    "of equal rank do worse at a layer if the proxy's whole 95 % interval is above what they give and p is at most "
    "0.05. Two methods are compared on the same sequences, by the ratio of their odds and the difference of what they "
    "capture; intervals are jackknives over sequences or documents. Layers of one model share its sequences: counts "
    "of layers are no sample of models, and no p is adjusted over them here."
)


def subtitle(context: Context) -> str:
    """What was checked."""
    names = [subject.model or subject.label for subject in context.subjects]
    return f"Checks of tangent proxies on {' and '.join(names)}; {context.sources[0].status}"


def verification_sections(context: Context) -> list[Section]:
    """The reply, then a section of numbers for each model."""
    first = context.sources[0].manifest.get("model")
    own = first.get("name") if isinstance(first, dict) else None
    subjects = sorted(context.subjects, key=lambda subject: subject.model != own)
    reply: list[Block] = []
    for subject in subjects:
        held = "" if subject.model == own else " (held out)"
        reply += _reply(subject, f"{subject.model or subject.label}{held}: ")
    reply = reply or [Text("The run has no checks yet.")]
    tables = [_checks(f"checks-{k}", subject) for k, subject in enumerate(subjects)]
    told = f"What the checks say of {counted(len(subjects), 'model')}."
    return [Section("verdict", "The reply", [*reply, Text(RULE, small=True)], told, open=True), *tables]


def _checks(name: str, subject: Subject) -> Section:
    tables = _tables(subject)
    finding = f"{counted(len(tables), 'check')}, layer by layer, for each proxy."
    return Section(name, subject.model or subject.label, tables, finding)


def _reply(subject: Subject, head: str) -> list[Block]:
    rows = subject.by_measure.get("check", [])
    proxies = list(dict.fromkeys(r["proxy"] for r in _of(rows, "settling")))
    blocks: list[Block] = []
    for check, what in (("settling", "energy"), ("settling-anisotropy", "anisotropy")):
        parts = [f"`{r['proxy']}` {_layers_of(r)}" for r in _of(rows, check) if r["value"] is not None]
        if parts:
            worst = max(r["value"] for r in _of(rows, check) if r["value"] is not None)
            tone: Tone = "yes" if worst == 0 else "part" if worst < 1 else "no"
            text = f"by {what}, random directions of equal rank are not shown to do worse than {'; than '.join(parts)}."
            blocks.append(Text(text, head, tone))
    for check, least, words in (
        ("paired", 1.0, "semi-NMF holds more of the gradient's energy than the directions of largest variance"),
        ("paired-anisotropy", 0.0, "semi-NMF captures more of the gradient's anisotropy than they do"),
    ):
        found = _of(rows, check)
        if found:
            blocks.append(Text(f"{words} {_counted_sides(found, least)}.", head, "plain"))
    return [*blocks, *(Text(_tangent(rows, proxy), head, "plain") for proxy in proxies)]


def _tangent(rows: Sequence[Row], proxy: str) -> str:
    """Angles, stability and curvature of one method, as medians over layers."""
    parts = []
    for check, words in (
        ("normal", "its angle to estimated normals is {} (random directions: {})"),
        ("refit", "fits on two halves are {} apart (random: {})"),
    ):
        found = [r for r in _of(rows, check, proxy) if _known(r)]
        if found:
            parts.append(words.format(*(f"{_median(found, key):.0f}°" for key in ("value", "floor"))))
    curved = [r for r in _of(rows, "curvature", proxy) if _known(r)]
    if curved:
        where = "curvature along it is {} times that along random tangent directions"
        parts.append(where.format(number(_median(curved, "value"))))
    else:
        parts.append("the curvature along it could not be told at any layer")
    return f"`{proxy}`: {'; '.join(parts)} (medians over layers)."


def _counted_sides(found: Sequence[Row], least: float) -> str:
    """In how many layers the interval lies above, below, or on both sides of no difference."""
    known = [r for r in found if _known(r) and r["low"] is not None]
    above, below = (sum(_side(r, least, sign) for r in known) for sign in (1, -1))
    median = _median([r for r in found if _known(r)], "value")
    rest = len(found) - above - below
    text = f"in {above} of {counted(len(found), 'layer')}, less in {below}"
    return f"{text}, and cannot be told apart in {rest} (median {number(median)}, no difference is {least:g})"


def _side(row: Row, least: float, sign: int) -> bool:
    return row["low"] > least if sign > 0 else row["high"] < least


def _tables(subject: Subject) -> list[Block]:
    rows = subject.by_measure.get("check", [])
    blocks: list[Block] = []
    for check, label in CHECKS.items():
        found = sorted(_of(rows, check), key=lambda r: -1 if r["layer"] is None else r["layer"])
        if found and not check.startswith("settling"):
            blocks.append(_table(check, label, found))
    return blocks


def _table(check: str, label: str, found: Sequence[Row]) -> Table:
    methods = list(dict.fromkeys(r["proxy"] for r in found))
    layers = list(dict.fromkeys(r["layer"] for r in found))
    by_place = {(r["layer"], r["proxy"]): r for r in found}
    cell: Callable[[Row | None], Cell] = _cell
    made = [[Cell(str(layer)), *(cell(by_place.get((layer, method))) for method in methods)] for layer in layers]
    caption = f"{label[:1].upper()}{label[1:]}, with 95 % intervals; small: random directions of equal rank, or none."
    return Table(f"check-{check}", label, caption, ["layer", *map(word_of, methods)], made, heads=1)


def _cell(row: Row | None) -> Cell:
    if row is None:
        return Cell("–")
    if not _known(row):
        return Cell("–", (row["note"] or "")[:120] or None)
    small = None if row["floor"] is None else f"against {number(row['floor'])}"
    return Cell(interval(row["value"], row["low"], row["high"]), small)


def _layers_of(row: Row) -> str:
    return f"in {(row['note'] or '').split(' layers')[0]} layers"


def _of(rows: Sequence[Row], check: str, proxy: str | None = None) -> list[Row]:
    return [r for r in rows if r["variant"] == check and (proxy is None or r["proxy"] == proxy)]


def _known(row: Row) -> bool:
    return row["value"] is not None and math.isfinite(row["value"])


def _median(rows: Sequence[Row], key: str) -> float:
    values = sorted(r[key] for r in rows if r[key] is not None)
    return math.nan if not values else values[len(values) // 2]
