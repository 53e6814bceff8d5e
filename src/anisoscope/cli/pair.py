"""``anisoscope pair``: a decoder and its encoder twin trained from scratch, observed, stored, reported."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from pydantic import Field
from rich.console import Console

from anisoscope.cli.command_end import end_with_answer
from anisoscope.cli.early_checks import require_corpus, require_new_run, require_run, require_tokeniser
from anisoscope.cli.model_command import display
from anisoscope.errors import broken
from anisoscope.study.device import require_device
from anisoscope.study.pair.pair_settings import PairOptions, settings_of
from anisoscope.study.setting_fields import RunOptions, given_in, part_of

if TYPE_CHECKING:
    from anisoscope.store.run import Run
    from anisoscope.study.pair.pair_settings import PairSettings


_WHERE = ("ray", "gpus", "retries")


class PairRun(RunOptions):
    """What `pair` takes beside the settings of its trainings."""

    preset: str = Field(default="tiny", description="tiny (minutes on two cores), small, or pythia-160m (a GPU).")
    resume: str | None = Field(
        default=None,
        description="Resume this run with its own settings; only --ray, --gpus and --retries may be given.",
    )
    ray: str | None = Field(
        default=None,
        description="Run each training as a job on Ray: `local`, `auto` (this machine's cluster) or an address.",
    )
    gpus: float = Field(default=0.0, ge=0, description="Fraction of a GPU for each job on Ray.")
    retries: int = Field(default=1, ge=0, description="Times a failed job on Ray is retried from its checkpoint.")


class PairCommand(PairOptions, PairRun):
    """Every option of `pair`."""


def pair(*, options: Annotated[PairCommand, Parameter(name="*")] = PairCommand()) -> None:  # noqa: B008
    """Train a decoder and an encoder that differ only in mask and objective, and watch their geometry.

    Both are trained from scratch on one corpus while the scope observes them; rows, weights and a report go into one
    folder. A run that was stopped (Ctrl-C saves first) or killed can be resumed with --resume and ends with the same
    rows and weights. The defaults are those of the preset tiny.

    For example:

    * `anisoscope pair`
    * `anisoscope pair --corpus "books/*.txt" --steps 1000 --seeds 3`
    * `anisoscope pair --preset small --corpus zipf:1.2 --out runs/zipf12`
    * `anisoscope pair --models neox-bert --config mine.toml`
    * `anisoscope pair --seeds 5 --ray local`
    * `anisoscope pair --resume runs/20260101-120000-pair`
    """
    given = given_in(options)
    if options.resume is not None and (extra := given.keys() - {"resume", "report", *_WHERE}):
        what = f"--resume with {', '.join(sorted(extra))}"
        raise broken("a resumed run must keep its own settings", what, "leave them out")
    asked = given_in(part_of(options, PairOptions))
    settings = settings_of(options.preset, asked) if options.resume is None else None
    if options.ray is None and (lost := given.keys() & {"gpus", "retries"}):
        raise broken("--gpus and --retries are for jobs on Ray", ", ".join(sorted(lost)), "add --ray local")
    began = time.monotonic()
    if settings is None:
        require_run(str(options.resume), "pair")
    else:
        require_device(settings.device)
        require_new_run(options.out)
        require_corpus(settings.corpus)
        require_tokeniser(settings.tokeniser)
    run = _run(settings, options) if options.ray is None else _run_on_ray(settings, options)
    again = f"Resume with: anisoscope pair --resume {run.path}"
    end_with_answer(run, began, report=options.report, again=again)


def _run(settings: PairSettings | None, options: PairCommand) -> Run:
    from anisoscope.jobs.progress_table import open_display
    from anisoscope.study.pair import (
        pair_study as study,  # after the settings are known to be right: this imports torch
    )
    from anisoscope.study.pair.training_display import Board, Lines

    logging.getLogger("anisoscope").addHandler(logging.NullHandler())  # the display says what a scope would
    with open_display(Console(highlight=False), Board, Lines) as shown:
        if settings is None:
            return study.resume(str(options.resume), shown, page=options.report)
        return study.pair(settings, shown, out=options.out, page=options.report)


def _run_on_ray(settings: PairSettings | None, options: PairCommand) -> Run:
    from anisoscope.jobs.job_pool import JobResources
    from anisoscope.study.pair import pair_study as study
    from anisoscope.study.pair.training_display import Lines

    lines = Lines(Console(highlight=False))
    means = JobResources(ray=options.ray, gpus=options.gpus, retries=options.retries)
    with display() as listener:
        jobs = study.Jobs(means, listener)
        if settings is None:
            return study.resume(str(options.resume), lines, page=options.report, jobs=jobs)
        return study.pair(settings, lines, out=options.out, page=options.report, jobs=jobs)
