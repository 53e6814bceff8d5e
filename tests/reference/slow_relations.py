"""Spectral decay, CKA and neighbourhood overlap, by definition and by loops, in float64."""

import math

import numpy as np


def spectral_decay(x):
    x = np.asarray(x, dtype=np.float64)
    values = np.linalg.svd(x - x.mean(0), compute_uv=False) ** 2
    last = min(x.shape[1], len(x) - 1) // 2
    ranks = np.arange(11, last + 1)
    return -np.polyfit(np.log(ranks), np.log(values[10:last]), 1)[0]


def rankme(x):
    """With the epsilon of its authors."""
    strengths = np.linalg.svd(np.asarray(x, dtype=np.float64), compute_uv=False)
    shares = strengths / strengths.sum() + 1e-7
    return math.exp(-(shares * np.log(shares)).sum())


def hsic(x, y):
    """The mean of h over all 4-tuples of distinct rows (Song et al. 2012, equation 4, in Gram form)."""
    k, m = (np.asarray(a, dtype=np.float64) @ np.asarray(a, dtype=np.float64).T for a in (x, y))
    np.fill_diagonal(k, 0)
    np.fill_diagonal(m, 0)
    n, one = len(k), np.ones(len(k))
    middle = (one @ k @ one) * (one @ m @ one) / ((n - 1) * (n - 2))
    return (np.trace(k @ m) + middle - 2 / (n - 2) * one @ k @ m @ one) / (n * (n - 3))


def hsic_by_tuples(x, y):
    """The U-statistic itself: E[k_ij m_ij] + E[k_ij m_qr] − 2 E[k_ij m_iq], over distinct i, j, q, r."""
    k, m = x @ x.T, y @ y.T
    n, total, count = len(k), 0.0, 0
    for i in range(n):
        for j in range(n):
            for q in range(n):
                for r in range(n):
                    if len({i, j, q, r}) == 4:
                        total += k[i, j] * m[i, j] + k[i, j] * m[q, r] - 2 * k[i, j] * m[i, q]
                        count += 1
    return total / count


def cka(x, y):
    return hsic(x, y) / math.sqrt(hsic(x, x) * hsic(y, y))


def nearest(x, k, sequence=None):
    """Sets of the k nearest others; with ``sequence`` of other sequences only."""
    found = []
    for i, row in enumerate(x):
        distance = np.sqrt(((x - row) ** 2).sum(1))
        distance[i] = math.inf
        if sequence is not None:
            distance[sequence == sequence[i]] = math.inf
        found.append(set(np.argsort(distance, kind="stable")[:k].tolist()))
    return found


def overlap(x, y, k, sequence=None):
    pairs = zip(nearest(x, k, sequence), nearest(y, k, sequence), strict=True)
    return float(np.mean([len(a & b) / k for a, b in pairs]))
