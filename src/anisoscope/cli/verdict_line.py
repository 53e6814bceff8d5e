"""What a command says at its end: the verdict in words, as it stands at the head of the report."""

from __future__ import annotations

from anisoscope.report.ladder_findings import findings
from anisoscope.report.reading import read
from anisoscope.report.sections.causal_verdicts import finding
from anisoscope.report.sections.verdict_section import headline


def verdict_line(path: str) -> str | None:
    """The headline of a run in a line; None where nothing was judged."""
    context = read([path])
    told = [said for said in map(finding, context.sources) if said]
    if told:  # arms of a plan are compared with their control, and not counted as models
        return told[0]
    found = findings(context, "representation")
    if not any(one.verdict is not None for one in found):
        return None
    said = headline(found)
    return f"{said.head or ''} {said.text}".strip()
