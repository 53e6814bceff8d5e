"""The gradient of an embedding by sequence: a sum over the sequences for each type.

Letters: n units, m pairs of a unit and a type, D width, K rank.

The gradient of type v is ``G_v = Σ_s G_sv`` over the sequences that hold it. Folds are of types; a sequence holds types
of both, so leaving one out changes both folds together, and there is one set of units for the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from anisoscope.evidence.shared import Shared
from anisoscope.evidence.units import Energies, GramUnits

_CHUNK_NUMBERS = 1 << 24
_MOST_KEPT = 1 << 24  # inner products by column are kept up to this size, else made again for each proxy


@dataclass(frozen=True, slots=True, eq=False)
class TypedUnits(GramUnits):
    """Sums ``G_sv`` of units and types, and for each of them which fold its type is in, with the basis judged there."""

    ids: Tensor
    sums: Tensor  # (m, D)
    unit: Tensor  # (m,)
    types: Tensor  # (m,)
    side: Tensor  # (m,) 0 or 1
    bases: tuple[Tensor, Tensor]
    known: list[Energies] = field(default_factory=list)
    shared: Shared = field(default_factory=Shared)  # with the same units under other proxies
    of_all_folds = True

    @classmethod
    def of(
        cls, rows_ND: Tensor, types_N: Tensor, units_N: Tensor, side_N: Tensor, bases: Sequence[Tensor]
    ) -> TypedUnits:
        """Add up rows by unit and type; ``side_N`` says for each row in which fold its type is judged."""
        ids, unit_N = torch.unique(units_N, return_inverse=True)
        kinds, kind_N = torch.unique(types_N, return_inverse=True)
        pairs, place_N = torch.unique(unit_N * len(kinds) + kind_N, return_inverse=True)
        sums = torch.zeros(len(pairs), rows_ND.shape[1], dtype=torch.float64, device=rows_ND.device)
        sums.index_add_(0, place_N, rows_ND.double())
        side = torch.zeros_like(pairs).scatter_(0, place_N, side_N.to(pairs))
        return cls(ids.cpu(), sums, pairs // len(kinds), kinds[pairs % len(kinds)], side, (bases[0], bases[1]))

    def ordered(self, order: Tensor) -> TypedUnits:
        """The same units in another order."""
        if bool((order == torch.arange(len(order), device=order.device)).all()):
            return self
        return replace(self, ids=self.ids[order], unit=order.argsort().to(self.unit.device)[self.unit], known=[])

    def cross(self, other: TypedUnits) -> Energies:
        """``Σ_v ⟨G_sv, G_tv⟩`` of all pairs of units over the types that both sides hold."""
        shape, device = (len(self.ids), len(other.ids)), self.sums.device
        inside, whole, axes = (torch.zeros(shape, dtype=torch.float64, device=device) for _ in range(3))
        made_of = [self.sums, self.unit, other.sums, other.unit]
        kept = len(self.ids) * len(other.ids) * self.sums.shape[1] <= _MOST_KEPT
        for side, basis in enumerate(self.bases):
            weights_D = basis.square().sum(1)
            # Few units hold any one type: rows are projected before they are spread out over units and types.
            for own, theirs in self._by_type(other, side, basis):
                inside += _products(own, theirs)
            if kept:
                by_column = partial(self._by_column, other, side)
                columns_nmD = self.shared.once(("by column", side), made_of, by_column)
                whole += columns_nmD.sum(-1)
                axes += columns_nmD @ weights_D
                continue
            for own, theirs in self._by_type(other, side):
                whole += _products(own, theirs)
                axes += _products(own * weights_D, theirs)
        return Energies.on_host(inside, whole - inside, axes)

    def _by_column(self, other: TypedUnits, side: int) -> Tensor:
        """Inner products over types alone, ``(n, m, D)``: they serve every proxy."""
        total = self.sums.new_zeros(len(self.ids), len(other.ids), self.sums.shape[1])
        for own_nVD, theirs_mVD in self._by_type(other, side):
            total += (own_nVD.permute(2, 0, 1) @ theirs_mVD.permute(2, 1, 0)).permute(1, 2, 0)
        return total

    def _by_type(self, other: TypedUnits, side: int, basis: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Sums, or their coordinates in a basis, as ``(units, types, ·)`` of both sides, some types at a time."""
        types = self.shared.once(("types", side), [self.sums, other.sums], partial(self._types_of_both, other, side))
        own = self._of(side, basis)
        theirs = own if other is self else other._of(side, basis)
        step = max(1, _CHUNK_NUMBERS // ((len(self.ids) + len(other.ids)) * own[0].shape[1]))
        for part in types.split(step) if len(types) else ():
            first = _dense(*own, part, len(self.ids))
            yield first, first if other is self else _dense(*theirs, part, len(other.ids))

    def _types_of_both(self, other: TypedUnits, side: int) -> Tensor:
        """Types of one fold that both sides hold, sorted."""
        own, theirs = (units.types[units.side == side].unique() for units in (self, other))
        types, sides = torch.unique(torch.cat([own, theirs]), return_counts=True)
        return types[sides == 2]

    def _of(self, side: int, basis: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        chosen = self.side == side
        sums = self.sums[chosen]
        return sums if basis is None else sums @ basis, self.types[chosen], self.unit[chosen]


def _dense(sums: Tensor, types: Tensor, unit: Tensor, wanted: Tensor, units: int) -> Tensor:
    """Sums of some types, zero where a unit has none of a type; ``wanted`` is sorted."""
    place = torch.searchsorted(wanted, types).clamp_max(len(wanted) - 1)
    hit = wanted[place] == types
    dense = sums.new_zeros(units, len(wanted), sums.shape[1])
    dense[unit[hit], place[hit]] = sums[hit]
    return dense


def _products(own_nVD: Tensor, theirs_mVD: Tensor) -> Tensor:
    """Inner products of all pairs of units over types and columns."""
    return own_nVD.flatten(1) @ theirs_mVD.flatten(1).T
