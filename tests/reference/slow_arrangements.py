"""Exact p-values where all arrangements of a null can be listed."""

import itertools

import numpy as np


def pairing_odds(inputs, deltas, groups, q):
    """Log odds of every way to permute sequences within groups (as `slow_evidence.classes` gives them)."""
    found = []
    for choice in itertools.product(*[itertools.permutations(range(len(g))) for g in groups]):
        g = np.zeros((deltas.shape[2], inputs.shape[2]))
        for members, order in zip(groups, choice, strict=True):
            for (s, places), other in zip(members, order, strict=True):
                t, others = members[other]
                g += deltas[t, others].T @ inputs[s, places]
        inside = ((g @ q) ** 2).sum()
        found.append(np.log(inside / ((g**2).sum() - inside)))
    return np.array(found)  # the first is the arrangement that was observed


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
