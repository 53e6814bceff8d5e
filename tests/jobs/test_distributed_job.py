"""One training of a plan in two processes over gloo: the rows of one process."""

import math
import multiprocessing
import sys
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from anisoscope.jobs import distributed_job as company
from anisoscope.store.run import create_run, open_run
from anisoscope.study.intervene.arm_training import Job, trained
from anisoscope.study.intervene.intervene_settings import InterveneSettings
from anisoscope.study.intervene.intervention_study import _prepared
from anisoscope.study.setting_fields import made_of

PLAN = {
    "steps": 4,
    "layers": 2,
    "width": 16,
    "heads": 2,
    "vocabulary": 300,
    "length": 16,
    "rank": 2,
    "resamples": 19,
    "corpus": "kjv",
    "probes": False,
    "arms": [
        {"name": "istar", "kind": "istar", "doses": [0.1]},
        {"name": "rare", "kind": "loss-weights", "doses": [0.5]},
        {"name": "off", "kind": "updates", "doses": [1.0], "rank": 2, "every": 2},
        {"name": "bent", "kind": "mask-rates", "doses": [0.5]},
    ],
    "role": "encoder",
}
JOBS = [("istar", 0.1), ("rare", 0.5), ("off", 1.0), ("bent", 0.5)]


def made(folder):
    settings = made_of(InterveneSettings, PLAN)
    given = settings.model_dump(mode="json")
    hashes = {"corpus": _prepared(settings).fingerprint}
    run = create_run(folder, config=given, kind="intervene", steps=4, seeds=[0], hashes=hashes, done=[], failed={})
    return run, [Job(run.path, 0, given, arm, dose) for arm, dose in JOBS]


def worker(rank, folder):
    torch.set_num_threads(1)
    where = f"file://{folder}/store"
    dist.init_process_group("gloo", where, rank=rank, world_size=2, timeout=timedelta(seconds=300))
    if rank:
        assert company.follow(trained) == len(JOBS)
    else:
        with company.followed():
            for job in made(f"{folder}/two")[1]:
                trained(job)
    dist.destroy_process_group()


def rows_of(path):
    names = (
        "model",
        "step",
        "layer",
        "view",
        "tensor",
        "subset",
        "proxy",
        "rank",
        "timing",
        "measure",
        "variant",
        "null",
        "item",
    )
    return {
        tuple(r[name] for name in names): r["value"]
        for r in open_run(path).table().to_pylist()
        if r["measure"] != "cost"
    }


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked")
def test_two_processes_have_the_rows_of_one(tmp_path):
    assert multiprocessing.active_children() == []
    start_processes(worker, (str(tmp_path),), nprocs=2, start_method="fork")
    for job in made(f"{tmp_path}/one")[1]:
        trained(job)
    one, two = rows_of(f"{tmp_path}/one"), rows_of(f"{tmp_path}/two")
    assert one.keys() == two.keys()
    assert {key[9] for key in one} >= {"loss", "bin_loss", "isoscore_star", "enrichment", "realised_exponent"}
    for key, value in one.items():
        if key[9] in ("loss", "bin_loss", "isoscore_star", "average_cosine", "realised_exponent"):
            assert two[key] == pytest.approx(value, rel=2e-3, abs=1e-5), key
        if key[9] == "enrichment" and math.isfinite(value):
            assert two[key] == pytest.approx(value, rel=0.02), key


def test_alone_nothing_is_changed():
    batch = {"input_ids": torch.arange(6).view(3, 2)}
    assert company.own_share(batch) is batch
    loss = torch.tensor(2.5)
    assert company.weighed(loss, 7) is loss
    assert company.leads()
    company.announce(None)
    with company.followed():
        pass
