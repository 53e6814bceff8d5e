"""Energy of gradients inside and outside a subspace. Letters: N rows, D width, K rank."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.geometry.cloud import as_cloud
from anisoscope.geometry.subspace import Subspace
from anisoscope.stats.moments import Moments
from anisoscope.stats.row_chunks import rows_per_chunk

Gradients = Tensor | np.ndarray | Moments


@dataclass(frozen=True, slots=True)
class EnergyShare:
    """Energy inside and outside, both kept: near 1 a share alone has lost its odds. ``float(...)`` gives the share."""

    inside: float
    outside: float

    @property
    def total(self) -> float:
        """All energy."""
        return self.inside + self.outside

    @property
    def odds(self) -> float:
        """Inside over outside."""
        return self.inside / self.outside if self.outside > 0 else math.inf

    def __float__(self) -> float:
        return self.inside / self.total if self.total > 0 else math.nan


def energy_share(gradients: Gradients, subspace: Subspace) -> EnergyShare:
    """``tr(QᵀMQ)/tr M`` with ``M = Σ ggᵀ`` uncentred, from rows or from ``Moments``, in float64.

    From rows the outside is measured, not subtracted. From moments it is subtracted, so it is as good as they are: to
    some 1e-7 of the total where they were made of float32 rows.

    >>> import torch
    >>> share = energy_share(torch.tensor([[3.0, 4.0]]), Subspace(torch.tensor([[1.0], [0.0]])))
    >>> share.inside, share.outside, float(share)
    (9.0, 16.0, 0.36)
    """
    if isinstance(gradients, Moments):
        require_width(gradients.width, subspace)
        second = gradients.second
        basis = subspace.basis.to(second.device)
        inside = float(((second @ basis) * basis).sum())
        return EnergyShare(inside, max(float(second.diagonal().sum()) - inside, 0.0))
    inside_N, outside_N, _ = row_energies(gradient_rows(gradients), subspace)
    return EnergyShare(float(inside_N.sum()), float(outside_N.sum()))


def row_energies(rows_ND: Tensor, subspace: Subspace) -> tuple[Tensor, Tensor, Tensor]:
    """Energy of each row inside and outside, and its mean inside over sign flips of the axes, in float64."""
    require_width(rows_ND.shape[1], subspace)
    basis = subspace.basis.to(rows_ND.device)
    weights = basis.square().sum(1)
    inside, outside, axes = [], [], []
    for part in rows_ND.split(rows_per_chunk(rows_ND)):
        wide = part.double()
        along = wide @ basis
        inside.append(along.square().sum(1))
        outside.append((wide - along @ basis.T).square().sum(1))
        axes.append(wide.square() @ weights)
    return torch.cat(inside), torch.cat(outside), torch.cat(axes)


def gradient_rows(gradients: Any) -> Tensor:
    """Gradients as finite rows; ``(n, T, D)`` is flattened."""
    if isinstance(gradients, Tensor | np.ndarray) and gradients.ndim == 3:
        gradients = gradients.reshape(-1, gradients.shape[-1])
    return as_cloud(gradients, at_least=1)


def require_width(width: int, subspace: Subspace) -> None:
    """Raise unless gradients and subspace live in one space."""
    if width != subspace.width:
        raise broken(
            f"gradients must have the width of the subspace, {subspace.width}",
            width,
            "judge a proxy at the site it was fitted on",
        )
