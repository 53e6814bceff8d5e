"""Energies of all ways to pair sequences within classes, from the products of all pairs.

Letters: n sequences of a class, T positions, C columns of x, E columns of δ, R permutations, m units.

Every pairing is a sum over classes of n of the n² products ``P_st = D_tᵀ X_s``. Energies add over the columns of δ, so
the products are made for a few columns at a time. The energy of all D columns is the same whatever the proxy is, and is
computed once for all proxies (``whole``); what is inside a proxy needs its K columns ``X Q`` alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from anisoscope.evidence.random_tables import permutations

_MOST_NUMBERS = 1 << 25


@dataclass(frozen=True, slots=True, eq=False)
class Class:
    """Sequences that may be exchanged: which they are, their inputs ``(n, T, C)`` and error signals ``(n, T, E)``."""

    members: Tensor
    inputs: Tensor
    deltas: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Energy:
    """Energy inside and outside the proxy, of one gradient or of several."""

    inside: Tensor
    outside: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class PairingNull:
    """Mean energies under permutation, and the draws behind p.

    Where sequences were permuted there is also the ``observed`` energy of what was kept of them; ``lost`` and
    ``observed_lost`` are both with one unit left out, for each unit; ``sizes`` is each unit's own gradient energy.
    ``dropped`` sequences were in classes too small to permute. There are ``arrangements`` ways to permute the others.
    """

    inside: float
    outside: float
    draws: tuple[Tensor, Tensor] | None = None
    observed: Energy | None = None
    lost: Energy | None = None
    observed_lost: Energy | None = None
    sizes: Tensor = field(default_factory=lambda: torch.zeros(0, device="cpu"))
    dropped: int = 0
    arrangements: float = math.inf

    @property
    def share(self) -> float:
        """Mean share: the ratio of the means; NaN if nothing met anything."""
        total = self.inside + self.outside
        return self.inside / total if total > 0 else math.nan


@dataclass(frozen=True, slots=True, eq=False)
class Lengths:
    """Squared lengths of the gradient.

    ``observed``: as it is, ``mean``: over all permutations; ``observed_lost`` and ``lost``: both without each unit
    ``(m,)``; ``sizes``: of each unit by itself ``(m,)``; ``drawn``: of each permutation drawn ``(R,)``.
    """

    observed: Tensor
    mean: Tensor
    observed_lost: Tensor
    lost: Tensor
    sizes: Tensor
    drawn: Tensor

    def __add__(self, other: Lengths) -> Lengths:
        return Lengths(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True, slots=True, eq=False)
class PairedSequences:
    """Sequences in their classes, the unit of each, and the permutations that they are put through."""

    classes: Sequence[Class]
    units: Tensor  # of each sequence
    draws: int
    seed: int
    dropped: int
    known: list[Lengths] = field(default_factory=list)  # lengths of the whole gradient, once they are known

    def null(self, basis_DK: Tensor) -> PairingNull:
        """Observed and mean energies of a proxy, with each unit left out, and draws, over all classes together."""
        if not self.classes:
            return PairingNull(0.0, 0.0, dropped=self.dropped)
        basis = basis_DK.double()
        whole, inside = self.whole(), self._lengths([c.inputs.double() @ basis for c in self.classes])
        outside = Lengths(*((getattr(whole, f.name) - getattr(inside, f.name)).clamp_min(0) for f in fields(Lengths)))
        return PairingNull(
            float(inside.mean),
            float(outside.mean),
            (inside.drawn, outside.drawn) if self.draws else None,
            Energy(inside.observed, outside.observed),
            Energy(inside.lost, outside.lost),
            Energy(inside.observed_lost, outside.observed_lost),
            whole.sizes,
            self.dropped,
            math.prod(float(math.factorial(len(c.members))) for c in self.classes),
        )

    def whole(self) -> Lengths:
        """Of all columns, computed once."""
        if not self.known:
            self.known.append(self._lengths([c.inputs.double() for c in self.classes]))
        return self.known[0]

    def _lengths(self, inputs: Sequence[Tensor]) -> Lengths:
        kept, unit_n = torch.unique(self.units[torch.cat([c.members for c in self.classes])], return_inverse=True)
        sizes = [len(c.members) for c in self.classes]
        units = unit_n.split(sizes)
        pi = [
            permutations(n, self.draws, self.seed + 7919 * number, self.units.device)
            for number, n in enumerate(sizes)
            if self.draws
        ]
        step = max(1, _MOST_NUMBERS // (max(sizes) ** 2 * inputs[0].shape[2]))
        total: Lengths | None = None
        for start in range(0, self.classes[0].deltas.shape[2], step):
            some = slice(start, start + step)
            made = [
                _Products.of(x, c.deltas[:, :, some], unit)
                for x, c, unit in zip(inputs, self.classes, units, strict=True)
            ]
            part = _lengths(made, pi, len(kept))
            total = part if total is None else total + part
        assert total is not None, "there is at least one column"
        return total


@dataclass(frozen=True, slots=True, eq=False)
class _Products:
    """Products of all pairs of a class ``(n, n, E, C)``, x first, and the unit of each sequence (its number)."""

    pairs: Tensor
    unit: Tensor

    @classmethod
    def of(cls, x_nTC: Tensor, d_nTE: Tensor, unit_n: Tensor) -> _Products:
        n, length, width = d_nTE.shape
        stacked = d_nTE.double().permute(0, 2, 1).reshape(n * width, length)
        return cls(torch.stack([(stacked @ x).reshape(n, width, -1) for x in x_nTC]), unit_n)

    @property
    def n(self) -> int:
        return self.pairs.shape[0]

    def beyond(self) -> tuple[Tensor, Tensor]:
        """Mean gradient ``(E, C)``, and by how much the mean energy exceeds that of the mean."""
        pairs = self.pairs
        total = pairs.sum((0, 1))
        beyond = _excess(
            _square(total), _square(pairs.sum(1)).sum(), _square(pairs.sum(0)).sum(), _square(pairs).sum(), self.n
        )
        return total / self.n, beyond

    def without_each(self) -> tuple[Tensor, Tensor, Tensor]:
        """The same without each unit that is in this class: the units, means ``(u, E, C)``, excesses ``(u,)``."""
        pairs, squares = self.pairs, _square(self.pairs)
        units, place = torch.unique(self.unit, return_inverse=True)
        gone_un = torch.nn.functional.one_hot(place, len(units)).T.to(pairs.dtype)
        alone = len(units) == self.n
        if alone:  # each sequence is a unit: no sums to make
            order = place.argsort()
            met_nu, meets_un = pairs[:, order], pairs[order]
        else:
            met_nu, meets_un = (
                torch.einsum("stec,ut->suec", pairs, gone_un),
                torch.einsum("stec,us->utec", pairs, gone_un),
            )
        rows, columns = pairs.sum(1), pairs.sum(0)
        own_u = torch.einsum("suec,us->uec", met_nu, gone_un)
        total_u = rows.sum(0) - met_nu.sum(0) - meets_un.sum(1) + own_u
        stay_un = 1 - gone_un
        rows_u = (_square(rows[:, None] - met_nu).T * stay_un).sum(1)
        columns_u = (_square(columns[None] - meets_un) * stay_un).sum(1)
        among_u = ((stay_un @ squares) * stay_un).sum(1)
        n_u = stay_un.sum(1)
        beyond = _excess(_square(total_u), rows_u, columns_u, among_u, n_u)
        return units, total_u / n_u.clamp_min(1)[:, None, None], beyond


def _excess(total: Tensor, rows: Tensor, columns: Tensor, squares: Tensor, n: Tensor | int) -> Tensor:
    """``E‖Σ_s P_sπ(s)‖² − ‖E Σ_s P_sπ(s)‖²``: equal s and t meet once in n, different ones once in n(n − 1)."""
    count = torch.as_tensor(n, dtype=total.dtype, device=total.device)
    several = count.clamp_min(2)
    expected = squares / several + (total - rows - columns + squares) / (several * (several - 1))
    return torch.where(count < 2, torch.zeros_like(total), expected - total / several.square())


def _square(gradient: Tensor) -> Tensor:
    return gradient.square().sum((-2, -1))


def _lengths(classes: Sequence[_Products], pi: Sequence[Tensor], units: int) -> Lengths:
    own_m = classes[0].pairs.new_zeros(units, *classes[0].pairs.shape[2:])
    for c in classes:
        own_m.index_add_(0, c.unit, c.pairs.diagonal(dim1=0, dim2=1).permute(2, 0, 1))
    gradient = own_m.sum(0)
    whole = [c.beyond() for c in classes]
    # Classes are permuted independently: their means add as gradients, what is beyond them as energies.
    mean, beyond = torch.stack([m for m, _ in whole]).sum(0), torch.stack([b for _, b in whole]).sum()
    mean_m, beyond_m = mean.expand(units, *mean.shape).clone(), beyond.expand(units).clone()
    for c, (own_mean, own_beyond) in zip(classes, whole, strict=True):
        present, means, beyonds = c.without_each()
        mean_m[present] += means - own_mean
        beyond_m[present] += beyonds - own_beyond
    drawn = gradient.new_zeros(len(pi[0]) if pi else 0)
    if pi:
        sums = None
        for c, pi_Rn in zip(classes, pi, strict=True):
            index_Rn = torch.arange(c.n, device=pi_Rn.device) * c.n + pi_Rn
            # In float32: rounding is far below the scatter over draws.
            part = embedding_bag(index_Rn, c.pairs.float().reshape(c.n * c.n, -1), mode="sum")
            sums = part if sums is None else sums + part
        assert sums is not None, "there is at least one class"
        drawn = torch.linalg.vector_norm(sums, dim=1, dtype=torch.float64).square()
    found = (
        _square(gradient),
        _square(mean) + beyond,
        _square(gradient - own_m),
        _square(mean_m) + beyond_m,
        _square(own_m),
        drawn,
    )
    return Lengths(*(part.cpu() for part in found))
