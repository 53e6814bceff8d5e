"""The checks of `verify` by hand: proxies from an SVD of one half, angles to local normals of the other."""

import numpy as np

from reference import slow_jackknife


def pca(rows, rank):
    return np.linalg.svd(rows - rows.mean(0))[2][:rank].T


def angles(q, frame):
    """Principal angles in degrees."""
    cosines = np.linalg.svd(q.T @ frame, compute_uv=False)
    return np.degrees(np.arccos(np.clip(cosines, 0, 1)))


def normals(rows, point, neighbours, count, usable):
    """The ``count`` narrowest directions of the nearest usable rows around a point."""
    order = sorted((float(np.linalg.norm(rows[point] - rows[j])), j) for j in usable if j != point)
    near = np.array([rows[j] for _, j in order[:neighbours]])
    right = np.linalg.svd(near - near.mean(0), full_matrices=False)[2]
    filled = min(neighbours - 1, rows.shape[1])
    return right[filled - count : filled].T


def mean_angle(q, rows, points, neighbours, count, usable):
    """To the normals at those of the points that may be used."""
    found = [angles(q, normals(rows, p, neighbours, count, usable)).mean() for p in points if p in usable]
    return float(np.mean(found))


def normal_angle(proxies, halves, count, neighbours):
    """Value and interval: each proxy meets the other half; a block of units is left out of one half at a time.

    A half is ``(rows, points, blocks)``.
    """
    values, lost = [], []
    for q, (rows, points, blocks), k in zip(proxies, halves[::-1], neighbours[::-1], strict=True):
        everyone = set(range(len(rows)))
        values.append(mean_angle(q, rows, points, k, count, everyone))
        lost.append(
            [
                mean_angle(q, rows, points, k, count, {j for j in everyone if blocks[j] != block})
                for block in sorted(set(blocks))
            ]
        )
    value = np.mean(values)
    without = [(one + values[1 - k]) / 2 for k in (0, 1) for one in lost[k]]
    return value, *slow_jackknife.ends(value, *slow_jackknife.error_and_df(without))
