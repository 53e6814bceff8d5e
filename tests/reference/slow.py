"""Slow, obvious float64 versions of what the package computes fast. Written from the definitions, not from the code."""

import itertools
import math

import numpy as np


def central_sums(x, weights=None):
    x = np.asarray(x, dtype=np.float64)
    w = np.ones(len(x)) if weights is None else np.asarray(weights, dtype=np.float64)
    mean = (w[:, None] * x).sum(0) / w.sum()
    scatter, third, fourth = np.zeros((x.shape[1],) * 2), np.zeros(x.shape[1]), 0.0
    for row, weight in zip(x, w, strict=True):
        y = row - mean
        scatter += weight * np.outer(y, y)
        third += weight * (y @ y) * y
        fourth += weight * (y @ y) ** 2
    return w.sum(), mean, scatter, third, fourth


def average_cosine(x):
    rows = [row / np.linalg.norm(row) for row in np.asarray(x, dtype=np.float64) if np.linalg.norm(row) > 0]
    return float(np.mean([a @ b for a, b in itertools.combinations(rows, 2)]))


def effective_rank(x, power=1):
    """By a full SVD of the centred rows in float64, which keeps singular values down to 1e-16 of the largest."""
    x = np.asarray(x, dtype=np.float64)
    strengths = np.linalg.svd(x - x.mean(0), compute_uv=False) ** power
    shares = strengths[strengths > 0] / strengths.sum()
    return math.exp(-(shares * np.log(shares)).sum())


def isoscore(x):
    """The nine steps of the IsoScore paper: PCA, normalise, distance to the diagonal, rescale."""
    x = np.asarray(x, dtype=np.float64)
    d = x.shape[1]
    variances = np.linalg.svd(np.cov(x.T), compute_uv=False)
    normalised = variances * math.sqrt(d) / np.linalg.norm(variances)
    defect = np.linalg.norm(normalised - 1) / math.sqrt(2 * (d - math.sqrt(d)))
    return ((d - defect**2 * (d - math.sqrt(d))) ** 2 - d) / (d * (d - 1))


def corrected_traces(x):
    """Unbiased ``(tr Σ)²`` and ``tr Σ²`` as U-statistics over all distinct quadruples: no formula to get wrong."""
    x = np.asarray(x, dtype=np.float64)
    square_of_trace = trace_of_square = 0.0
    count = 0
    for i, j, k, m in itertools.permutations(range(len(x)), 4):
        a, b = x[i] - x[j], x[k] - x[m]
        square_of_trace += (a @ a) * (b @ b) / 4
        trace_of_square += (a @ b) ** 2 / 4
        count += 1
    return square_of_trace / count, trace_of_square / count


def neighbour_distances(x, k):
    x = np.asarray(x, dtype=np.float64)
    return np.stack([np.sort(np.linalg.norm(x - row, axis=1))[1 : k + 1] for row in x])


def linked_groups(x, tolerance):
    """Groups of rows linked by steps of at most ``tolerance``, by plain depth-first search."""
    x = np.asarray(x, dtype=np.float64)
    label = [-1] * len(x)
    for start in range(len(x)):
        if label[start] >= 0:
            continue
        stack = [start]
        while stack:
            row = stack.pop()
            if label[row] >= 0:
                continue
            label[row] = start
            near = np.flatnonzero(np.linalg.norm(x - x[row], axis=1) <= tolerance)
            stack.extend(int(other) for other in near if label[other] < 0)
    return label


def two_nn(x, discard=0.1):
    r = neighbour_distances(x, 2)
    mu = np.sort(r[:, 1] / r[:, 0])
    n = len(mu)
    keep = min(math.floor(n * (1 - discard) + 1e-9), n - 1)
    log_mu = np.log(mu[:keep])
    y = np.array([-math.log(1 - i / n) for i in range(1, keep + 1)])
    return float((log_mu * y).sum() / (log_mu * log_mu).sum())


def levina_bickel(x, k):
    r = neighbour_distances(x, k)
    return 1 / np.mean([math.log(row[k - 1] / row[j]) for row in r for j in range(k - 1)])


def partition_ratio(x):
    x = np.asarray(x, dtype=np.float64)
    _, vectors = np.linalg.eigh(x.T @ x)
    z = [np.exp(x @ (sign * vectors[:, i])).sum() for i in range(x.shape[1]) for sign in (1, -1)]
    return min(z) / max(z)


def top_share(x, power=2, centre=True):
    x = np.asarray(x, dtype=np.float64)
    strengths = np.linalg.svd(x - x.mean(0) if centre else x, compute_uv=False) ** power
    return strengths[0] / strengths.sum()
