"""``anisoscope pair``: a decoder and its encoder twin trained from scratch, observed, stored, reported."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from pydantic import Field
from rich.console import Console

from anisoscope.errors import broken
from anisoscope.study.options import RunOptions, given_in, part_of
from anisoscope.study.settings import PairOptions, settings_of
from anisoscope.visible import tell

if TYPE_CHECKING:
    from anisoscope.store.run import Run
    from anisoscope.study.settings import PairSettings


class PairRun(RunOptions):
    """What `pair` takes beside the settings of its trainings."""

    preset: str = Field(default="tiny", description="tiny (minutes on two cores), small, or pythia-160m (a GPU).")
    resume: str | None = Field(
        default=None, description="Go on with this run. Its own settings count, so no others may be given."
    )


class PairCommand(PairOptions, PairRun):
    """Every option of `pair`."""


def pair(*, options: Annotated[PairCommand, Parameter(name="*")] = PairCommand()) -> None:  # noqa: B008
    """Train a decoder and an encoder that differ in mask and objective alone, and watch their geometry.

    Both are trained from scratch on one corpus while the scope observes them; rows, weights and a report go into one
    folder. A run that was stopped (Ctrl-C saves first) or killed goes on with --resume, to the same rows and weights.
    Defaults are those of the preset tiny.

    For example:

    * `anisoscope pair`
    * `anisoscope pair --corpus "books/*.txt" --steps 1000 --seeds 3`
    * `anisoscope pair --preset small --corpus zipf:1.2 --out runs/zipf12`
    * `anisoscope pair --models neox-bert --config mine.toml`
    * `anisoscope pair --resume runs/20260101-120000-pair`
    """
    given = given_in(options)
    if options.resume is not None and (extra := given.keys() - {"resume", "report"}):
        what = f"--resume with {', '.join(sorted(extra))}"
        raise broken("a run that goes on must keep its own settings", what, "leave them out")
    asked = given_in(part_of(options, PairOptions))
    settings = settings_of(options.preset, asked) if options.resume is None else None
    run = _run(settings, options.resume, options.out, page=options.report)
    console = Console(soft_wrap=True, highlight=False)
    if not run.finished:
        tell(console, f"stopped. Go on with: anisoscope pair --resume {run.path}")
    if options.report:
        _report(run, console)
    tell(console, f"rows: anisoscope rows {run.path}")


def _run(settings: PairSettings | None, resume: str | None, out: str | None, *, page: bool) -> Run:
    from anisoscope.study import pair as study  # after the settings are known to be right: this imports torch
    from anisoscope.study.progress import Board, Lines

    console = Console(highlight=False)
    display = Board(console) if console.is_terminal else Lines(console)
    with display.shown() if isinstance(display, Board) else contextlib.nullcontext():
        if settings is None:
            assert resume is not None, "one of the two is given"
            return study.resume(resume, display, page=page)
        return study.pair(settings, display, out=out, page=page)


def _report(run: Run, console: Console) -> None:
    """The page of the run, whatever has come of it."""
    from anisoscope.report.cost import cost_in_words
    from anisoscope.report.make import make_report, write_whole

    page = Path(run.path) / "report.html"
    write_whole(page, make_report([run.path]).encode())
    tell(console, f"report: {page}")
    cost = cost_in_words(run.table().to_pylist())
    if cost is not None:
        tell(console, f"cost of watching: {cost}")
