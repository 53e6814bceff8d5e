"""``anisoscope pair``: a decoder and its encoder twin trained from scratch, observed, stored, reported."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from pydantic import Field
from rich.console import Console

from anisoscope.cli.closing import end_with_answer
from anisoscope.cli.early import require_corpus, require_new_run, require_run, require_tokeniser
from anisoscope.errors import broken
from anisoscope.study.device import require_device
from anisoscope.study.options import RunOptions, given_in, part_of
from anisoscope.study.settings import PairOptions, settings_of

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
    began = time.monotonic()
    if settings is None:
        require_run(str(options.resume), "pair")
    else:
        require_device(settings.device)
        require_new_run(options.out)
        require_corpus(settings.corpus)
        require_tokeniser(settings.tokeniser)
    run = _run(settings, options.resume, options.out, page=options.report)
    again = f"Go on with: anisoscope pair --resume {run.path}"
    end_with_answer(run, began, report=options.report, again=again)


def _run(settings: PairSettings | None, resume: str | None, out: str | None, *, page: bool) -> Run:
    from anisoscope.study import pair as study  # after the settings are known to be right: this imports torch
    from anisoscope.study.progress import Board, Lines

    logging.getLogger("anisoscope").addHandler(logging.NullHandler())  # the display says what a scope would
    console = Console(highlight=False)
    display = Board(console) if console.is_terminal else Lines(console)
    with display.shown() if isinstance(display, Board) else contextlib.nullcontext():
        if settings is None:
            assert resume is not None, "one of the two is given"
            return study.resume(resume, display, page=page)
        return study.pair(settings, display, out=out, page=page)
