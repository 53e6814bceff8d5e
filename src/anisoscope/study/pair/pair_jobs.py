"""The trainings of a pair as jobs of their own: many at a time on Ray, into one run.

A job writes rows and weights itself, under names that are its own. What it would change in the manifest, which has one
writer, it returns, and whoever waits for it writes it down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from anisoscope.data.tokens import prepare
from anisoscope.errors import AnisoscopeError
from anisoscope.evaluate.row_builders import Row
from anisoscope.jobs.job_log import JobLog
from anisoscope.jobs.job_pool import JobOutcome, Task, report
from anisoscope.models.twins import ROLES, Role
from anisoscope.store.run import Run, open_run
from anisoscope.study.pair.pair_settings import PairSettings
from anisoscope.study.pair.trainer_run import Stop, TrainingJob, train, weights_hash
from anisoscope.study.saved_checkpoints import step_of

PAIRED = ("fold_seeds", "units", "hashes")
"""Fields of the manifest that have an entry a training."""


@dataclass(frozen=True, slots=True)
class PairJob:
    """One model of a pair under one seed, as a worker is told of it."""

    run: str
    role: str
    seed: int
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def job(self) -> TrainingJob:
        """The training."""
        return TrainingJob(PairSettings(**self.settings), cast(Role, self.role), self.seed, Path(self.run))


class _Worker(Run):
    """A run whose manifest another process writes: what is to be changed there is kept in ``changes``."""

    changes: dict[str, Any]

    def update(self, **fields: Any) -> None:
        """Keep what another process is to write."""
        self.changes = getattr(self, "changes", {}) | fields
        self.manifest = self.manifest | fields


class _Reporting:
    """Tells the display of jobs how far a training is."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def stepped(self, step: int, loss: float, tokens: int) -> None:
        """A step is done."""
        report(step / self._steps, f"step {step:,} of {self._steps:,}, loss {loss:.3f}")

    def observed(self, rows: list[Row]) -> None:
        """Rows are in the run already."""


def tasks_of(run: Run, settings: PairSettings) -> list[Task]:
    """What is not done yet, seed by seed."""
    given = settings.model_dump(mode="json")
    jobs = [PairJob(run.path, role, seed, given) for seed in settings.every_seed for role in ROLES]
    return [Task(one.job.name, trained, (one,)) for one in jobs if one.job.name not in run.manifest["done"]]


def trained(one: PairJob) -> dict[str, Any]:
    """Train one model from its newest checkpoint, or from the beginning; returns entries for the manifest."""
    job, settings = one.job, one.job.settings
    report(0.0, "reading")
    data = prepare(
        settings.corpus,
        length=settings.length,
        vocabulary=settings.vocabulary,
        held_out=settings.held_out,
        tokeniser=settings.tokeniser,
        seed=settings.first_seed,
    )
    run = open_run(one.run, of=_Worker)
    if data.fingerprint != run.manifest["hashes"]["corpus"]:
        raise AnisoscopeError(f"the corpus {settings.corpus} is not the one that {one.run} began with")
    newest = job.newest()
    report(0.0 if newest is None else step_of(newest) / settings.steps, "training")
    if not train(job, newest, data, run, _Reporting(settings.steps), Stop()):
        raise AnisoscopeError(f"{job.name} stopped before its end")
    run.update(hashes={job.name: weights_hash(job.weights)})
    return {name: {job.name: found[job.name]} for name in PAIRED if job.name in (found := run.changes.get(name, {}))}


class PairJobLog(JobLog):
    """Writes the entries of a training into the manifest when it is done, and lets its checkpoints go."""

    def ended(self, outcome: JobOutcome) -> None:
        """Write down, and pass on."""
        if outcome.error is None and outcome.value is not None:
            for name, entry in outcome.value.items():
                self._run.update(**{name: self._run.manifest.get(name, {}) | entry})
        super().ended(outcome)
        if outcome.error is None:
            cast(PairJob, outcome.task.arguments[0]).job.clean_up()
