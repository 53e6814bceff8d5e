"""A decoder and its encoder twin trained from scratch while the scope watches, into one run."""

from __future__ import annotations

import contextlib
import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, runtime_checkable

from anisoscope.data.tokens import Tokenised, prepare
from anisoscope.errors import AnisoscopeError, broken
from anisoscope.evaluate.row_builders import row
from anisoscope.jobs.job_pool import JobListener, JobResources, session
from anisoscope.jobs.job_pool import run as run_all
from anisoscope.models.twins import ROLES
from anisoscope.observe.collector import RESERVOIR_ROWS
from anisoscope.record.run_provenance import provenance
from anisoscope.store.run import Run, create_run, open_run
from anisoscope.study.device import select_device
from anisoscope.study.pair.pair_jobs import PairJobLog, tasks_of
from anisoscope.study.pair.pair_settings import PairSettings
from anisoscope.study.pair.trainer_run import Stop, TrainingJob, Watcher, train, weights_hash
from anisoscope.study.resume_state import recorded, require_progress, settings_in
from anisoscope.study.run_closing import closing
from anisoscope.study.same_bits import as_begun
from anisoscope.study.saved_checkpoints import step_of
from anisoscope.vocabulary import added


@dataclass(frozen=True, slots=True)
class Jobs:
    """What trainings run on as jobs of their own, and who is told how they go."""

    means: JobResources
    listener: JobListener


@runtime_checkable
class Display(Protocol):
    """Who shows how the job goes."""

    def said(self, line: str) -> None:
        """Something to know, once."""

    def training(self, job: TrainingJob, begin: int) -> Watcher:
        """A training begins at step ``begin``."""
        ...


def pair(
    settings: PairSettings,
    display: Display,
    *,
    out: str | Path | None = None,
    page: bool = False,
    jobs: Jobs | None = None,
) -> Run:
    """Train both models for every seed into a new run, by default ``runs/<date-time>-pair``.

    With ``page``, its page is there from the first observation on. With ``jobs`` every training is a job of its own.
    """
    if out is not None and "://" in str(out):
        raise broken("a pair must be trained into a local folder", str(out), "copy the run there when it is finished")
    folder = Path(out) if out is not None else Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-pair"
    select_device(settings.device)
    data = _prepared(settings, display)
    about = {
        "kind": "pair",
        "steps": settings.steps,
        "seeds": list(settings.every_seed),
        "corpus": data.about,
        "vocabulary": added(),
        **provenance(reservoir_rows=RESERVOIR_ROWS),
        "hashes": {"corpus": data.fingerprint},
        "done": [],
        "seconds": 0.0,
    }
    if jobs is not None:  # a resume trains with as many
        about["machine"] = about["machine"] | {"threads": jobs.means.threads}
    run = create_run(folder, config=settings.model_dump(mode="json"), **about)
    return _go_on(run, settings, data, display, page=page, jobs=jobs)


def resume(path: str | Path, display: Display, *, page: bool = False, jobs: Jobs | None = None) -> Run:
    """Go on with a run that was stopped or killed, to the same rows and weights as if it had not been."""
    run = open_run(path, write=True)
    try:
        if run.manifest.get("kind") != "pair":
            raise AnisoscopeError(
                f"{path} is a run of kind {run.manifest.get('kind')!r}, and only a pair can be resumed here"
            )
        run.require_current()
        settings = settings_in(run.manifest, PairSettings, units="sequence")  # as before there were others
        require_progress(run.manifest)
        if run.finished and not run.manifest.get("failed"):
            display.said(f"{path} is finished; there is nothing left to do")
            run.close()
            return run
        select_device(settings.device)
        data = _prepared(settings, display)
        if data.fingerprint != recorded(run.manifest, "hashes", "corpus"):
            raise AnisoscopeError(
                f"the corpus {settings.corpus} has changed since {path} began; restore it, or begin a new run"
            )
    except BaseException:
        run.close()
        raise
    with as_begun(run.manifest, display.said):
        return _go_on(run, settings, data, display, page=page, jobs=jobs)


def _go_on(
    run: Run, settings: PairSettings, data: Tokenised, display: Display, *, page: bool, jobs: Jobs | None = None
) -> Run:
    """Train what is not done yet; the run is closed whatever happens."""
    stop = Stop()
    if page:
        run.keep_page(last=False)
    with closing(run) as ending:
        run.update(status="running", reason=None, failed={})
        run.write("corpus", [_entropy_row(settings, data)])
        run.write_file("tokeniser.json", data.tokeniser.to_json().encode())
        if jobs is not None:
            ending.status = _as_jobs(run, settings, jobs)
            return run
        with _asked_to_stop(stop, display):
            for seed in settings.every_seed:
                for role in ROLES:
                    job = TrainingJob(settings, role, seed, Path(run.path))
                    if job.name in run.manifest["done"]:
                        job.clean_up()  # it may have been killed before it was over
                        continue
                    newest = job.newest()
                    watcher = display.training(job, 0 if newest is None else step_of(newest))
                    if not train(job, newest, data, run, watcher, stop):
                        return run
                    hashes = run.manifest["hashes"] | {job.name: weights_hash(job.weights)}
                    run.update(done=[*run.manifest["done"], job.name], hashes=hashes)
                    job.clean_up()
        ending.status = "finished"
    return run


def _as_jobs(run: Run, settings: PairSettings, jobs: Jobs) -> str:
    """All trainings as jobs; one that fails costs itself only. Returns the status of the run."""
    means = replace(jobs.means, threads=int(recorded(run.manifest, "machine", "threads")))
    with contextlib.suppress(KeyboardInterrupt):
        with session(means):
            run_all(tasks_of(run, settings), means, PairJobLog(run, jobs.listener))
        return "finished"
    return "interrupted"


@contextmanager
def _asked_to_stop(stop: Stop, display: Display) -> Iterator[None]:
    """The first Ctrl-C ends the step under way and saves; the second one ends the process."""

    def asked(number: int, frame: FrameType | None) -> None:
        if stop.wished:
            raise KeyboardInterrupt
        stop.wished = True
        display.said("stopping after this step; press Ctrl-C again to stop at once")

    try:
        before = signal.signal(signal.SIGINT, asked)
    except ValueError:  # not in the main thread: whoever runs us handles signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _prepared(settings: PairSettings, display: Display) -> Tokenised:
    display.said(f"reading {settings.corpus}")
    data = prepare(
        settings.corpus,
        length=settings.length,
        vocabulary=settings.vocabulary,
        held_out=settings.held_out,
        tokeniser=settings.tokeniser,
        seed=settings.first_seed,
    )
    display.said(
        f"{data.about['train']['tokens']:,} tokens to train on, {data.about['held']['tokens']:,} held out, "
        f"vocabulary {data.vocabulary:,}"
    )
    return data


def _entropy_row(settings: PairSettings, data: Tokenised) -> dict[str, Any]:
    """What a model that knows nothing but how frequent each token is would lose."""
    value = data.about.get("unigram_entropy", math.nan)
    return row(step=0, subset=None, measure="unigram_entropy", value=value, note=settings.corpus)
