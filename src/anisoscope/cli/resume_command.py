"""How commands go on with a run, and what the jobs of `ablate` and `intervene` run on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anisoscope.cli.command_end import end_with_answer
from anisoscope.cli.model_command import display, threads_to_go_on_with
from anisoscope.cli.output import say
from anisoscope.errors import broken
from anisoscope.study.model_settings import JobOptions
from anisoscope.study.setting_fields import given_in, part_of

if TYPE_CHECKING:
    from anisoscope.jobs.job_pool import JobResources
    from anisoscope.store.run import Run


def resume(
    kind: str, path: str, options: Any, began: float, *, named: Sequence[str], show: Callable[[Run], None]
) -> None:
    """Go on with a run of ``kind`` and end with its answer; only where jobs run may be given beside it.

    ``named`` are what was given without a flag, ``show`` prints what was found.
    """
    require_own(options, named=named, may=JobOptions.model_fields)
    threads = threads_to_go_on_with(path, kind)
    with display() as listener:
        means = means_of(part_of(options, JobOptions), threads)
        run = _study(kind).resumed(path, means, listener, page=options.report)
    show(run)
    end_with_answer(run, began, report=options.report, again=again(kind, run.path))


def require_own(options: Any, *, named: Sequence[str], may: Iterable[str] = ()) -> None:
    """Raise if a run that goes on is given models or settings; where its jobs run it ``may`` be told."""
    extra = [*named, *sorted(given_in(options).keys() - {"resume", "report", *may})]
    if extra:
        what = f"--resume with {', '.join(extra)}"
        raise broken("a resumed study must keep its own settings", what, "leave them out")


@contextlib.contextmanager
def told_how_to_go_on(kind: str, folder: str, parts: str) -> Iterator[None]:
    """A run that was begun and interrupted says how it goes on; ``parts`` are what is kept."""
    try:
        yield
    except KeyboardInterrupt:
        if (Path(folder) / "manifest.json").exists():
            say(f"stopped. Completed {parts} are kept. Resume with: anisoscope {kind} --resume {folder}")
        raise


def again(kind: str, path: str) -> str:
    """What a user types to go on."""
    return f"Resume with: anisoscope {kind} --resume {path}"


def means_of(jobs: JobOptions, threads: int) -> JobResources:
    """What jobs run on, as the pool takes it."""
    from anisoscope.jobs.job_pool import JobResources

    memory = None if jobs.memory is None else int(jobs.memory * (1 << 30))
    return JobResources(ray=jobs.ray, threads=threads, gpus=jobs.gpus, memory=memory, retries=jobs.retries)


def _study(kind: str) -> Any:
    """Imported where it is needed: it brings torch."""
    if kind == "ablate":
        from anisoscope.study.ablate import removal_study as ablate

        return ablate
    from anisoscope.study.intervene import intervention_study as intervene

    return intervene
