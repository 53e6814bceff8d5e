"""Differentiable sums over a batch, over all processes of a training. Letters: N rows, D width, W processes.

A penalty is a function of sums over the whole batch. Each process adds its own rows, and the sums are reduced inside
the graph: forward and backward both add over processes. Data parallelism then averages gradients, so that every
parameter gets what one process with the whole batch would give it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.contiguous().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gradient,) = gradients
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total


def processes() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def over_processes(x: Tensor) -> Tensor:
    """The sum over all processes, in the graph; with one process, the tensor itself."""
    if processes() == 1:
        return x
    return _AllReduce.apply(x)  # pyright: ignore[reportReturnType]


def gathered(x: Tensor) -> Tensor:
    """The rows of all processes one after the other; where they have not equally many, zeros fill up."""
    count = processes()
    if count == 1:
        return x
    most = torch.tensor(len(x), device=x.device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    room = x.new_zeros(count, int(most), *x.shape[1:])
    room[dist.get_rank(), : len(x)] = x
    return over_processes(room).flatten(0, 1)


@dataclass(frozen=True, slots=True, eq=False)
class WeightedRows:
    """Rows of this process ``(N, D)`` in float32 at least, and their weights ``(N,)``: 0 for padding."""

    rows: Tensor
    weights: Tensor

    @classmethod
    def of(cls, x: Tensor, mask: Tensor | None, most: int | None) -> WeightedRows:
        """Rows of a tensor ``(…, D)``: at most ``most`` over all processes, evenly spaced, so that nothing is drawn.

        Shapes do not depend on the mask, so nothing waits for the device.
        """
        rows = x.reshape(-1, x.shape[-1])
        weights = rows.new_ones(len(rows)) if mask is None else mask.reshape(-1).to(rows)
        own = None if most is None else max(1, most // processes())
        if own is not None and own < len(rows):
            places = torch.arange(own, device=rows.device) * len(rows) // own
            rows, weights = rows[places], weights[places]
        kind = torch.promote_types(rows.dtype, torch.float32)
        return cls(rows.to(kind), weights.to(kind))

    @property
    def count(self) -> Tensor:
        """Rows of all processes."""
        return over_processes(self.weights.sum())

    def centre(self) -> Tensor:
        """The mean of all rows, without gradient: what sums are taken about, so that an offset costs no digits."""
        with torch.no_grad():
            return over_processes(self.weights @ self.rows) / self.count

    def covariance(self) -> Tensor:
        """``(D, D)`` of all rows, in the graph."""
        y_ND = self.rows - self.centre()
        weighted_ND = y_ND * self.weights[:, None]
        n, total_D, second_DD = self.count, over_processes(weighted_ND.sum(0)), over_processes(weighted_ND.T @ y_ND)
        # The sum about the centre is 0, but its derivative is not.
        return (second_DD - torch.outer(total_D, total_D) / n) / (n - 1)
