"""Contextual vectors of one type, pair by pair and sequence by sequence."""

import torch


def spread(vectors, sequences):
    """Root of half the mean square distance of two vectors from different sequences."""
    apart = sequences[:, None] != sequences[None]
    squares = torch.cdist(vectors, vectors, compute_mode="donot_use_mm_for_euclid_dist").square()
    return float((squares[apart].mean() / 2).sqrt())


def noise(vectors, sequences):
    """Variance of the mean: of every sequence's sum, about the means of two others at a time."""
    parts = [vectors[sequences == s] for s in sequences.unique()]
    total = 0.0
    for b, own in enumerate(parts):
        others = [part.mean(0) for c, part in enumerate(parts) if c != b]
        off = [own.sum(0) - len(own) * y for y in others]
        pairs = [float(p @ q) for i, p in enumerate(off) for j, q in enumerate(off) if i != j]
        total += sum(pairs) / len(pairs)
    return total / len(vectors) ** 2
