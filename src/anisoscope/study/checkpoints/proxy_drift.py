"""How proxies move from checkpoint to checkpoint, once all of them are judged."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from anisoscope.evaluate.judge_sites import Place, basis_name, basis_place
from anisoscope.evaluate.row_builders import Row, angle_row, place_columns
from anisoscope.geometry.subspace import Subspace, principal_angles
from anisoscope.store.run import Run
from anisoscope.study.checkpoints.checkpoint_jobs import CheckpointJob, subspaces
from anisoscope.vocabulary import TIMINGS


def write_drift(run: Run, jobs: Sequence[CheckpointJob]) -> None:
    """Angles to the first and the previous checkpoint; of the proxies only those of the last are kept."""
    first: dict[str, torch.Tensor] = {}
    previous: dict[str, torch.Tensor] = {}
    done = [job for job in jobs if job.writer in run.manifest["done"]]
    for job in done:
        if not run.has_file(f"{subspaces(job, 'rolling')}.safetensors"):  # drift was written before
            return
        kept = run.tensors(subspaces(job, "rolling"))
        now = {name: torch.from_numpy(kept[name]) for name in sorted(kept)}  # files have no order of their own
        rows = []
        for since, before in (("first", first), ("previous", previous)):
            rows += _drift(job, now, before, since)
        about = {"model": job.name, "role": run.manifest["role"], "seed": job.seed}
        rows = [r | about for r in rows]
        if rows:
            run.write(f"{job.writer}-drift", rows)
        first, previous = first or now, now
    if run.manifest["failed"] or (done and done[0].examination.keep_bases):
        return
    for job in done[:-1]:
        for timing in TIMINGS:
            run.remove_file(f"{subspaces(job, timing)}.safetensors")


def _drift(job: CheckpointJob, now: dict[str, torch.Tensor], before: dict[str, torch.Tensor], since: str) -> list[Row]:
    """Mean principal angle in degrees, both folds together."""
    pairs: dict[Place, list[torch.Tensor]] = {}
    for name, basis in now.items():
        if name in before:
            angles = principal_angles(Subspace(basis), Subspace(before[name]))
            pairs.setdefault(basis_place(name)[0], []).append(angles)
    return [
        angle_row(
            {"step": job.step} | place_columns(place), now[basis_name(place, 0)].shape[1], torch.cat(angles), since
        )
        for place, angles in pairs.items()
    ]
