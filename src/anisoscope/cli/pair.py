"""``anisoscope pair``: a decoder and its encoder twin trained from scratch, observed, stored, reported."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console

from anisoscope.errors import broken
from anisoscope.study.options import given_in
from anisoscope.study.settings import PairOptions, settings_of

if TYPE_CHECKING:
    from anisoscope.store.run import Run
    from anisoscope.study.settings import PairSettings


def pair(
    *,
    preset: str = "tiny",
    config: Path | None = None,
    resume: str | None = None,
    out: str | None = None,
    report: bool = True,
    settings: Annotated[PairOptions, Parameter(name="*")] = PairOptions(),  # noqa: B008
) -> None:
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

    Parameters
    ----------
    preset
        tiny (minutes on two cores), small, or pythia-160m (a GPU).
    config
        A TOML file with any of the settings below, underscores for dashes; flags go first.
    resume
        Go on with this run. Its own settings count, so no others may be given.
    out
        Folder of the run; by default runs/DATE-TIME-pair.
    report
        Write report.html into the run when it is finished.

    """
    flags = given_in(settings)
    if resume is not None and (flags or config is not None or out is not None or preset != "tiny"):
        given = ", ".join(sorted(flags)) or "preset, config or out"
        raise broken("a run that goes on must keep its own settings", f"--resume with {given}", "leave them out")
    run = _run(None if resume is not None else settings_of(preset, config, flags), resume, out)
    console = Console(soft_wrap=True, highlight=False)
    if not run.finished:
        console.print(f"stopped. Go on with: anisoscope pair --resume {run.path}", markup=False)
    if report:
        _report(run, console)
    console.print(f"rows: anisoscope rows {run.path}", markup=False)


def _run(settings: PairSettings | None, resume: str | None, out: str | None) -> Run:
    from anisoscope.study import pair as study  # after the settings are known to be right: this imports torch
    from anisoscope.study.progress import Board, Lines

    console = Console(highlight=False)
    display = Board(console) if console.is_terminal else Lines(console)
    with display.shown() if isinstance(display, Board) else contextlib.nullcontext():
        if settings is None:
            assert resume is not None, "one of the two is given"
            return study.resume(resume, display)
        return study.pair(settings, display, out=out)


def _report(run: Run, console: Console) -> None:
    """The page of the run, whatever has come of it."""
    from anisoscope.report.make import make_report, write_whole

    page = Path(run.path) / "report.html"
    write_whole(page, make_report([run.path]).encode())
    console.print(f"report: {page}", markup=False)
