"""What a command says at its end: the verdict in words, as it stands at the head of the report."""

from __future__ import annotations

from anisoscope.report.claims import headline
from anisoscope.report.findings import findings
from anisoscope.report.reading import read


def verdict_line(path: str) -> str | None:
    """The headline of a run in a line; None where nothing was judged."""
    found = findings(read([path]), "representation")
    if not any(finding.verdict is not None for finding in found):
        return None
    said = headline(found)
    return f"{said.head or ''} {said.text}".strip()
