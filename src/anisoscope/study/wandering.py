"""How embeddings and contextual means wander from checkpoint to checkpoint and how that goes with frequency."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anisoscope.observe.frequency import trajectory_rows
from anisoscope.observe.tables import TableReading
from anisoscope.observe.trajectories import Trajectories, TypeMeans
from anisoscope.store.run import Run
from anisoscope.study.checkpoint_jobs import Job, places
from anisoscope.study.examination import Reading


def write_wandering(run: Run, jobs: Sequence[Job]) -> None:
    """Correlations of the trajectory's variance with log count up to every checkpoint; the places themselves go."""
    done = [job for job in jobs if job.writer in run.manifest["done"]]
    if not done or not all(run.has_file(f"{places(job)}.safetensors") for job in done):
        return  # written before, or models without a table
    counts = torch.from_numpy(Reading.kept(run, done[0].seed).data.counts())
    found, sites = Trajectories(), run.manifest.get("sites", {})
    for job in done:
        found.add(*_readings(run, job))
        about = {"model": job.name, "role": run.manifest["role"], "seed": job.seed}
        rows = trajectory_rows(found, counts, job.examination.request(), step=job.step)
        if rows:
            placed = [r | about | {"site": sites.get(r["view"], {}).get(str(r["layer"]))} for r in rows]
            run.write(f"{job.writer}-wandering", placed)
    for job in [] if run.manifest["failed"] else done:
        run.remove_file(f"{places(job)}.safetensors")


def _readings(run: Run, job: Job) -> tuple[dict[str, TableReading], dict[int, TypeMeans]]:
    kept = {name: torch.from_numpy(array) for name, array in run.tensors(places(job)).items()}
    names = sorted({name.partition(".")[0] for name in kept})
    pairs = {name: (kept[f"{name}.ids"], kept[f"{name}.rows"]) for name in names}
    nowhere = torch.zeros(0)  # centres play no part in where a type goes
    tables = {name: TableReading(*pair, nowhere, nowhere) for name, pair in pairs.items() if not name.isdecimal()}
    layers = sorted(int(name) for name in names if name.isdecimal())
    return tables, {layer: _still(*pairs[str(layer)]) for layer in layers}


def _still(ids: Tensor, means: Tensor) -> TypeMeans:
    """Means whose noise is not taken off.

    All checkpoints read the same text, so most of what their means owe to its sampling is the same in all and cancels
    between them; to take off the noise of means of different texts would take off wandering.
    """
    return TypeMeans(ids, means, torch.zeros(len(ids), dtype=torch.float64, device=ids.device))
