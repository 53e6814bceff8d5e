"""``pairing`` and ``pairing-token``: which error signal meets which input, of sequences or of tokens."""

from __future__ import annotations

from functools import partial

import torch

from anisoscope.evidence.inference import jackknife_error, log_odds, two_sided_p
from anisoscope.evidence.nulls.comparison import Against, Judged, logit


def _against(null: str, judged: Judged) -> Against:
    """Mean over permutations, measured with each fold; p from as many of them as were asked for."""
    found = [f.pairing[null] for f in judged.folds]
    inside, outside = sum(f.inside for f in found), sum(f.outside for f in found)
    p = error = None
    if all(f.draws is not None for f in found):
        drawn = [f.draws for f in found if f.draws is not None]
        inside_R, outside_R = (torch.stack(parts).sum(0) for parts in zip(*drawn, strict=True))
        p = two_sided_p(judged.observed, log_odds(inside_R, outside_R))
    lost, lost_odds = [f.left_out for f in found if f.left_out is not None], judged.lost_odds
    if lost_odds is not None and len(lost) == len(found) and sum(len(part[0]) for part in lost) == len(lost_odds):
        null_odds = torch.cat(
            [
                log_odds(part[0] + inside - f.inside, part[1] + outside - f.outside)
                for part, f in zip(lost, found, strict=True)
            ]
        )
        error = jackknife_error(lost_odds - null_odds.to(lost_odds))
    return Against(inside / (inside + outside), logit(inside, outside), p, error, judged.count)


against_pairing = partial(_against, "pairing")
against_pairing_token = partial(_against, "pairing-token")
