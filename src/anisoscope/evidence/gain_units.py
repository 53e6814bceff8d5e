"""The isotropy gain with one unit left out, for each: what its interval is made of.

Letters: N rows, D width, K rank, n units, E rows of a weight's gradient.

IsoScore* needs the trace and the squared norm of a covariance, and so does what is left of it without Q. Both follow
for all leave-one-outs from the second moments of the units, which are those of every proxy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from anisoscope.evidence.isotropy_gain import ZETA, score
from anisoscope.evidence.shared import Shared
from anisoscope.evidence.spectral import without
from anisoscope.evidence.units import AdditiveUnits, BilinearUnits

_WIDE = 256  # from this width on products are in float32 on a CPU: their rounding is far below the error sought
_MOST_NUMBERS = 1 << 25  # second moments of all units are kept up to this size, else made again for each proxy


@dataclass(frozen=True, slots=True, eq=False)
class Gains:
    """IsoScore* before and its gain, of a fold as a whole ``()`` and with each unit left out ``(n,)``."""

    before: Tensor
    gain: Tensor
    before_without: Tensor
    gain_without: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class _Forms:
    """Trace and squared norm of a matrix, of the whole and then of each leave-one-out: ``(1 + n,)``, on the host."""

    trace: Tensor
    square: Tensor

    @classmethod
    def of(cls, trace: Tensor, square: Tensor) -> _Forms:
        return cls(*torch.stack([trace, square]).cpu())


def gains_of_rows(rows_ND: Tensor, groups_N: Tensor, basis_DK: Tensor, shared: Shared | None = None) -> Gains:
    """Of a cloud whose rows belong to units."""
    shared = shared or Shared()
    scatters = shared.once("scatters", [rows_ND, groups_N], partial(_Scatters.of, rows_ND, groups_N))
    whole = shared.once("forms of scatters", [rows_ND, groups_N], scatters.forms)
    return _gains(whole, scatters.forms_without(basis_DK), *basis_DK.shape)


def gains_of_weight(units: BilinearUnits, rows_of_gradient: int, shared: Shared | None = None) -> Gains:
    """Of the gradient of a weight, whose rows are the cloud.

    Where error signals were sketched by k random directions, ``‖S‖²`` is estimated without bias:
    ``E‖S̃‖² = (1 + 1/k)‖S‖² + (tr S)²/k``. Its noise makes the error too large, by 1.5 for k = 32 where the sequences
    share a signal and by 3 to 6 where they share none. The mean row, one direction of D, is then not known and stays.
    """
    g_nED = units.gradients()
    g_nED = g_nED / g_nED.abs().amax().clamp_min(torch.finfo(torch.float64).tiny)
    sketched = None if g_nED.shape[1] == rows_of_gradient else g_nED.shape[1]
    given = [units.inputs, units.deltas, units.place]
    whole = (shared or Shared()).once(("forms of gradients", sketched), given, lambda: _sum_forms(g_nED, sketched))
    left = _sum_forms(g_nED - (g_nED @ units.basis) @ units.basis.T, sketched)
    return _gains(whole, left, *units.basis.shape)


def gains_of_fold(
    sample: tuple[Tensor, Tensor] | None, units: object, basis_DK: Tensor, rows_of_gradient: int, shared: Shared
) -> Gains | None:
    """The gains of a fold by unit, None where units are not known or fewer than three."""
    if isinstance(units, BilinearUnits):
        return gains_of_weight(units, rows_of_gradient, shared) if len(units.ids) > 2 else None
    if sample is None or not isinstance(units, AdditiveUnits) or len(units.ids) < 3:
        return None
    return gains_of_rows(*sample, basis_DK, shared)


@dataclass(frozen=True, slots=True, eq=False)
class _Scatters:
    """Rows in the order of their units, and what is summed over each: number, rows ``(n, D)``, second moment."""

    rows: Tensor
    unit: Tensor  # of each row
    sizes: list[int]
    sums: Tensor
    total: Tensor  # second moment of all rows ``(D, D)``
    kept: Tensor | None  # second moments of all units ``(n, D, D)``, where they are small enough

    @classmethod
    def of(cls, rows_ND: Tensor, groups_N: Tensor) -> _Scatters:
        unit_N = torch.unique(groups_N, return_inverse=True)[1]
        dtype = torch.float32 if rows_ND.device.type == "cpu" and rows_ND.shape[1] > _WIDE else torch.float64
        # Forms about the mean do not change with it; taken out first, nothing large cancels in float32.
        x_ND = (rows_ND - rows_ND.double().mean(0)).to(dtype)
        x_ND = x_ND / x_ND.abs().amax().clamp_min(torch.finfo(dtype).tiny)
        sizes = torch.bincount(unit_N).tolist()
        order_N = unit_N.argsort(stable=True)
        x_ND, unit_N = x_ND[order_N], unit_N[order_N]
        sums = x_ND.new_zeros(len(sizes), x_ND.shape[1]).index_add_(0, unit_N, x_ND)
        kept = None
        if len(sizes) * x_ND.shape[1] ** 2 <= _MOST_NUMBERS:
            kept = torch.stack([part.T @ part for part in x_ND.split(sizes)])
        return cls(x_ND, unit_N, sizes, sums, x_ND.T @ x_ND, kept)

    def _blocks(self) -> Iterator[Tensor]:
        """Second moments of the units, a few at a time ``(·, D, D)``; made again where they are not kept."""
        if self.kept is not None:
            yield self.kept
        else:
            for part in self.rows.split(self.sizes):
                yield (part.T @ part)[None]

    def forms(self) -> _Forms:
        """Of the scatter about the mean."""
        traces, met, own = [], [], []
        for block in self._blocks():
            traces.append(block.diagonal(dim1=-2, dim2=-1).sum(-1))
            met.append((block * self.total).sum((-2, -1)))
            own.append(block.square().sum((-2, -1)))
        return self._about_mean(self.total, self.sums, traces, met, own)

    def forms_without(self, basis_DK: Tensor) -> _Forms:
        """Of the scatter without Q.

        With ``P = I − QQᵀ`` it is ``⟨PS_uP, PSP⟩ = ⟨S_u, PSP⟩``, and ``‖PS_uP‖²`` follows from ``S_uQ``.
        """
        q_DK = basis_DK.to(self.rows.dtype)
        left = without(self.total[None], q_DK[None])[0]
        traces, met, own = [], [], []
        for block in self._blocks():
            along = block @ q_DK
            inner = q_DK.T @ along
            whole, gone = (part.diagonal(dim1=-2, dim2=-1).sum(-1) for part in (block, inner))
            traces.append(whole - gone)
            met.append((block * left).sum((-2, -1)))
            squares = [part.square().sum((-2, -1)) for part in (block, along, inner)]
            own.append(squares[0] - 2 * squares[1] + squares[2])
        sums = self.sums - (self.sums @ q_DK) @ q_DK.T
        return self._about_mean(left, sums, traces, met, own)

    def _about_mean(
        self,
        left_DD: Tensor,
        sums_nD: Tensor,
        traces: list[Tensor],
        met: list[Tensor],
        own: list[Tensor],
    ) -> _Forms:
        """``S' − m'm'ᵀ/N'``, S' and m' sums over the rows that stay; m' is without Q where ``left`` is."""
        count_n = torch.tensor(self.sizes, dtype=torch.float64, device=sums_nD.device)
        mean_D = sums_nD.sum(0)
        stays_nD = mean_D - sums_nD
        along_n = ((stays_nD @ self.total) * stays_nD).sum(1).double()
        # Of the rows that go, unit by unit: vᵀS_uv = ‖X_u v‖².
        own_N = (self.rows * stays_nD[self.unit]).sum(1).double().square()
        along_n = along_n - own_N.new_zeros(len(self.sizes)).index_add_(0, self.unit, own_N)
        along = torch.cat([(mean_D @ self.total @ mean_D).double()[None], along_n])
        length = torch.cat([mean_D[None], stays_nD]).double().square().sum(1)
        count = torch.cat([count_n.sum()[None], count_n.sum() - count_n])
        trace_n, met_n, own_n = (torch.cat(parts).double() for parts in (traces, met, own))
        trace = torch.cat([trace_n.sum()[None], trace_n.sum() - trace_n])
        whole = left_DD.double().square().sum()
        square = torch.cat([whole[None], whole - 2 * met_n + own_n])
        return _Forms.of(trace - length / count, square - 2 * along / count + (length / count).square())


def _sum_forms(g_nED: Tensor, sketched: int | None) -> _Forms:
    """Of ``GᵀG`` for the sum of all ``G_s`` and for that without each, through the smaller side."""
    total_ED = g_nED.sum(0)
    trace, square = [], []
    few = max(1, _MOST_NUMBERS // total_ED.numel())
    for left_nED in torch.cat([torch.zeros_like(g_nED[:1]), g_nED]).split(few):
        some_nED = total_ED - left_nED
        if sketched is None:
            some_nED = some_nED - some_nED.mean(1, keepdim=True)
        inner = some_nED @ some_nED.mT if total_ED.shape[0] < total_ED.shape[1] else some_nED.mT @ some_nED
        trace.append(inner.diagonal(dim1=1, dim2=2).sum(1))
        square.append(inner.square().sum((1, 2)))
    trace_n, square_n = torch.cat(trace), torch.cat(square)
    if sketched is not None:
        square_n = (square_n - trace_n.square() / sketched) / (1 + 1 / sketched)
    return _Forms.of(trace_n, square_n)


def _gains(whole: _Forms, left: _Forms, width: int, rank: int) -> Gains:
    scale = width / whole.trace
    before = score(torch.stack([scale * whole.trace, scale.square() * whole.square]), width, ZETA)
    after = score(torch.stack([scale * left.trace, scale.square() * left.square]), width - rank, ZETA)
    gain = after - before
    return Gains(before[0], gain[0], before[1:], gain[1:])
