"""Moments of several selections of rows, added to in place while a stream goes by.

Letters: B sequences, T positions, N rows, D width, P parts.

Parts (the folds of an observation) share one reading of the rows: each batch is centred once about its own mean and its
sums are moved, in float64, to those about the centre of the first batch; ``moments`` moves each part onto its own mean.
In a long window (``fixed``) batches are centred about that first centre themselves, which saves the moving. Nothing
here waits for the device.

**Precision.** As in ``moments``: float32 products of at most ``CHUNK_ROWS`` rows, added in float64; float64 rows are
float64 throughout. On a GPU rows of 16 bits are multiplied on tensor cores: centred, each column scaled by its largest
value, and rounded to the 11 bits of float16, which is finer than the 8 of the bfloat16 they came in. So are rows of
float32 that were computed under autocast.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.stats.moments import CHUNK_ROWS, STATE_DTYPE, Moments

_ROOM = 16.0  # how far later rows may exceed the scale of the first; float16 has room for far more
_LONG = 256  # sequences of at least so many positions are multiplied one by one, then added up by part
_MOST_NUMBERS = 1 << 27


@dataclass(slots=True, eq=False)
class Running:
    """Count, sum and scatter of ``P`` parts about one centre; a part is a set of sequences.

    >>> import torch
    >>> x = torch.tensor([[[0.0, 1.0], [4.0, 4.0]], [[2.0, 1.0], [9.0, 9.0]]])
    >>> mask = torch.tensor([[True, True], [True, False]])
    >>> members = torch.tensor([[True, False], [False, True]])
    >>> running = Running.start(x, mask, parts=2)
    >>> running.add(x, mask, members)
    >>> [moments.mean.tolist() for moments in running.moments()]
    [[2.0, 2.5], [2.0, 1.0]]
    """

    centre: Tensor
    scale: Tensor | None
    count: Tensor
    total: Tensor
    scatter: Tensor

    @classmethod
    def start(cls, x_BTD: Tensor, mask_BT: Tensor, *, parts: int, sixteen_bit: bool = False) -> Running:
        """No rows yet; centre and scale are those of this batch. ``sixteen_bit``: treat rows as if they were such."""
        width, device = x_BTD.shape[-1], x_BTD.device
        centre = _mean(x_BTD, mask_BT)
        scale = None
        short = sixteen_bit or x_BTD.dtype in (torch.bfloat16, torch.float16)
        if x_BTD.is_cuda and short and x_BTD.dtype != torch.float64:
            largest = torch.where(mask_BT[..., None], x_BTD - centre, 0).abs().amax((0, 1))
            usable = torch.isfinite(largest) & (largest > 0)
            scale = torch.where(usable, largest, 1.0) * _ROOM
        return cls(
            centre,
            scale,
            torch.zeros(parts, dtype=STATE_DTYPE, device=device),
            torch.zeros(parts, width, dtype=STATE_DTYPE, device=device),
            torch.zeros(parts, width, width, dtype=STATE_DTYPE, device=device),
        )

    def add(self, x_BTD: Tensor, mask_BT: Tensor, members_PB: Tensor, *, fixed: bool = False) -> None:
        """Add rows; with ``fixed`` about the first centre, and a batch whose sums are not finite adds nothing."""
        centre = self.centre if fixed else _mean(x_BTD, mask_BT)
        at_once = max(1, CHUNK_ROWS // max(1, x_BTD.shape[1]))
        if x_BTD.shape[1] >= _LONG:
            at_once = max(1, min(at_once, _MOST_NUMBERS // x_BTD.shape[-1] ** 2))
        for start in range(0, x_BTD.shape[0], at_once):
            some = slice(start, start + at_once)
            count, total, scatter = self._sums(x_BTD[some], mask_BT[some], members_PB[:, some], centre)
            if fixed:
                fine = torch.isfinite(total.sum())
                scatter, total, count = (torch.where(fine, part, 0.0) for part in (scatter, total, count))
            else:
                d = (centre - self.centre).to(STATE_DTYPE)
                d = d if self.scale is None else d / self.scale
                moved = total + count[:, None] * d
                scatter = scatter + total[:, :, None] * d + d[:, None] * moved[:, None]
                total = moved
            self.scatter += scatter
            self.total += total
            self.count += count

    def _sums(
        self, x_BTD: Tensor, mask_BT: Tensor, members_PB: Tensor, centre: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Count, sum and scatter of each part about a centre, in units of the scale."""
        if self.scale is None:
            y_BTD = x_BTD.to(centre.dtype) - centre
        else:
            y_BTD = torch.addcmul(-centre / self.scale, x_BTD, 1 / self.scale).half()
        y_BTD = y_BTD.masked_fill_(~mask_BT[..., None], 0)
        weights_PB = members_PB.to(centre.dtype)
        total_BD = y_BTD.sum(1, dtype=centre.dtype)
        count = members_PB.to(STATE_DTYPE) @ mask_BT.sum(1, dtype=STATE_DTYPE)
        total = (weights_PB @ total_BD).to(STATE_DTYPE)
        if y_BTD.shape[1] >= _LONG:
            scatter_BDD = _products(y_BTD)
            return count, total, (weights_PB @ scatter_BDD.flatten(1)).reshape(-1, *scatter_BDD.shape[1:])
        y_PND = torch.where(members_PB[..., None, None], y_BTD, 0).flatten(1, 2)
        return count, total, _products(y_PND)

    def moments(self) -> list[Moments]:
        """The moments of each part, about its own mean."""
        total_PD, scatter_PDD = self.total, self.scatter
        if self.scale is not None:
            scale = self.scale.to(STATE_DTYPE)
            total_PD, scatter_PDD = total_PD * scale, scatter_PDD * torch.outer(scale, scale)
        offset_PD = total_PD / self.count.clamp_min(1)[:, None]
        own_PDD = scatter_PDD - total_PD[:, :, None] * offset_PD[:, None]
        mean_PD = self.centre.to(STATE_DTYPE) + offset_PD
        parts = zip(self.count, mean_PD, own_PDD, strict=True)
        return [Moments(count, mean, own, None, None) for count, mean, own in parts]


def _products(y: Tensor) -> Tensor:
    """``yᵀy`` of each matrix of a stack; of float16 on tensor cores, added up in float32."""
    if y.dtype == torch.float16:
        return torch.bmm(y.mT, y, out_dtype=torch.float32)
    return y.mT @ y


def _mean(x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean of the chosen rows, in at least float32; 0 where it is not finite."""
    work = torch.float64 if x_BTD.dtype == torch.float64 else torch.float32
    total = torch.where(mask_BT[..., None], x_BTD, 0).sum((0, 1), dtype=work)
    mean = total / mask_BT.sum().clamp_min(1)
    return torch.where(torch.isfinite(mean), mean, 0)
