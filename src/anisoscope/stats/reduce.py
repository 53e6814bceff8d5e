"""Statistics over a process group: the only module that speaks to other processes.

Every rank must call, with statistics of equal shape; every rank gets the statistic of all rows of all ranks, equal to
the last bit on each. A rank without rows passes an empty statistic.
"""

from __future__ import annotations

from datetime import timedelta
from functools import singledispatch
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from anisoscope.errors import AnisoscopeError
from anisoscope.stats.counts import TokenCounts
from anisoscope.stats.moments import STATE_DTYPE, Moments
from anisoscope.stats.reservoir import NO_KEY, Reservoir
from anisoscope.stats.unit_directions import Directions

Statistic = TypeVar("Statistic", Moments, Directions, TokenCounts, Reservoir, Tensor)


class RankGroup:
    """The processes that observe together. Every rank makes one, then all speak in the same order.

    What is said travels over a gloo group with a timeout of its own: a rank that does not come is an error on all the
    others after ``timeout`` seconds, and on itself as soon as it speaks again, never a hang.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.broken = False  # somebody did not come: nothing more is said
        self._group: Any = None
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))

    @property
    def is_single(self) -> bool:
        """Whether there is but one process."""
        return self._group is None

    @property
    def is_first(self) -> bool:
        """Whether this is the process that judges and writes."""
        return self.is_single or dist.get_rank() == 0

    def all_gather(self, said: Any) -> list[Any]:
        """What every rank says, in the order of ranks."""
        if self.is_single:
            return [said]
        heard: list[Any] = [None] * dist.get_world_size()
        try:
            if self.broken:
                raise RuntimeError("at an earlier observation")
            dist.all_gather_object(heard, said, group=self._group)
        except (RuntimeError, ValueError) as error:
            self.broken = True
            raise AnisoscopeError(
                f"every rank must come to every observation within {self.timeout:g} s, and one did not "
                f"({str(error).splitlines()[0][:120]}); wrap the same steps in scope.step() on all ranks"
            ) from error
        return heard


def all_reduce(statistic: Statistic, group: dist.ProcessGroup | None = None) -> Statistic:
    """The statistic of all ranks together; the statistic itself where there is but one process."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size(group) == 1:
        return statistic
    return _reduce(statistic, group)


@singledispatch
def _reduce(statistic: Any, group: dist.ProcessGroup | None) -> Any:
    raise TypeError(
        f"cannot reduce a {type(statistic).__name__}; pass Moments, Directions, TokenCounts, a Reservoir or a sum"
    )


@_reduce.register
def _(statistic: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    total = statistic.clone()
    dist.all_reduce(total, group=group)
    return total


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
    room = torch.tensor([statistic.keys.shape[0], statistic.rows], device=statistic.keys.device)
    dist.all_reduce(room, op=dist.ReduceOp.MAX, group=group)
    length, rows = (int(number) for number in room)
    state = statistic.state() | {"settings": torch.tensor([rows, statistic.seed, int(statistic.whole)], device="cpu")}
    on_device = {name: tensor.to(statistic.keys.device) for name, tensor in state.items()}
    parts = [_gathered(_padded(tensor, name, length), group) for name, tensor in on_device.items()]
    total: Reservoir | None = None
    for tensors in zip(*parts, strict=True):
        part = Reservoir.from_state(dict(zip(state, tensors, strict=True)))
        total = part if total is None else total.merge(part)
    assert total is not None, "a process group has at least one rank"
    return total


def _padded(tensor: Tensor, name: str, rows: int) -> Tensor:
    """Bring a buffer to ``rows``, so that ranks that saw less can be gathered; padding has no key."""
    if name in ("settings", "cutoff") or tensor.shape[0] == rows:
        return tensor
    fill = tensor.new_full((rows - tensor.shape[0], *tensor.shape[1:]), NO_KEY if name == "keys" else 0)
    return torch.cat([tensor, fill])


def _gathered(tensor: Tensor, group: dist.ProcessGroup | None) -> list[Tensor]:
    tensor = tensor.contiguous()
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, tensor, group=group)
    return parts
