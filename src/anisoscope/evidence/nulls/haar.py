"""``haar``: random directions of the same rank. Breaks the orientation of the proxy."""

from __future__ import annotations

from anisoscope.evidence.inference import jackknife_error
from anisoscope.evidence.nulls.comparison import Against, Judged, logit
from anisoscope.evidence.spectral import haar_draws


def against_haar(judged: Judged) -> Against:
    """Mean share K/D; p from uniform random subspaces."""
    chance, rank = judged.chance, judged.base.rank
    draws = [haar_draws(f.second[None], rank, judged.resamples, judged.seed) for f in judged.folds]
    error = None if judged.lost_odds is None else jackknife_error(judged.lost_odds)
    return Against(chance, logit(chance, 1 - chance), judged.p_of(draws), error, judged.count)
