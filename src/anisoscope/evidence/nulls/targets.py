"""``targets`` and ``targets-uniform``: the gradients of the same tokens under other labels."""

from __future__ import annotations

import math
from functools import partial

from anisoscope.evidence.inference import Spread, log_odds, swap_p
from anisoscope.evidence.nulls.comparison import Against, Judged, logit
from anisoscope.evidence.units import complete, left_out


def _against(null: str, judged: Judged) -> Against:
    """The share under those labels; p by swapping the two sides sequence by sequence."""
    found = [f.targets[null] for f in judged.folds]
    inside, outside = sum(share.inside for share, _ in found), sum(share.outside for share, _ in found)
    if inside + outside == 0:
        return Against(math.nan, math.nan, None)
    mean, odds = inside / (inside + outside), logit(inside, outside)
    others = complete([units for _, units in found])
    if judged.units is None or judged.lost_odds is None or others is None:
        return Against(mean, odds, None)
    lost = left_out(others)
    without = judged.lost_odds - log_odds(lost.inside, lost.outside)
    p = swap_p(judged.units, others, judged.resamples, judged.seed)
    about = {"lost": (without,), "effective": judged.fewest_effective(others)}
    return Against(mean, odds, p, Spread.of(without), judged.count, **about)


against_targets = partial(_against, "targets")
against_targets_uniform = partial(_against, "targets-uniform")
