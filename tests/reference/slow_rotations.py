"""Random orientation by explicit rotations: one rotation of R^D turns the proxies of all folds, again and again."""

import math

import numpy as np

from reference.slow_evidence import isotropy_gain


def rotation(d, rng):
    """Uniform by Gram and Schmidt, one Gaussian column after the other."""
    columns = []
    for _ in range(d):
        v = rng.normal(size=d)
        for u in columns:
            v = v - (v @ u) * u
        columns.append(v / np.linalg.norm(v))
    return np.array(columns).T


def log_odds(folds, bases):
    """Of rows and of the proxies that they are judged by."""
    inside = sum(((rows @ q) ** 2).sum() for rows, q in zip(folds, bases, strict=True))
    total = sum((rows**2).sum() for rows in folds)
    return math.log(inside / (total - inside))


def mean_gain(folds, bases, zeta=0.2):
    """Isotropy gained by removing the proxy, mean over folds."""
    covariances = [np.cov(rows, rowvar=False, bias=True) for rows in folds]
    return np.mean([isotropy_gain(c, q, zeta) for c, q in zip(covariances, bases, strict=True)])


def p_of(statistic, folds, bases, draws, seed):
    """Two-sided p of a statistic among the same with all proxies turned together."""
    rng, observed = np.random.default_rng(seed), statistic(folds, bases)
    turns = (rotation(folds[0].shape[1], rng) for _ in range(draws))
    drawn = np.array([statistic(folds, [turn @ q for q in bases]) for turn in turns])
    return min(1.0, 2 * min((drawn >= observed).mean(), (drawn <= observed).mean())), drawn
