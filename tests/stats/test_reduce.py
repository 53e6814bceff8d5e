"""Two real processes over gloo: the reduced statistic is that of one process on the concatenation."""

import os
import sys
import tempfile
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from anisoscope import Directions, Moments, Reservoir, TokenCounts, all_reduce

SHARDS = {"uneven": (37, 5), "one empty": (21, 0)}


def data():
    generator = torch.Generator().manual_seed(0)
    x = 50 + 0.01 * torch.randn(42, 7, 3, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 9, (42, 7), generator=generator)


def statistics(x, tokens):
    flat = x.reshape(-1, 3)
    return [
        Moments.of(flat),
        Moments.of(flat, higher=False),
        Directions.of(flat) if len(flat) else Directions.empty(3),
        TokenCounts.of(tokens, vocabulary=9),
        Reservoir.of_sequences(x, tokens, rows=40, seed=1),
    ]


def tensors(statistic):
    if isinstance(statistic, Directions):
        return [*statistic.units.state().values(), statistic.zeros]
    if isinstance(statistic, Reservoir):
        sample = statistic.sample()
        return [sample.values, sample.tokens, sample.sequences, sample.positions]
    return list(statistic.state().values())


def worker(rank, sizes, folder):
    where = f"file://{folder}/store"
    dist.init_process_group("gloo", where, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    x, tokens = data()
    mine = slice(0, sizes[0]) if rank == 0 else slice(sizes[0], sum(sizes))
    reduced = [all_reduce(s) for s in statistics(x[mine], tokens[mine])]
    with pytest.raises(TypeError, match="list"):
        all_reduce([])
    torch.save([tensors(s) for s in reduced], f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("sizes", SHARDS.values(), ids=SHARDS)
def test_two_processes_equal_one(sizes):
    with tempfile.TemporaryDirectory() as folder:
        start_processes(worker, (sizes, folder), nprocs=2, start_method="fork" if sys.platform == "linux" else "spawn")
        first, second = (torch.load(f"{folder}/{rank}.pt", weights_only=True) for rank in (0, 1))
    x, tokens = data()
    whole = [tensors(s) for s in statistics(x[: sum(sizes)], tokens[: sum(sizes)])]
    for got, other, expected in zip(first, second, whole, strict=True):
        for a, b, c in zip(got, other, expected, strict=True):
            assert torch.equal(a, b)  # every rank holds the same bits
            torch.testing.assert_close(a, c, rtol=1e-9, atol=1e-15)


def test_alone_nothing_happens():
    moments = Moments.empty(2)
    assert all_reduce(moments) is moments
    assert "RANK" not in os.environ
