"""LLM-Microscope's two measures, written anew from its published formulas (package 0.0.7, arXiv 2405.12250).

Dimension: rows are centred and divided by their mean norm; points whose nearest neighbour is closer than 1e-8 lose
their ratio but still count in ``F``, as do ratios of 1; the slope is fitted through the smallest *fifth* of the ratios.
"""

from __future__ import annotations

import numpy as np

TINY = 1e-8
FIFTH = 5


def anisotropy(x: np.ndarray) -> float:
    """Largest covariance eigenvalue over their sum."""
    variances = np.linalg.svd(x - x.mean(0), compute_uv=False) ** 2
    return float(variances.max() / variances.sum())


def intrinsic_dimension(x: np.ndarray) -> float:
    """TwoNN on the smallest fifth of the ratios."""
    y = x - x.mean(0)
    y = y / np.linalg.norm(y, axis=1).mean()
    ratios = []
    for i, row in enumerate(y):
        distance = np.delete(np.linalg.norm(y - row, axis=1), i)
        first, second = np.partition(distance, 1)[:2]
        ratios.append(second / first if first >= TINY else -1.0)
    mu = np.sort(ratios)
    useless = int((mu <= 1 + TINY).sum())
    kept = len(mu) - useless
    rank = (np.arange(1, kept + 1) + useless) / len(mu)
    use = min(kept // FIFTH, kept - 1)
    if use < 1:
        return float("nan")
    log_mu, y_fit = np.log(mu[useless:])[:use], -np.log(1 - rank[:use])
    return float((log_mu * y_fit).sum() / (log_mu**2).sum())
