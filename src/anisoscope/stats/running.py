"""Moments of several selections of rows, added to in place while a stream goes by.

Letters: B sequences, T positions, N rows, D width, P parts.

Parts (the folds of an observation) share one reading of the rows: each batch is centred once about its own mean and its
sums are moved, in float64, to those about the centre of the first batch; ``moments`` moves each part onto its own mean.
In a long window (``fixed``) batches are centred about that first centre themselves, which saves the moving. Nothing
here waits for the device.

**Precision.** As in ``moments``: float64 throughout, with one exception. On a GPU rows of 16 bits, and rows of float32
that were computed under autocast, are centred about one centre, itself of 16 bits, rounded to bfloat16 and multiplied
on tensor cores, with sums in float32: what is rounded off is of the size that was rounded off when they were computed,
and averages out over rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.stats.moments import CHUNK_ROWS, STATE_DTYPE, Moments, symmetric_product

_LONG = 256  # sequences of at least so many positions are multiplied one by one, then added up by part
_MOST_BYTES = 1 << 29


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
    short: bool
    count: Tensor
    total: Tensor
    scatter: Tensor

    @classmethod
    def start(cls, x_BTD: Tensor, mask_BT: Tensor, *, parts: int, sixteen_bit: bool = False) -> Running:
        """No rows yet; centre and scale are those of this batch. ``sixteen_bit``: treat rows as if they were such."""
        width, device = x_BTD.shape[-1], x_BTD.device
        sixteen_bit = sixteen_bit or x_BTD.dtype in (torch.bfloat16, torch.float16)
        short = x_BTD.is_cuda and sixteen_bit and x_BTD.dtype != torch.float64
        return cls(
            on_the_grid(_rough_mean(x_BTD, mask_BT)) if short else _mean(x_BTD, mask_BT),
            short,
            torch.zeros(parts, dtype=STATE_DTYPE, device=device),
            torch.zeros(parts, width, dtype=STATE_DTYPE, device=device),
            torch.zeros(parts, width, width, dtype=STATE_DTYPE, device=device),
        )

    def add(self, x_BTD: Tensor, mask_BT: Tensor, members_PB: Tensor, *, fixed: bool = False) -> None:
        """Add rows; with ``fixed`` about the first centre, and a batch whose sums are not finite adds nothing."""
        still = fixed or self.short
        centre = self.centre if still else _mean(x_BTD, mask_BT)
        rows_per_chunk = max(1, CHUNK_ROWS // max(1, x_BTD.shape[1]))
        if x_BTD.shape[1] >= _LONG:
            most = _MOST_BYTES // ((4 if self.short else 8) * x_BTD.shape[-1] ** 2)
            rows_per_chunk = max(1, min(4 * rows_per_chunk if self.short else rows_per_chunk, most))
        for start in range(0, x_BTD.shape[0], rows_per_chunk):
            some = slice(start, start + rows_per_chunk)
            total, scatter = self._sums(x_BTD[some], mask_BT[some], members_PB[:, some], centre)
            count = members_PB[:, some].to(STATE_DTYPE) @ mask_BT[some].sum(1, dtype=STATE_DTYPE)
            if fixed:
                fine = torch.isfinite(total.sum())
                scatter, total, count = (torch.where(fine, part, 0.0) for part in (scatter, total, count))
            if not still:
                d = centre - self.centre
                moved = total + count[:, None] * d
                scatter = scatter + total[:, :, None] * d + d[:, None] * moved[:, None]
                total = moved
            self.scatter += scatter
            self.total += total
            self.count += count

    def _sums(self, x_BTD: Tensor, mask_BT: Tensor, members_PB: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
        """Sum and scatter of each part about a centre."""
        if self.short:
            y_BTD = torch.empty(x_BTD.shape, dtype=torch.bfloat16, device=x_BTD.device)
            torch.sub(x_BTD, centre, out=y_BTD)
        else:
            y_BTD = x_BTD.to(STATE_DTYPE) - centre
        y_BTD = y_BTD.masked_fill_(~mask_BT[..., None], 0)
        weights_PB = members_PB.to(centre.dtype)
        total = weights_PB @ y_BTD.sum(1, dtype=centre.dtype)
        if y_BTD.device.type == "cpu":  # selecting rows waits for nothing here, and multiplies each of them once
            parts = (y_BTD[inside][mask_BT[inside]] for inside in members_PB)
            return total, torch.stack([symmetric_product(y_ND, y_ND) for y_ND in parts])
        if y_BTD.shape[1] >= _LONG:
            scatter_BDD = products(y_BTD)
            return total, (weights_PB @ scatter_BDD.flatten(1)).reshape(-1, *scatter_BDD.shape[1:])
        y_PND = torch.where(members_PB[..., None, None], y_BTD, 0).flatten(1, 2)
        return total, products(y_PND)

    def moments(self) -> list[Moments]:
        """The moments of each part, about its own mean."""
        return about_means(self.count, self.centre, self.total, self.scatter)


def about_means(count_P: Tensor, centre_D: Tensor, total_PD: Tensor, scatter_PDD: Tensor) -> list[Moments]:
    """Sums about one centre as moments about the mean of each part."""
    offset_PD = total_PD / count_P.clamp_min(1)[:, None]
    own_PDD = scatter_PDD - total_PD[:, :, None] * offset_PD[:, None]
    mean_PD = centre_D.to(STATE_DTYPE) + offset_PD
    parts = zip(count_P, mean_PD, own_PDD, strict=True)
    return [Moments(count, mean, own, None, None) for count, mean, own in parts]


def moments_of_few(x_CBD: Tensor, members_PB: Tensor) -> list[list[Moments]]:
    """Moments of each part of a few rows, for a stack of clouds at once, in float64."""
    x_CBD = x_CBD.double()
    centre_CD = x_CBD.mean(1)
    y_CPBD = (x_CBD - centre_CD[:, None])[:, None] * members_PB[..., None]
    scatter_CPDD, total_CPD = y_CPBD.mT @ y_CPBD, y_CPBD.sum(2)
    count_P = members_PB.sum(1, dtype=STATE_DTYPE)
    return [about_means(count_P, *sums) for sums in zip(centre_CD, total_CPD, scatter_CPDD, strict=True)]


def on_the_grid(centre: Tensor) -> Tensor:
    """A centre that bfloat16 can hold: rows of bfloat16 minus it are rounded little, and not all to one side."""
    return centre.bfloat16().to(centre.dtype)


def products(y: Tensor) -> Tensor:
    """``yᵀy`` of each matrix of a stack; of bfloat16 on tensor cores, added up in float32."""
    if y.dtype == torch.bfloat16 and y.is_cuda:
        return torch.bmm(y.mT, y, out_dtype=torch.float32)
    return y.mT @ y


def _mean(x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean of the rows under the mask; 0 where it is not finite."""
    total = torch.where(mask_BT[..., None], x_BTD, 0).sum((0, 1), dtype=STATE_DTYPE)
    return (total / mask_BT.sum().clamp_min(1)).nan_to_num_(0.0, 0.0, 0.0)


def _rough_mean(x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """The same as one product, which reads the rows once: good enough for a centre of 16 bits."""
    x, weights = x_BTD.flatten(0, 1), mask_BT.flatten()[None]
    if x.dtype == torch.float32:
        total = weights.to(x.dtype) @ x
    else:
        total = torch.mm(weights.to(x.dtype), x, out_dtype=torch.float32)
    return (total[0] / mask_BT.sum().clamp_min(1)).nan_to_num_(0.0, 0.0, 0.0)
