"""Where types went from checkpoint to checkpoint, from what each checkpoint left behind."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from anisoscope.store.run import create_run
from anisoscope.study.checkpoints import checkpoint_trajectories as wandering
from anisoscope.study.checkpoints.checkpoint_jobs import Job, places
from anisoscope.study.checkpoints.histories import Origin


def test_contextual_means_wander_layer_by_layer(tmp_path, monkeypatch):
    steps, types, rng = (0, 10, 20, 30), 50, np.random.default_rng(0)
    counts = np.arange(1, types + 1)
    text = SimpleNamespace(data=SimpleNamespace(counts=lambda: counts))
    monkeypatch.setattr(wandering, "TokenizedText", SimpleNamespace(kept=lambda run, seed: text))
    origins = [Origin(f"checkpoint-{step}", path="nowhere") for step in steps]
    given = {"run": "run", "seed": 0, "wave": "late", "like": origins[0], "name": "model"}
    jobs = [Job(**given, step=step, origin=origin) for step, origin in zip(steps, origins, strict=True)]
    sites = {"embedding": {"0": "embed"}}
    done = [job.writer for job in jobs]
    run = create_run(tmp_path / "run", role="decoder", done=done, failed={}, sites=sites)
    ids = {"2": np.arange(0, types, 2), "10": np.arange(types)}
    kept = []
    for job in jobs:
        rows = {layer: rng.normal(size=(len(which), 6)).astype(np.float32) for layer, which in ids.items()}
        table = {"table/input/ids": np.arange(types), "table/input/rows": rows["10"] * 2}
        names = {layer: f"context/{layer}/layers.{int(layer) - 1}" for layer in ids}
        tensors = {f"{names[layer]}/ids": which for layer, which in ids.items()}
        run.write_tensors(places(job), tensors | {f"{names[layer]}/rows": rows[layer] for layer in ids} | table)
        kept.append(rows)
    wandering.write_wandering(run, jobs)
    found = [r for r in run.table().to_pylist() if r["variant"] == "trajectory, pearson"]
    where = [(r["step"], r["view"], r["layer"], r["site"]) for r in found]
    contextual = [("representation", 2, "layers.1"), ("representation", 10, "layers.9")]
    assert sorted(where) == sorted((step, *at) for step in (20, 30) for at in [("embedding", 0, "embed"), *contextual])
    for row in found:
        if row["view"] == "representation":
            seen = [rows[str(row["layer"])] for rows in kept[: steps.index(row["step"]) + 1]]
            variance = np.var(np.stack(seen).astype(np.float64), axis=0).sum(1)  # as it is: the texts are the same
            expected = stats.pearsonr(np.log(counts[ids[str(row["layer"])]]), variance)[0]
            assert row["value"] == pytest.approx(expected, abs=1e-5)
            assert (row["tensor"], row["subset"], row["n"]) == ("activations", "no-first", len(ids[str(row["layer"])]))
    assert not [path for path in (tmp_path / "run").iterdir() if "places" in path.name]
