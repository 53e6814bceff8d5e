"""Whether a proxy is tangent: the share of the local tangents that it holds, against clouds that have none.

Letters: N rows, D width, d tangent dimension, r directions of a proxy, B control clouds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats

from anisoscope.errors import broken
from anisoscope.geometry.cloud import Cloud
from anisoscope.geometry.controls import Elliptical
from anisoscope.geometry.results import Estimate
from anisoscope.geometry.sample_points import Rows, judged
from anisoscope.geometry.subspace import Subspace
from anisoscope.geometry.tangents import TangentOverlap, plain_share, spanned, tangent_overlap

DRAWS = 19
_SAME = 1e-9  # shares that differ by less are one: draws that all hold everything scatter by rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Tangency(Estimate):
    """The ``share`` of the tangents inside a proxy minus its mean over ``control`` clouds, and the test of it.

    ``p`` is two-sided: how often an elliptical cloud with this shape and these radii is as far from the others. The
    interval leaves out 0 where ``p < 0.05``. ``control`` is the mean of the draws, its ends hold 95 % of such clouds.
    """

    share: TangentOverlap
    control: Estimate
    p: float | None = None
    draws: int = 0


def tangency(
    x: Cloud,
    subspace: Subspace | Cloud,
    *,
    dim: int,
    neighbours: int | None = None,
    points: Rows | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> Tangency:
    """How much more of the local tangents a proxy holds than it would hold in a cloud without tangents.

    The null is that rows are independent draws of an elliptical law, whatever its shape and its radii. ``draws``
    clouds of ``elliptical_like(x)`` say what the share is then; its difference from their mean, over their standard
    deviation, follows Student's t. ``subspace`` must not have been fitted on these rows, or it holds more of them than
    of any control.

    A share above the control says that neighbourhoods spread inside the proxy more than such a cloud's do. A manifold
    that is itself elliptical, as a flat one and a sphere without noise are, is not told from its control.

    >>> import torch
    >>> x = torch.randn(400, 8, generator=torch.Generator().manual_seed(0)) * torch.linspace(3, 1, 8)
    >>> found = tangency(x, torch.eye(8)[:, :3], dim=2)
    >>> found.share.p < 0.05, found.low < 0 < found.high  # far above random directions, and a Gaussian all the same
    (True, True)
    """
    if draws < 3:
        raise broken("draws must be at least 3", draws, f"use {DRAWS}")
    cloud = judged(x, dim=dim, points=points, generator=torch.Generator().manual_seed(seed))
    if cloud.problem:
        share = tangent_overlap(x, subspace, dim=dim, neighbours=neighbours, points=points)
        return _untold(share, cloud.problem)
    share = tangent_overlap(cloud.x, subspace, dim=dim, neighbours=neighbours, points=cloud.points)
    law, basis_Dr = Elliptical.of(cloud.x), spanned(subspace, cloud.x)
    shares_B = np.array(
        [
            plain_share(law.draw(own), cloud.points, basis_Dr, dim=dim, neighbours=share.neighbours)
            for own in _seeds(seed, draws)
        ]
    )
    mean, deviation = float(shares_B.mean()), float(shares_B.std(ddof=1))
    spread = deviation * math.sqrt(1 + 1 / draws)
    half = float(stats.t.ppf(0.975, draws - 1)) * spread
    control = Estimate(value=mean, low=max(mean - half, 0.0), high=min(mean + half, 1.0), se=deviation, n=cloud.n)
    difference = share.value - mean
    if spread > _SAME:
        p = float(2 * stats.t.sf(abs(difference) / spread, draws - 1))
    else:  # nothing to compare the difference with but its being there
        p = 1.0 if abs(difference) <= _SAME else 2 / (draws + 1)
    return Tangency(
        value=difference, low=difference - half, high=difference + half, se=spread, n=cloud.n, floor=0.0,
        note=share.note, share=share, control=control, p=p, draws=draws,
    )  # fmt: skip


def _seeds(seed: int, draws: int) -> list[int]:
    """Seeds of draws that no other seed shares."""
    return [int(own >> 1) for own in np.random.SeedSequence([seed, 7]).generate_state(draws, np.uint64)]


def _untold(share: TangentOverlap, note: str) -> Tangency:
    nothing = Estimate(value=math.nan, n=share.n, note=note)
    return Tangency(value=math.nan, n=share.n, note=note, share=share, control=nothing)
