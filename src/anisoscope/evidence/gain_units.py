"""The isotropy gain with one unit left out, for each: what its interval is made of.

Letters: N rows, D width, K rank, n units, E rows of a weight's gradient.

IsoScore* needs the trace and the squared norm of a covariance, and so does what is left of it without Q. Both follow
for all leave-one-outs from products with the whole matrix: no covariance is formed again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.evidence.spectral import ZETA, score
from anisoscope.evidence.units import AdditiveUnits, BilinearUnits

_WIDE = 256  # from this width on products are in float32 on a CPU: their rounding is far below the error sought


@dataclass(frozen=True, slots=True, eq=False)
class Gains:
    """IsoScore* before and its gain, of a fold as a whole ``()`` and with each unit left out ``(n,)``."""

    before: Tensor
    gain: Tensor
    before_without: Tensor
    gain_without: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class _Forms:
    """Trace and squared norm of a matrix, of the whole first and then of each leave-one-out: ``(1 + n,)``."""

    trace: Tensor
    square: Tensor


def gains_of_rows(rows_ND: Tensor, groups_N: Tensor, basis_DK: Tensor) -> Gains:
    """Of a cloud whose rows belong to units."""
    unit_N = torch.unique(groups_N, return_inverse=True)[1]
    dtype = torch.float32 if rows_ND.device.type == "cpu" and rows_ND.shape[1] > _WIDE else torch.float64
    # Forms about the mean do not change with it; taken out first, nothing large cancels in float32.
    x_ND = (rows_ND - rows_ND.double().mean(0)).to(dtype)
    x_ND = x_ND / x_ND.abs().amax().clamp_min(torch.finfo(dtype).tiny)
    q_DK = basis_DK.to(dtype)
    whole = _covariance_forms(x_ND, unit_N)
    left = _covariance_forms(x_ND - (x_ND @ q_DK) @ q_DK.T, unit_N)
    return _gains(whole, left, *basis_DK.shape)


def gains_of_weight(units: BilinearUnits, rows_of_gradient: int) -> Gains:
    """Of the gradient of a weight, whose rows are the cloud.

    Where error signals were sketched by k random directions, ``‖S‖²`` is estimated without bias:
    ``E‖S̃‖² = (1 + 1/k)‖S‖² + (tr S)²/k``. Its noise makes the error too large, by 1.5 for k = 32 where the sequences
    share a signal and by 3 to 6 where they share none. The mean row, one direction of D, is then not known and stays.
    """
    g_nED = units.gradients()
    sketched = None if g_nED.shape[1] == rows_of_gradient else g_nED.shape[1]
    g_nED = g_nED / g_nED.abs().amax().clamp_min(torch.finfo(torch.float64).tiny)
    whole = _sum_forms(g_nED, sketched)
    left = _sum_forms(g_nED - (g_nED @ units.basis) @ units.basis.T, sketched)
    return _gains(whole, left, *units.basis.shape)


def gains_of_fold(
    sample: tuple[Tensor, Tensor] | None, units: object, basis_DK: Tensor, rows_of_gradient: int
) -> Gains | None:
    """The gains of a fold by unit, None where units are not known or fewer than two."""
    if isinstance(units, BilinearUnits):
        return gains_of_weight(units, rows_of_gradient) if len(units.ids) > 2 else None
    if sample is None or not isinstance(units, AdditiveUnits) or len(units.ids) < 3:
        return None
    return gains_of_rows(*sample, basis_DK)


def _covariance_forms(x_ND: Tensor, unit_N: Tensor) -> _Forms:
    """Of the scatter about the mean: ``S' − m'm'ᵀ/N'``, S' and m' sums over the rows that stay."""
    units, width = int(unit_N.max()) + 1, x_ND.shape[1]
    second_DD = x_ND.T @ x_ND
    energy_n = x_ND.new_zeros(units, dtype=torch.float64)
    met_n, own_n = energy_n.clone(), energy_n.clone()
    count_n, sums_nD = energy_n.clone(), x_ND.new_zeros(units, width)
    energy_n.index_add_(0, unit_N, x_ND.square().sum(1).double())
    met_n.index_add_(0, unit_N, ((x_ND @ second_DD) * x_ND).sum(1).double())
    count_n.index_add_(0, unit_N, torch.ones_like(unit_N, dtype=torch.float64))
    sums_nD.index_add_(0, unit_N, x_ND)
    order = unit_N.argsort(stable=True)
    parts = x_ND[order].split(torch.bincount(unit_N, minlength=units).tolist())
    without_nD = sums_nD.sum(0) - sums_nD
    along_n = ((without_nD @ second_DD) * without_nD).sum(1).double()
    for k, part in enumerate(parts):
        inner = part @ part.T if len(part) < width else part.T @ part
        own_n[k] = inner.square().sum().double()
        along_n[k] -= (part @ without_nD[k]).square().sum().double()
    mean_D = sums_nD.sum(0)
    along = torch.cat([(mean_D @ second_DD @ mean_D).double()[None], along_n])
    length = torch.cat([mean_D[None], without_nD]).double().square().sum(1)
    count = torch.cat([count_n.sum()[None], count_n.sum() - count_n])
    trace = torch.cat([energy_n.sum()[None], energy_n.sum() - energy_n])
    whole = second_DD.double().square().sum()
    square = torch.cat([whole[None], whole - 2 * met_n + own_n])
    return _Forms(trace - length / count, square - 2 * along / count + (length / count).square())


def _sum_forms(g_nED: Tensor, sketched: int | None) -> _Forms:
    """Of ``GᵀG`` for the sum of all ``G_s`` and for that without each, through the E × E side."""
    total_ED = g_nED.sum(0)
    trace, square = [], []
    for g_ED in (total_ED, *(total_ED - own for own in g_nED)):
        if sketched is None:
            g_ED = g_ED - g_ED.mean(0)
        inner = g_ED @ g_ED.T if g_ED.shape[0] < g_ED.shape[1] else g_ED.T @ g_ED
        trace.append(inner.diagonal().sum())
        square.append(inner.square().sum())
    trace_n, square_n = torch.stack(trace), torch.stack(square)
    if sketched is not None:
        square_n = (square_n - trace_n.square() / sketched) / (1 + 1 / sketched)
    return _Forms(trace_n, square_n)


def _gains(whole: _Forms, left: _Forms, width: int, rank: int) -> Gains:
    scale = width / whole.trace
    before = score(torch.stack([scale * whole.trace, scale.square() * whole.square]), width, ZETA)
    after = score(torch.stack([scale * left.trace, scale.square() * left.square]), width - rank, ZETA)
    gain = after - before
    return Gains(before[0], gain[0], before[1:], gain[1:])
