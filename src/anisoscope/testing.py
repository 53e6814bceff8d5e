"""Clouds with known answers: for our tests, and for anyone who wants to try a measure before believing it.

Letters: N rows, D width, d intrinsic dimension. Every cloud is float64 and drawn from ``seed`` alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from anisoscope.errors import broken


def rotation(width: int, *, seed: int = 0) -> Tensor:
    """A rotation (or reflection) of R^D, uniform by the Haar measure."""
    gaussian = torch.randn(width, width, generator=_generator(seed), dtype=torch.float64, device="cpu")
    q, r = torch.linalg.qr(gaussian)
    return q * r.diagonal().sign()


def gaussian(n: int, variances: Sequence[float], *, mean: float = 0.0, seed: int = 0) -> Tensor:
    """Gaussian rows of known spectrum, randomly rotated; participation ratio ``(Σv)²/Σv²``."""
    spread_D = torch.tensor(list(variances), dtype=torch.float64, device="cpu").sqrt()
    x_ND = torch.randn(n, len(spread_D), generator=_generator(seed), dtype=torch.float64, device="cpu") * spread_D
    return x_ND @ rotation(len(spread_D), seed=seed + 1).T + mean


def sphere(n: int, *, dim: int, width: int, radius: float = 1.0, seed: int = 0) -> Tensor:
    """The ``dim``-sphere of given radius in R^width: of intrinsic dimension ``dim``, isotropic in ``dim + 1``."""
    x = torch.randn(n, dim + 1, generator=_generator(seed), dtype=torch.float64, device="cpu")
    return _embedded(radius * x / torch.linalg.vector_norm(x, dim=1, keepdim=True), width, seed)


def plane(n: int, *, dim: int, width: int, seed: int = 0) -> Tensor:
    """Uniform points of a ``dim``-dimensional flat torus, unfolded: a cube in a plane of R^width."""
    return _embedded(torch.rand(n, dim, generator=_generator(seed), dtype=torch.float64, device="cpu"), width, seed)


def cone(n: int, *, width: int, half_angle: float = 0.3, seed: int = 0) -> Tensor:
    """Unit vectors at a fixed angle to one axis: the average cosine is ``cos²(half_angle)`` in the limit."""
    around = torch.randn(n, width - 1, generator=_generator(seed), dtype=torch.float64, device="cpu")
    around = around / torch.linalg.vector_norm(around, dim=1, keepdim=True)
    axis = torch.full((n, 1), math.cos(half_angle), dtype=torch.float64, device="cpu")
    return torch.cat([axis, math.sin(half_angle) * around], 1) @ rotation(width, seed=seed + 1).T


def lattice(side: int, *, dim: int) -> Tensor:
    """The integer points of a cube: every neighbour is equally far, so neighbour ratios carry no dimension."""
    axis = torch.arange(side, dtype=torch.float64, device="cpu")
    return torch.cartesian_prod(*[axis] * dim).reshape(-1, dim)


def with_duplicates(x_ND: Tensor, share: float, *, noise: float = 0.0, seed: int = 0) -> Tensor:
    """Replace the last ``share`` of the rows by copies of earlier ones, moved by ``noise`` of the rms centred norm."""
    if not 0 <= share < 1:
        raise broken("share must lie in 0 ≤ share < 1", share, "at least one row must stay")
    n = x_ND.shape[0]
    copies = round(n * share)
    generator = _generator(seed)
    source = torch.randint(n - copies, (copies,), generator=generator, device="cpu")
    step = torch.randn(copies, x_ND.shape[1], generator=generator, dtype=torch.float64, device="cpu")
    step = step / torch.linalg.vector_norm(step, dim=1, keepdim=True)
    scale = (x_ND - x_ND.mean(0)).square().sum(1).mean().sqrt()
    return torch.cat([x_ND[: n - copies], x_ND[source] + noise * scale * step])


def _embedded(x: Tensor, width: int, seed: int) -> Tensor:
    if width < x.shape[1]:
        raise broken(f"width must be at least {x.shape[1]} here", width, "raise width or lower dim")
    return x @ rotation(width, seed=seed + 1)[:, : x.shape[1]].T


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
