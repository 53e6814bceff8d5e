"""What `profile` and `checkpoints` have in common: the display, the report at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from pydantic import Field
from rich.console import Console

from anisoscope.errors import AnisoscopeError
from anisoscope.study.options import RunOptions
from anisoscope.visible import tell

if TYPE_CHECKING:
    from anisoscope.store.run import Run
    from anisoscope.study.overseeing import JobBoard, JobLines
    from anisoscope.study.sizing import Size


class ExaminationRun(RunOptions):
    """Options of `profile` and `checkpoints` that decide no number."""

    dry_run: Annotated[bool, Parameter(negative=())] = Field(
        default=False, description="Say what would be done, the memory and a guess of the time, and stop."
    )


@contextlib.contextmanager
def display() -> Iterator[JobBoard | JobLines]:
    """A live board in a terminal, lines elsewhere."""
    from anisoscope.study.overseeing import JobBoard, JobLines

    console = Console(highlight=False)
    if not console.is_terminal:
        yield JobLines(console)
        return
    board = JobBoard(console)
    with board.shown():
        yield board


def shown_size(size: Size) -> str:
    """Memory and time in a line."""
    from anisoscope.study.sizing import in_words

    minutes, seconds = divmod(round(size.seconds), 60)
    return (
        f"memory: {in_words(size.weights)} for the model and up to {in_words(size.beyond)} beyond it; "
        f"time: about {minutes}:{seconds:02d} of passes, and judging on top (estimates)"
    )


def finish(run: Run, *, report: bool, again: str) -> None:
    """Say where everything is, and write the page; jobs that failed are told and are no success."""
    console = Console(soft_wrap=True, highlight=False)
    if not run.finished:
        tell(console, f"stopped. {again}")
    failed = run.manifest.get("failed") or {}
    for name, why in failed.items():
        tell(console, f"failed: {name}: {why}", "red")
    if report and "://" not in run.path:
        from anisoscope.report.make import make_report, write_whole

        page = Path(run.path) / "report.html"
        write_whole(page, make_report([run.path]).encode())
        tell(console, f"report: {page}")
    tell(console, f"rows: anisoscope rows {run.path}")
    if failed:
        raise AnisoscopeError(f"{len(failed)} job(s) failed, and all else was made without them. {again}")
