"""What `profile` and `checkpoints` have in common: the display, and the size of what they will do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from pydantic import Field
from rich.console import Console

from anisoscope.escape_text import tell
from anisoscope.jobs.time_left import clock
from anisoscope.study.setting_fields import RunOptions

if TYPE_CHECKING:
    from anisoscope.jobs.progress_display import JobBoard, JobLines
    from anisoscope.study.estimates import Size


class ExaminationRun(RunOptions):
    """Options of `profile` and `checkpoints` that decide no number."""

    dry_run: Annotated[bool, Parameter(negative=())] = Field(
        default=False, description="Show what would be done, with estimates of memory and time, and stop."
    )


@contextlib.contextmanager
def display() -> Iterator[JobBoard | JobLines]:
    """A live board in a terminal, lines elsewhere."""
    from anisoscope.jobs.progress_display import JobBoard, JobLines
    from anisoscope.jobs.progress_table import open_display

    with open_display(Console(highlight=False), JobBoard, JobLines) as shown:
        yield shown


def threads_to_go_on_with(resume: str, kind: str, *, asked: int | None = None) -> int:
    """The threads of the jobs of a study that goes on; said is what may differ, and whether anything is left to do."""
    from anisoscope.cli.early_checks import require_run

    there = require_run(resume, kind)
    from anisoscope.study.same_bits import lost_bits, threads_of_jobs

    begun = threads_of_jobs(there.manifest)
    own = asked or begun or 1
    if there.finished and not there.manifest.get("failed"):
        tell(Console(), f"{resume} is finished; there is nothing left to do")
        return own
    lost = lost_bits(there.manifest, threads=own, begun=begun)
    if lost:
        tell(Console(stderr=True), f"warning: {lost}", "yellow")
    return own


def shown_size(size: Size, *, jobs: int = 1) -> str:
    """Memory and time in a line, with what a command takes to start; of several jobs one after the other, all."""
    from anisoscope.study.estimates import START_SECONDS, in_words

    each = f", {size.seconds:.0f} s per job" if jobs > 1 else ""
    return (
        f"memory: {in_words(size.weights)} for the model and up to {in_words(size.beyond)} beyond it; "
        f"time: about {clock(START_SECONDS + jobs * size.seconds)}{each}, judging included (estimates)"
    )
