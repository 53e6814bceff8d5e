"""Two real processes over gloo give the rows of one process whose loss is the mean of the rank means."""

import json
import math
import os
import sys
import tempfile
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from anisoscope import AnisoscopeError, Scope
from budget.test_block_rotation import half
from capture.families import batch, build
from observe.grouped import grouped

STEPS, SIZES = 3, ((12, 10), (12, 10), (12, 5))  # the last batch is uneven
OPTIONS = {"steps": STEPS, "rank": 4, "resamples": 49, "strict": True, "schedule": 1, "anchor": 1, "timeout": 30}


def shard(step, rank):
    return batch(seed=10 * step + rank, sequences=SIZES[step][rank], length=9 - rank)


def train(model, forward, scope, ranks):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        with scope.step():
            for rank in ranks:
                (forward(**shard(step, rank)).loss / len(ranks)).backward()
        optimizer.step()
        optimizer.zero_grad()
    scope.close()
    return scope.rows()


def prepared(kind):
    model = build("gpt_neox").eval()
    if kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (2,))
        for block in model.gpt_neox.layers:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def begin(rank, folder):
    torch.set_num_threads(1)
    os.environ |= {"LOCAL_RANK": str(rank), "RANK": str(rank), "WORLD_SIZE": "2"}
    where = f"file://{folder}/store"
    dist.init_process_group("gloo", where, rank=rank, world_size=2, timeout=timedelta(seconds=60))


def finish(rank, folder, found):
    with open(f"{folder}/{rank}", "w") as file:
        json.dump(found, file)
    dist.destroy_process_group()


def worker(rank, kind, folder):
    begin(rank, folder)
    model = prepared(kind)
    options = OPTIONS | ({"targets": True} if kind == "ddp" else {})
    finish(rank, folder, train(model, model, Scope(model, **grouped(**options)), [rank]))


def in_turn(model):
    """One observation whose layers are watched in the first two steps."""
    return Scope(model, **grouped(**(OPTIONS | {"schedule": [0], "reservoir_rows": 512, "memory": half(model)})))


def in_turn_worker(rank, kind, folder):
    begin(rank, folder)
    model = build("gpt_neox").eval()
    forward = torch.nn.parallel.DistributedDataParallel(model)
    finish(rank, folder, train(model, forward, in_turn(model), [rank]))


def skipping(rank, kind, folder):
    """Rank 1 leaves one step out of the scope."""
    begin(rank, folder)
    model = build("gpt_neox").eval()
    scope = Scope(model, **grouped(**(OPTIONS | {"timeout": 3})))
    said, began = None, time.monotonic()
    try:
        for step in range(STEPS):
            if rank == 0 or step != 1:
                with scope.step():
                    model(**shard(step, rank)).loss.backward()
            else:
                model(**shard(step, rank)).loss.backward()
                if kind == "late":
                    time.sleep(8)
        scope.close()
    except AnisoscopeError as error:
        said = str(error)
    with open(f"{folder}/{rank}", "w") as file:
        json.dump((said, time.monotonic() - began), file)
    os._exit(0)  # the group is broken; leaving it in order would wait


def two_processes(act, kind):
    with tempfile.TemporaryDirectory() as folder:
        start = "fork" if sys.platform == "linux" else "spawn"
        start_processes(act, (kind, folder), nprocs=2, start_method=start)
        found = []
        for rank in (0, 1):
            with open(f"{folder}/{rank}") as file:
                found.append(json.load(file))
        return found


KEY = (
    "step", "tokens", "layer", "view", "tensor", "subset", "proxy", "rank", "timing", "measure", "variant", "null", "n",
)  # fmt: skip


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_two_processes_give_the_rows_of_one(kind):
    first, second = two_processes(worker, kind)
    assert second == []  # rank 0 writes
    model = build("gpt_neox").eval()
    options = OPTIONS | ({"targets": True} if kind == "ddp" else {})
    expected = train(model, model, Scope(model, **grouped(**options)), [0, 1])
    assert {r["view"] for r in first if r["view"]} == {"representation", "weight", "embedding"}
    assert {r["timing"] for r in first if r["timing"]} == {"rolling", "anchored"}
    assert not [r["note"] for r in first if r["measure"] == "skipped"]

    def keyed(rows):
        return {
            tuple(r[name] for name in KEY): r
            for r in rows
            if not (r["null"] or "").startswith("targets") and r["measure"] != "cost"
        }

    first, expected = keyed(first), keyed(expected)
    assert first.keys() == expected.keys()
    for key, row in expected.items():
        for number in ("value", "low", "high", "p"):
            a, b = first[key][number], row[number]
            if a is None or (isinstance(a, float) and math.isnan(a)):
                assert str(a) == str(b)
            else:
                assert a == pytest.approx(b, rel=1e-6 if number == "value" else 1e-5, abs=1e-7), (key, number)


def test_two_processes_that_watch_layers_in_turn_give_the_rows_of_one():
    first, second = two_processes(in_turn_worker, "rounds")
    assert second == []
    model = build("gpt_neox").eval()
    expected = train(model, model, in_turn(model), [0, 1])
    found = [[r for r in rows if r["measure"] in ("energy", "top_share", "isoscore")] for rows in (first, expected)]
    assert {r["step"] for r in found[0]} == {0}
    assert len(found[0]) == len(found[1]) > 20
    for a, b in zip(*found, strict=True):
        assert [a[name] for name in KEY] == [b[name] for name in KEY]
        assert a["value"] == pytest.approx(b["value"], rel=1e-4)


@pytest.mark.filterwarnings("ignore::anisoscope.errors.ScopeWarning")  # this loop has no optimiser
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["never", "late"])
def test_a_rank_that_skips_an_observation_is_an_error_on_all(kind):
    (said, seconds), (said_too, _) = two_processes(skipping, kind)
    assert said is not None
    assert said_too is not None
    for words in (said, said_too):
        assert any(rule in words for rule in ("same step", "every rank must come", "closed", "then close"))
    assert seconds < 20
