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

import math
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
_DEPENDENT = 1e-5  # of a unit column, left after the others are taken off
_LEAST_FREE = 1e-3
_RIDGE = 1e-9
_COORDINATE_LIMIT = 0.1  # noise variance over tangent variance, per direction
_EDGE_LIMIT = 0.5  # the largest variance that noise alone has along some direction, over tangent variance
_TINY = 1e-300


@dataclass(frozen=True, slots=True, eq=False)
class SecondForms:
    """What a fit with K neighbours leaves at each point.

    ``table`` has the inner products of the coefficients ``B_ij`` (i ≤ j), less the variance of the fit; ``solved`` says
    where the neighbours fixed them. ``along`` are the variances along the tangent, largest first; ``own`` is the least
    share of variance that is not the bend of other directions, see ``own_share``. Over all points: ``residual`` is the
    mean squared distance off the fit; ``noise`` and ``misfit`` split it into σ² alike for all neighbours and ``τ²ρ⁶``
    for one at distance ρ; ``extent`` is the mean ρ² by weight, which the bias of the fit grows with.
    """

    table: Tensor
    tangent: Tensor
    solved: Tensor
    along: Tensor
    own: Tensor
    residual: float
    noise: float
    misfit: float
    extent: float

    @property
    def spread(self) -> float:
        """Mean squared distance along the tangent."""
        return float(self.along.sum(1).mean())


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
    tables, tangents, solved, alongs, owns, squares = [], [], [], [], [], []
    for part in blocks(x_ND, rows_P.shape[0], indices_PK.shape[1]):
        y_PKD = (x_ND[indices_PK[part]].double() - x_ND[rows_P[part]].double()[:, None]).div_(unit)
        reach_P = distances_PK[part, -1]
        tangent_PDd, along_Pd = local_pca(y_PKD, dim, None if before is None else before.tangent[part])
        owns.append(own_share(y_PKD @ tangent_PDd, along_Pd))
        for _ in range(_TILTS):
            tilted = _solver(y_PKD @ tangent_PDd, weight_PK[part], reach_P)
            tangent_PDd = orthonormal((tilted.rows[:, 1 : dim + 1] @ y_PKD).mT)
        solver = _solver(y_PKD @ tangent_PDd, weight_PK[part], reach_P)
        table_Pmm, square_PK = _table(y_PKD, solver, dim)
        tables.append(table_Pmm / reach_P[:, None, None] ** 4)
        squares.append(square_PK)
        tangents.append(tangent_PDd)
        solved.append(solver.solved)
        alongs.append(along_Pd / y_PKD.shape[1])
    good_P = torch.cat(solved)
    square_PK = torch.cat(squares)[good_P]
    noise, misfit = _noise_and_misfit(square_PK, distances_PK[good_P])
    residual = float(square_PK.mean()) if square_PK.numel() else 0.0
    extent = float((weight_PK * distances_PK.square()).sum() / weight_PK.sum())
    return SecondForms(
        torch.cat(tables), torch.cat(tangents), good_P, torch.cat(alongs), torch.cat(owns), residual, noise, misfit,
        extent,
    )  # fmt: skip


def blocks(x_ND: Tensor, points: int, neighbours: int) -> Iterator[slice]:
    """Blocks of points whose neighbours fit the cache of a processor, or fill a GPU."""
    numbers = _GPU_NUMBERS if x_ND.is_cuda else _BLOCK_NUMBERS
    step = max(1, numbers // (neighbours * x_ND.shape[1]))
    for start in range(0, points, step):
        yield slice(start, start + step)


def local_pca(y_PKD: Tensor, dim: int, start_PDd: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The ``dim`` leading directions ``(P, D, d)`` of each neighbourhood about its mean, and sums of squares on them.

    Both are sorted, largest first.

    By orthogonal iteration, ``O(KDd)``: no matrix of K × K or D × D is decomposed; from directions known already one
    step does. Where it converges slowly, variances hardly tell directions apart, and which are found means little.
    """
    if start_PDd is None:
        shape, generator = (y_PKD.shape[1], dim), torch.Generator().manual_seed(0)
        start_Kd = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(y_PKD.device)
        basis_PDd = orthonormal(y_PKD.mT @ (start_Kd - start_Kd.mean(0)))
    else:
        basis_PDd = start_PDd
    for _ in range(_PCA_STEPS if start_PDd is None else _PCA_STEPS_MORE):
        basis_PDd = orthonormal(y_PKD.mT @ _centred(y_PKD @ basis_PDd))
    u_PKd = _centred(y_PKD @ basis_PDd)
    # Iteration finds the span before the directions in it, and the smallest variance must not be a mixture.
    squares_Pd, turn_Pdd = torch.linalg.eigh(u_PKd.mT @ u_PKd)
    return basis_PDd @ turn_Pdd.flip(2), squares_Pd.flip(1).clamp_min(0)


def orthonormal(columns_PDd: Tensor) -> Tensor:
    """Orthonormal bases of the spans of the columns of many matrices.

    A GPU would decompose them one by one, which takes longer than everything around it.
    """
    return orthonormal_by_grams(columns_PDd) if columns_PDd.is_cuda else torch.linalg.qr(columns_PDd).Q


def orthonormal_by_grams(columns_PDd: Tensor) -> Tensor:
    """The same by Cholesky's factor of the Gram matrix, twice: what the first pass rounds away the second puts right.

    Matrices whose columns nearly depend on one another are left to the QR decomposition.
    """
    basis_PDd = columns_PDd / torch.linalg.vector_norm(columns_PDd, dim=1, keepdim=True).clamp_min(_TINY)
    for _ in range(2):
        upper_Pdd, failed_P = torch.linalg.cholesky_ex(basis_PDd.mT @ basis_PDd, upper=True)
        basis_PDd = torch.linalg.solve_triangular(upper_Pdd, basis_PDd, upper=True, left=False)
        failed_P = (failed_P > 0) | ~(upper_Pdd.diagonal(dim1=1, dim2=2).amin(1) > _DEPENDENT)
        if bool(failed_P.any()):
            basis_PDd[failed_P] = torch.linalg.qr(columns_PDd[failed_P]).Q
    return basis_PDd


def own_share(u_PKd: Tensor, squares_Pd: Tensor) -> Tensor:
    """The least share of its variance that a direction keeps when a quadratic in all of them is taken off.

    Coordinates of a surface are free of each other: the least is near 1 for many neighbours, and by chance above 0.3
    for twice the coefficients. Where a curve is asked for as a surface, the second coordinate is the bend of the first,
    a quadratic in it, and keeps nearly 0.
    """
    count, dim = u_PKd.shape[1:]
    u_PKd = _centred(u_PKd) * squares_Pd.clamp_min(_TINY).rsqrt()[:, None]
    column_PKm = _centred(quadratics(u_PKd))
    column_PKm = column_PKm / torch.linalg.vector_norm(column_PKm, dim=1, keepdim=True).clamp_min(_TINY)
    both_Pmd = column_PKm.mT @ u_PKd
    terms = both_Pmd.shape[1]
    ridge_mm = _RIDGE * torch.eye(terms, dtype=u_PKd.dtype, device=u_PKd.device)
    factor_Pmm = torch.linalg.cholesky(column_PKm.mT @ column_PKm + ridge_mm)
    bent_Pdd = both_Pmd.mT @ torch.cholesky_solve(both_Pmd, factor_Pmm)
    return (1 - torch.linalg.eigvalsh(bent_Pdd)[:, dim - 1]) * (count - 1) / max(count - 1 - terms, 1)


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


def directions_in_noise(along_Pd: Tensor, noise: float, width: int, count: int) -> int:
    """Tangent directions along which ``count`` rows hardly spread beyond noise of that variance per direction.

    Of noise σ² in D directions, seen by K rows, local PCA finds a direction of variance ``σ²(1 + √(D/K))²``.
    """
    edge = (1 + math.sqrt(width / count)) ** 2
    return int((along_Pd.mean(0) < noise * max(1 / _COORDINATE_LIMIT, edge / _EDGE_LIMIT)).sum())


def scatter(y_PKD: Tensor, tangent_PDd: Tensor, weight_PK: Tensor, reach_P: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of squares that a quadratic over the tangent leaves of each neighbourhood, and whether one was fixed."""
    solver = _solver(y_PKD @ tangent_PDd, weight_PK, reach_P)
    residual_PKD = torch.baddbmm(y_PKD, solver.design, solver.rows @ y_PKD, alpha=-1)
    return (weight_PK * residual_PKD.square().sum(2)).sum(1), solver.solved


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
