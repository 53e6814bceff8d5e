"""The noise-free quotient of two γ by another route: loops over tokens and pairs, sequences really taken away, a scan.

A fold is ``(x, d)``, both ``(n, T, ·)``; the first ``rank`` columns of x are tangent.
"""

import numpy as np
from scipy import stats


def gamma_square(x, d):
    """Mean of ⟨S_s, S_t⟩ over pairs of different sequences, over the squared mean length: noise has no part in it."""
    sums, lengths = [], []
    for xs, ds in zip(x, d, strict=True):
        parts = [np.outer(b, a) for a, b in zip(xs, ds, strict=True)]
        sums.append(sum(parts))
        lengths.append(sum(np.linalg.norm(part) for part in parts))
    n = len(sums)
    pairs = [(sums[s] * sums[t]).sum() for s in range(n) for t in range(n) if s != t]
    return np.mean(pairs) / np.mean(lengths) ** 2


def both_squares(folds, rank):
    """γ² of the tangent and of the normal parts, mean over folds."""
    tangent = np.mean([gamma_square(x[..., :rank], d) for x, d in folds])
    return tangent, np.mean([gamma_square(x[..., rank:], d) for x, d in folds])


def with_one_left_out(folds, rank):
    """The same without one sequence, for every sequence of every fold: ``(units, 2)``."""
    found = []
    for k, (x, d) in enumerate(folds):
        for s in range(len(x)):
            fewer = list(folds)
            fewer[k] = (np.delete(x, s, 0), np.delete(d, s, 0))
            found.append(both_squares(fewer, rank))
    return np.array(found)


def error_and_df(lost):
    n, c = len(lost), lost - lost.mean()
    return np.sqrt((n - 1) / n * (c @ c)), max(1.0, (c @ c) ** 2 / (c**4).sum() - 1)


def quotient(folds, rank):
    """Value and interval of γ^T/γ^N: by a scan of the c that ``γ_T² − c·γ_N²`` allows, and by its logarithm."""
    above, below = both_squares(folds, rank)
    lost = with_one_left_out(folds, rank)
    ratio = above / below
    df = min(error_and_df(lost[:, 0] - c * lost[:, 1])[1] for c in (1.0, ratio))

    def may_be_zero(c):
        error = error_and_df(lost[:, 0] - c * lost[:, 1])[0]
        return abs(above - c * below) <= stats.t.ppf(0.975, df) * error

    log_error, log_df = error_and_df(np.log(lost[:, 0] / lost[:, 1]))
    half = stats.t.ppf(0.975, log_df) * log_error
    low = min(_edge(may_be_zero, ratio, 0.0), ratio * np.exp(-half))
    high = max(_edge(may_be_zero, ratio, 1e4 * ratio), ratio * np.exp(half))
    return np.sqrt(np.array([ratio, low, high]))


def _edge(accepted, inside, outside):
    """Where a set ends between a point that belongs to it and one that does not."""
    assert accepted(inside)
    if accepted(outside):
        return outside
    for _ in range(100):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if accepted(middle) else (inside, middle)
    return inside
