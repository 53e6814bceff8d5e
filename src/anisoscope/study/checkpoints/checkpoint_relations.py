"""How alike each layer is at two checkpoints, once all of them are judged."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anisoscope.capture.sites import SiteKey
from anisoscope.store.run import Run
from anisoscope.study.checkpoints.checkpoint_jobs import CheckpointJob, aligned
from anisoscope.study.relations import checkpoint_rows


def write_relations(run: Run, jobs: Sequence[CheckpointJob]) -> None:
    """Each checkpoint beside the previous and the last one; what was kept of them goes."""
    done = [job for job in jobs if job.writer in run.manifest["done"] and run.has_file(f"{aligned(job)}.safetensors")]
    last = _read(run, done[-1]) if len(done) > 1 else {}
    before: tuple[int, dict[SiteKey, Tensor]] | None = None
    for job in done if last else ():
        now = _read(run, job)
        rows = [] if before is None else checkpoint_rows(now, before[1], which="previous", step=before[0])
        if job is not done[-1]:
            rows += checkpoint_rows(now, last, which="last", step=done[-1].step)
        about = {"step": job.step, "model": job.name, "role": run.manifest["role"], "seed": job.seed}
        run.write(f"{job.writer}-relations", [row | about for row in rows])
        before = job.step, now
    if not run.manifest["failed"]:
        for job in done:
            run.remove_file(f"{aligned(job)}.safetensors")


def _read(run: Run, job: CheckpointJob) -> dict[SiteKey, Tensor]:
    places = ((name.split("/", 1), x) for name, x in run.tensors(aligned(job)).items())
    return {SiteKey(int(layer), site): torch.from_numpy(x) for (layer, site), x in places}
