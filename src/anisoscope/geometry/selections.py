"""Nearest neighbours within several selections of one cloud's rows, by one search over all of them.

Letters: N rows of the cloud, U of them in some selection, S in one selection, k neighbours wanted, m > k found.

Selections that differ by a few rows (all tokens, all but first positions) have nearly the same neighbours. The m
nearest of all rows are found once; of these the rows of a selection are its nearest, in the same order. A point with
fewer than k of them left is searched again within its selection, so that the result is that of a search of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.geometry.cloud import Cloud, as_cloud
from anisoscope.geometry.duplicates import Duplicates, find_duplicates
from anisoscope.geometry.neighbours import Neighbours, nearest, nearest_to, neighbours

_MOST_OTHERS = 0.1  # of the rows may be outside a selection: beyond it too many points would be searched again


def neighbours_of_selections(x: Cloud, selections: Mapping[str, Tensor], k: int = 2) -> dict[str, Neighbours]:
    """For each selection what ``neighbours(x[rows], k)`` gives; ``rows`` are numbers of rows, ascending.

    >>> import torch
    >>> x = torch.tensor([[0.0], [1.0], [3.0], [7.0]])
    >>> found = neighbours_of_selections(x, {"all": torch.arange(4), "some": torch.tensor([0, 2, 3])}, k=1)
    >>> {name: one.distances.flatten().tolist() for name, one in found.items()}
    {'all': [1.0, 1.0, 2.0, 4.0], 'some': [3.0, 3.0, 4.0]}
    """
    x_ND = as_cloud(x)
    if k < 1:
        raise broken("k must be at least 1", k, "ask for one neighbour or more")
    duplicates = {name: find_duplicates(as_cloud(x_ND[rows])) for name, rows in selections.items()}
    kept = {name: rows[duplicates[name].keep] for name, rows in selections.items()}
    every_U = torch.unique(torch.cat(list(kept.values())))
    smallest = min(map(len, kept.values()))
    if len(kept) < 2 or len(every_U) - smallest > _MOST_OTHERS * len(every_U):
        return {name: neighbours(x_ND[rows], k) for name, rows in selections.items()}
    union_UD = x_ND[every_U]
    distances_Um, indices_Um = nearest(union_UD, min(k + 2 + k // 8, len(every_U) - 1))
    return {
        name: _within(union_UD, torch.searchsorted(every_U, rows), distances_Um, indices_Um, k, duplicates[name])
        for name, rows in kept.items()
    }


def _within(
    union_UD: Tensor, rows_S: Tensor, distances_Um: Tensor, indices_Um: Tensor, k: int, duplicates: Duplicates
) -> Neighbours:
    """Neighbours among ``rows_S`` alone, of those among all."""
    size = len(rows_S)
    k = min(k, size - 1)
    number_U = torch.full((len(union_UD),), -1, dtype=torch.int64, device=rows_S.device)
    number_U[rows_S] = torch.arange(size, device=rows_S.device)
    own_Sm = number_U[indices_Um[rows_S]]
    # Sorting is stable: those of the selection come first, by distance as before.
    order_Sk = (own_Sm < 0).to(torch.int8).sort(dim=1, stable=True).indices[:, :k]
    distances_Sk, indices_Sk = distances_Um[rows_S].gather(1, order_Sk), own_Sm.gather(1, order_Sk)
    lacking = (indices_Sk < 0).any(1).nonzero()[:, 0] if k else rows_S[:0]
    if len(lacking):
        distances_Sk[lacking], indices_Sk[lacking] = nearest_to(union_UD[rows_S], lacking, k)
    return Neighbours(distances_Sk, indices_Sk, duplicates.keep, duplicates.exact, duplicates.near)
