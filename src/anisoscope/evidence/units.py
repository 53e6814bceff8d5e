"""Gradient energy by independent unit (sequence, or token type): what intervals and paired tests are made of.

Letters: n units, T positions, D width, E columns of δ, R draws.

In the representation view energies add up over units. In the weight view they do not: the gradient is ``G = Σ_s G_s``
and its energy is the sum of a Gram matrix over pairs of sequences. The embedding view is like it (``typed_units``).

Gradients may lie on a GPU. Energies and Gram matrices, which are small, are brought to the host at once: what is done
with them are thousands of tiny operations, each of which a GPU takes longer to begin than a host to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from anisoscope.evidence.shared import Shared
from anisoscope.stats.row_chunks import rows_per_chunk

_CHUNK_NUMBERS = 1 << 24
_MOST_KEPT = 1 << 23


@dataclass(frozen=True, slots=True, eq=False)
class Energies:
    """Energy inside and outside, and the mean inside over sign flips of the axes."""

    inside: Tensor
    outside: Tensor
    axes: Tensor

    @classmethod
    def on_host(cls, inside: Tensor, outside: Tensor, axes: Tensor) -> Energies:
        """Brought there in one piece."""
        if inside.device.type == "cpu":
            return cls(inside, outside, axes)
        return cls(*torch.stack([inside, outside, axes]).cpu())

    def __add__(self, other: Energies) -> Energies:
        return Energies(self.inside + other.inside, self.outside + other.outside, self.axes + other.axes)


@dataclass(frozen=True, slots=True, eq=False)
class Mixed:
    """Energies of R mixtures ``(R,)``, and what each unit adds to them ``(R, n)``."""

    inside: Tensor
    outside: Tensor
    own_inside: Tensor
    own_outside: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class AdditiveMixture:
    """Energies of the units of two sides, one after the other."""

    inside: Tensor
    outside: Tensor

    def mix(self, chosen_Rn: Tensor) -> Mixed:
        """Energies of the units that are chosen."""
        inside_Rn, outside_Rn = chosen_Rn * self.inside, chosen_Rn * self.outside
        return Mixed(inside_Rn.sum(1), outside_Rn.sum(1), inside_Rn, outside_Rn)


@dataclass(frozen=True, slots=True, eq=False)
class BilinearMixture:
    """Gram matrices of the gradients of the units of two sides."""

    inside: Tensor
    outside: Tensor

    def mix(self, chosen_Rn: Tensor) -> Mixed:
        """Energies of the sums of the gradients that are chosen."""
        parts = []
        for gram in (self.inside, self.outside):
            met = chosen_Rn @ gram
            own = chosen_Rn * (2 * met - chosen_Rn * gram.diagonal())
            parts.append(((met * chosen_Rn).sum(1).clamp_min(0), own))
        (inside, own_inside), (outside, own_outside) = parts
        return Mixed(inside, outside, own_inside, own_outside)


Mixture = AdditiveMixture | BilinearMixture


@dataclass(frozen=True, slots=True, eq=False)
class AdditiveUnits:
    """Energies per unit that simply add up."""

    ids: Tensor
    energies: Energies

    @classmethod
    def of(cls, inside_N: Tensor, outside_N: Tensor, axes_N: Tensor, groups_N: Tensor) -> AdditiveUnits:
        """Sum the energies of rows by group."""
        ids, place = torch.unique(groups_N, return_inverse=True)
        zero = inside_N.new_zeros(len(ids))
        parts = (zero.index_add(0, place, part) for part in (inside_N, outside_N, axes_N))
        return cls(ids.cpu(), Energies.on_host(*parts))

    @property
    def total(self) -> Energies:
        """Energies of all units together."""
        e = self.energies
        return Energies(e.inside.sum(), e.outside.sum(), e.axes.sum())

    def left_out(self) -> Energies:
        """Energies of all units but one, for each."""
        total, e = self.total, self.energies
        return Energies(total.inside - e.inside, total.outside - e.outside, total.axes - e.axes)

    @property
    def sizes(self) -> Tensor:
        """Gradient energy of each unit."""
        return self.energies.inside + self.energies.outside

    def ordered(self, order: Tensor) -> AdditiveUnits:
        """The same units in another order."""
        e = self.energies
        return AdditiveUnits(self.ids[order], Energies(e.inside[order], e.outside[order], e.axes[order]))

    def joined(self, other: Any, scales: tuple[float, float]) -> Mixture:
        """The units of both sides, each side's energies times its scale, to be mixed."""
        inside = torch.cat([self.energies.inside * scales[0], other.energies.inside * scales[1]])
        outside = torch.cat([self.energies.outside * scales[0], other.energies.outside * scales[1]])
        return AdditiveMixture(inside, outside)


class GramUnits:
    """Units whose gradients are summed before their energy is taken: it is the sum of a Gram matrix over pairs."""

    __slots__ = ()
    ids: Tensor
    known: list[Energies]
    shared: Shared

    def ordered(self, order: Tensor) -> Any:
        """The same units in another order."""
        raise NotImplementedError

    def cross(self, other: Any) -> Energies:
        """Inner products of own gradients with those of another side ``(n, m)``: inside, outside, weighted by axes."""
        raise NotImplementedError

    def grams(self) -> Energies:
        """Inner products of the units' gradients ``(n, n)``, computed once."""
        if not self.known:
            self.known.append(self.cross(self))
        return self.known[0]

    @property
    def total(self) -> Energies:
        """Energies of the summed gradient."""
        grams = self.grams()
        return Energies(*(gram.sum() for gram in (grams.inside, grams.outside, grams.axes)))

    def left_out(self) -> Energies:
        """Energies of the gradient without one unit, for each."""
        grams = self.grams()
        return Energies(*(_without_one(gram) for gram in (grams.inside, grams.outside, grams.axes)))

    @property
    def sizes(self) -> Tensor:
        """Energy of the gradient of each unit by itself."""
        grams = self.grams()
        return (grams.inside + grams.outside).diagonal().clamp_min(0)

    def joined(self, other: Any, scales: tuple[float, float]) -> Mixture:
        """The gradients of both sides, each side's energies times its scale, to be summed in mixtures."""
        own, theirs, cross = self.grams(), other.grams(), self.cross(other)
        a, b = (scale**0.5 for scale in scales)

        def joint(x: Tensor, y: Tensor, xy: Tensor) -> Tensor:
            return torch.cat([torch.cat([a * a * x, a * b * xy], 1), torch.cat([a * b * xy.T, b * b * y], 1)])

        return BilinearMixture(
            joint(own.inside, theirs.inside, cross.inside), joint(own.outside, theirs.outside, cross.outside)
        )


@dataclass(frozen=True, slots=True, eq=False)
class BilinearUnits(GramUnits):
    """Gradients ``G_s = D_sᵀX_s`` of a linear map by sequence, kept as their factors ``(n, T, ·)``."""

    ids: Tensor
    inputs: Tensor
    deltas: Tensor
    basis: Tensor
    place: Tensor  # which unit each sequence belongs to
    known: list[Energies] = field(default_factory=list)  # the Gram matrices, once they are known
    shared: Shared = field(default_factory=Shared)  # with the same units under other proxies

    def cross(self, other: BilinearUnits) -> Energies:
        """Inner products of all pairs of ``G_s``."""
        return _grams(self, other)

    def gradients(self, columns: slice = slice(None)) -> Tensor:
        """``G_s`` of some columns of δ, ``(n, E, D)`` in float64; kept for other proxies where they are small."""
        if len(self.ids) * self.deltas.shape[2] * self.inputs.shape[2] > _MOST_KEPT:
            return self._gradients(columns)
        made_of = [self.inputs, self.deltas, self.place]
        return self.shared.once("gradients", made_of, lambda: self._gradients(slice(None)))[:, columns]

    def _gradients(self, columns: slice) -> Tensor:
        n, length, width = self.inputs.shape
        some = self.deltas[:, :, columns]
        g_nED = self.basis.new_zeros(len(self.ids), some.shape[2], width)
        step = max(1, rows_per_chunk(self.inputs) // length)
        for start in range(0, n, step):
            part = slice(start, start + step)
            g_nED.index_add_(0, self.place[part], some[part].double().mT @ self.inputs[part].double())
        return g_nED

    def ordered(self, order: Tensor) -> BilinearUnits:
        """The same units in another order."""
        if bool((order == torch.arange(len(order), device=order.device)).all()):
            return self
        rank = order.argsort().to(self.place.device)  # where each unit goes
        return replace(self, ids=self.ids[order], place=rank[self.place], known=[])

    def lengths(self) -> tuple[Tensor, Tensor]:
        """Lengths ``‖δ‖·‖x‖`` of single tokens, summed by unit: of what is inside and of what is outside."""
        inside = self.basis.new_zeros(len(self.ids))
        outside = inside.clone()
        step = max(1, rows_per_chunk(self.inputs) // self.inputs.shape[1])
        for start in range(0, self.inputs.shape[0], step):
            part = slice(start, start + step)
            x_nTD, size_nT = self.inputs[part].double(), torch.linalg.vector_norm(self.deltas[part].double(), dim=2)
            along_nTD = (x_nTD @ self.basis) @ self.basis.T
            for total, side in ((inside, along_nTD), (outside, x_nTD - along_nTD)):
                total.index_add_(0, self.place[part], (size_nT * torch.linalg.vector_norm(side, dim=2)).sum(1))
        return inside.cpu(), outside.cpu()


def _without_one(gram: Tensor) -> Tensor:
    """Energy of the sum of all gradients but one, for each."""
    return (gram.sum() - 2 * gram.sum(1) + gram.diagonal()).clamp_min(0)


def _grams(a: BilinearUnits, b: BilinearUnits) -> Energies:
    """Inner products of all pairs of ``G_s``: inside, outside, and under the weights of the axes."""
    made_of = [side for units in (a, b) for side in (units.inputs, units.deltas, units.place)]
    whole = a.shared.once("grams", made_of, lambda: _products(a, b, lambda g_nED: g_nED))
    inside = _products(a, b, lambda g_nED: g_nED @ a.basis)
    weights_D = a.basis.square().sum(1).sqrt()
    return Energies.on_host(inside, whole - inside, _products(a, b, lambda g_nED: g_nED * weights_D))


def _products(a: BilinearUnits, b: BilinearUnits, seen: Callable[[Tensor], Tensor]) -> Tensor:
    """Inner products of all pairs, of what is seen of each gradient, some columns of δ at a time."""
    total = torch.zeros(len(a.ids), len(b.ids), dtype=torch.float64, device=a.inputs.device)
    step = max(1, _CHUNK_NUMBERS // ((a.inputs.shape[0] + b.inputs.shape[0]) * a.inputs.shape[2]))
    for start in range(0, a.deltas.shape[2], step):
        columns = slice(start, start + step)
        first = seen(a.gradients(columns)).flatten(1)
        second = first if b is a else seen(b.gradients(columns)).flatten(1)
        total += first @ second.T
    return total


Units = AdditiveUnits | GramUnits


def complete(folds: Sequence[Units | None]) -> list[Units] | None:
    """The units of all folds, None where some have none; units that hold all folds stand alone."""
    known = [units for units in folds if units is not None]
    if known and getattr(known[0], "of_all_folds", False):
        return known[:1]
    return known if len(known) == len(folds) else None


def forget_shared(folds: Sequence[Units] | None) -> None:
    """Let go of what units shared while several proxies were judged on them; they stay usable."""
    for units in folds or ():
        if isinstance(units, GramUnits):
            units.shared.clear()


def totals(folds: Sequence[Units]) -> Energies:
    """Energies over all folds."""
    return reduce(lambda x, y: x + y, (units.total for units in folds))


def left_out(folds: Sequence[Units]) -> Energies:
    """Energies over all folds with one unit left out, for each unit of each fold in turn."""
    whole = [units.total for units in folds]
    parts = []
    for i, units in enumerate(folds):
        others = [total for j, total in enumerate(whole) if j != i]
        parts.append(reduce(lambda x, y: x + y, others, units.left_out()))
    return Energies(*(torch.cat([getattr(part, name) for part in parts]) for name in ("inside", "outside", "axes")))
