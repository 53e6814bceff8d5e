"""A training history studied after the fact: every checkpoint reads one text and is judged as an observation.

Three waves of jobs: the beginning, which the null `init` compares with; the early checkpoints, whose activations the
anchored proxies are fitted on; the late ones, judged by those too. Within a wave jobs know nothing of one another, so
they may run anywhere and in any order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from anisoscope.errors import AnisoscopeError
from anisoscope.evaluate.row_builders import skipped_row
from anisoscope.jobs.job_pool import JobListener, JobOutcome, JobResources, Task, session
from anisoscope.jobs.job_pool import run as run_all
from anisoscope.models.cards import Card, maker_of, own_random
from anisoscope.observe.collector import RESERVOIR_ROWS
from anisoscope.observe.site_selection import choose
from anisoscope.observe.state import ScopeState
from anisoscope.observe.statistics import Statistics, merged
from anisoscope.record.run_provenance import provenance
from anisoscope.store.parquet_parts import part_name
from anisoscope.store.run import Run, create_run, open_run
from anisoscope.study.checkpoints.checkpoint_jobs import (
    CheckpointJob,
    card_of,
    conclude,
    early_file,
    examine,
    gather,
    initial_file,
)
from anisoscope.study.checkpoints.checkpoint_relations import write_relations
from anisoscope.study.checkpoints.checkpoint_trajectories import write_wandering
from anisoscope.study.checkpoints.download_cache import Keeping
from anisoscope.study.checkpoints.histories import Origin
from anisoscope.study.checkpoints.history_plan import HistoryPoint, StudiedHistory, build_plan
from anisoscope.study.checkpoints.proxy_drift import write_drift
from anisoscope.study.estimates import Size, rate_of, size_of
from anisoscope.study.model_settings import Examination, HistoryPlan
from anisoscope.study.profile.profile_study import about
from anisoscope.study.resume_checks import config_digest
from anisoscope.study.resume_state import incomplete, recorded, require_progress, settings_in
from anisoscope.study.run_closing import closing
from anisoscope.study.tokenized_text import TokenizedText, read_text
from anisoscope.vocabulary import added, anchor_step

KIND = "checkpoints"


def studied(
    sources: Sequence[str],
    settings: Examination,
    plan: HistoryPlan,
    means: JobResources,
    listener: JobListener,
    *,
    out: str | Path | None = None,
    page: bool = False,
) -> Run:
    """Study a history into a new run, by default ``runs/<date-time>-checkpoints``."""
    return begun(build_plan(sources, settings, plan, listener), settings, plan, means, listener, out=out, page=page)


def begun(
    course: StudiedHistory,
    settings: Examination,
    plan: HistoryPlan,
    means: JobResources,
    listener: JobListener,
    *,
    out: str | Path | None = None,
    page: bool = False,
) -> Run:
    """Study a course that was charted."""
    folder = out if out is not None else Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-checkpoints"
    readings = [_reading(course.card, settings, plan, seed) for seed in _seeds(settings, plan)]
    run = create_run(
        folder,
        config=settings.model_dump(mode="json"),
        kind=KIND,
        steps=plan.steps or course.points[-1].step,
        seeds=list(_seeds(settings, plan)),
        axis="tokens" if course.tokens else "steps",
        model=about(course.card) | {"name": _name(course)},
        role=readings[0].role,
        plan=plan.model_dump() | {"points": [[asdict(p.origin), p.step] for p in course.points]},
        sites=_sites(course.card, settings),
        integrity=_integrity(course),
        corpus=readings[0].data.about,
        vocabulary=added(),
        **provenance(reservoir_rows=RESERVOIR_ROWS, fold_seeds=[reading.seed for reading in readings]),
        hashes=_hashes(course, settings, plan, readings),
        notes=list(course.card.notes),
        units=readings[0].units,
        done=[],
        failed={},
        seconds=0.0,
    )
    for seed, reading in zip(_seeds(settings, plan), readings, strict=True):
        reading.keep(run, seed)
    return _go_on(run, settings, plan, course.points, means, listener, page=page)


def resumed(path: str | Path, means: JobResources, listener: JobListener, *, page: bool = False) -> Run:
    """Go on with a study that was stopped or killed; jobs that failed are tried again."""
    run = open_run(path, write=True)
    try:
        if run.manifest.get("kind") != KIND:
            raise AnisoscopeError(f"{path} is a run of kind {run.manifest.get('kind')!r}, not a study of checkpoints")
        run.require_current()
        with incomplete(str(path)):
            given = dict(run.manifest["plan"])
            points = tuple(HistoryPoint(Origin(**origin), step) for origin, step in given.pop("points"))
            plan = HistoryPlan(**given)
        if run.finished and not run.manifest.get("failed"):
            run.close()
            return run
        settings = settings_in(run.manifest, Examination)
        recorded(run.manifest, "model", "name")
        recorded(run.manifest, "role")
        recorded(run.manifest, "hashes")
        require_progress(run.manifest)
    except BaseException:
        run.close()
        raise
    return _go_on(run, settings, plan, points, means, listener, page=page)


def estimated(course: StudiedHistory, settings: Examination, plan: HistoryPlan) -> Size:
    """Memory and time of one job, before it starts."""
    size = size_of(course.card, settings, rate=rate_of(settings))
    return replace(size, seconds=size.seconds / plan.shards)


def jobs_of(
    run_path: str, name: str, settings: Examination, plan: HistoryPlan, points: Sequence[HistoryPoint]
) -> list[CheckpointJob]:
    """All jobs in the order of their waves; without a step 0 the beginning is the untrained twin."""
    total = plan.steps or points[-1].step
    anchor = anchor_step(total)
    given = settings.model_dump(mode="json")
    found: list[CheckpointJob] = []
    for seed in _seeds(settings, plan):
        common = {"run": run_path, "seed": seed, "like": points[-1].origin, "name": name, "settings": given}
        common |= {"shards": plan.shards}
        if points[0].step != 0:
            found.append(CheckpointJob(**common, step=0, wave="initial", origin=None))
        for point, following in zip(points, (*points[1:], None), strict=True):
            after = None if following is None else following.origin
            wave = "initial" if point.step == 0 else "early" if point.step <= anchor else "late"
            found.append(
                CheckpointJob(
                    **common,
                    step=point.step,
                    wave=wave,
                    origin=point.origin,
                    anchor=anchor,
                    probe=plan.probe,
                    after=after,
                )
            )
    return found


def _go_on(
    run: Run,
    settings: Examination,
    plan: HistoryPlan,
    points: Sequence[HistoryPoint],
    means: JobResources,
    listener: JobListener,
    *,
    page: bool,
) -> Run:
    """Run what is not done yet; the run is closed whatever happens."""
    with closing(run, page=page) as ending, contextlib.suppress(KeyboardInterrupt):  # what is done is written
        jobs = jobs_of(run.path, str(run.manifest["model"]["name"]), settings, plan, points)
        keeping = Keeping([point.origin for point in points], plan.keep, settings.allow_pickle)
        run.update(status="running", failed={}, reason=None)
        _keep_texts(run, settings, plan, points)
        with session(means):
            waves = _Waves(run, jobs, means, listener, keeping)
            listener.begun(waves.names())
            waves.take("initial")
            for seed in _seeds(settings, plan):
                if f"{_start(jobs, seed).writer}" not in run.manifest["done"]:
                    why = run.manifest["failed"].get(_start(jobs, seed).writer, "it was not begun")
                    raise AnisoscopeError(f"the beginning cannot be judged, and all else is compared with it: {why}")
            waves.take("early")
            for seed in _seeds(settings, plan):
                _pool_early(run, [job for job in jobs if job.seed == seed])
            waves.take("late")
            for seed in _seeds(settings, plan):
                judged = [job for job in jobs if job.seed == seed and job.origin is not None]
                write_drift(run, judged)
                write_wandering(run, judged)
                write_relations(run, judged)
            if not run.manifest["failed"]:
                _clear(run, jobs)
        ending.status = "finished"
    return run


def _keep_texts(run: Run, settings: Examination, plan: HistoryPlan, points: Sequence[HistoryPoint]) -> None:
    """Tokenise again what every job reads, where the study was killed before it was kept."""
    for seed in _seeds(settings, plan):
        if not run.has_file(f"text-{seed}.safetensors"):
            card = card_of(points[-1].origin.here(allow_pickle=settings.allow_pickle), settings)
            reading = _reading(card, settings, plan, seed)
            if reading.data.fingerprint != recorded(run.manifest, "hashes", f"text-{seed}"):
                raise AnisoscopeError(f"the text {settings.text} has changed since {run.path} began; restore it")
            reading.keep(run, seed)


class _Waves:
    """Jobs as tasks of the pool, and what is written down of each that ends."""

    def __init__(
        self, run: Run, jobs: Sequence[CheckpointJob], means: JobResources, listener: JobListener, keeping: Keeping
    ) -> None:
        self._run, self._jobs, self._means, self._keeping = run, jobs, means, keeping
        self._overseer = _Noting(listener, self._ended)
        self._by_task: dict[str, tuple[CheckpointJob, bool]] = {}

    def names(self) -> list[str]:
        """Of every task that is left."""
        left = [job for job in self._jobs if job.writer not in self._run.manifest["done"]]
        return [task.name for job in left for tasks in _tasks(job) for task in tasks]

    def take(self, wave: str) -> None:
        """Run the jobs of a wave that are not done."""
        done = self._run.manifest["done"]
        left = [job for job in self._jobs if job.wave == wave and job.writer not in done]
        if not left:
            return
        rounds = [_tasks(job) for job in left]
        for number in range(len(rounds[0])):
            tasks = []
            for job, of_job in zip(left, rounds, strict=True):
                if job.writer in self._run.manifest["failed"]:
                    continue
                last = number == len(of_job) - 1
                self._by_task |= {task.name: (job, last) for task in of_job[number]}
                tasks += of_job[number]
            run_all(tasks, self._means, self._overseer)

    def _ended(self, outcome: JobOutcome) -> None:
        job, last = self._by_task[outcome.task.name]
        if outcome.error is not None:
            self._run.update(failed=self._run.manifest["failed"] | {job.writer: outcome.error})
            if job.origin is not None:
                about = {"model": job.name, "seed": job.seed, "role": self._run.manifest["role"]}
                self._run.write(f"{job.writer}-skipped", [skipped_row(job.step, outcome.error) | about])
        elif last:
            self._run.remove_file(part_name(f"{job.writer}-skipped", job.step))
            self._run.update(done=[*self._run.manifest["done"], job.writer])
            if job.origin is not None:
                self._keeping.used(job.origin)


class _Noting:
    """An overseer that also writes down what ended; the total was told before the first wave."""

    def __init__(self, listener: JobListener, ended: Any) -> None:
        self._overseer, self._note = listener, ended

    def begun(self, names: Sequence[str]) -> None:
        """Known already."""

    def started(self, name: str) -> None:
        """Pass on."""
        self._overseer.started(name)

    def progressed(self, name: str, share: float, text: str) -> None:
        """Pass on."""
        self._overseer.progressed(name, share, text)

    def failed_once(self, name: str, why: str) -> None:
        """Pass on."""
        self._overseer.failed_once(name, why)

    def ended(self, outcome: JobOutcome) -> None:
        """Write down, and pass on."""
        self._note(outcome)
        self._overseer.ended(outcome)


def _tasks(job: CheckpointJob) -> list[list[Task]]:
    """The rounds of a job: all at once, or parts of the text and then the judgement."""
    if job.shards == 1:
        return [[Task(job.writer, examine, (job,))]]
    parts = [Task(f"{job.writer} part {k + 1}", gather, (job, k)) for k in range(job.shards)]
    return [parts, [Task(job.writer, conclude, (job,))]]


def _start(jobs: Sequence[CheckpointJob], seed: int) -> CheckpointJob:
    return next(job for job in jobs if job.seed == seed and job.wave == "initial")


def _seeds(settings: Examination, plan: HistoryPlan) -> range:
    return range(settings.seed, settings.seed + plan.seeds)


def _reading(card: Card, settings: Examination, plan: HistoryPlan, seed: int) -> TokenizedText:
    """The text under one seed: what gradients are taken of, and beyond it what the dimension is measured on."""
    extra = -(-plan.probe * 5 // 4 // settings.length) if plan.probe else 0
    own = settings.model_copy(update={"seed": seed})
    return read_text(card, own, sequences=settings.sequences + extra)


def _sites(card: Card, settings: Examination) -> dict[str, dict[str, str]]:
    maker = maker_of(card.located, card.config, card.objective, settings.trust_remote_code)
    with own_random(0), torch.device("meta"):
        choice = choose(maker.fresh(card.config, torch.float32), None, settings.views, settings.maps)
    found: dict[str, dict[str, str]] = {"representation": {}, "weight": {}}
    for site in (*choice.sites.blocks, *choice.sites.weights):
        found.setdefault(site.view, {})[str(site.layer)] = site.name
    if choice.sites.embedding is not None:
        found["embedding"] = {"0": choice.sites.embedding.name}
    return found


def _name(course: StudiedHistory) -> str:
    """The model as rows call it: checkpoints are named by their steps, so the folder around them names the model."""
    origin = course.points[-1].origin
    return course.card.located.name if origin.path is None else Path(origin.path).resolve().parent.name


def _integrity(course: StudiedHistory) -> dict[str, Any]:
    return {
        "checkpoints": len(course.history.checkpoints),
        "studied": [point.origin.label for point in course.points],
        "left_out": course.left_out,
        "findings": [
            {"kind": f.kind, "label": f.label, "text": f.text, "excluded": f.excluded} for f in course.history.findings
        ],
    }


def _hashes(
    course: StudiedHistory, settings: Examination, plan: HistoryPlan, readings: Sequence[TokenizedText]
) -> dict[str, str]:
    weights = {one.label: one.weights.digest for one in course.history.checkpoints if one.weights is not None}
    own = {p.origin.label: config_digest(p.origin.path) for p in course.points if p.origin.path is not None}
    weights |= {f"config-{label}": digest for label, digest in own.items() if digest is not None}
    seeds = _seeds(settings, plan)
    return {f"text-{seed}": one.data.fingerprint for seed, one in zip(seeds, readings, strict=True)} | weights


def _pool_early(run: Run, jobs: Sequence[CheckpointJob]) -> None:
    """All early activations together, in the order of training."""
    pool: Statistics = {}
    for job in jobs:
        if job.origin is None or job.wave == "late" or not run.has_file(early_file(job.seed, job.label)):
            continue
        content = run.read_file(early_file(job.seed, job.label))
        pool = merged(pool, ScopeState.from_bytes(content, early_file(job.seed, job.label)).occasions.get("early", {}))
    if pool and not run.has_file(early_file(jobs[0].seed)):
        run.write_file(early_file(jobs[0].seed), ScopeState(0, 0, occasions={"early": pool}).to_bytes())


def _clear(run: Run, jobs: Sequence[CheckpointJob]) -> None:
    """Take away what only jobs under way needed."""
    for job in jobs:
        for name in (initial_file(job.seed), early_file(job.seed), early_file(job.seed, job.label)):
            run.remove_file(name)
