"""How many nearest neighbours two clouds of the same tokens share.

Letters: n sequences, T positions, N = n·T tokens, D width, k neighbours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.geometry.cloud import Cloud, as_cloud
from anisoscope.geometry.duplicates import find_duplicates
from anisoscope.geometry.jackknife import FEWEST_GROUPS, with_jackknife
from anisoscope.geometry.neighbours import nearest
from anisoscope.geometry.results import Estimate
from anisoscope.stats.as_tensor import as_tensor

K = 10
DRAWS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapEstimate(Estimate):
    """Share of common neighbours; ``duplicates`` tokens were left out because one of the clouds has them twice.

    ``chance`` is what clouds of independent rows share, ``k/(N − 1)``, or ``k/(N − T)`` without the own sequence.
    """

    k: int = K
    duplicates: int = 0
    chance: float = math.nan

    @property
    def details(self) -> str | None:
        """Tokens that were left out."""
        return f"{self.duplicates} tokens left out as duplicates" if self.duplicates else None


class OverlapSide:
    """One cloud ``(n, T, D)`` and its nearest neighbours among tokens that stay; make it once for many comparisons."""

    def __init__(self, x_nTD: Tensor, keep_N: Tensor, *, k: int = K, across: bool = False) -> None:
        n, length, width = x_nTD.shape
        self.keep, self.k, self.across, self.shape = keep_N.nonzero()[:, 0], k, across, (n, length)
        rows_ND = as_cloud(x_nTD.reshape(-1, width)[self.keep], at_least=k + 2)
        sequence = self.keep // length
        if not across:
            indices = nearest(rows_ND, min(k, len(rows_ND) - 1))[1]
        else:  # at most T − 1 of the nearest are of the own sequence
            indices = nearest(rows_ND, min(k + length - 1, len(rows_ND) - 1))[1]
            own = sequence[indices] == sequence[:, None]
            indices = indices.gather(1, own.to(torch.int8).sort(dim=1, stable=True).indices[:, :k])
        self.neighbours = self.keep[indices]  # numbers of tokens


def neighbourhood_overlap(x: Cloud, y: Cloud, *, k: int = K, across: bool = False, seed: int = 0) -> OverlapEstimate:
    """Mean share of the k nearest neighbours that a token has in both clouds, each ``(n, T, ·)`` of the same tokens.

    Leave first positions out before. A token that is a copy of another in either cloud is left out of both. ``floor``
    is the overlap with the sequences of ``y`` permuted: tokens of one sequence, and of one position, are near to one
    another in every layer. With ``across`` neighbours of the own sequence do not count. The interval is over sequences.

    >>> import torch
    >>> x = torch.randn(20, 10, 6, generator=torch.Generator().manual_seed(0))
    >>> found = neighbourhood_overlap(x, 2 * x + 1)
    >>> found.value, round(found.chance, 3), found.floor < 0.1
    (1.0, 0.05, True)
    """
    x_nTD, y_nTE = (_sequences(cloud) for cloud in (x, y))
    if x_nTD.shape[:2] != y_nTE.shape[:2]:
        shapes = f"{tuple(x_nTD.shape)} and {tuple(y_nTE.shape)}"
        raise broken("both clouds must be of the same tokens", shapes, "align them by token")
    keep_N = distinct(x_nTD) & distinct(y_nTE.to(x_nTD.device))
    if not 1 <= k < int(keep_N.sum()) - x_nTD.shape[1]:
        most = int(keep_N.sum()) - x_nTD.shape[1] - 1
        raise broken(f"k must lie in 1…{most} for the tokens that are left", k, "lower k or pass more sequences")
    sides = [OverlapSide(cloud, keep_N, k=k, across=across) for cloud in (x_nTD, y_nTE)]
    return overlap_of(sides[0], sides[1], seed=seed)


def distinct(x_nTD: Tensor) -> Tensor:
    """Which tokens are no copies of earlier ones, ``(N,)``."""
    rows_ND = as_cloud(x_nTD.reshape(-1, x_nTD.shape[-1]))
    keep_N = torch.zeros(len(rows_ND), dtype=torch.bool, device=rows_ND.device)
    keep_N[find_duplicates(rows_ND).keep] = True
    return keep_N


def overlap_of(x: OverlapSide, y: OverlapSide, *, seed: int = 0) -> OverlapEstimate:
    """The overlap of two sides with the same tokens, with floor and interval."""
    n, length = x.shape
    total = len(x.keep)
    shared_N = _shared(x.neighbours, y.neighbours)
    chance = x.k / (total - length) if x.across else x.k / (total - 1)
    found = OverlapEstimate(
        value=float(shared_N.mean()),
        n=total,
        floor=_permuted(x, y, seed),
        units=float(n),
        k=x.k,
        duplicates=n * length - total,
        chance=chance,
    )
    if n < FEWEST_GROUPS:
        return replace(found, note=f"no interval: {n} sequences, fewer than {FEWEST_GROUPS}")
    sums = shared_N.new_zeros(n).index_add_(0, x.keep // length, shared_N)
    counts = shared_N.new_zeros(n).index_add_(0, x.keep // length, torch.ones_like(shared_N))
    return with_jackknife(found, (shared_N.sum() - sums) / (total - counts))


def _shared(first_Nk: Tensor, second_Nk: Tensor) -> Tensor:
    """Share of neighbours that each token has in both lists."""
    return (first_Nk[:, :, None] == second_Nk[:, None, :]).any(2).double().mean(1)


def _permuted(x: OverlapSide, y: OverlapSide, seed: int) -> float:
    """Mean over draws of the overlap with another sequence's tokens at the same positions.

    Tokens whose counterpart was left out are not counted; of neighbours without a counterpart none can be shared.
    """
    n, length = x.shape
    generator = torch.Generator().manual_seed(seed)
    place_N = torch.full((n * length,), -1, dtype=torch.int64, device=x.keep.device)
    place_N[x.keep] = torch.arange(len(x.keep), device=x.keep.device)
    values = []
    for _ in range(DRAWS):
        dealt = torch.randperm(n, generator=generator, device="cpu").to(x.keep.device)

        def there(tokens: Tensor, dealt: Tensor = dealt) -> Tensor:
            return dealt[tokens // length] * length + tokens % length

        other = place_N[there(x.keep)]
        met = other >= 0
        values.append(float(_shared(there(x.neighbours[met]), y.neighbours[other[met]]).mean()))
    return sum(values) / len(values)


def _sequences(x: Any) -> Tensor:
    found = as_tensor(x).detach()
    if found.ndim != 3:
        raise broken("a cloud must have the shape (n, T, D)", f"shape {tuple(found.shape)}", "pass whole sequences")
    return found
