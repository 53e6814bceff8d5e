"""``haar``: random directions of the same rank. Breaks the orientation of the proxy."""

from __future__ import annotations

from anisoscope.evidence.nulls.comparison import Against, Judged, logit
from anisoscope.evidence.spectral import haar_draws_of_folds


def against_haar(judged: Judged) -> Against:
    """Mean share K/D; p from one random rotation of the proxies of all folds."""
    chance = judged.chance
    seconds, bases = [f.second for f in judged.folds], [f.subspace.basis for f in judged.folds]
    draws = [haar_draws_of_folds(seconds, bases, judged.resamples, judged.seed, judged.shared)]
    odds = logit(chance, 1 - chance)
    about = {"lost": judged.lost, "edge": judged.edge_of(draws, odds)}
    return Against(chance, odds, judged.p_of(draws), judged.spread, judged.count, **about)
