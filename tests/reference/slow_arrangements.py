"""Exact p-values where all arrangements of a null can be listed."""

import itertools

import numpy as np


def pairings(inputs, deltas, groups):
    """The gradient of every way to permute sequences within groups (as `slow_evidence.classes` gives them)."""
    for choice in itertools.product(*[itertools.permutations(range(len(g))) for g in groups]):
        g = np.zeros((deltas.shape[2], inputs.shape[2]))
        for members, order in zip(groups, choice, strict=True):
            for (s, places), other in zip(members, order, strict=True):
                t, others = members[other]
                g += deltas[t, others].T @ inputs[s, places]
        yield g


def pairing_odds(inputs, deltas, groups, q):
    """Log odds of every arrangement; the first is the one that was observed."""
    energies = [(((g @ q) ** 2).sum(), (g**2).sum()) for g in pairings(inputs, deltas, groups)]
    return np.array([np.log(inside / (total - inside)) for inside, total in energies])


def odds_over_pairing(folds, bases):
    """Log odds of what was observed over those of the mean of all arrangements; a fold is (inputs, deltas, groups)."""
    observed, mean = np.zeros(2), np.zeros(2)
    for (inputs, deltas, groups), q in zip(folds, bases, strict=True):
        energies = np.array([(((g @ q) ** 2).sum(), (g**2).sum()) for g in pairings(inputs, deltas, groups)])
        observed, mean = observed + energies[0], mean + energies.mean(0)
    return float(np.log(observed[0] / (observed[1] - observed[0])) - np.log(mean[0] / (mean[1] - mean[0])))


def axes_odds(second, q):
    """Log odds of the proxy with every choice of signs of its coordinates."""
    found = []
    for signs in itertools.product((1, -1), repeat=len(q)):
        turned = np.array(signs)[:, None] * q
        inside = np.trace(turned.T @ second @ turned)
        found.append(np.log(inside / (np.trace(second) - inside)))
    return np.array(found)


def two_sided(odds):
    """Of the first among all of them."""
    above, below = (odds >= odds[0] - 1e-9).mean(), (odds <= odds[0] + 1e-9).mean()
    return min(1.0, 2 * min(above, below))
