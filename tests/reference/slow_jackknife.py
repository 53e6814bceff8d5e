"""Intervals by taking units away for good and computing everything again from what is left.

Folds are lists of units; a statistic takes all folds and returns a number.
"""

import math

import numpy as np
from scipy import stats


def without_each(folds, statistic):
    """The statistic without one unit, for every unit of every fold."""
    found = []
    for k, units in enumerate(folds):
        for gone in range(len(units)):
            fewer = list(folds)
            fewer[k] = [unit for place, unit in enumerate(units) if place != gone]
            found.append(statistic(fewer))
    return np.array(found)


def error_and_df(values):
    """Jackknife error, and how many squares it effectively rests on, less one."""
    squares = [(value - np.mean(values)) ** 2 for value in values]
    n = len(squares)
    effective = sum(squares) ** 2 / sum(square * square for square in squares)
    return math.sqrt((n - 1) / n * sum(squares)), max(1.0, effective - 1)


def welch(first, second):
    """Error and degrees of freedom of a difference of two independent statistics."""
    (a, m), (b, n) = error_and_df(first), error_and_df(second)
    return math.hypot(a, b), (a**2 + b**2) ** 2 / (a**4 / m + b**4 / n)


def ends(centre, error, df, level=0.95):
    half = stats.t.ppf(0.5 + level / 2, df) * error
    return centre - half, centre + half


def interval(folds, statistic, level=0.95):
    """95 % interval of a statistic over units."""
    return ends(statistic(folds), *error_and_df(without_each(folds, statistic)), level)
