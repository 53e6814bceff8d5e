"""How a command that makes a run ends: the answer in a few lines, and an exit status that says how it came to it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from anisoscope.errors import AnisoscopeError
from anisoscope.escape_text import tell

if TYPE_CHECKING:
    from anisoscope.store.run import Run

INTERRUPTED = 130


def end_with_answer(run: Run, began: float, *, report: bool, again: str) -> None:
    """Verdict, duration, where things are; leaves with status 130 if the run was stopped."""
    from anisoscope.cli.verdict_line import verdict_line
    from anisoscope.report.sections.cost_summary import cost_in_words

    console = Console(soft_wrap=True, highlight=False)
    if not run.finished:
        tell(console, f"stopped. {again}")
    failed = run.manifest.get("failed") or {}
    for name, why in failed.items():
        tell(console, f"failed: {name}: {why}", "red")
    verdict = verdict_line(run.path)
    if verdict is not None:
        tell(console, f"verdict: {verdict}")
    took = duration(time.monotonic() - began)
    cost = cost_in_words(run.whole_table().to_pylist())
    tell(console, f"took {took}" + ("" if cost is None else f"; cost of watching: {cost}"))
    if report and "://" not in run.path:
        tell(console, f"report: {_page(run)}")
    tell(console, f"rows: anisoscope rows {run.path}")
    if run.manifest.get("status") == "interrupted":
        raise SystemExit(INTERRUPTED)
    if failed:
        raise AnisoscopeError(f"{len(failed)} job(s) failed; everything else was done without them. {again}")


def duration(seconds: float) -> str:
    """Time for people.

    >>> duration(3.14), duration(252), duration(7300)
    ('3.1 s', '4 min 12 s', '2 h 2 min')
    >>> duration(59.97), duration(3599.7)
    ('1 min 0 s', '1 h 0 min')
    """
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min"


def _page(run: Run) -> Path:
    from anisoscope.report.make import make_report, write_whole

    page = Path(run.path) / "report.html"
    try:
        write_whole(page, make_report([run.path]).encode())
    except OSError as error:
        raise AnisoscopeError(f"cannot write {page}: {error.strerror or error}") from error
    return page
