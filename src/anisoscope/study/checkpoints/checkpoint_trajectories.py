"""How embeddings and contextual means wander from checkpoint to checkpoint and how that goes with frequency."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anisoscope.capture.sites import SiteKey
from anisoscope.evaluate.frequency_rows import trajectory_rows
from anisoscope.evaluate.trajectories import Trajectories, TypeMeans
from anisoscope.observe.embedding_tables import TableReading
from anisoscope.store.run import Run
from anisoscope.study.checkpoints.checkpoint_jobs import CheckpointJob, places
from anisoscope.study.tokenized_text import TokenizedText


def write_wandering(run: Run, jobs: Sequence[CheckpointJob]) -> None:
    """Correlations of the trajectory's variance with log count up to every checkpoint; the places themselves go."""
    done = [job for job in jobs if job.writer in run.manifest["done"]]
    if not done or not all(run.has_file(f"{places(job)}.safetensors") for job in done):
        return  # written before, or models without a table
    counts = torch.from_numpy(TokenizedText.kept(run, done[0].seed).data.counts())
    found, sites = Trajectories(), run.manifest.get("sites", {})
    embedding_site = sites.get("embedding", {}).get("0", "")
    for job in done:
        found.add(*_readings(run, job))
        about = {"model": job.name, "role": run.manifest["role"], "seed": job.seed}
        request = job.examination.request()
        rows = trajectory_rows(found, counts, request, step=job.step, embedding_site=embedding_site)
        if rows:
            run.write(f"{job.writer}-wandering", [r | about for r in rows])
    for job in [] if run.manifest["failed"] else done:
        run.remove_file(f"{places(job)}.safetensors")


def _readings(run: Run, job: CheckpointJob) -> tuple[dict[str, TableReading], dict[SiteKey, TypeMeans]]:
    kept = {name: torch.from_numpy(array) for name, array in run.tensors(places(job)).items()}
    names = sorted({name.rpartition("/")[0] for name in kept})
    nowhere = torch.zeros(0)  # centres play no part in where a type goes
    tables: dict[str, TableReading] = {}
    contexts: dict[SiteKey, TypeMeans] = {}
    for name in names:
        ids, rows = kept[f"{name}/ids"], kept[f"{name}/rows"]
        kind, *where = name.split("/")
        if kind == "table":
            tables[where[0]] = TableReading(ids, rows, nowhere, nowhere)
        else:
            contexts[SiteKey(int(where[0]), where[1])] = _still(ids, rows)
    return tables, dict(sorted(contexts.items()))


def _still(ids: Tensor, means: Tensor) -> TypeMeans:
    """Means whose noise is not taken off.

    All checkpoints read the same text, so most of what their means owe to its sampling is the same in all and cancels
    between them; to take off the noise of means of different texts would take off wandering.
    """
    return TypeMeans(ids, means, torch.zeros(len(ids), dtype=torch.float64, device=ids.device))
