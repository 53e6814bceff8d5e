"""``normal``: the control of Bernas et al. (2026), random directions orthogonal to the proxy. Its p decides nothing.

Those controls are not exchangeable with the proxy: at D = 128 and K = 32 their p rejects 0.11 instead of 0.05.
"""

from __future__ import annotations

from anisoscope.evidence.nulls.comparison import Against, Judged, logit
from anisoscope.evidence.spectral import normal_draws


def against_normal(judged: Judged) -> Against:
    """Mean share (1 − E)K/(D − K); over it the plain ratio is defined, which is the odds ratio over ``haar``."""
    chance, base = judged.chance, judged.base
    mean = (1 - base.energy) * base.rank / (base.width - base.rank)
    p = None
    if judged.resamples:
        options = judged.resamples, judged.seed
        p = judged.p_of([normal_draws(f.second[None], f.subspace.basis[None], *options) for f in judged.folds])
    return Against(mean, logit(chance, 1 - chance), p, judged.spread, judged.count, lost=judged.lost)
