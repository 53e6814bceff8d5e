"""Second fundamental form around points of a cloud, by local least squares.

Letters: P points judged, K neighbours of each, D width, d tangent dimension, m = d(d+1)/2 quadratic terms,
q = 1 + d + m coefficients.

Around a point, ``n ≈ a + L u + ½ B(u, u)``: tangent coordinates ``u`` from local PCA, the tangent turned by ``L`` until
the surface is level at the point. Coordinates are fitted in the whole space, where the tangent part of the fit is exact
and the quadratic part is normal by itself: no normal basis is ever formed, and a point costs ``O(KqD)``.

Only inner products of the ``m`` quadratic coefficients matter, so a point leaves an ``m × m`` table. Noise adds the
variance of the fit to it, summed over all normal directions, which in a wide space exceeds the curvature; it is taken
off, estimated from each neighbour's residual and leverage (White's correction for unequal variances, HC2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_BLOCK_NUMBERS = 1 << 18
_GPU_NUMBERS = 1 << 25
_PCA_STEPS = 6
_PCA_STEPS_MORE = 1  # each tilt is a step as well
_TILTS = 2
_SINGULAR = 1e-7
_LEAST_FREE = 1e-3
_TINY = 1e-300


@dataclass(frozen=True, slots=True, eq=False)
class SecondForms:
    """What a fit with K neighbours leaves at each point.

    ``table`` has the inner products of the coefficients ``B_ij`` (i ≤ j), less the variance of the fit; ``solved`` says
    where the neighbours fixed them. ``flat`` is the smallest over the largest variance along the tangent. Over all
    points: ``residual`` and ``spread`` are mean squared distances off the fit and along the tangent; ``noise`` and
    ``misfit`` split the former into σ² alike for all neighbours and ``τ²ρ⁶`` for one at distance ρ; ``extent`` is the
    mean ρ² by weight, which the bias of the fit grows with.
    """

    table: Tensor
    tangent: Tensor
    solved: Tensor
    flat: Tensor
    residual: float
    spread: float
    noise: float
    misfit: float
    extent: float


def coefficients(dim: int) -> int:
    """Coefficients of a quadratic in ``dim`` variables: 1 + d + d(d+1)/2."""
    return 1 + dim + dim * (dim + 1) // 2


def second_forms(
    x_ND: Tensor,
    rows_P: Tensor,
    indices_PK: Tensor,
    distances_PK: Tensor,
    *,
    dim: int,
    unit: float = 1.0,
    before: SecondForms | None = None,
) -> SecondForms:
    """Fit every point on its K neighbours, weighted by what the fit ``before``, on fewer of them, left over.

    A neighbour at distance ρ is off the quadratic by noise, and by a third-order term that grows as ρ³; its weight is
    the inverse of the sum of both squares. Without noise only the nearest count, under much noise all alike. Lengths
    are in multiples of ``unit``, ``distances`` as well.
    """
    weight_PK = _weights(distances_PK, before, 2 * coefficients(dim))
    tables, tangents, solved, flat, squares, spreads = [], [], [], [], [], []
    for part in blocks(x_ND, rows_P.shape[0], indices_PK.shape[1]):
        y_PKD = (x_ND[indices_PK[part]].double() - x_ND[rows_P[part]].double()[:, None]).div_(unit)
        reach_P = distances_PK[part, -1]
        tangent_PDd, along_Pd = local_pca(y_PKD, dim, None if before is None else before.tangent[part])
        for _ in range(_TILTS):
            tilted = _solver(y_PKD @ tangent_PDd, weight_PK[part], reach_P)
            tangent_PDd = torch.linalg.qr((tilted.rows[:, 1 : dim + 1] @ y_PKD).mT).Q
        solver = _solver(y_PKD @ tangent_PDd, weight_PK[part], reach_P)
        table_Pmm, square_PK = _table(y_PKD, solver, dim)
        tables.append(table_Pmm / reach_P[:, None, None] ** 4)
        squares.append(square_PK)
        tangents.append(tangent_PDd)
        solved.append(solver.solved)
        flat.append(along_Pd.amin(1) / along_Pd.amax(1).clamp_min(_TINY))
        spreads.append(along_Pd.sum(1) / y_PKD.shape[1])
    good_P = torch.cat(solved)
    square_PK = torch.cat(squares)[good_P]
    noise, misfit = _noise_and_misfit(square_PK, distances_PK[good_P])
    residual, spread = (float(part.mean()) if part.numel() else 0.0 for part in (square_PK, torch.cat(spreads)))
    extent = float((weight_PK * distances_PK.square()).sum() / weight_PK.sum())
    return SecondForms(
        torch.cat(tables), torch.cat(tangents), good_P, torch.cat(flat), residual, spread, noise, misfit, extent
    )


def blocks(x_ND: Tensor, points: int, neighbours: int) -> Iterator[slice]:
    """Blocks of points whose neighbours fit the cache of a processor, or fill a GPU."""
    numbers = _GPU_NUMBERS if x_ND.is_cuda else _BLOCK_NUMBERS
    step = max(1, numbers // (neighbours * x_ND.shape[1]))
    for start in range(0, points, step):
        yield slice(start, start + step)


def local_pca(y_PKD: Tensor, dim: int, start_PDd: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The ``dim`` leading directions ``(P, D, d)`` of each neighbourhood about its mean, and sums of squares on them.

    By orthogonal iteration, ``O(KDd)``: no matrix of K × K or D × D is decomposed; from directions known already one
    step does. Where it converges slowly, variances hardly tell directions apart, and which are found means little.
    """
    if start_PDd is None:
        shape, generator = (y_PKD.shape[1], dim), torch.Generator().manual_seed(0)
        start_Kd = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(y_PKD.device)
        basis_PDd = torch.linalg.qr(y_PKD.mT @ (start_Kd - start_Kd.mean(0))).Q
    else:
        basis_PDd = start_PDd
    for _ in range(_PCA_STEPS if start_PDd is None else _PCA_STEPS_MORE):
        basis_PDd = torch.linalg.qr(y_PKD.mT @ _centred(y_PKD @ basis_PDd)).Q
    return basis_PDd, _centred(y_PKD @ basis_PDd).square().sum(1)


def _centred(u_PKd: Tensor) -> Tensor:
    return u_PKd - u_PKd.mean(1, keepdim=True)


@dataclass(frozen=True, slots=True, eq=False)
class _Solver:
    """Weighted least squares on the quadratic in ``u``, in units of the reach: ``rows`` turn values to coefficients."""

    design: Tensor
    rows: Tensor
    solved: Tensor


def _solver(u_PKd: Tensor, weight_PK: Tensor, reach_P: Tensor) -> _Solver:
    u_PKd = u_PKd / reach_P[:, None, None]
    design_PKq = torch.cat([torch.ones_like(u_PKd[..., :1]), u_PKd, quadratics(u_PKd)], 2)
    weighted_PqK = (design_PKq * weight_PK[..., None]).mT
    normal_Pqq = weighted_PqK @ design_PKq
    # Every column at length 1, whatever the weights: a small pivot then means that the neighbours do not fix B.
    size_Pq1 = normal_Pqq.diagonal(dim1=1, dim2=2).clamp_min(_TINY).rsqrt()[..., None]
    factor_Pqq, failed_P = torch.linalg.cholesky_ex(size_Pq1 * normal_Pqq * size_Pq1.mT)
    solved_P = (failed_P == 0) & (factor_Pqq.diagonal(dim1=1, dim2=2).amin(1).square() > _SINGULAR)
    eye_qq = torch.eye(size_Pq1.shape[1], dtype=factor_Pqq.dtype, device=factor_Pqq.device)
    factor_Pqq = torch.where(solved_P[:, None, None], factor_Pqq, eye_qq)
    rows_PqK = size_Pq1 * torch.cholesky_solve(size_Pq1 * weighted_PqK, factor_Pqq)
    return _Solver(design_PKq, rows_PqK, solved_P)


def quadratics(u: Tensor) -> Tensor:
    """``½u_i²`` and ``u_i u_j`` (i < j), row by row of the upper triangle, so that their coefficients are ``B_ij``."""
    i, j = torch.triu_indices(u.shape[-1], u.shape[-1], device=u.device)
    return u[..., i] * u[..., j] * torch.where(i == j, 0.5, 1.0)


def _table(y_PKD: Tensor, solver: _Solver, dim: int) -> tuple[Tensor, Tensor]:
    """Inner products of the quadratic coefficients less their variance, and squared residuals over 1 − leverage."""
    coefficient_PqD = solver.rows @ y_PKD
    residual_PKD = torch.baddbmm(y_PKD, solver.design, coefficient_PqD, alpha=-1)
    leverage_PK = (solver.design * solver.rows.mT).sum(2)
    square_PK = torch.linalg.vector_norm(residual_PKD, dim=2).square() / (1 - leverage_PK).clamp_min(_LEAST_FREE)
    quadratic_PmD, rows_PmK = coefficient_PqD[:, dim + 1 :], solver.rows[:, dim + 1 :]
    variance_Pmm = (rows_PmK * square_PK[:, None]) @ rows_PmK.mT
    return quadratic_PmD @ quadratic_PmD.mT - variance_Pmm, square_PK


def _weights(distances_PK: Tensor, before: SecondForms | None, fewest: int) -> Tensor:
    """Inverse variances, flat over the ``fewest`` nearest so that no handful of neighbours decides alone."""
    if before is None or before.misfit == 0:
        return torch.ones_like(distances_PK)
    misfit_PK = before.misfit * distances_PK**6
    nearest_P = misfit_PK[:, min(fewest, misfit_PK.shape[1]) - 1]
    variance_PK = before.noise + torch.maximum(misfit_PK, nearest_P[:, None])
    return variance_PK.amin(1, keepdim=True) / variance_PK


def _noise_and_misfit(square_PK: Tensor, distances_PK: Tensor) -> tuple[float, float]:
    """Least squares of squared residuals on ``σ² + τ²ρ⁶``, neither of them below 0."""
    if square_PK.numel() == 0:
        return 0.0, 0.0
    sixth_PK = distances_PK**6
    mean, mean_sixth = float(square_PK.mean()), float(sixth_PK.mean())
    together, sixth_squared = float((square_PK * sixth_PK).mean()), float(sixth_PK.square().mean())
    variance = sixth_squared - mean_sixth**2
    misfit = (together - mean * mean_sixth) / variance if variance > 0 else 0.0
    if misfit <= 0:
        return mean, 0.0
    noise = mean - misfit * mean_sixth
    return (noise, misfit) if noise > 0 else (0.0, together / sixth_squared)
