"""Energies of all ways to pair sequences within classes, from the products of all pairs.

Letters: n sequences of a class, T positions, C columns (K inside the proxy, then D outside), E columns of δ, R
permutations, m units.

Every pairing is a sum over classes of n of the n² products ``P_st = D_tᵀ X_s``. Energies add over the columns of δ, so
the products are made for a few columns at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from anisoscope.evidence.tables import permutations

_MOST_NUMBERS = 1 << 25


@dataclass(frozen=True, slots=True, eq=False)
class Class:
    """Sequences that may be exchanged: which they are, their inputs ``(n, T, D)`` and error signals ``(n, T, E)``."""

    members: Tensor
    inputs: Tensor
    deltas: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Energy:
    """Energy inside and outside the proxy, of one gradient or of several."""

    inside: Tensor
    outside: Tensor

    @classmethod
    def of(cls, gradient: Tensor, rank: int) -> Energy:
        """Of gradients ``(…, E, C)``."""
        squares = gradient.double().square()
        return cls(squares[..., :rank].sum((-2, -1)), squares[..., rank:].sum((-2, -1)))

    def __add__(self, other: Energy) -> Energy:
        return Energy(self.inside + other.inside, self.outside + other.outside)

    def __sub__(self, other: Energy) -> Energy:
        return Energy(self.inside - other.inside, self.outside - other.outside)

    def over(self, divisor: float) -> Energy:
        """Divided by a number."""
        return Energy(self.inside / divisor, self.outside / divisor)

    def sum(self) -> Energy:
        """Of all together."""
        return Energy(self.inside.sum(), self.outside.sum())


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


def paired_energies(
    classes: Sequence[Class], units_n: Tensor, basis_DK: Tensor, *, draws: int, seed: int, dropped: int
) -> PairingNull:
    """Observed and mean energies, with each unit left out, and draws, over all classes together."""
    if not classes:
        return PairingNull(0.0, 0.0, dropped=dropped)
    kept = torch.unique(units_n[torch.cat([c.members for c in classes])])
    columns = classes[0].deltas.shape[2]
    largest = max(len(c.members) for c in classes)
    step = max(1, _MOST_NUMBERS // (largest * largest * sum(basis_DK.shape)))
    pi = [
        permutations(len(c.members), draws, seed + 7919 * number).to(units_n.device)
        for number, c in enumerate(classes)
        if draws
    ]
    chunks = [slice(start, start + step) for start in range(0, columns, step)]
    total: _Sums | None = None
    for chunk in chunks:
        part = _Columns.of(classes, units_n, kept, basis_DK, chunk)
        lost, observed_lost = part.left_out()
        drawn = part.drawn(pi) if draws else None
        sums = _Sums(part.mean(), part.observed(), lost, observed_lost, part.sizes(), drawn)
        total = sums if total is None else total.plus(sums)
    assert total is not None, "there is at least one column"
    drawn = total.drawn
    return PairingNull(
        float(total.mean.inside),
        float(total.mean.outside),
        None if drawn is None else (drawn.inside, drawn.outside),
        total.observed,
        total.lost,
        total.observed_lost,
        total.sizes,
        dropped,
        math.prod(float(math.factorial(len(c.members))) for c in classes),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Sums:
    """What adds up over the columns of δ."""

    mean: Energy
    observed: Energy
    lost: Energy
    observed_lost: Energy
    sizes: Tensor
    drawn: Energy | None

    def plus(self, other: _Sums) -> _Sums:
        drawn = None if self.drawn is None or other.drawn is None else self.drawn + other.drawn
        return _Sums(
            self.mean + other.mean,
            self.observed + other.observed,
            self.lost + other.lost,
            self.observed_lost + other.observed_lost,
            self.sizes + other.sizes,
            drawn,
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Products:
    """Products of all pairs of a class ``(n, n, E, C)`` with their sums, and the unit of each sequence (its number)."""

    pairs: Tensor
    unit: Tensor
    rank: int
    rows: Tensor
    columns: Tensor
    squares: Energy

    @property
    def n(self) -> int:
        return self.pairs.shape[0]

    def expected(self, total: Tensor, rows: Energy, columns: Energy, squares: Energy, n: int) -> Energy:
        """``E‖Σ_s P_sπ(s)‖²``: equal s and t meet once in n, different ones once in n(n − 1)."""
        whole = Energy.of(total, self.rank)
        if n < 2:
            return whole
        return squares.over(n) + (whole - rows - columns + squares).over(n * (n - 1))


@dataclass(frozen=True, slots=True, eq=False)
class _Columns:
    """All classes, for some columns of δ."""

    classes: tuple[_Products, ...]
    units: int
    rank: int

    @classmethod
    def of(cls, classes: Sequence[Class], units_n: Tensor, kept: Tensor, basis_DK: Tensor, columns: slice) -> _Columns:
        made = []
        for c in classes:
            inside = c.inputs @ basis_DK
            x_nTC = torch.cat([inside, c.inputs - inside @ basis_DK.T], 2)
            d_nTE = c.deltas[:, :, columns]
            n, length, width = d_nTE.shape
            stacked = d_nTE.permute(0, 2, 1).reshape(n * width, length)
            pairs = torch.stack([(stacked @ x).reshape(n, width, -1) for x in x_nTC])
            unit, rank = torch.searchsorted(kept, units_n[c.members]), basis_DK.shape[1]
            made.append(_Products(pairs, unit, rank, pairs.sum(1), pairs.sum(0), Energy.of(pairs, rank)))
        return cls(tuple(made), len(kept), basis_DK.shape[1])

    def observed(self) -> Energy:
        """Of the gradient as it is."""
        return Energy.of(self._own().sum(0), self.rank)

    def _own(self) -> Tensor:
        """Gradient of each unit ``(m, E, C)``."""
        first = self.classes[0].pairs
        own = first.new_zeros(self.units, *first.shape[2:])
        for c in self.classes:
            own.index_add_(0, c.unit, c.pairs.diagonal(dim1=0, dim2=1).permute(2, 0, 1))
        return own

    def sizes(self) -> Tensor:
        """Energy of the gradient of each unit by itself."""
        own = Energy.of(self._own(), self.rank)
        return own.inside + own.outside

    def drawn(self, pi: Sequence[Tensor]) -> Energy:
        """Of each permutation."""
        total = None
        for c, pi_Rn in zip(self.classes, pi, strict=True):
            index_Rn = torch.arange(c.n, device=pi_Rn.device) * c.n + pi_Rn
            sums = embedding_bag(index_Rn, c.pairs.reshape(c.n * c.n, -1), mode="sum")
            sums = sums.reshape(len(pi_Rn), *c.pairs.shape[2:])
            total = sums if total is None else total + sums
        assert total is not None, "there is at least one class"
        return Energy.of(total, self.rank)

    def mean(self) -> Energy:
        """Over all permutations."""
        return self._mean([self._parts(c, None) for c in self.classes])

    def left_out(self) -> tuple[Energy, Energy]:
        """Mean and observed energy without each unit."""
        whole = [self._parts(c, None) for c in self.classes]
        own = self._own()
        observed = Energy.of(own.sum(0) - own, self.rank)
        means = []
        for unit in range(self.units):
            parts = [
                self._parts(c, gone) if bool((gone := c.unit == unit).any()) else all_of_it
                for c, all_of_it in zip(self.classes, whole, strict=True)
            ]
            means.append(self._mean(parts))
        inside, outside = (torch.stack([getattr(mean, name) for mean in means]) for name in ("inside", "outside"))
        return Energy(inside, outside), observed

    def _parts(self, c: _Products, gone: Tensor | None) -> tuple[Tensor, Energy]:
        """Mean gradient of a class, and the mean energy of its gradient beyond that of the mean."""
        pairs, rank = c.pairs, c.rank
        rows, columns, squares = c.rows, c.columns, c.squares
        if gone is None:
            n, total = c.n, rows.sum(0)
            sums = Energy.of(rows, rank).sum(), Energy.of(columns, rank).sum(), squares.sum()
        else:
            stay = ~gone
            n = int(stay.sum())
            if n == 0:
                return torch.zeros_like(rows[0]), Energy(squares.inside.new_zeros(()), squares.inside.new_zeros(()))
            rows = (rows - pairs[:, gone].sum(1))[stay]
            columns = (columns - pairs[gone].sum(0))[stay]
            total = rows.sum(0)
            among = Energy(squares.inside[stay][:, stay].sum(), squares.outside[stay][:, stay].sum())
            sums = Energy.of(rows, rank).sum(), Energy.of(columns, rank).sum(), among
        mean = total / n
        return mean, c.expected(total, *sums, n) - Energy.of(mean, rank)

    def _mean(self, parts: Sequence[tuple[Tensor, Energy]]) -> Energy:
        """Classes are permuted independently: their means add as gradients, what is beyond them as energies."""
        found = Energy.of(torch.stack([mean for mean, _ in parts]).sum(0), self.rank)
        for _, beyond in parts:
            found = found + beyond
        return found
