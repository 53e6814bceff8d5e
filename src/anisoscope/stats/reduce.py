"""Statistics over a process group: the only module that speaks to other processes.

Every rank must call, with statistics of equal shape; every rank gets the statistic of all rows of all ranks, equal to
the last bit on each. A rank without rows passes an empty statistic.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from anisoscope.stats.counts import TokenCounts
from anisoscope.stats.directions import Directions
from anisoscope.stats.moments import STATE_DTYPE, Moments
from anisoscope.stats.reservoir import NO_KEY, Reservoir

Statistic = TypeVar("Statistic", Moments, Directions, TokenCounts, Reservoir)


def all_reduce(statistic: Statistic, group: dist.ProcessGroup | None = None) -> Statistic:
    """The statistic of all ranks together; the statistic itself where there is but one process."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size(group) == 1:
        return statistic
    return _reduce(statistic, group)


@singledispatch
def _reduce(statistic: Any, group: dist.ProcessGroup | None) -> Any:
    raise TypeError(f"cannot reduce a {type(statistic).__name__}; pass Moments, Directions, TokenCounts or a Reservoir")


@_reduce.register
def _(statistic: Moments, group: dist.ProcessGroup | None) -> Moments:
    # First the common mean, then the sums about it: exact, and no rank ever holds another's scatter.
    first = torch.cat([statistic.count[None], statistic.mean * statistic.count])
    dist.all_reduce(first, group=group)
    mean = first[1:] / first[0].clamp_min(torch.finfo(STATE_DTYPE).tiny)
    moved = statistic.about(mean)
    sums = [moved.scatter.reshape(-1)]
    if moved.third is not None and moved.fourth is not None:
        sums += [moved.third, moved.fourth[None]]
    flat = torch.cat(sums)
    dist.all_reduce(flat, group=group)
    width = statistic.width
    scatter, rest = flat[: width * width].reshape(width, width), flat[width * width :]
    if not statistic.higher:
        return Moments(first[0], mean, scatter, None, None)
    return Moments(first[0], mean, scatter, rest[:width], rest[width])


@_reduce.register
def _(statistic: Directions, group: dist.ProcessGroup | None) -> Directions:
    zeros = statistic.zeros.clone()
    dist.all_reduce(zeros, group=group)
    return Directions(_reduce(statistic.units, group), zeros)


@_reduce.register
def _(statistic: TokenCounts, group: dist.ProcessGroup | None) -> TokenCounts:
    counts = statistic.counts.clone()
    dist.all_reduce(counts, group=group)
    return TokenCounts(counts)


@_reduce.register
def _(statistic: Reservoir, group: dist.ProcessGroup | None) -> Reservoir:
    parts = [_gathered(_padded(tensor, name, statistic.rows), group) for name, tensor in statistic.state().items()]
    total: Reservoir | None = None
    for tensors in zip(*parts, strict=True):
        part = Reservoir.from_state(dict(zip(statistic.state(), tensors, strict=True)))
        total = part if total is None else total.merge(part)
    assert total is not None, "a process group has at least one rank"
    return total


def _padded(tensor: Tensor, name: str, rows: int) -> Tensor:
    """Bring a buffer to the full ``rows``, so that ranks that saw less can be gathered; padding has no key."""
    if name in ("settings", "cutoff") or tensor.shape[0] == rows:
        return tensor
    fill = tensor.new_full((rows - tensor.shape[0], *tensor.shape[1:]), NO_KEY if name == "keys" else 0)
    return torch.cat([tensor, fill])


def _gathered(tensor: Tensor, group: dist.ProcessGroup | None) -> list[Tensor]:
    tensor = tensor.contiguous()
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, tensor, group=group)
    return parts
