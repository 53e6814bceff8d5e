"""Log odds of gradient energy from raw numbers, one token at a time: no moments, no Gram matrices."""

import math

import numpy as np


def odds_of_rows(folds, bases):
    """A unit is an array of gradient rows; each fold has its proxy. Energies add up over rows."""
    inside = outside = 0.0
    for units, q in zip(folds, bases, strict=True):
        for row in (row for unit in units for row in unit):
            along = sum((row @ column) * column for column in q.T)
            inside += along @ along
            outside += (row - along) @ (row - along)
    return math.log(inside / outside)


def odds_of_weight(folds, bases):
    """A unit is a list of pairs (x, δ), one a token. The gradient is summed before its energy is taken."""
    inside = outside = 0.0
    for units, q in zip(folds, bases, strict=True):
        g = np.sum([np.outer(d, x) for unit in units for x, d in unit], axis=0)
        for row in g:
            along = q @ (q.T @ row)
            inside += along @ along
            outside += (row - along) @ (row - along)
    return math.log(inside / outside)


def odds_of_table(sequences, side, bases):
    """A sequence is a list of (type, gradient row); types of ``side`` k are judged by basis k."""
    table = {}
    for kind, row in (pair for sequence in sequences for pair in sequence):
        table[kind] = table.get(kind, 0.0) + row
    inside = outside = 0.0
    for kind, row in table.items():
        q = bases[side[kind]]
        along = q @ (q.T @ row)
        inside += along @ along
        outside += (row - along) @ (row - along)
    return math.log(inside / outside)


def axes_odds_of_rows(folds, bases):
    """Log odds of the mean energy inside over all sign flips: each coordinate's energy by its leverage."""
    inside = total = 0.0
    for units, q in zip(folds, bases, strict=True):
        leverage = [float(row @ row) for row in q]
        for row in (row for unit in units for row in unit):
            inside += sum(h * value**2 for h, value in zip(leverage, row, strict=True))
            total += sum(value**2 for value in row)
    return math.log(inside / (total - inside))
