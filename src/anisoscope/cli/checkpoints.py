"""``anisoscope checkpoints``: a training history, studied after the fact."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from pydantic import Field
from rich.console import Console

from anisoscope.cli.command_end import end_with_answer
from anisoscope.cli.early_checks import require_checkpoints, require_corpus, require_new_run, require_tokeniser
from anisoscope.cli.model_command import ExaminationRun, display, shown_size, threads_to_go_on_with
from anisoscope.errors import broken
from anisoscope.escape_text import tell
from anisoscope.study.device import require_device, resolve_device
from anisoscope.study.model_settings import Examination, HistoryPlan, JobOptions
from anisoscope.study.setting_fields import given_in, part_of

if TYPE_CHECKING:
    from anisoscope.jobs.job_pool import JobResources


class HistoryRun(ExaminationRun):
    """What `checkpoints` takes beside what it studies and where."""

    resume: str | None = Field(
        default=None,
        description="Resume this run with its own settings; only --ray, --gpus, --memory, --retries and "
        "--threads may be given.",
    )


class CheckpointsCommand(JobOptions, Examination, HistoryPlan, HistoryRun):
    """Every option of `checkpoints`."""


def checkpoints(
    *checkpoints: Annotated[str, Parameter(negative=())],
    options: Annotated[CheckpointsCommand, Parameter(name="*")] = CheckpointsCommand(),  # noqa: B008
) -> None:
    """Study the CHECKPOINTS of a training history: each reads the same text and is judged as one observation.

    First, every tensor is hashed: checkpoints that are not what their labels say are listed and left out of curves.
    Proxies are rolling, and also anchored on the first 30 % of training. A study that was stopped or killed can be
    resumed with --resume.

    For example:

    * `anisoscope checkpoints runs/mine/checkpoint-*`
    * `anisoscope checkpoints EleutherAI/pythia-160m --revisions step0,step512,step4000,step143000`
    * `anisoscope checkpoints pythia-410m --revisions pythia --keep 4 --ray auto --gpus 0.5`
    * `anisoscope checkpoints --resume runs/20260101-120000-checkpoints`

    Parameters
    ----------
    checkpoints
        Folders or files of weights, or with --revisions the name of one model on the hub.

    """
    began = time.monotonic()
    plan, settings = part_of(options, HistoryPlan), part_of(options, Examination)
    jobs = part_of(options, JobOptions)
    if options.resume is not None:
        may = {"resume", "report", "threads", *JobOptions.model_fields}
        extra = [*(["checkpoints"] if checkpoints else []), *sorted(given_in(options).keys() - may)]
        if extra:
            what = f"--resume with {', '.join(extra)}"
            raise broken("a resumed study must keep its own settings", what, "leave them out")
        _resumed(options.resume, jobs, given_in(settings).get("threads"), options.report)
        return
    if not checkpoints:
        raise broken("checkpoints needs checkpoints", "none", "name their folders, or a model with --revisions")
    require_device(settings.device)
    require_new_run(options.out)
    require_corpus(settings.text)
    require_tokeniser(settings.tokeniser)
    require_checkpoints(checkpoints, plan.revisions)
    from anisoscope.study.checkpoints import history_study as study

    resolve_device(settings.device)
    with display() as listener:
        course = study.build_plan(checkpoints, settings, plan, listener)
    _plan_shown(study, course, settings, plan)
    if options.dry_run:
        return
    with display() as listener:
        run = study.begun(
            course, settings, plan, _means(jobs, settings.threads), listener, out=options.out, page=options.report
        )
    end_with_answer(run, began, report=options.report, again=f"Resume with: {_again(run.path)}")


def _again(path: str) -> str:
    return f"anisoscope checkpoints --resume {path}"


def _means(jobs: JobOptions, threads: int) -> JobResources:
    from anisoscope.jobs.job_pool import JobResources

    memory = None if jobs.memory is None else int(jobs.memory * (1 << 30))
    return JobResources(ray=jobs.ray, threads=threads, gpus=jobs.gpus, memory=memory, retries=jobs.retries)


def _resumed(resume: str, jobs: JobOptions, threads: int | None, report: bool) -> None:
    began = time.monotonic()
    own = threads_to_go_on_with(resume, "checkpoints", asked=threads)
    from anisoscope.study.checkpoints import history_study as study

    with display() as listener:
        run = study.resumed(resume, _means(jobs, own), listener, page=report)
    end_with_answer(run, began, report=report, again=f"Resume with: {_again(run.path)}")


def _plan_shown(study: Any, course: Any, settings: Any, plan: Any) -> None:
    console = Console(highlight=False, soft_wrap=True)
    card = course.card
    for label, why in course.left_out.items():
        tell(console, f"left out: {label}: {why}")
    jobs = study.jobs_of("", card.located.name, settings, plan, course.points)
    labels = ", ".join(point.origin.label for point in course.points)
    size = study.estimated(course, settings, plan)
    tell(console, f"{len(course.points)} checkpoints: {labels}")
    parts = "" if plan.shards == 1 else f" ({len(jobs)} × {plan.shards} parts of the text)"
    tell(console, f"{len(jobs) * plan.shards} jobs{parts}, each with this memory:")
    tell(console, shown_size(size, jobs=len(jobs) * plan.shards))
