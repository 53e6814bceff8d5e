"""One job of a plan in several processes, under ``torchrun``: all train, the first writes.

The first process runs the plan as if it were alone. Before a training it tells the others which one, and they train
along; when the plan is over it tells them so. Every process takes its share of the sequences of each batch.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from anisoscope.errors import AnisoscopeError, broken
from anisoscope.intervene.sums import processes

_PATIENCE = timedelta(minutes=30)  # a process that dies ends the others after this


def asked_for() -> bool:
    """Whether ``torchrun`` started several processes."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def leads() -> bool:
    """Whether this process writes."""
    return processes() == 1 or dist.get_rank() == 0


@contextlib.contextmanager
def joined() -> Iterator[None]:
    """The process group of ``torchrun``, over gloo; what is there already is used."""
    if not asked_for() or dist.is_initialized():
        yield
        return
    dist.init_process_group("gloo", timeout=_PATIENCE)
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def followed() -> Iterator[None]:
    """Round a plan, in the first process: the others are told when it is over, however it ends."""
    try:
        yield
    finally:
        if processes() > 1:
            _tell(None)


def follow(act: Callable[[Any], Any]) -> int:
    """In the other processes: train along until the plan is over; returns how many trainings there were."""
    number = 0
    while (job := _heard()) is not None:
        number += 1
        with contextlib.suppress(AnisoscopeError):  # the first process has it too, and writes it down
            act(job)
    return number


def announce(job: Any) -> None:
    """Before a training, in the first process."""
    if processes() > 1 and leads():
        _tell(job)


def require_shares(batch: int) -> None:
    """Raise for a batch that cannot be dealt out evenly."""
    if batch % processes():
        raise broken(
            "sequences of a batch must be a multiple of the processes", f"{batch} and {processes()}", "change batch"
        )


def own_share(whole: dict[str, Tensor]) -> dict[str, Tensor]:
    """The sequences of a batch that this process trains on."""
    count = processes()
    return whole if count == 1 else {name: part[dist.get_rank() :: count] for name, part in whole.items()}


def together(model: Any) -> Any:
    """The model as a step calls it: gradients are averaged over processes."""
    return model if processes() == 1 else DistributedDataParallel(model)


def weighed(loss: Tensor, labels: int) -> Tensor:
    """A mean over own labels, scaled so that the mean over processes is the mean over all labels."""
    count = processes()
    if count == 1:
        return loss
    total = torch.tensor(float(labels), dtype=torch.float64)
    dist.all_reduce(total)
    return loss * (labels * count / max(float(total), 1.0))


def summed(values: Tensor) -> Tensor:
    """A sum over processes, the same in each."""
    if processes() > 1:
        values = values.clone()
        dist.all_reduce(values)
    return values


def _tell(job: Any) -> None:
    dist.broadcast_object_list([job], src=0)


def _heard() -> Any:
    heard = [None]
    dist.broadcast_object_list(heard, src=0)
    return heard[0]
