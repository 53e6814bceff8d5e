"""Slow, obvious versions of the evidence functions: explicit frames, explicit permutations, explicit matrices."""

import itertools

import numpy as np


def random_frame(d, k, rng):
    return np.linalg.qr(rng.normal(size=(d, k)))[0]


def share(m, q):
    return np.trace(q.T @ m @ q) / np.trace(m)


def gradient(deltas, inputs):
    """Σ_s D_sᵀX_s as a sum over every token."""
    g = np.zeros((deltas.shape[-1], inputs.shape[-1]))
    for d, x in zip(deltas.reshape(-1, deltas.shape[-1]), inputs.reshape(-1, inputs.shape[-1]), strict=True):
        g += np.outer(d, x)
    return g


def pairing_by_enumeration(inputs, deltas, q):
    """Ratio of the mean energies over all n! permutations of whole sequences."""
    inside = total = 0.0
    for pi in itertools.permutations(range(len(inputs))):
        g = gradient(deltas[list(pi)], inputs)
        inside += ((g @ q) ** 2).sum()
        total += (g**2).sum()
    return inside / total


def tokens_by_enumeration(x, d, q, labels=None):
    """Ratio of the mean energies over all permutations of tokens inside strata."""
    labels = np.zeros(len(x), dtype=int) if labels is None else np.asarray(labels)
    groups = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    inside = total = 0.0
    for orders in itertools.product(*(itertools.permutations(group) for group in groups)):
        met = np.empty(len(x), dtype=int)
        for group, order in zip(groups, orders, strict=True):
            met[group] = order
        g = d[met].T @ x
        inside += ((g @ q) ** 2).sum()
        total += (g**2).sum()
    return inside / total


def classes(strata, width=8, smallest=4):
    """Sequences that may be exchanged, each with the positions that are kept of it, by loops over positions."""
    labels = sorted({int(v) for row in strata for v in row if v >= 0})
    counts = [[sum(int(v) == label for v in row) for label in labels] for row in strata]
    equal = [len({c[k] for c in counts}) == 1 for k in range(len(labels))]
    found = {}
    for s, row in enumerate(strata):
        kept, places = [], []
        for k, label in enumerate(labels):
            size = counts[s][k] if equal[k] else counts[s][k] // width * width
            kept.append(size)
            places += [t for t, v in enumerate(row) if v == label][:size]
        found.setdefault(tuple(kept), []).append((s, places))
    smallest = min(smallest, len(strata))
    return [members for kept, members in found.items() if len(members) >= smallest and sum(kept)]


def pairing_in_classes(inputs, deltas, strata, q):
    """Mean share when sequences are permuted within classes, by enumeration of all permutations of every class."""
    inside, total = energies_of_classes(inputs, deltas, classes(strata), q)
    return inside / total


def energies_of_classes(inputs, deltas, groups, q):
    """Mean energy inside and in all over every way to permute the sequences of each group."""
    inside = total = 0.0
    ways = 0
    for choice in itertools.product(*[list(itertools.permutations(range(len(g)))) for g in groups]):
        g = np.zeros((deltas.shape[2], inputs.shape[2]))
        for members, order in zip(groups, choice, strict=True):
            for (s, places), other in zip(members, order, strict=True):
                t, others = members[other]
                for mine, theirs in zip(places, others, strict=True):
                    g += np.outer(deltas[t, theirs], inputs[s, mine])
        inside += ((g @ q) ** 2).sum()
        total += (g**2).sum()
        ways += 1
    return inside / ways, total / ways


def studentised_swap(first, second, chosen, q, weight, paired):
    """Difference of log odds over its jackknife error, for one way of dealing; each unit is a matrix."""

    def odds(units):
        if weight:
            g = np.sum(units, axis=0)
            inside = ((g @ q) ** 2).sum()
            return np.log(inside / ((g**2).sum() - inside))
        inside = sum(((u @ q) ** 2).sum() for u in units)
        return np.log(inside / (sum((u**2).sum() for u in units) - inside))

    def scaled(units):
        total = (np.sum(units, axis=0) ** 2).sum() if weight else sum((u**2).sum() for u in units)
        return [u / np.sqrt(total) for u in units]

    a, b = scaled(first), scaled(second)
    one = [x if c else y for x, y, c in zip(a, b, chosen, strict=True)]
    two = [y if c else x for x, y, c in zip(a, b, chosen, strict=True)]
    difference, n = odds(one) - odds(two), len(chosen)
    if paired:
        lost = [odds(one[:k] + one[k + 1 :]) - odds(two[:k] + two[k + 1 :]) for k in range(n)]
    else:
        lost = [odds(one[:k] + one[k + 1 :]) - odds(two) for k in range(n)]
        lost += [odds(one) - odds(two[:k] + two[k + 1 :]) for k in range(n)]
    lost = np.array(lost)
    return difference / np.sqrt((len(lost) - 1) / len(lost) * ((lost - lost.mean()) ** 2).sum())


def isoscore_star(c, reference, zeta):
    shrunk = (1 - zeta) * c + zeta * reference
    return (np.trace(shrunk) ** 2 / (shrunk**2).sum() - 1) / (len(c) - 1)


def isotropy_gain(c, q, zeta):
    """Remove Q with an explicit basis of the rest; one reference for both sides."""
    d, k = q.shape
    rest = np.linalg.qr(q, mode="complete")[0][:, k:]
    scale = np.trace(c) / d
    after = isoscore_star(rest.T @ c @ rest, scale * np.eye(d - k), zeta)
    return after - isoscore_star(c, scale * np.eye(d), zeta)


def multiplicative_semi_nmf(x, z, iterations):
    """Ding, Li & Jordan's updates with exact A, from their paper."""
    for _ in range(iterations):
        a = np.linalg.lstsq(z, x, rcond=None)[0]
        xa, aa = x @ a.T, a @ a.T
        up = np.maximum(xa, 0) + z @ np.maximum(-aa, 0)
        down = np.maximum(-xa, 0) + z @ np.maximum(aa, 0)
        z = z * np.sqrt(up / np.maximum(down, 1e-300))
    a = np.linalg.lstsq(z, x, rcond=None)[0]
    return ((x - z @ a) ** 2).sum() / (x**2).sum()
