"""Local tangents of a cloud against a global proxy.

Letters: N rows, D width, d tangent dimension, r directions of a proxy, P points judged, K neighbours of each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.geometry.cloud import Cloud
from anisoscope.geometry.neighbours import nearest_to
from anisoscope.geometry.results import Estimate
from anisoscope.geometry.sample_points import Rows, as_directions, judged, no_spread, overlap_error
from anisoscope.geometry.second_form import blocks, directions_in_noise, local_pca
from anisoscope.geometry.subspace import Subspace

_FEWEST_NEIGHBOURS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class TangentOverlap(Estimate):
    """Share of the local tangents inside a proxy; ``floor`` is its mean ``r/D`` for a proxy turned at random.

    ``null_low`` and ``null_high`` hold 95 % of random proxies, ``p`` is the two-sided probability of a share as far
    off. ``normal`` is the share of what neighbourhoods have off their tangents that lies inside the same proxy.
    """

    p: float | None = None
    null_low: float | None = None
    null_high: float | None = None
    normal: Estimate | None = None
    dim: int = 0
    neighbours: int = 0


def tangent_overlap(
    x: Cloud,
    subspace: Subspace | Cloud,
    *,
    dim: int,
    neighbours: int | None = None,
    points: Rows | None = None,
    generator: torch.Generator | None = None,
) -> TangentOverlap:
    """Share of the local tangents that lies inside a proxy: mean over points of ``‖QᵀT‖²/d``, Q and T orthonormal.

    Tangents come from local PCA of ``neighbours`` rows; None is 8 a dimension, at least 32.
    ``subspace`` is a ``Subspace`` or a matrix whose r columns span the proxy.

    The null turns the proxy at random (Haar), the tangents held fixed: the share then has the mean ``r/D`` and a
    variance known exactly from the mean tangent projector; its law is taken as the Beta law of these two moments,
    which is exact where all points share one tangent line. This null knows nothing of the cloud: a proxy fitted on the
    same rows beats it whenever tangents lean towards the cloud's wide directions, and local PCA looks for those. In a
    cloud without tangents they lean so too, the more the heavier its tails: ``tangency`` compares with such clouds.
    ``.normal`` is the share of the *normal* part of the neighbourhoods, which is lower there too. ``note`` says where
    rows spread hardly further along some tangent directions than off them.

    >>> from anisoscope import fit_subspace
    >>> from anisoscope.testing import plane
    >>> x = plane(500, dim=2, width=6)
    >>> found = tangent_overlap(x, fit_subspace(x, method="pca", rank=2), dim=2)
    >>> round(float(found), 6), round(found.floor, 3)
    (1.0, 0.333)
    """
    cloud = judged(x, dim=dim, points=points, generator=generator)
    (rows, width), least = cloud.x.shape, dim + 2
    basis_Dr = spanned(subspace, cloud.x)
    if neighbours is None:
        neighbours = neighbours_for(dim, rows)
    if not least <= neighbours < rows:
        raise broken(
            f"neighbours must lie in {least}…{rows - 1} for dim {dim} and {rows} distinct rows", neighbours, "use None"
        )
    rank = basis_Dr.shape[1]
    if cloud.problem:
        return TangentOverlap(value=math.nan, n=cloud.n, note=cloud.problem, floor=rank / width, dim=dim)
    near_PK = nearest_to(cloud.x, cloud.points, neighbours)[1]
    shares, inside, outside, alongs = [], [], [], []
    projector_DD = torch.zeros(width, width, dtype=torch.float64, device=cloud.x.device)
    for part in blocks(cloud.x, cloud.n, neighbours):
        y_PKD = cloud.x[near_PK[part]].double()
        y_PKD -= y_PKD.mean(1, keepdim=True)
        tangent_PDd, along_Pd = local_pca(y_PKD, dim)
        alongs.append(along_Pd / (neighbours * cloud.unit**2))
        normal_PKD = y_PKD - (y_PKD @ tangent_PDd) @ tangent_PDd.mT
        shares.append((tangent_PDd.mT @ basis_Dr).square().sum((1, 2)) / dim)
        inside.append((normal_PKD @ basis_Dr).square().sum((1, 2)))
        outside.append(normal_PKD.square().sum((1, 2)))
        flat_DE = tangent_PDd.transpose(0, 1).reshape(width, -1)
        projector_DD += flat_DE @ flat_DE.T
    along_Pd, outside_P = torch.cat(alongs), torch.cat(outside)
    if not cloud.spreads(along_Pd):
        raise no_spread(dim)
    off = float(outside_P.mean()) / (neighbours * cloud.unit**2)
    noisy = directions_in_noise(along_Pd, off / (width - dim), width, neighbours)
    note = f"rows hardly spread further along {noisy} of {dim} tangent directions than off them; these may be noise"
    one_P = torch.ones(cloud.n, dtype=torch.float64, device=near_PK.device)
    share = _mean_share(torch.cat(shares), one_P, near_PK, rows)
    law = _haar_law(projector_DD / (dim * cloud.n), rank)
    return TangentOverlap(
        value=share.value, low=share.low, high=share.high, n=cloud.n, floor=rank / width,
        p=None if law is None else float(min(1.0, 2 * min(law.cdf(share.value), law.sf(share.value)))),
        null_low=None if law is None else float(law.ppf(0.025)),
        null_high=None if law is None else float(law.ppf(0.975)),
        normal=_mean_share(torch.cat(inside), outside_P, near_PK, rows), dim=dim, neighbours=neighbours,
        note=note if noisy else None,
    )  # fmt: skip


def neighbours_for(dim: int, rows: int) -> int:
    """How many neighbours a tangent is fitted on where nobody says.

    Fewer see noise; many more are no longer near in a cloud of a thousand rows.
    """
    return min(max(8 * dim, _FEWEST_NEIGHBOURS), rows - 1)


def plain_share(x_ND: Tensor, points_P: Tensor, basis_Dr: Tensor, *, dim: int, neighbours: int) -> float:
    """The value of ``tangent_overlap`` alone, of distinct rows and an orthonormal basis."""
    near_PK = nearest_to(x_ND, points_P, neighbours)[1]
    inside = 0.0
    for part in blocks(x_ND, points_P.shape[0], neighbours):
        y_PKD = x_ND[near_PK[part]].double()
        tangent_PDd = local_pca(y_PKD - y_PKD.mean(1, keepdim=True), dim)[0]
        inside += float((tangent_PDd.mT @ basis_Dr).square().sum())
    return inside / (dim * points_P.shape[0])


def spanned(subspace: Subspace | Cloud, x_ND: Tensor) -> Tensor:
    """An orthonormal basis of a proxy in float64, which must fit the rows."""
    directions_Dr = as_directions(subspace, x_ND)
    if directions_Dr.shape[1] > directions_Dr.shape[0]:
        raise broken("a proxy must have at most as many directions as the width", directions_Dr.shape[1], "drop some")
    basis_Dr, upper_rr = torch.linalg.qr(directions_Dr)
    pivots = upper_rr.diagonal().abs() / torch.linalg.vector_norm(directions_Dr, dim=0)
    if float(pivots.min()) < 1e-9:
        raise broken("directions of a proxy must be independent", "some that depend on others", "drop those")
    return basis_Dr


def _mean_share(part_P: Tensor, whole_P: Tensor, near_PK: Tensor, rows: int) -> Estimate:
    """The quotient of two means over points, with its interval."""
    points, total = part_P.shape[0], float(whole_P.mean())
    if not total > 0:
        return Estimate(value=math.nan, n=points, note="neighbourhoods have nothing off their tangents")
    value = float(part_P.mean()) / total
    independent = min(float(points), rows / near_PK.shape[1])
    half = overlap_error((part_P - value * whole_P) / total, near_PK, rows)
    if not math.isfinite(half):
        return Estimate(value=value, n=points)
    half *= float(stats.t.ppf(0.975, max(1.0, independent - 1)))
    return Estimate(value=value, low=max(value - half, 0.0), high=min(value + half, 1.0), n=points)


def _haar_law(projector_DD: Tensor, rank: int) -> Any:
    """Beta law of ``tr(QᵀAQ)`` for random Q and A of trace 1; None where every Q gives the same share.

    Its variance is ``2r(D−r)/(D(D−1)(D+2))·(tr A² − 1/D)``, exact for any A.
    """
    width = projector_DD.shape[0]
    mean = rank / width
    uneven = float(projector_DD.square().sum()) - 1 / width
    variance = 2 * rank * (width - rank) / (width * (width - 1) * (width + 2)) * uneven
    if variance <= 1e-15:
        return None
    size = mean * (1 - mean) / variance - 1
    return stats.beta(mean * size, (1 - mean) * size)
