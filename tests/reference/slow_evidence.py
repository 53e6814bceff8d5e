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


def strata_by_enumeration(inputs, deltas, strata, q):
    """The rule of the definitions, position by position, over all permutations of sequences."""
    n, t = strata.shape
    inside = total = 0.0
    for pi in itertools.permutations(range(n)):
        g = np.zeros((deltas.shape[-1], inputs.shape[-1]))
        for s in range(n):
            seen = {}
            for position in range(t):
                label = strata[s, position]
                if label < 0:
                    continue
                j = seen.get(label, 0)
                seen[label] = j + 1
                places = [p for p in range(t) if strata[pi[s], p] == label]
                if places:
                    g += np.outer(deltas[pi[s], places[j % len(places)]], inputs[s, position])
        inside += ((g @ q) ** 2).sum()
        total += (g**2).sum()
    return inside / total


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
