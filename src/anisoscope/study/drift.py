"""How proxies move from checkpoint to checkpoint, once all of them are judged."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from anisoscope.geometry.subspace import Subspace, principal_angles
from anisoscope.observe.rows import Row, row
from anisoscope.store.run import Run
from anisoscope.study.checkpoint_jobs import Job, subspaces


def write_drift(run: Run, jobs: Sequence[Job]) -> None:
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
        sites = run.manifest["sites"]
        rows = [r | about | {"site": sites.get(r["view"], {}).get(str(r["layer"]))} for r in rows]
        if rows:
            run.write(f"{job.writer}-drift", rows)
        first, previous = first or now, now
    for job in [] if run.manifest["failed"] else done[:-1]:
        for timing in ("rolling", "anchored"):
            run.remove_file(f"{subspaces(job, timing)}.safetensors")


def _drift(job: Job, now: dict[str, torch.Tensor], before: dict[str, torch.Tensor], since: str) -> list[Row]:
    """Mean principal angle in degrees, both folds together."""
    pairs: dict[str, list[torch.Tensor]] = {}
    for name, basis in now.items():
        if name in before:
            angles = principal_angles(Subspace(basis), Subspace(before[name]))
            pairs.setdefault(name.rpartition(".")[0], []).append(angles)
    rows = []
    for name, angles in pairs.items():
        view, layer, cloud, proxy = name.split(".")
        whole = torch.cat(angles)
        rows.append(
            row(
                step=job.step,
                layer=int(layer),
                view=view,
                points="activations",
                cloud=cloud,
                proxy=proxy,
                rank=now[f"{name}.0"].shape[1],
                timing="rolling",
                measure="angle",
                variant=f"since {since}",
                value=float(whole.mean().rad2deg()),
                n=whole.numel(),
            )
        )
    return rows
