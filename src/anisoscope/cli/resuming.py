"""How `ablate` and `intervene` go on with a run, and what their jobs run on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from anisoscope.cli.closing import end_with_answer
from anisoscope.cli.early import require_run
from anisoscope.cli.examining import display
from anisoscope.errors import broken
from anisoscope.study.model_settings import JobOptions
from anisoscope.study.options import given_in, part_of
from anisoscope.visible import tell

if TYPE_CHECKING:
    from anisoscope.store.run import Run
    from anisoscope.study.pool import Means


def resume(
    kind: str, path: str, options: Any, began: float, *, named: Sequence[str], show: Callable[[Run], None]
) -> None:
    """Go on with a run of ``kind`` and end with its answer; only where jobs run may be given beside it.

    ``named`` are what was given without a flag, ``show`` prints what was found.
    """
    may = {"resume", "report", *JobOptions.model_fields}
    extra = [*named, *sorted(given_in(options).keys() - may)]
    if extra:
        what = f"--resume with {', '.join(extra)}"
        raise broken("a study that goes on must keep its own settings", what, "leave them out")
    require_run(path, kind)
    from anisoscope.store.run import open_run
    from anisoscope.study.resuming import is_done

    there = open_run(path)
    if is_done(there):
        tell(Console(), f"{path} is finished; there is nothing left to do")
    threads = int(there.manifest.get("config", {}).get("threads", 1))
    with display() as overseer:
        means = means_of(part_of(options, JobOptions), threads)
        run = _study(kind).resumed(path, means, overseer, page=options.report)
    show(run)
    end_with_answer(run, began, report=options.report, again=again(kind, run.path))


def again(kind: str, path: str) -> str:
    """What a user types to go on."""
    return f"Go on with: anisoscope {kind} --resume {path}"


def means_of(jobs: JobOptions, threads: int) -> Means:
    """What jobs run on, as the pool takes it."""
    from anisoscope.study.pool import Means

    memory = None if jobs.memory is None else int(jobs.memory * (1 << 30))
    return Means(ray=jobs.ray, threads=threads, gpus=jobs.gpus, memory=memory, retries=jobs.retries)


def _study(kind: str) -> Any:
    """Imported where it is needed: it brings torch."""
    if kind == "ablate":
        from anisoscope.study import ablate

        return ablate
    from anisoscope.study import intervene

    return intervene
