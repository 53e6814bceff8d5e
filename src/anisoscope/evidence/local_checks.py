"""The checks of ``verify`` that look at neighbourhoods: angles to local normals, and curvature along a proxy.

Letters: N rows, D width, K rank, P points judged, k neighbours, m normal directions, B blocks of units.

Each half of the sequences is looked at by itself, points and neighbours alike, and meets the proxy that was fitted on
the other half. Both ways are averaged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.errors import BrokenRuleError
from anisoscope.evidence.inference import FEWEST_UNITS
from anisoscope.evidence.quotient import Jackknifed
from anisoscope.geometry.curvature import curvature
from anisoscope.geometry.dimension import two_nn
from anisoscope.geometry.duplicates import find_duplicates
from anisoscope.geometry.neighbours import nearest_to
from anisoscope.geometry.results import Estimate
from anisoscope.geometry.subspace import Subspace

_POINTS = 32  # of a half
_BLOCKS = 8  # of units in a half, left out one at a time
_FRAMES = 20


@dataclass(frozen=True, slots=True, eq=False)
class Half:
    """The distinct rows of one half of the sequences, and the points among them that are judged.

    ``blocks`` names the block of units of each row. ``near`` has all other rows of each point, nearest first.
    ``problem`` says why there are no tangents, if so.
    """

    rows: Tensor
    blocks: Tensor
    points: Tensor
    near: Tensor
    dim: int
    no_curvature: str | None  # why none can be told, if so
    problem: str | None

    @classmethod
    def of(cls, rows_ND: Tensor, units_N: Tensor, seed: int) -> Half:
        """Look at the rows of one half; ``units`` names the sequence of each."""
        found = two_nn(rows_ND) if len(rows_ND) >= 3 else Estimate(value=math.nan, n=len(rows_ND))
        keep = find_duplicates(rows_ND).keep
        rows_ND, blocks_N = rows_ND[keep], _blocks(units_N.cpu(), seed)[keep.cpu()]
        generator = torch.Generator().manual_seed(seed)
        points_P = torch.randperm(len(rows_ND), generator=generator, device="cpu")[:_POINTS].sort().values
        points_P = points_P.to(rows_ND.device)
        if math.isnan(found.value):
            empty = points_P.new_empty(len(points_P), 0)
            return cls(rows_ND, blocks_N, points_P, empty, 0, None, "no intrinsic dimension, so no tangents")
        near = nearest_to(rows_ND, points_P, len(rows_ND) - 1)[1]
        dim = max(1, round(found.value))
        return cls(rows_ND, blocks_N, points_P, near, dim, _no_bend(rows_ND, points_P, dim), None)

    @property
    def tangents(self) -> int:
        """Dimension of the tangents to look for."""
        return min(self.dim, self.rows.shape[1] - 1)


def _blocks(units_N: Tensor, seed: int) -> Tensor:
    """A block for each row: units dealt to at most 8 blocks at random."""
    ids, place_N = torch.unique(units_N, return_inverse=True)
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed + 1), device="cpu")
    return order[place_N] % _BLOCKS


def _no_bend(rows_ND: Tensor, points_P: Tensor, dim: int) -> str | None:
    """Why curvature cannot be told here along any direction, found once for all proxies."""
    try:
        found = curvature(rows_ND, dim=min(dim, rows_ND.shape[1] - 1), points=points_P).rms
    except BrokenRuleError as error:
        return str(error)
    if math.isnan(found.value):
        return found.note
    return None if found.low else "cannot tell: the curvature itself may be 0"


@dataclass(frozen=True, slots=True, eq=False)
class Normals:
    """Bottom directions of the local spectrum at the points of a half, ``(P, D, m)``, all units and without a block."""

    whole: Tensor
    left_out: tuple[Tensor, ...]
    note: str
    problem: str | None = None

    @classmethod
    def of(cls, half: Half, rank: int) -> Normals:
        """At most ``rank`` directions: beyond the tangent, as narrow as neighbours show."""
        rows, width = half.rows.shape
        k = min(rows - 1, max(4 * half.dim, 2 * half.dim + 2 * rank))
        m = min(rank, k - 1 - half.dim, width - half.dim)
        if half.problem or m < 1:
            why = half.problem or f"{rows} rows are too few beside a dimension of {half.dim}"
            return cls(half.rows.new_empty(0), (), "", why)
        blocks = half.blocks.unique()
        fullest = int(half.blocks.bincount().max())
        parts = []
        if len(blocks) >= FEWEST_UNITS and rows - fullest > k:
            parts = [_bottom(half, k, m, left_out=int(block)) for block in blocks]
        whole = _bottom(half, k, m, left_out=-1)
        return cls(whole, tuple(parts), f"{k} neighbours, tangent dimension {half.dim}")


def _bottom(half: Half, k: int, m: int, *, left_out: int) -> Tensor:
    """Narrowest directions among the k nearest rows of each point, block ``left_out`` aside."""
    stays = (half.blocks != left_out).to(half.rows.device)
    here = stays[half.points]
    near = half.near[here]
    nearest = near[stays[near]].reshape(len(near), -1)[:, :k]  # every point loses equally many
    around = half.rows[nearest].double()
    around = around - around.mean(1, keepdim=True)
    _, _, right = torch.linalg.svd(around, full_matrices=False)
    filled = min(k - 1, half.rows.shape[1])  # centring takes one direction away
    return right[:, filled - m : filled].mT


def normal_angle(proxies: Sequence[Subspace], normals: Sequence[Normals], seed: int) -> Estimate:
    """Mean angle in degrees of each proxy to the normals of the other half; ``floor`` is that of random directions.

    Points share neighbours, and neighbours share sequences, so the interval is a jackknife over blocks of sequences:
    without a block there are fewer points, with other neighbours.
    """
    n = sum(len(part.whole) for part in normals)
    why = next((part.problem for part in normals if part.problem), None)
    if why is not None:
        return Estimate(value=math.nan, n=0, note=why)
    parts, chance = [], []
    for proxy, other in zip(proxies, reversed(normals), strict=True):
        lost = [float(mean_angles(proxy.basis, frames).mean()) for frames in other.left_out]
        angles = mean_angles(proxy.basis, other.whole)
        parts.append(Jackknifed(float(angles.mean()), torch.tensor(lost, dtype=torch.float64, device="cpu")))
        chance += [float(mean_angles(f, other.whole).mean()) for f in random_frames(proxy, seed)[0]]
    pooled = Jackknifed.mean(parts)
    ends = pooled.interval() if all(other.left_out for other in normals) else None
    note = "; ".join(dict.fromkeys(part.note for part in normals))
    low, high = ends if ends is not None else (None, None)
    return Estimate(value=pooled.value, low=low, high=high, n=n, floor=sum(chance) / len(chance), note=note)


def mean_angles(basis_DK: Tensor, frames: Tensor) -> Tensor:
    """Mean principal angle in degrees between the basis and each frame."""
    cosines = torch.linalg.svdvals(basis_DK.T @ frames).clamp(0, 1)
    return torch.acos(cosines).mean(-1).rad2deg()


def random_frames(like: Subspace, seed: int) -> Tensor:
    """Two sets of uniform random directions, as many as the subspace has: ``(2, 20, D, K)``."""
    draw = torch.Generator().manual_seed(seed)
    shape = (2, _FRAMES, like.width, like.rank)
    return torch.linalg.qr(torch.randn(shape, generator=draw, dtype=torch.float64, device="cpu")).Q.to(
        like.basis.device
    )


def curvature_along(proxies: Sequence[Subspace], halves: Sequence[Half]) -> Estimate:
    """Curvature along each proxy over that along random tangent directions of the other half; 1 is no difference.

    The ends of the interval are the means of the two halves' ends, as if both erred together.
    """
    found = []
    for proxy, other in zip(proxies, reversed(halves), strict=True):
        why = other.problem or other.no_curvature
        if why is not None:
            return Estimate(value=math.nan, n=0, note=why)
        ratio = curvature(other.rows, dim=other.tangents, points=other.points, along=proxy).ratio
        assert ratio is not None, "directions were given"
        if math.isnan(ratio.value):
            return ratio
        found.append(ratio)
    value, low, high = (sum(getattr(part, name) for part in found) / 2 for name in ("value", "low", "high"))
    return Estimate(value=value, low=low, high=high, n=sum(part.n for part in found))
