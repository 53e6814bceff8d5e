"""Moments of the directions of a cloud: all that the average cosine and its interval need. Letters: N rows, D width."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.stats.moments import Moments
from anisoscope.stats.row_chunks import rows_per_chunk


@dataclass(frozen=True, slots=True, eq=False)
class Directions:
    """Moments of the unit vectors ``x/‖x‖``; rows of norm zero have no direction and are only counted.

    >>> import torch
    >>> Directions.of(torch.tensor([[3.0, 0.0], [0.0, 0.0]])).zeros.item()
    1
    """

    units: Moments
    zeros: Tensor

    @classmethod
    def empty(cls, width: int, *, device: torch.device | str | None = None) -> Directions:
        """No rows at all."""
        return cls(Moments.empty(width, higher=False, device=device), torch.zeros((), dtype=torch.int64, device=device))

    @classmethod
    def of(cls, x_ND: Tensor) -> Directions:
        """Directions of the rows; the largest coordinate is divided out first, so that tiny rows keep theirs."""
        x_ND = x_ND.detach()
        if x_ND.dtype not in (torch.float32, torch.float64):
            x_ND = x_ND.float()
        largest_N1 = x_ND.abs().amax(1, keepdim=True)
        scaled_ND = x_ND / torch.where(largest_N1 > 0, largest_N1, 1)
        norm_N1 = torch.linalg.vector_norm(scaled_ND, dim=1, keepdim=True)
        nonzero_N = norm_N1[:, 0] > 0
        units_ND = scaled_ND / torch.where(norm_N1 > 0, norm_N1, 1)
        return cls(Moments.of(units_ND, mask=nonzero_N, higher=False), (~nonzero_N).sum())

    def merge(self, other: Directions) -> Directions:
        """Directions of both clouds together."""
        return Directions(self.units.merge(other.units), self.zeros + other.zeros)


@dataclass(frozen=True, slots=True, eq=False)
class UnitSum:
    """The sum of unit vectors and their number: enough for the average cosine, not for an interval."""

    total: Tensor  # (D,), float64
    count: int
    zeros: int

    @classmethod
    def of(cls, *clouds_ND: Tensor) -> UnitSum:
        """Of all rows given, in one pass."""
        total = torch.zeros(clouds_ND[0].shape[1], dtype=torch.float64, device=clouds_ND[0].device)
        count = zeros = 0
        for part in (part for x_ND in clouds_ND for part in x_ND.split(rows_per_chunk(x_ND))):
            rows = part.float()
            # A power of two changes no bit of a direction, and keeps squares inside the range of float32.
            exponents = torch.frexp(rows.abs().amax(1, keepdim=True)).exponent
            rows = torch.ldexp(rows, -exponents)
            norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
            total += torch.where(norms > 0, rows / norms, 0).sum(0, dtype=torch.float64)
            nonzero = int((norms > 0).sum())
            count, zeros = count + nonzero, zeros + len(part) - nonzero
        return cls(total, count, zeros)
