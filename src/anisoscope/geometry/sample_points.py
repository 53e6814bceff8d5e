"""The points of a cloud at which a local measure is judged, and the error of a mean over them.

Letters: N rows, D width, P points judged, K neighbours of each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.errors import BrokenRuleError, broken
from anisoscope.geometry.cloud import Cloud, as_cloud
from anisoscope.geometry.duplicates import find_duplicates
from anisoscope.geometry.neighbours import copies_problem
from anisoscope.geometry.subspace import Subspace
from anisoscope.stats.as_tensor import as_tensor

#: Points judged at most: a seeded sample stands for the rest, and intervals cover what it misses.
MOST_POINTS = 1024
_LEVEL = 1e-9  # ratio of tangent variances below which rows do not spread in ``dim`` directions

Rows = Tensor | np.ndarray | list[int] | range


@dataclass(frozen=True, slots=True, eq=False)
class JudgedPoints:
    """The distinct rows of a cloud, those of them to judge, and their rms radius, which serves as unit of length.

    ``size`` is their rms norm in that unit, to which rounding is relative. ``problem`` says why nothing
    local should be read off these rows, if so.
    """

    x: Tensor
    points: Tensor
    unit: float
    size: float
    problem: str | None

    @property
    def n(self) -> int:
        """Points judged."""
        return self.points.shape[0]

    @property
    def rounding(self) -> float:
        """Variance along one direction below which rows are apart by rounding, in squares of the unit."""
        return (torch.finfo(self.x.dtype).eps * self.size) ** 2 / self.x.shape[1]

    def spreads(self, along_Pd: Tensor) -> bool:
        """Whether rows spread in every tangent direction, by their variances in squares of the unit, largest first."""
        least_P, most_P = along_Pd[:, -1], along_Pd[:, 0]
        return float((least_P - _LEVEL * most_P).median()) > 0 and float(least_P.median()) > self.rounding


def judged(x: Cloud, *, dim: int | None, points: Rows | None, generator: torch.Generator | None) -> JudgedPoints:
    """Check the cloud, leave out copies of rows, and draw at most ``MOST_POINTS`` of the points asked for."""
    x_ND = as_cloud(x)
    if dim is not None:
        require_dim(dim, x_ND.shape[1])
    total = x_ND.shape[0]
    rows_P = _asked(points, total).to(x_ND.device)
    found = find_duplicates(x_ND)
    problem = copies_problem(found.near, total)
    if found.exact + found.near:
        place_N = torch.full((total,), -1, dtype=torch.int64, device=x_ND.device)
        place_N[found.keep] = torch.arange(found.keep.shape[0], device=x_ND.device)
        x_ND, rows_P = x_ND[found.keep], place_N[rows_P]
        rows_P = rows_P[rows_P >= 0]
        if rows_P.shape[0] == 0:
            raise broken("points must name a row that copies no earlier one", "copies only", "name the first of each")
    if rows_P.shape[0] > MOST_POINTS:
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        drawn = torch.randperm(rows_P.shape[0], generator=generator, device=generator.device)[:MOST_POINTS]
        rows_P = rows_P[drawn.sort().values.to(rows_P.device)]
    sample_PD = x_ND[rows_P].double()
    unit = float((sample_PD - sample_PD.mean(0)).square().sum(1).mean().sqrt())
    unit = unit if unit > 0 else 1.0
    return JudgedPoints(x_ND, rows_P, unit, float(sample_PD.square().sum(1).mean().sqrt()) / unit, problem)


def require_dim(dim: int, width: int) -> None:
    """A manifold with a normal direction has a dimension below the width."""
    if not 1 <= dim < width:
        raise broken(f"dim must lie in 1…{width - 1} for rows of width {width}", dim, "use about two_nn(x)")


def no_spread(dim: int) -> BrokenRuleError:
    """The error where rows spread in fewer than ``dim`` directions: any further tangent would be made of rounding."""
    return broken(f"rows must spread in dim = {dim} directions around a point", "fewer", "lower dim")


def _asked(points: Rows | None, total: int) -> Tensor:
    if points is None:
        return torch.arange(total, device="cpu")
    rows: Any = list(points) if isinstance(points, range) else points
    rows_P = as_tensor(rows)
    if rows_P.ndim != 1 or rows_P.shape[0] == 0 or rows_P.is_floating_point() or rows_P.dtype == torch.bool:
        raise broken(
            "points must be a list of row numbers",
            f"{rows_P.dtype} of shape {tuple(rows_P.shape)}",
            "turn a mask into numbers with mask.nonzero()[:, 0]",
        )
    first, last = int(rows_P.min()), int(rows_P.max())
    if first < 0 or last >= total:
        raise broken(f"points must lie in 0…{total - 1}", first if first < 0 else last, "name rows of the cloud given")
    return rows_P.long().unique()


def as_directions(along: Subspace | Cloud, x_ND: Tensor) -> Tensor:
    """The columns of a subspace or matrix, in float64 beside the rows they must fit."""
    basis = along.basis if isinstance(along, Subspace) else as_tensor(along).detach()
    if basis.ndim != 2 or basis.shape[0] != x_ND.shape[1] or basis.shape[1] == 0:
        raise broken(
            f"directions must be the columns of a matrix ({x_ND.shape[1]}, r)",
            f"shape {tuple(basis.shape)}",
            "directions have the width of the rows; transpose the matrix if they are its rows",
        )
    if not bool(torch.isfinite(basis).all()) or not bool((basis != 0).any(0).all()):
        raise broken("directions must be finite and not 0", "NaN, Inf or a column of zeros", "drop such columns")
    return basis.to(x_ND.device, torch.float64)


def overlap_error(score_P: Tensor, indices_PK: Tensor, rows: int, member_PK: Tensor | None = None) -> float:
    """Standard error of a mean over points, two of them correlated by the share of neighbours they have in common.

    Each point hands its deviation to its neighbours; the sum of squares of what arrives counts every pair by that
    share, a point with itself by 1. It cannot be negative. ``member`` marks the neighbours that count, all by default.
    """
    points = score_P.shape[0]
    if points < 2:
        return math.inf
    member_PK = torch.ones_like(indices_PK, dtype=score_P.dtype) if member_PK is None else member_PK.to(score_P.dtype)
    handed_PK = member_PK * ((score_P - score_P.mean()) / member_PK.sum(1).clamp_min(1).sqrt())[:, None]
    arriving_N = torch.zeros(rows, dtype=score_P.dtype, device=score_P.device)
    arriving_N.index_add_(0, indices_PK.flatten(), handed_PK.flatten())
    return math.sqrt(float(arriving_N @ arriving_N) / (points * (points - 1)))
