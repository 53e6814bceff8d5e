"""Several runs in one page: every figure has panels of its own for each run."""

from __future__ import annotations

from dataclasses import replace

from anisoscope.report.reading import Context
from anisoscope.report.tree import Block, Figure, Section


def by_run(context: Context, sections: list[Section]) -> list[Section]:
    """The same sections, with a panel a run where models shared one; panels by model are by run already."""
    if not context.compare:
        return sections
    runs = {subject.label: subject.source.label for subject in context.subjects}
    return [replace(s, blocks=[_split(block, runs) for block in s.blocks]) for s in sections]


def _split(block: Block, runs: dict[str, str]) -> Block:
    if not isinstance(block, Figure) or block.panel is not None:
        return block
    series = [replace(s, tags=s.tags | {"run": runs[model]}) for s in block.series if (model := s.tags.get("model"))]
    if len(series) < len(block.series):
        return block
    return replace(block, series=series, panel="run")
