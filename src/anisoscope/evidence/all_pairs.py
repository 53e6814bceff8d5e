"""The pairing null from the products of all pairs of sequences: what few long sequences are cheapest by.

Letters: n sequences, T positions, C columns (K inside the proxy, then D outside), E columns of δ, R permutations.

Every permutation is a sum of n of the n² products ``P_st = D_tᵀ X_s``, so these are made once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

_MOST_NUMBERS = 1 << 26


def few_enough(sequences: int, columns: int, width: int) -> bool:
    """Whether all products fit into memory comfortably."""
    return sequences * sequences * columns * width <= _MOST_NUMBERS


@dataclass(frozen=True, slots=True, eq=False)
class AllPairs:
    """Products of all pairs, ``(n, n, E, C)``; the first ``rank`` columns are inside the proxy."""

    products: Tensor
    rank: int

    @classmethod
    def of(cls, x_nTC: Tensor, rank: int, met: Callable[[int], Tensor]) -> AllPairs:
        """``met(s)`` are the rows of δ, ``(n, T, E)``, that the positions of ``s`` meet in each sequence."""
        rows = []
        for s in range(x_nTC.shape[0]):
            met_nTE = met(s)
            n, length, columns = met_nTE.shape
            stacked = met_nTE.permute(0, 2, 1).reshape(n * columns, length)
            rows.append((stacked @ x_nTC[s]).reshape(n, columns, -1))
        return cls(torch.stack(rows), rank)

    def drawn(self, pi_Rn: Tensor) -> tuple[Tensor, Tensor]:
        """Energies inside and outside of each permutation."""
        n = self.products.shape[0]
        index_Rn = torch.arange(n, device=pi_Rn.device) * n + pi_Rn
        sums = embedding_bag(index_Rn, self.products.reshape(n * n, -1), mode="sum")
        return self._energies(sums.reshape(len(pi_Rn), *self.products.shape[2:]), (-2, -1))

    def mean(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor] | None]:
        """Mean energies over all permutations in closed form, and the same with each sequence left out."""
        p, n = self.products, self.products.shape[0]
        rows, columns = p.sum(1), p.sum(0)
        squares_nn = self._energies(p, (-2, -1))
        size = (-3, -2, -1)
        whole = _expected(
            n,
            tuple(part.sum() for part in squares_nn),
            self._energies(rows.sum(0), (-2, -1)),
            self._energies(rows, size),
            self._energies(columns, size),
        )
        if n < 3:
            return whole, None
        lost = []
        for u in range(n):
            others = torch.arange(n, device=p.device) != u
            lost.append(
                _expected(
                    n - 1,
                    tuple(part[others][:, others].sum() for part in squares_nn),
                    self._energies(rows.sum(0) - rows[u] - columns[u] + p[u, u], (-2, -1)),
                    self._energies((rows - p[:, u])[others], size),
                    self._energies((columns - p[u])[others], size),
                )
            )
        inside, outside = (torch.stack(parts) for parts in zip(*lost, strict=True))
        return whole, (inside, outside)

    def left_out_by_closing(self, pi_Rn: Tensor) -> tuple[Tensor, Tensor]:
        """Mean energies without each sequence: every permutation is closed over the gap (s is skipped in its cycle)."""
        n = self.products.shape[0]
        total = torch.zeros(2, n, dtype=torch.float64, device=self.products.device)
        own = torch.arange(n, device=pi_Rn.device)
        for pi in pi_Rn:
            back = pi.argsort()
            terms, closing = self.products[own, pi], self.products[back, pi]
            fixed = (pi == own)[:, None, None]
            left = terms.sum(0) - terms - torch.where(fixed, 0.0, terms[back] - closing)
            total += torch.stack(self._energies(left, (-2, -1)))
        total /= len(pi_Rn)
        return total[0], total[1]

    def _energies(self, sums: Tensor, over: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        squares = sums.double().square()
        return squares[..., : self.rank].sum(over), squares[..., self.rank :].sum(over)


def _expected(
    n: int,
    squares: tuple[Tensor, ...],
    whole: tuple[Tensor, ...],
    rows: tuple[Tensor, ...],
    columns: tuple[Tensor, ...],
) -> tuple[Tensor, Tensor]:
    """``E‖Σ_s P_sπ(s)‖²``: equal s and t meet once in n, different ones once in n(n − 1)."""
    inside, outside = (
        a / n + (t - r - c + a) / (n * (n - 1)) for a, t, r, c in zip(squares, whole, rows, columns, strict=True)
    )
    return inside, outside
