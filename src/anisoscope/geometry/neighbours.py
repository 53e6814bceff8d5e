"""Exact nearest neighbours of every row, in blocks, on any device.

Letters: N rows, D width, k neighbours wanted, m > k candidates kept, I and J blocks of rows.

Candidates come from the expanded form ``‖x‖² + ‖y‖² − 2x·y`` of the centred cloud in float32, each pair multiplied once
for both its rows. That form cancels, so candidates are measured again by direct difference in float64, and each row
then carries a proof: no row left out can be nearer than the k-th found, given the largest error the expanded form can
have. Rows without the proof (tight clusters far from the centre) are searched again in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.geometry.cloud import Cloud, as_cloud
from anisoscope.geometry.duplicates import column_means, find_duplicates

BLOCK_ROWS = 2048
_GROUP = 64  # divides BLOCK_ROWS
_SLACK = 4
_MANY_ROWS = 256  # from here on candidates in float32 are worth their check
_CHUNK_NUMBERS = 1 << 19
_NEAR_LIMIT = 0.2


@dataclass(frozen=True, slots=True, eq=False)
class Neighbours:
    """Distances (float64, ascending) and indices of the k nearest other points of each distinct point.

    ``rows`` are the numbers of the distinct rows in the cloud they came from; ``indices`` point into ``rows``.
    """

    distances: Tensor
    indices: Tensor
    rows: Tensor
    exact_duplicates: int
    near_duplicates: int

    @property
    def n(self) -> int:
        """Distinct points."""
        return self.rows.shape[0]

    @property
    def problem(self) -> str | None:
        """Why no dimension should be read off these neighbours, if so."""
        total = self.n + self.exact_duplicates + self.near_duplicates
        few = f"only {self.n} distinct rows are left after {total - self.n} duplicates" if self.n < 3 else None
        return copies_problem(self.near_duplicates, total) or few


def copies_problem(near: int, total: int) -> str | None:
    """Why nothing local should be read off rows of which ``near`` are near copies of others, if so."""
    if near <= _NEAR_LIMIT * total:
        return None
    return (
        f"{near} of {total} rows are near copies of others (more than {_NEAR_LIMIT:.0%}): "
        "what is left depends on rounding"
    )


def neighbours(x: Cloud, k: int = 2) -> Neighbours:
    """The k nearest neighbours among the distinct rows of ``x``, exact up to float64 rounding.

    Share one result between measures: ``two_nn``, ``levina_bickel`` and ``gride`` take it in place of the rows.

    >>> import torch
    >>> found = neighbours(torch.tensor([[0.0], [1.0], [3.0], [3.0]]), k=1)
    >>> found.distances.flatten().tolist(), found.exact_duplicates
    ([1.0, 1.0, 2.0], 1)
    """
    x_ND = as_cloud(x)
    if k < 1:
        raise broken("k must be at least 1", k, "ask for one neighbour or more")
    duplicates = find_duplicates(x_ND)
    distinct_ND = x_ND if duplicates.exact + duplicates.near == 0 else x_ND[duplicates.keep]
    distances, indices = nearest(distinct_ND, min(k, distinct_ND.shape[0] - 1))
    return Neighbours(distances, indices, duplicates.keep, duplicates.exact, duplicates.near)


def nearest(x_ND: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Distances and indices of the k nearest other rows; rows at distance 0 count as neighbours."""
    n = x_ND.shape[0]
    if k == 0:
        return x_ND.new_empty(n, 0, dtype=torch.float64), x_ND.new_empty(n, 0, dtype=torch.int64)
    m = min(k + _SLACK, n - 1)
    mean_D = column_means(x_ND)
    scale = _power_of_two(x_ND, mean_D)
    y_ND = _centred(x_ND, mean_D, scale)
    bound_Nm, candidates_Nm = _candidates(y_ND, n, m)
    distances_Nk, indices_Nk = _measured(x_ND, torch.arange(n, device=x_ND.device), candidates_Nm, k)
    if m < n - 1:
        norms_N = torch.linalg.vector_norm(y_ND[:n], dim=1).double()
        unsure = _unproven(scale * distances_Nk[:, -1], bound_Nm[:, -1].double(), norms_N, _error(y_ND))
        del y_ND
        for rows in unsure.split(BLOCK_ROWS):
            again_Rm = _candidates_in_double(x_ND, mean_D, rows, m)
            distances_Nk[rows], indices_Nk[rows] = _measured(x_ND, rows, again_Rm, k)
    return distances_Nk, indices_Nk


def neighbours_of_first(x_ND: Tensor, points: int, k: int) -> Neighbours:
    """The k nearest neighbours of the first rows among all; no two rows may be equal.

    Distances are those among all rows. A neighbour that is not among the first has no number of its own here: in
    ``indices`` the point itself stands for it.
    """
    rows_P = torch.arange(min(points, x_ND.shape[0]), device=x_ND.device)
    distances, indices = nearest_to(x_ND, rows_P, min(k, x_ND.shape[0] - 1))
    return Neighbours(distances, torch.where(indices < len(rows_P), indices, rows_P[:, None]), rows_P, 0, 0)


def nearest_to(x_ND: Tensor, rows_P: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k nearest other rows of some rows only: ``O(PND)``, for measures that judge a sample of the points."""
    n, mean_D = x_ND.shape[0], column_means(x_ND)
    if len(rows_P) >= _MANY_ROWS and k + _SLACK < n - 1:
        return _nearest_to_many(x_ND, mean_D, rows_P, k)
    found = []
    for rows in rows_P.split(BLOCK_ROWS):
        candidates_Rm = _candidates_in_double(x_ND, mean_D, rows, min(k + _SLACK, n - 1))
        found.append(_measured(x_ND, rows, candidates_Rm, k))
    return torch.cat([distances for distances, _ in found]), torch.cat([indices for _, indices in found])


def _nearest_to_many(x_ND: Tensor, mean_D: Tensor, rows_P: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """By candidates in float32, as all rows against all are; whatever they leave in doubt is searched in float64."""
    n, m = x_ND.shape[0], k + _SLACK
    scale = _power_of_two(x_ND, mean_D)
    y_ND = _centred(x_ND, mean_D, scale)
    squares_N = (y_ND * y_ND).sum(1)
    squares_N[n:] = math.inf
    best = _Best.none(len(rows_P), m, y_ND)
    for part in _blocks(len(rows_P)):
        rows_R = rows_P[part]
        for others in _blocks(y_ND.shape[0]):
            tile_RJ = torch.addmm(squares_N[others], y_ND[rows_R], y_ND[others].T, alpha=-2)
            tile_RJ += squares_N[rows_R, None]
            own_R = rows_R - others.start
            inside = ((own_R >= 0) & (own_R < tile_RJ.shape[1])).nonzero()[:, 0]
            tile_RJ[inside, own_R[inside]] = math.inf
            best.absorb(part, tile_RJ, others.start, transposed=False)
    distances, indices = _measured(x_ND, rows_P, best.indices, k)
    norms_P = torch.linalg.vector_norm(y_ND[rows_P], dim=1).double()
    unsure = _unproven(scale * distances[:, -1], best.values[:, -1].double(), norms_P, _error(y_ND))
    for some in unsure.split(BLOCK_ROWS):
        again = _candidates_in_double(x_ND, mean_D, rows_P[some], m)
        distances[some], indices[some] = _measured(x_ND, rows_P[some], again, k)
    return distances, indices


def _blocks(n: int, first: int = 0) -> Iterator[slice]:
    for start in range(first, n, BLOCK_ROWS):
        yield slice(start, min(start + BLOCK_ROWS, n))


def _power_of_two(x_ND: Tensor, mean_D: Tensor) -> float:
    """A scale that brings the cloud near 1, so that no square leaves the range of float32; exact to multiply by."""
    largest = max(float((x_ND[rows].double() - mean_D).abs().max()) for rows in _blocks(x_ND.shape[0]))
    return 2.0 ** -math.frexp(largest)[1] if largest > 0 else 1.0


def _centred(x_ND: Tensor, mean_D: Tensor, scale: float) -> Tensor:
    """The one copy of the cloud: centred in float64, kept in float32, filled up with zero rows to whole groups."""
    n, width = x_ND.shape
    y_ND = torch.zeros(n + -n % _GROUP, width, dtype=torch.float32, device=x_ND.device)
    for rows in _blocks(n):
        y_ND[rows] = (x_ND[rows].double() - mean_D) * scale
    return y_ND


def _candidates(y_ND: Tensor, n: int, m: int) -> tuple[Tensor, Tensor]:
    """Squared distances (expanded form) and indices of the m nearest of the first n rows."""
    squares_N = torch.cat([(part * part).sum(1) for part in y_ND.split(BLOCK_ROWS)])
    squares_N[n:] = math.inf  # the rows that fill the last group are nobody's neighbours
    best = _Best.none(y_ND.shape[0], m, y_ND)
    for rows in _blocks(y_ND.shape[0]):
        for others in _blocks(y_ND.shape[0], rows.start):
            tile_IJ = torch.addmm(squares_N[others], y_ND[rows], y_ND[others].T, alpha=-2)
            tile_IJ += squares_N[rows, None]
            if rows == others:
                tile_IJ.fill_diagonal_(math.inf)
            best.absorb(rows, tile_IJ, others.start, transposed=False)
            if rows != others:
                best.absorb(others, tile_IJ, rows.start, transposed=True)
    return best.values[:n], best.indices[:n]


def _candidates_in_double(x_ND: Tensor, mean_D: Tensor, rows_R: Tensor, m: int) -> Tensor:
    y_RD = x_ND[rows_R].double() - mean_D
    squares_R = y_RD.square().sum(1)
    best = _Best.none(rows_R.shape[0], m, y_RD)
    for others in _blocks(x_ND.shape[0]):
        y_JD = x_ND[others].double() - mean_D
        tile_RJ = squares_R[:, None] + y_JD.square().sum(1) - 2 * (y_RD @ y_JD.T)
        own_R = rows_R - others.start
        inside = ((own_R >= 0) & (own_R < y_JD.shape[0])).nonzero()[:, 0]
        tile_RJ[inside, own_R[inside]] = math.inf
        best.keep(slice(0, rows_R.shape[0]), *_smallest(tile_RJ, m, others.start))
    return best.indices


@dataclass(slots=True, eq=False)
class _Best:
    """The m smallest values seen so far for each row, ascending, and whose they are."""

    values: Tensor
    indices: Tensor

    @classmethod
    def none(cls, n: int, m: int, like: Tensor) -> _Best:
        return cls(like.new_full((n, m), math.inf), torch.full((n, m), -1, dtype=torch.int64, device=like.device))

    def absorb(self, rows: slice, tile: Tensor, first: int, *, transposed: bool) -> None:
        """Take a tile into account for ``rows``, which are its rows (its columns if ``transposed``).

        After the first blocks few entries beat the worst value held. Minima over groups of columns, which cost next to
        nothing, say where those are; sorting or searching whole tiles costs as much as multiplying them.
        """
        limit_R = self.values[rows, -1]
        if transposed:
            grouped = tile.view(tile.shape[0] // _GROUP, _GROUP, tile.shape[1])
            row_H, group_H = (limit_R[:, None] > grouped.amin(1).T).nonzero().unbind(1)
        else:
            grouped = tile.view(tile.shape[0], tile.shape[1] // _GROUP, _GROUP)
            row_H, group_H = (grouped.amin(2) < limit_R[:, None]).nonzero().unbind(1)
        if row_H.shape[0] == 0:
            return
        if row_H.shape[0] * _GROUP > tile.numel() // 4:
            tile_RJ = tile.T.contiguous() if transposed else tile
            self.keep(rows, *_smallest(tile_RJ, self.values.shape[1], first))
            return
        hits_HG = grouped[group_H, :, row_H] if transposed else grouped[row_H, group_H]
        hit, place = (hits_HG < limit_R[row_H, None]).nonzero().unbind(1)
        column = group_H[hit] * _GROUP + place + first
        self.keep(rows, *_packed(row_H[hit], column, hits_HG[hit, place], limit_R.shape[0]))

    def keep(self, rows: slice, values_RH: Tensor, indices_RH: Tensor) -> None:
        """Keep the smallest of what is held and what is new."""
        values = torch.cat([self.values[rows], values_RH], 1)
        indices = torch.cat([self.indices[rows], indices_RH], 1)
        self.values[rows], order = torch.topk(values, self.values.shape[1], largest=False, sorted=True)
        self.indices[rows] = indices.gather(1, order)


def _smallest(tile_RJ: Tensor, m: int, first: int) -> tuple[Tensor, Tensor]:
    values, columns = torch.topk(tile_RJ, min(m, tile_RJ.shape[1]), largest=False)
    return values, columns + first


def _packed(row_H: Tensor, column_H: Tensor, value_H: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Pack scattered hits, rows ascending, to the left of a narrow table padded with infinity."""
    per_row = torch.bincount(row_H, minlength=rows)
    start_R = per_row.cumsum(0) - per_row
    place_H = torch.arange(row_H.shape[0], device=row_H.device) - start_R[row_H]
    values = value_H.new_full((rows, int(per_row.max())), math.inf)
    indices = torch.full(values.shape, -1, dtype=torch.int64, device=value_H.device)
    values[row_H, place_H] = value_H
    indices[row_H, place_H] = column_H
    return values, indices


def _measured(x_ND: Tensor, rows_R: Tensor, candidates_Rm: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k nearest of the candidates by direct difference in float64; ties go to the lower index."""
    # Results are written in place: kept between the temporaries they would pin the heap, which then grows by gigabytes.
    distances_Rk = torch.empty(len(rows_R), k, dtype=torch.float64, device=x_ND.device)
    indices_Rk = torch.empty(len(rows_R), k, dtype=torch.int64, device=x_ND.device)
    step = max(1, _CHUNK_NUMBERS // (candidates_Rm.shape[1] * x_ND.shape[1]))
    for start in range(0, len(rows_R), step):
        part = slice(start, start + step)
        candidates = candidates_Rm[part].sort(1).values
        difference = x_ND[candidates].double() - x_ND[rows_R[part]].double()[:, None]
        order = torch.linalg.vector_norm(difference, dim=2).sort(dim=1, stable=True)
        distances_Rk[part] = order.values[:, :k]
        indices_Rk[part] = candidates.gather(1, order.indices[:, :k])
    return distances_Rk, indices_Rk


def _error(y_ND: Tensor) -> float:
    """Relative error bound of one tile entry: D products and sums in any order, norms and centring included."""
    allow_tf32 = y_ND.is_cuda and torch.backends.cuda.matmul.allow_tf32
    unit = 2.0**-11 if allow_tf32 else 2.0**-24
    return (y_ND.shape[1] + 8) * unit


def _unproven(kth_N: Tensor, bound_N: Tensor, norms_N: Tensor, error: float) -> Tensor:
    """Rows for which something left out could still be nearer than the k-th neighbour found.

    A row left out has an expanded value of at least ``bound``. If it were nearer than ``kth``, its norm would be at
    most ``norm + kth``, and the expanded value off by at most ``error·(2·norm + kth)²``.
    """
    slack_N = error * (2 * norms_N + kth_N).square()
    return (kth_N.square() > bound_N - slack_N).nonzero()[:, 0]


def as_neighbours(x: Any, k: int) -> Neighbours:
    """``x`` itself if it already holds k neighbours of each point, else those of the cloud ``x``."""
    if not isinstance(x, Neighbours):
        return neighbours(x, k)
    if x.distances.shape[1] < min(k, x.n - 1):
        raise broken(
            f"the neighbours given must hold {k} of each point",
            x.distances.shape[1],
            f"compute them with neighbours(x, k={k})",
        )
    return x
