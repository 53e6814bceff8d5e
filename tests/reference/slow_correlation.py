"""Correlations with one type left out at a time, each computed again; partial ones by regression."""

import math

import numpy as np
from scipy import stats

from reference import slow_jackknife


def ranks(values):
    """Mean places of equal values, by counting."""
    return [sum(v < value for v in values) + (sum(v == value for v in values) + 1) / 2 for value in values]


def pearson(x, y):
    a, b = np.array(x) - np.mean(x), np.array(y) - np.mean(y)
    return float(sum(a * b) / math.sqrt(sum(a * a) * sum(b * b)))


def partial(x, y, held):
    """Of what is left of both after a line in the third."""
    rest = []
    for values in (x, y):
        slope, start = np.polyfit(held, values, 1)
        rest.append(np.array(values) - slope * np.array(held) - start)
    return pearson(*rest)


def interval(columns, *, ranked):
    """Value and ends by Fisher's z; ranks are those of all types."""
    table = [ranks(column) for column in columns] if ranked else [list(column) for column in columns]
    measure = pearson if len(table) == 2 else partial
    n, value = len(table[0]), measure(*table)
    lost = [math.atanh(measure(*[c[:k] + c[k + 1 :] for c in table])) for k in range(n)]
    error, df = slow_jackknife.error_and_df(lost)
    if ranked:  # never narrower than Bonett and Wright have it
        error, df = max(error, math.sqrt((1 + value**2 / 2) / (n - 3))), max(df, n - 3)
    half = stats.t.ppf(0.975, df) * error
    return value, math.tanh(math.atanh(value) - half), math.tanh(math.atanh(value) + half)


def kurtosis(values):
    off = np.array(values) - np.mean(values)
    return float(np.mean(off**4) / np.mean(off**2) ** 2)
