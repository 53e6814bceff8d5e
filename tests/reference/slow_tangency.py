"""Tangents point by point, and the elliptical law of a cloud by its fixed point in the cloud's own coordinates."""

import math

import numpy as np
from scipy import stats


def share(x, points, q, dim, neighbours):
    """Mean over points of ``‖QᵀT‖²/d``, tangents from a full SVD of each neighbourhood."""
    found = []
    for point in points:
        order = sorted((float(np.linalg.norm(x[point] - row)), j) for j, row in enumerate(x) if j != point)
        near = np.array([x[j] for _, j in order[:neighbours]])
        tangent = np.linalg.svd(near - near.mean(0))[2][:dim]
        found.append(sum((t @ c) ** 2 for t in tangent for c in q.T) / dim)
    return float(np.mean(found))


def elliptical(x, rows_a_direction=16, steady=0.01, steps=20):
    """Centre, radii, and the two shapes: of rows over their radii, and the shrunken one that radii are measured by."""
    n, d = x.shape
    centre, weight = x.mean(0), np.ones(n)
    radius, shape, metric = weight, np.eye(d), np.eye(d)
    own = min(d, max(1, n // rows_a_direction))
    for _ in range(steps):
        y = [(row - centre) * w for row, w in zip(x, weight, strict=True)]
        shape = sum(np.outer(row, row) for row in y) / n
        values, vectors = np.linalg.eigh(shape)
        narrow = values[: d - own]
        shrunk = (
            np.concatenate([narrow + d / (n + d) * (narrow.mean() - narrow), values[d - own :]]) if own < d else values
        )
        metric = vectors @ np.diag(shrunk) @ vectors.T
        radius = np.array([math.sqrt((row - centre) @ np.linalg.solve(metric, row - centre)) for row in x])
        before, weight = weight, 1 / radius
        centre = sum(w * row for w, row in zip(weight, x, strict=True)) / weight.sum()
        if np.std(np.log(weight / before), ddof=1) < steady:
            break
    return centre, radius, shape, metric


def draw(law, rng):
    """Directions of a Gaussian cloud with exactly that shape, each row at the radius of its row."""
    centre, radius, shape, metric = law
    n, d = len(radius), len(centre)
    z = rng.normal(size=(n, d))
    z = z - z.mean(0)
    values, vectors = np.linalg.eigh(z.T @ z)
    u = z @ vectors @ np.diag(values**-0.5) @ vectors.T @ np.linalg.cholesky(shape).T
    rows = []
    for row, r in zip(u, radius, strict=True):
        rows.append(centre + row * r / math.sqrt(row @ np.linalg.solve(metric, row)))
    return np.array(rows)


def p_and_interval(found, shares):
    """Of a share among those of control clouds: Student's t with their standard deviation."""
    b, difference = len(shares), found - np.mean(shares)
    spread = np.std(shares, ddof=1) * math.sqrt(1 + 1 / b)
    half = stats.t.ppf(0.975, b - 1) * spread
    return 2 * stats.t.sf(abs(difference) / spread, b - 1), difference - half, difference + half
