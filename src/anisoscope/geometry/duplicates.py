"""Rows that are one point: found exactly, linked transitively, and removed before neighbours are ranked.

Letters: N rows, D width, P projections.

Any two rows within ``τ`` are within ``τ`` on every unit direction, so rows are sorted along one random direction and
only pairs inside a sliding window of width ``τ`` are looked at; a few more directions discard nearly all of those, and
what is left is measured by direct difference in float64. Distances among distinct points are never approximated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

#: Distance under which rows are one point, as a share of the rms centred norm: what rounding alone can move apart.
TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 1e-3, torch.float32: 1e-6, torch.float64: 1e-6}
_PROJECTIONS = 8
_CHUNK_ROWS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Duplicates:
    """``keep`` are the rows that stay (the first of each group); the others go, as exact or near copies."""

    keep: Tensor
    exact: int
    near: int


def find_duplicates(x_ND: Tensor) -> Duplicates:
    """Group rows closer than the tolerance of their dtype and keep the lowest row of each group."""
    n = x_ND.shape[0]
    mean_D = column_means(x_ND)
    tolerance = TOLERANCE[x_ND.dtype] * _rms_norm(x_ND, mean_D)
    near_NP = _projected(x_ND, mean_D)
    # Rounding of the projections must not hide a pair; the measured distance decides in the end.
    window = tolerance * (1 + 1e-9) + 1e-13 * float(np.abs(near_NP).max())
    labels_N = _linked(x_ND, near_NP, tolerance, window)
    first_N = np.full(n, n)
    np.minimum.at(first_N, labels_N, np.arange(n))
    keep = first_N[labels_N] == np.arange(n)
    exact = _exact_copies(x_ND, labels_N)
    return Duplicates(torch.from_numpy(np.flatnonzero(keep)).to(x_ND.device), exact, int(n - keep.sum()) - exact)


def column_means(x_ND: Tensor) -> Tensor:
    """Column means in float64, a chunk at a time: a sum with another dtype would first copy the whole cloud."""
    total_D = torch.zeros(x_ND.shape[1], dtype=torch.float64, device=x_ND.device)
    for part in x_ND.split(_CHUNK_ROWS):
        total_D += part.double().sum(0)
    return total_D / x_ND.shape[0]


def direct_distances(x_ND: Tensor, rows_M: Tensor, others_M: Tensor) -> Tensor:
    """Distances of pairs of rows by direct difference in float64, a bounded number at a time."""
    step = max(1, (1 << 22) // x_ND.shape[1])
    parts = [
        torch.linalg.vector_norm(x_ND[a].double() - x_ND[b].double(), dim=1)
        for a, b in zip(rows_M.split(step), others_M.split(step), strict=True)
    ]
    return torch.cat(parts) if parts else x_ND.new_empty(0, dtype=torch.float64)


def _rms_norm(x_ND: Tensor, mean_D: Tensor) -> float:
    total = sum(float((part.double() - mean_D).square().sum()) for part in x_ND.split(_CHUNK_ROWS))
    return (total / x_ND.shape[0]) ** 0.5


def _projected(x_ND: Tensor, mean_D: Tensor) -> np.ndarray:
    width = x_ND.shape[1]
    if width <= _PROJECTIONS:
        frame_DP = torch.eye(width, dtype=torch.float64, device="cpu")
    else:
        generator = torch.Generator().manual_seed(0)
        gaussian = torch.randn(width, _PROJECTIONS, generator=generator, dtype=torch.float64, device="cpu")
        frame_DP = torch.linalg.qr(gaussian).Q
    frame_DP = frame_DP.to(x_ND.device)
    near_NP = torch.empty(x_ND.shape[0], frame_DP.shape[1], dtype=torch.float64, device=x_ND.device)
    for start in range(0, x_ND.shape[0], _CHUNK_ROWS):
        rows = slice(start, start + _CHUNK_ROWS)
        near_NP[rows] = (x_ND[rows].double() - mean_D) @ frame_DP
    return near_NP.cpu().numpy()


def _linked(x_ND: Tensor, near_NP: np.ndarray, tolerance: float, window: float) -> np.ndarray:
    """Component labels of the graph of pairs within ``tolerance``."""
    n = near_NP.shape[0]
    order = np.argsort(near_NP[:, 0], kind="stable")
    sorted_NP = near_NP[order]
    labels = np.arange(n)
    edges: list[np.ndarray] = []
    alive = np.arange(n - 1)
    for lag in range(1, n):
        # Sorted, a gap only grows with the lag: who is out of reach once is out for good.
        alive = alive[alive + lag < n]
        alive = alive[sorted_NP[alive + lag, 0] - sorted_NP[alive, 0] <= window]
        if alive.size == 0:
            break
        pair = alive[labels[order[alive]] != labels[order[alive + lag]]]
        for column in range(1, near_NP.shape[1]):
            pair = pair[np.abs(sorted_NP[pair + lag, column] - sorted_NP[pair, column]) <= window]
            if pair.size == 0:
                break
        if pair.size == 0:
            continue
        rows, others = order[pair], order[pair + lag]
        device = x_ND.device
        distance = direct_distances(x_ND, torch.from_numpy(rows).to(device), torch.from_numpy(others).to(device))
        close = (distance <= tolerance).cpu().numpy()
        if close.any():
            edges.append(np.stack([rows[close], others[close]]))
            row, column = np.concatenate(edges, axis=1)
            graph = coo_array((np.ones(row.size, dtype=np.int8), (row, column)), shape=(n, n))
            labels = connected_components(graph, directed=False)[1]
            edges = [_spanning(labels)]
    return labels


def _spanning(labels: np.ndarray) -> np.ndarray:
    """As few edges as give the same components, so that the list cannot grow."""
    order = np.argsort(labels, kind="stable")
    same = labels[order][1:] == labels[order][:-1]
    return np.stack([order[:-1][same], order[1:][same]])


def _exact_copies(x_ND: Tensor, labels_N: np.ndarray) -> int:
    """Rows equal to an earlier row to the last bit (−0 equals 0)."""
    sizes = np.bincount(labels_N)
    grouped = np.flatnonzero(sizes[labels_N] > 1)
    seen: set[bytes] = set()
    for part in np.array_split(grouped, max(1, grouped.size // 4096)):
        rows = (x_ND[torch.from_numpy(part).to(x_ND.device)].double() + 0.0).cpu().numpy()
        seen.update(row.tobytes() for row in rows)
    return int(grouped.size) - len(seen)
