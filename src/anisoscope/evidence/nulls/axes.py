"""``axes``: the signs of the proxy's coordinates flipped. Keeps shared coordinate axes, breaks the rest."""

from __future__ import annotations

import torch

from anisoscope.evidence.inference import Spread, log_odds, sign_flips
from anisoscope.evidence.nulls.comparison import Against, Judged, logit
from anisoscope.evidence.spectral import axes_draws, axes_mean
from anisoscope.evidence.units import left_out


def against_axes(judged: Judged) -> Against:
    """Mean share ``Σ M_ii P_ii / tr M``; p from random signs."""
    bases = [(f.second[None], f.subspace.basis[None]) for f in judged.folds]
    inside = float(torch.stack([axes_mean(*pair) for pair in bases]).sum())
    draws = [axes_draws(*pair, judged.resamples, judged.seed) for pair in bases]
    error, without = None, ()
    if judged.units is not None and judged.lost_odds is not None:
        lost = left_out(judged.units)
        without = (judged.lost_odds - log_odds(lost.axes, lost.inside + lost.outside - lost.axes),)
        error = Spread.of(without[0])
    total = judged.base.inside + judged.base.outside
    odds = logit(inside, total - inside)
    # All signs turned at once change nothing.
    about = {"lost": without, "edge": judged.edge_of(draws, odds), "arrangements": sign_flips(judged.base.width - 1)}
    return Against(inside / total, odds, judged.p_of(draws), error, judged.count, **about)
