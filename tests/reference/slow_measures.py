"""Isotropy measures without a group of units, to first order: variances along the directions of the whole cloud.

Written from the definitions of the measures; rows are really taken away, and one direction is looked at at a time.
"""

import itertools
import math

import numpy as np


def variances_without(x, gone):
    """Variance of the rows that stay along each principal direction of all rows."""
    centred = x - x.mean(0)
    directions = np.linalg.svd(centred, full_matrices=True)[2]
    stay = [row for row, left in zip(centred, gone, strict=True) if not left]
    found = []
    for direction in directions:
        along = [float(row @ direction) for row in stay]
        middle = sum(along) / len(along)
        found.append(sum((value - middle) ** 2 for value in along) / len(along))
    return found


def of_variances(v):
    """Every measure of the spectrum, by name."""
    total, d = sum(v), len(v)
    roots = [math.sqrt(one) for one in v]
    shares = [root / sum(roots) for root in roots if root > 0]
    participation = total**2 / sum(one**2 for one in v)
    shrunk = [0.8 * one + 0.2 * total / d for one in v]
    return {
        "top_share": max(v) / total,
        "effective_rank": math.exp(-sum(share * math.log(share) for share in shares)),
        "participation_ratio": participation,
        "isoscore_star": (sum(shrunk) ** 2 / sum(one**2 for one in shrunk) - 1) / (d - 1),
    }


def average_cosine(x, gone):
    """Over pairs of the rows that stay."""
    rows = [row / np.linalg.norm(row) for row, left in zip(x, gone, strict=True) if not left]
    return float(np.mean([a @ b for a, b in itertools.combinations(rows, 2)]))


def without_groups(x, group):
    """By measure, its value without each group."""
    found = {}
    for g in sorted(set(group.tolist())):
        gone = group == g
        values = of_variances(variances_without(x, gone)) | {"average_cosine": average_cosine(x, gone)}
        for name, value in values.items():
            found.setdefault(name, []).append(value)
    return found
