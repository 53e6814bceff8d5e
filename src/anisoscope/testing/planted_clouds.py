"""Clouds of known spectrum, dimension or tangents.

Letters: N rows, D width, d intrinsic dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.testing.draws import normals, seeded


def rotation(width: int, *, seed: int = 0) -> Tensor:
    """A rotation (or reflection) of R^D, uniform by the Haar measure."""
    gaussian = torch.randn(width, width, generator=seeded(seed), dtype=torch.float64, device="cpu")
    q, r = torch.linalg.qr(gaussian)
    return q * r.diagonal().sign()


def gaussian(n: int, variances: Sequence[float], *, mean: float = 0.0, seed: int = 0) -> Tensor:
    """Gaussian rows of known spectrum, randomly rotated; participation ratio ``(Σv)²/Σv²``."""
    spread_D = torch.tensor(list(variances), dtype=torch.float64, device="cpu").sqrt()
    x_ND = torch.randn(n, len(spread_D), generator=seeded(seed), dtype=torch.float64, device="cpu") * spread_D
    return x_ND @ rotation(len(spread_D), seed=seed + 1).T + mean


def sphere(n: int, *, dim: int, width: int, radius: float = 1.0, seed: int = 0) -> Tensor:
    """The ``dim``-sphere of given radius in R^width: of intrinsic dimension ``dim``, isotropic in ``dim + 1``."""
    x = torch.randn(n, dim + 1, generator=seeded(seed), dtype=torch.float64, device="cpu")
    return _embedded(radius * x / torch.linalg.vector_norm(x, dim=1, keepdim=True), width, seed)


def plane(n: int, *, dim: int, width: int, seed: int = 0) -> Tensor:
    """Uniform points of a ``dim``-dimensional flat torus, unfolded: a cube in a plane of R^width."""
    return _embedded(torch.rand(n, dim, generator=seeded(seed), dtype=torch.float64, device="cpu"), width, seed)


def cone(n: int, *, width: int, half_angle: float = 0.3, seed: int = 0) -> Tensor:
    """Unit vectors at a fixed angle to one axis: the average cosine is ``cos²(half_angle)`` in the limit."""
    around = torch.randn(n, width - 1, generator=seeded(seed), dtype=torch.float64, device="cpu")
    around = around / torch.linalg.vector_norm(around, dim=1, keepdim=True)
    axis = torch.full((n, 1), math.cos(half_angle), dtype=torch.float64, device="cpu")
    return torch.cat([axis, math.sin(half_angle) * around], 1) @ rotation(width, seed=seed + 1).T


def lattice(side: int, *, dim: int) -> Tensor:
    """The integer points of a cube: every neighbour is equally far, so neighbour ratios carry no dimension."""
    axis = torch.arange(side, dtype=torch.float64, device="cpu")
    return torch.cartesian_prod(*[axis] * dim).reshape(-1, dim)


def noisy_lattice(side: int, *, dim: int, noise: float = 0.0, share: float = 1.0, seed: int = 0) -> Tensor:
    """Points of ``lattice``, each moved by Gaussian ``noise``; of them a random ``share``.

    Noise far below the spacing leaves every tie visible, noise near it leaves a cloud of dimension ``dim``.

    >>> noisy_lattice(4, dim=2, share=0.5).shape, bool((noisy_lattice(4, dim=2, noise=0.1) == lattice(4, dim=2)).any())
    (torch.Size([8, 2]), False)
    """
    if not 0 < share <= 1:
        raise broken("share must lie in 0 < share ≤ 1", share, "at least one point must stay")
    x, generator = lattice(side, dim=dim), seeded(seed)
    if share < 1:
        x = x[torch.randperm(len(x), generator=generator, device="cpu")[: max(1, round(share * len(x)))]]
    return x + noise * normals(*x.shape, generator=generator)


def rounded(n: int, width: int, *, steps: float, seed: int = 0) -> Tensor:
    """Uniform numbers between 0 and 1, rounded to ``1/steps``: few steps make rows tie.

    >>> sorted(set(rounded(50, 2, steps=2).flatten().tolist()))
    [0.0, 0.5, 1.0]
    """
    x_ND = torch.rand(n, width, generator=seeded(seed), dtype=torch.float64, device="cpu")
    return (x_ND * steps).round() / steps


def with_duplicates(x_ND: Tensor, share: float, *, noise: float = 0.0, seed: int = 0) -> Tensor:
    """Replace the last ``share`` of the rows by copies of earlier ones, moved by ``noise`` of the rms centred norm."""
    if not 0 <= share < 1:
        raise broken("share must lie in 0 ≤ share < 1", share, "at least one row must stay")
    n = x_ND.shape[0]
    copies = round(n * share)
    generator = seeded(seed)
    source = torch.randint(n - copies, (copies,), generator=generator, device="cpu")
    step = torch.randn(copies, x_ND.shape[1], generator=generator, dtype=torch.float64, device="cpu")
    step = step / torch.linalg.vector_norm(step, dim=1, keepdim=True)
    scale = (x_ND - x_ND.mean(0)).square().sum(1).mean().sqrt()
    return torch.cat([x_ND[: n - copies], x_ND[source] + noise * scale * step])


RADII: dict[str, Callable[[int, torch.Generator], Tensor]] = {
    "gaussian": lambda n, g: torch.ones(n, dtype=torch.float64),
    "t4": lambda n, g: normals(n, 4, generator=g).square().mean(1).rsqrt(),
    "t3": lambda n, g: normals(n, 3, generator=g).square().mean(1).rsqrt(),
    "lognormal": lambda n, g: (0.7 * normals(n, generator=g)).exp(),
}
"""Laws of the size of rows of an elliptical cloud, relative to a Gaussian."""


def elliptical(n: int, width: int, *, radii: str = "gaussian", turn: int = 0, seed: int = 0) -> Tensor:
    """Rows of an elliptical law: Gaussian directions with variances ``1, 1/2, … 1/D``, each row of a size of its own.

    There is no manifold under it, so no proxy is tangent. ``turn`` seeds the orientation: clouds of one ``turn`` are of
    one law.

    >>> elliptical(5, 3, radii="t4").shape
    torch.Size([5, 3])
    """
    if radii not in RADII:
        raise broken(f"radii must be one of {', '.join(RADII)}", repr(radii), "use 'gaussian'")
    generator = seeded(seed)
    size_N = RADII[radii](n, generator)
    x_ND = normals(n, width, generator=generator) * torch.arange(1, width + 1, dtype=torch.float64).rsqrt()
    return size_N[:, None] * x_ND @ rotation(width, seed=turn).T


def parallel_sheets(
    n: int, *, width: int = 16, sheets: int = 6, noise: float = 0.02, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Flat sheets along the same two directions, apart in five others; also returned are these two ``(D, 2)``.

    All tangents lie in the two directions, up to noise, and those do not hold most of the variance.
    """
    generator = seeded(seed)
    offsets = normals(sheets, 5, generator=generator)
    along = 2 * torch.rand(n, 2, generator=generator, dtype=torch.float64)
    where = offsets[torch.randint(0, sheets, (n,), generator=generator)]
    frame = rotation(width, seed=seed)[:, :7]
    x_ND = torch.cat([along, where], 1) @ frame.T
    return x_ND + noise * normals(n, width, generator=generator), frame[:, :2]


def _embedded(x: Tensor, width: int, seed: int) -> Tensor:
    if width < x.shape[1]:
        raise broken(f"width must be at least {x.shape[1]} here", width, "raise width or lower dim")
    return x @ rotation(width, seed=seed + 1)[:, : x.shape[1]].T
