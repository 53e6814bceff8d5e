"""Clouds without structure to compare with: as many rows, the same covariance, and no manifold under them.

Letters: N rows, D width, R directions in which the rows spread.

Rows drawn from a covariance that was estimated on N rows have a spectrum more uneven than those rows have: at N = 4D a
Gaussian cloud then differs from its own control in 73 % of trials at a level of 5 %. So nothing is drawn from a
covariance here. The rows are mixed by a random rotation of R^N that leaves their mean alone: the mixed rows have
exactly the mean and covariance of those given, and given these two they have the law of Gaussian rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from anisoscope.geometry.cloud import Cloud, as_cloud
from anisoscope.geometry.duplicates import column_means
from anisoscope.stats.moments import Moments

_CHUNK_ROWS = 4096
_STEPS, _STEADY = 20, 0.01  # of the fixed point: at most so many, until radii move by no more
_ROWS_A_DIRECTION = 16  # that a direction takes before its own variance is trusted
_KEPT_NUMBERS = 4_000_000  # of draws, that are kept for the next cloud of the same shape
_NEAREST = 1e-6  # of the median radius, of a row at the centre: it must not take all the weight


def gaussian_like(x: Cloud, *, seed: int = 0) -> Tensor:
    """As many rows, Gaussian, with exactly the mean and the covariance of those given.

    >>> import torch
    >>> x = torch.rand(200, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> torch.allclose(gaussian_like(x).T.cov(), x.T.cov())
    True
    """
    x_ND = as_cloud(x)
    mean_D, root_RD = _root(x_ND)
    if not root_RD.shape[0]:
        return x_ND.clone()
    n, directions = x_ND.shape[0], root_RD.shape[0]
    mixing = _kept_mixing if n * directions <= _KEPT_NUMBERS else _mixing
    drawn_NR, lower_RR, drawn_mean_R = mixing(n, directions, seed, x_ND.dtype, x_ND.device)
    onto_RD = torch.linalg.solve_triangular(lower_RR.T, root_RD, upper=True)
    found_ND = torch.empty_like(x_ND)
    for start in range(0, x_ND.shape[0], _CHUNK_ROWS):  # a copy of the whole cloud in float64 would be the largest part
        rows = slice(start, start + _CHUNK_ROWS)
        found_ND[rows] = (drawn_NR[rows].double() - drawn_mean_R) @ onto_RD + mean_D
    return found_ND


def elliptical_like(x: Cloud, *, seed: int = 0) -> Tensor:
    """As many rows, elliptical, with the shape and the radii of those given; see ``Elliptical``."""
    return Elliptical.of(x).draw(seed)


@dataclass(frozen=True, slots=True, eq=False)
class Elliptical:
    """The elliptical law of a cloud: its centre, its shape, and a radius for every row.

    An elliptical cloud is ``centre + radius·direction``, the two independent, with directions as those of a Gaussian:
    the law of a Gaussian, of Student's t, of any scale mixture. Shape and radii are Tyler's (1987), the centre is that
    of Hettmansperger & Randles (2002): the fixed point at which rows over their radii have the shape by which radii are
    measured. A row made larger has a larger radius and changes nothing else: a heavy tail distorts neither the shape
    nor other radii, and no radius is bounded by N, as Mahalanobis distances from the rows' own covariance are.
    Of the directions N/16 have their own variance; those of the others are drawn to their mean by ``R/(N + R)``.

    The radii have no unit: a draw measures its own rows as those of the cloud were measured.
    """

    centre: Tensor  # (D,)
    radius: Tensor  # (N,)
    spread: Tensor  # (R,), of the rows over their radii along the frame
    scale: Tensor  # (R,), by which coordinates are divided where a radius is measured
    frame: Tensor  # (D, R), orthonormal but for the unit of length
    dtype: torch.dtype

    @classmethod
    def of(cls, x: Cloud) -> Elliptical:
        """The law with the shape and the radii of these rows."""
        x_ND = as_cloud(x)
        mean_D, z_NR, frame_DR = _in_span(x_ND)
        n, directions = z_NR.shape
        own = min(directions, max(1, n // _ROWS_A_DIRECTION))
        centre_R, weight_N, radius_N = z_NR.new_zeros(directions), z_NR.new_ones(n), z_NR.new_ones(n)
        spread_R = scale_R = z_NR.new_ones(directions)
        for _ in range(_STEPS if directions else 0):
            y_NR = (z_NR - centre_R) * weight_N[:, None]
            values_R, turn_RR = torch.linalg.eigh(y_NR.T @ y_NR / n)
            values_R = values_R.clamp_min(torch.finfo(values_R.dtype).eps * values_R[-1])
            # The rest happens in the principal directions of the rows over their radii.
            z_NR, centre_R, frame_DR = z_NR @ turn_RR, centre_R @ turn_RR, frame_DR @ turn_RR
            spread_R, scale_R = values_R.sqrt(), _shrunk(values_R, own, directions / (n + directions)).sqrt()
            radius_N = torch.linalg.vector_norm((z_NR - centre_R) / scale_R, dim=1)
            before_N, weight_N = weight_N, 1 / radius_N.clamp_min(_NEAREST * float(radius_N.median()))
            centre_R = weight_N @ z_NR / weight_N.sum()
            if float((weight_N / before_N).log().std()) < _STEADY:
                break
        return cls(mean_D + frame_DR @ centre_R, radius_N, spread_R, scale_R, _signed(frame_DR), x_ND.dtype)

    def draw(self, seed: int = 0) -> Tensor:
        """As many rows as the cloud has, each at the radius of its row there, in other directions."""
        n, directions = self.radius.shape[0], self.spread.shape[0]
        if not directions:
            return self.centre.expand(n, -1).to(self.dtype)
        mixed_NR = _uniform_columns(n, directions, seed, self.radius.dtype, self.radius.device) * self.spread
        own_N = torch.linalg.vector_norm(mixed_NR / self.scale, dim=1)
        return (self.centre + (mixed_NR * (self.radius / own_N)[:, None]) @ self.frame.T).to(self.dtype)


def _shrunk(values_R: Tensor, own: int, shrinkage: float) -> Tensor:
    """All but the ``own`` largest drawn to their mean; ascending."""
    others = values_R[: values_R.shape[0] - own]
    if not others.numel():
        return values_R
    return torch.cat([others + shrinkage * (others.mean() - others), values_R[others.shape[0] :]])


def _root(x_ND: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and a matrix ``A (R×D)`` with ``AᵀA`` the scatter of the rows, of as few rows as there are directions."""
    if x_ND.shape[0] > x_ND.shape[1]:
        moments = Moments.of(x_ND, higher=False)
        lower_DD, failed = torch.linalg.cholesky_ex(moments.scatter)
        if not int(failed) and bool(torch.isfinite(lower_DD).all()):
            return moments.mean, lower_DD.T
    mean_D, coordinates_NR, frame_DR = _in_span(x_ND)
    return mean_D, torch.linalg.vector_norm(coordinates_NR, dim=0)[:, None] * frame_DR.T


def _in_span(x_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, and coordinates of the centred rows along the principal directions in which they spread, in float64.

    Coordinates are below 1, and the directions hold the unit, so that no square leaves the range of floats.
    """
    n, width = x_ND.shape
    mean_D = column_means(x_ND)
    y_ND = x_ND - mean_D
    largest = float(y_ND.abs().max())
    if largest == 0:
        return mean_D, y_ND[:, :0], y_ND.new_empty(width, 0)
    unit = 2.0 ** math.frexp(largest)[1]
    y_ND /= unit
    tall = width <= n
    values, vectors = torch.linalg.eigh(y_ND.T @ y_ND if tall else y_ND @ y_ND.T)
    kept = values > 4 * math.sqrt(max(n, width)) * torch.finfo(values.dtype).eps * values[-1]
    frame_DR = vectors[:, kept] if tall else y_ND.T @ vectors[:, kept] / values[kept].sqrt()
    frame_DR = _signed(frame_DR)
    return mean_D, y_ND @ frame_DR, frame_DR * unit


def _signed(frame_DR: Tensor) -> Tensor:
    """Each direction with its largest coordinate positive: which of the two is found depends on the machine."""
    if not frame_DR.numel():
        return frame_DR
    return frame_DR * frame_DR.gather(0, frame_DR.abs().argmax(0, keepdim=True)).sign()


def _mixing(
    n: int, directions: int, seed: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Normal draws with what makes orthonormal columns without a mean of them."""
    drawn_NR = _normal(n, directions, seed, like=torch.empty(0, dtype=dtype, device=device))
    return drawn_NR, *_orthonormal(drawn_NR)


_kept_mixing = lru_cache(maxsize=2)(_mixing)  # all layers of a model are compared with the same draws


def _normal(n: int, directions: int, seed: int, *, like: Tensor) -> Tensor:
    """Normal draws that are the same on every device."""
    # A cloud may itself have been drawn from this seed, and mixing would find its very rows again.
    own = np.random.SeedSequence([seed, 71]).generate_state(1, np.uint64)[0]
    generator = torch.Generator().manual_seed(int(own >> 1))
    dtype = torch.promote_types(like.dtype, torch.float32)
    return torch.randn(n, directions, generator=generator, dtype=dtype, device="cpu").to(like.device)


@lru_cache(maxsize=16)
def _uniform_columns(n: int, directions: int, seed: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Uniform orthonormal columns that have no mean; all clouds of one shape are compared with the same draws."""
    drawn_NR = _normal(n, directions, seed, like=torch.empty(0, dtype=dtype, device=device))
    lower_RR, mean_R = _orthonormal(drawn_NR)
    return torch.linalg.solve_triangular(lower_RR, (drawn_NR - mean_R).T, upper=False).T


def _orthonormal(drawn_NR: Tensor) -> tuple[Tensor, Tensor]:
    """``L`` and the mean ``m`` such that ``(z − m)L⁻ᵀ`` is uniform among orthonormal columns that have no mean.

    ``z − m = QLᵀ`` with a positive diagonal makes Q uniform; times a root of a scatter, Q is a cloud of Gaussian rows.
    """
    moments = Moments.of(drawn_NR, higher=False)
    return torch.linalg.cholesky(moments.scatter), moments.mean
