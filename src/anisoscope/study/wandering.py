"""How embeddings wander from checkpoint to checkpoint and how that goes with frequency, once all are judged."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from anisoscope.observe.frequency import trajectory_rows
from anisoscope.observe.tables import TableReading
from anisoscope.observe.trajectories import Trajectories
from anisoscope.store.run import Run
from anisoscope.study.checkpoint_jobs import Job, places
from anisoscope.study.examination import Reading


def write_wandering(run: Run, jobs: Sequence[Job]) -> None:
    """Correlations of the trajectory's variance with log count up to every checkpoint; the places themselves go."""
    done = [job for job in jobs if job.writer in run.manifest["done"]]
    if not done or not all(run.has_file(f"{places(job)}.safetensors") for job in done):
        return  # written before, or models without a table
    counts = torch.from_numpy(Reading.kept(run, done[0].seed).data.counts())
    found = Trajectories()
    for job in done:
        found.add(_readings(run, job))
        about = {"model": job.name, "role": run.manifest["role"], "seed": job.seed}
        rows = trajectory_rows(found, counts, job.examination.request(), step=job.step)
        if rows:
            run.write(f"{job.writer}-wandering", [r | about for r in rows])
    for job in [] if run.manifest["failed"] else done:
        run.remove_file(f"{places(job)}.safetensors")


def _readings(run: Run, job: Job) -> dict[str, TableReading]:
    kept = {name: torch.from_numpy(array) for name, array in run.tensors(places(job)).items()}
    nowhere = torch.zeros(0)  # centres play no part in where a type goes
    tables = sorted({name.partition(".")[0] for name in kept})
    return {name: TableReading(kept[f"{name}.ids"], kept[f"{name}.rows"], nowhere, nowhere) for name in tables}
