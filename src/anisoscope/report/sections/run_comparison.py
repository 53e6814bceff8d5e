"""Several runs: settings that differ, and how far their headlines lie apart, with intervals."""

from __future__ import annotations

import math

from anisoscope.report.comparing import flat
from anisoscope.report.formatting import interval, visible
from anisoscope.report.ladder_findings import LadderFinding, finding
from anisoscope.report.plain_words import gives
from anisoscope.report.reading import Context, Subject
from anisoscope.report.tree import Block, Cell, Section, Table, Text
from anisoscope.report.window_effects import WindowEffect
from anisoscope.vocabulary import ladder_of

CAPTION = (
    "Odds ratio of each run over that of the first, in the last window (late), pooled over layers; 1 is no difference. "
    "The interval combines those of the two runs as independent (Zou & Donner 2008); if a run has none, there is none. "
    "For runs of one seed, it does not cover the variation between training runs. Not adjusted over lines."
)


def comparison_section(context: Context, view: str = "representation") -> Section | None:
    """Settings and headlines; nothing for a single run."""
    if not context.compare:
        return None
    settings, headlines = _settings(context), _headlines(context, view)
    blocks: list[Block] = [settings] if settings is not None else [Text("The runs have the same settings.")]
    blocks += [headlines] if headlines is not None else [Text("No two runs have a window in common.")]
    many = 0 if settings is None else len(settings.rows)
    apart = 0 if headlines is None else sum(cell.tone == "part" for row in headlines.rows for cell in row)
    finding = f"{many} settings differ; {apart} differences of the headline have an interval that excludes 1."
    return Section("comparison", "How the runs differ", blocks, finding)


def _settings(context: Context) -> Table | None:
    """Settings that are not the same everywhere."""
    configs = [dict(flat(source.manifest.get("config"))) for source in context.sources]
    keys = sorted({key for config in configs for key in config})
    rows = [
        [Cell(key), *(Cell(visible(str(config[key]), 60) if key in config else "–") for config in configs)]
        for key in keys
        if len({str(config.get(key, "–")) for config in configs}) > 1
    ]
    if not rows:
        return None
    columns = ["setting", *(source.label for source in context.sources)]
    return Table("settings", "Settings that differ", "From the manifests.", columns, rows)


def _headlines(context: Context, view: str) -> Table | None:
    """Each run over the first, for models of the same role, null by null."""
    first = context.sources[0]
    rows = []
    for subject in context.subjects:
        other = _partner(context, subject)
        if subject.source is first or other is None:
            continue
        mine, theirs = (finding(s, view, "late") for s in (subject, other))
        rows += [_line(mine, theirs, null) for null in ladder_of(view) if _both(mine, theirs, null)]
    columns = ["model", "over", f"odds ratio over that of {first.label}", "each"]
    return Table("differences", "Differences of the headline", CAPTION, columns, rows, heads=2) if rows else None


def _partner(context: Context, subject: Subject) -> Subject | None:
    """The model of the first run that has the same role."""
    same = (s for s in context.subjects if s.source is context.sources[0] and s.role == subject.role)
    return next(same, None)


def _both(mine: LadderFinding, theirs: LadderFinding, null: str) -> bool:
    return null in mine.effects and null in theirs.effects


def _line(mine: LadderFinding, theirs: LadderFinding, null: str) -> list[Cell]:
    a, b = mine.effects[null], theirs.effects[null]
    value, low, high = ratio(a, b)
    apart = low is not None and high is not None and (low > 1 or high < 1)
    said = Cell(interval(value, low, high), tone="part" if apart else None)
    return [Cell(mine.subject.label), Cell(gives(null)), said, Cell(f"{a} against {b}")]


def ratio(a: WindowEffect, b: WindowEffect) -> tuple[float, float | None, float | None]:
    """One effect over another, with the interval of a difference of independent estimates, on the log scale.

    >>> [round(x, 3) for x in ratio(WindowEffect(4.0, 2.0, 8.0), WindowEffect(2.0, 2.0, 2.0))]
    [2.0, 1.0, 4.0]
    """
    value = a.value / b.value
    if a.low is None or a.high is None or b.low is None or b.high is None or not min(a.low, b.low) > 0:
        return value, None, None
    down = math.hypot(math.log(a.value / a.low), math.log(b.high / b.value))
    up = math.hypot(math.log(a.high / a.value), math.log(b.value / b.low))
    return value, value * math.exp(-down), value * math.exp(up)
