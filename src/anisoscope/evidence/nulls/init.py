"""``init``: the same test before training, with its own proxy."""

from __future__ import annotations

from anisoscope.errors import broken
from anisoscope.evidence.inference import Spread, log_odds, paired, swap_p
from anisoscope.evidence.nulls.comparison import Against, Judged, logit
from anisoscope.evidence.units import left_out


def against_init(judged: Judged) -> Against:
    """The share at step 0; p by exchanging sequences between the two observations."""
    initial, units, lost_odds = judged.initial, judged.units, judged.lost_odds
    assert initial is not None, "checked by require_initial"
    odds = logit(initial.inside, initial.outside)
    if initial.undetermined or units is None or lost_odds is None or initial.folds is None:
        return Against(initial.energy, odds, None)
    if len(units) != len(initial.folds) or any(
        type(a) is not type(b) for a, b in zip(units, initial.folds, strict=True)
    ):
        raise broken(
            "initial must be judged as this evidence is (same view, same number of folds)",
            f"{len(initial.folds)} folds",
            "judge step 0 with the same call",
        )
    lost = left_out(initial.folds)
    initial_lost = log_odds(lost.inside, lost.outside)
    same = all(paired(a, b) and bool((a.ids == b.ids).all()) for a, b in zip(units, initial.folds, strict=True))
    if same:
        without, count = (lost_odds - initial_lost,), judged.count
    else:
        without, count = (lost_odds, initial_lost), min(judged.count, initial.units or 0)
    p = swap_p(units, initial.folds, judged.resamples, judged.seed)
    effective = judged.fewest_effective(initial.folds)
    return Against(initial.energy, odds, p, Spread.of_parts(without), count, lost=without, effective=effective)
