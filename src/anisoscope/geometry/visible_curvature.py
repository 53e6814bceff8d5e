"""Visible curvature: how much of a neighbourhood lies off its tangent, against the radius at which it is seen.

Letters: N rows, D width, d tangent dimension, P points judged, K rows of a ball.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.geometry.cloud import Cloud
from anisoscope.geometry.dimension import two_nn
from anisoscope.geometry.duplicates import column_means
from anisoscope.geometry.neighbours import BLOCK_ROWS
from anisoscope.geometry.results import Estimate
from anisoscope.geometry.sample_points import JudgedPoints, Rows, judged, no_spread, overlap_error, require_dim
from anisoscope.geometry.second_form import blocks, coefficients, local_pca, scatter

_MOST_IN_BALL = 128
_POINTS_AT_ONCE = 128
_FEWEST_POINTS = 3
_SCATTER_LIMIT = 0.5  # share of what is off the tangent that bends with no quadratic
_NOISE_LIMIT = 0.25  # variance off the tangent over variance along it that no graph of a quadratic reaches


@dataclass(frozen=True, slots=True, kw_only=True)
class VisiblePoint(Estimate):
    """Normal over tangent variance within ``radius`` of a point; ``neighbours`` is the mean number of rows there."""

    radius: float = math.nan
    neighbours: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleCurvature:
    """Visible curvature against radius, in the order of the radii given; ``dim`` is the tangent dimension used."""

    points: tuple[VisiblePoint, ...]
    dim: int

    @property
    def radii(self) -> tuple[float, ...]:
        """The radii asked for."""
        return tuple(point.radius for point in self.points)

    @property
    def values(self) -> tuple[float, ...]:
        """The shares found, NaN where there is none."""
        return tuple(point.value for point in self.points)


def visible_curvature(
    x: Cloud,
    radii: Sequence[float] | Tensor | np.ndarray,
    *,
    dim: int | None = None,
    points: Rows | None = None,
    generator: torch.Generator | None = None,
) -> VisibleCurvature:
    """Variance off the local tangent over variance along it, for rows within each radius ``t`` of a point.

    What curvature there is shows as ``t²``: normal variance falls as ``t⁴``, tangent variance as ``t²`` (on a sphere of
    radius R in R³ the share is ``t²/24R²``). Noise shows as ``1/t²``. ``dim`` None is the rounded TwoNN dimension.

    Each ball has its own local PCA, of at most 128 of its rows, drawn by ``generator`` (None = seed 0); points with
    fewer than ``2(d+1)`` rows in the ball are left out. The value is the quotient of means over points; its interval
    allows for balls that share rows. Where more than half of it is scatter about a quadratic, not bending, the radius
    is below the noise or past a fold, and ``note`` says so.

    >>> from anisoscope.testing import sphere
    >>> curve = visible_curvature(sphere(4000, dim=2, width=3), [0.3, 0.6], dim=2)
    >>> 3.5 < curve.values[1] / curve.values[0] < 4.5
    True
    """
    wanted = [float(radius) for radius in radii]
    if not wanted or not all(math.isfinite(radius) and radius > 0 for radius in wanted):
        raise broken("radii must be positive numbers", wanted, "use distances between rows, such as [0.1, 0.2, 0.4]")
    cloud = judged(x, dim=dim, points=points, generator=generator)
    if dim is None:
        estimate = two_nn(cloud.x)
        if math.isnan(estimate.value):
            raise broken("dim None needs a measurable intrinsic dimension", estimate.note, "give dim a number")
        dim = max(1, round(estimate.value))
        require_dim(dim, cloud.x.shape[1])
    if cloud.problem:
        found = [VisiblePoint(value=math.nan, n=0, note=cloud.problem, radius=radius) for radius in wanted]
    else:
        found = _seen(cloud, wanted, dim, generator)
    return VisibleCurvature(points=tuple(found), dim=dim)


def _seen(cloud: JudgedPoints, radii: list[float], dim: int, generator: torch.Generator | None) -> list[VisiblePoint]:
    x_ND, rows = cloud.x, cloud.x.shape[0]
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    # One order of rows for all balls: those that overlap also share their rows, and the error can see it.
    order_N = torch.randperm(rows, generator=generator, device=generator.device).to(x_ND.device)
    most = min(_MOST_IN_BALL, rows - 1)
    sums: list[list[tuple[Tensor, ...]]] = [[] for _ in radii]
    mean_D = column_means(x_ND)
    for own_P in cloud.points.split(_POINTS_AT_ONCE):
        distances_PN = _distances(x_ND, own_P, mean_D)
        for radius, kept in zip(radii, sums, strict=True):
            inside_PN = distances_PN <= radius
            first_PK = torch.where(inside_PN, order_N, rows).topk(most, dim=1, largest=False)
            near_PK, member_PK = first_PK.indices, first_PK.values < rows
            for part in blocks(x_ND, own_P.shape[0], most):
                balls = _balls(x_ND, own_P[part], near_PK[part], member_PK[part], dim, radius)
                kept.append((*balls, near_PK[part], member_PK[part], inside_PN[part].sum(1)))
    return [_quotient(radius, cloud, dim, kept) for radius, kept in zip(radii, sums, strict=True)]


def _distances(x_ND: Tensor, own_P: Tensor, mean_D: Tensor) -> Tensor:
    """Distances to all rows in float64, infinite to the point itself."""
    own_PD = x_ND[own_P].double() - mean_D
    parts = [torch.cdist(own_PD, part.double() - mean_D) for part in x_ND.split(BLOCK_ROWS)]
    distances_PN = torch.cat(parts, 1)
    distances_PN[torch.arange(own_P.shape[0], device=own_P.device), own_P] = math.inf
    return distances_PN


def _balls(
    x_ND: Tensor, own_P: Tensor, near_PK: Tensor, member_PK: Tensor, dim: int, radius: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Of each ball, the variance off the tangent and off a quadratic over it (NaN if none is fixed), and along it.

    The first two are summed over directions, variances along the tangent are ``(P, d)``.
    """
    count_P = member_PK.sum(1).clamp_min(1)
    y_PKD = (x_ND[near_PK].double() - x_ND[own_P].double()[:, None]) * member_PK[..., None]
    y_PKD -= y_PKD.sum(1, keepdim=True) / count_P[:, None, None]
    y_PKD *= member_PK[..., None]
    tangent_PDd, along_Pd = local_pca(y_PKD, dim)
    whole_P = y_PKD.square().sum((1, 2))
    off_P = (whole_P - along_Pd.sum(1)).clamp_min(0) / (count_P - 1 - dim).clamp_min(1)
    return off_P, _off_quadratic(y_PKD, tangent_PDd, member_PK, radius), along_Pd / (count_P - 1).clamp_min(1)[:, None]


def _off_quadratic(y_PKD: Tensor, tangent_PDd: Tensor, member_PK: Tensor, radius: float) -> Tensor:
    count_P, terms = member_PK.sum(1), coefficients(tangent_PDd.shape[2])
    nothing_P = torch.full(count_P.shape, math.nan, dtype=y_PKD.dtype, device=y_PKD.device)
    if 2 * terms > member_PK.shape[1]:
        return nothing_P
    squares_P, solved_P = scatter(y_PKD, tangent_PDd, member_PK.to(y_PKD.dtype), torch.full_like(nothing_P, radius))
    return torch.where(solved_P & (count_P >= 2 * terms), squares_P / (count_P - terms).clamp_min(1), nothing_P)


def _quotient(radius: float, cloud: JudgedPoints, dim: int, kept: list[tuple[Tensor, ...]]) -> VisiblePoint:
    off_P, bare_P, along_Pd, near_PK, member_PK, inside_P = (torch.cat(parts) for parts in zip(*kept, strict=True))
    enough_P = inside_P >= 2 * (dim + 1)
    points, neighbours = int(enough_P.sum()), float(inside_P.double().mean())
    if points < _FEWEST_POINTS or not float(along_Pd[enough_P].sum()) > 0:
        note = f"cannot tell: only {points} of {cloud.n} points have {2 * (dim + 1)} rows within {radius:.3g}"
        return VisiblePoint(value=math.nan, n=points, note=note, radius=radius, neighbours=neighbours)
    if not cloud.spreads(along_Pd[enough_P] / cloud.unit**2):
        raise no_spread(dim)
    off_P, bare_P, member_PK, near_PK = (part[enough_P] for part in (off_P, bare_P, member_PK, near_PK))
    along_P = along_Pd[enough_P].sum(1)
    value = float(off_P.mean() / along_P.mean())
    error = overlap_error((off_P - value * along_P) / along_P.mean(), near_PK, cloud.x.shape[0], member_PK)
    independent = min(float(points), cloud.x.shape[0] / max(neighbours, 1.0))
    half = error * float(stats.t.ppf(0.975, max(1.0, independent - 1)))
    few = None if points == cloud.n else f"{cloud.n - points} of {cloud.n} points have too few rows within the radius"
    note = "; ".join(filter(None, (few, _scattered(off_P, bare_P, value)))) or None
    return VisiblePoint(
        value=value, low=max(value - half, 0.0), high=value + half, n=points, note=note, radius=radius,
        neighbours=neighbours,
    )  # fmt: skip


def _scattered(off_P: Tensor, bare_P: Tensor, value: float) -> str | None:
    """Say so where what is off the tangent is scatter; by its size alone where balls are too small for a quadratic."""
    fixed_P = torch.isfinite(bare_P)
    if int(fixed_P.sum()) >= _FEWEST_POINTS:
        share = min(float(bare_P[fixed_P].mean() / off_P[fixed_P].mean().clamp_min(1e-300)), 1.0)
        if share > _SCATTER_LIMIT:
            return f"{share:.0%} of it is scatter, not bending: the radius is below the noise or past a fold"
    elif value > _NOISE_LIMIT:
        return "more than a bend can reach: the radius is below the noise or past a fold"
    return None
