"""``pairing`` and ``pairing-token``: which error signal meets which input, of sequences or of tokens."""

from __future__ import annotations

import math

import torch

from anisoscope.evidence.inference import FEWEST_EFFECTIVE, Spread, effective_units, log_odds, two_sided_p
from anisoscope.evidence.nulls.comparison import Against, Judged, logit
from anisoscope.evidence.pairing_classes import PairingNull


def against_pairing(judged: Judged) -> Against:
    """Mean over permutations of sequences within classes; share, interval and p are of the sequences in them."""
    found = [f.pairing["pairing"] for f in judged.folds]
    kept = [f for f in found if f.observed is not None]
    dropped = sum(f.dropped for f in found)
    if len(kept) < len(found):
        note = f"cannot tell: no class of sequences of equal length is large enough; {dropped} left out"
        return Against(math.nan, math.nan, None, note=note)
    inside, outside = sum(f.inside for f in kept), sum(f.outside for f in kept)
    observed = logit(*(sum(float(getattr(f.observed, side)) for f in kept) for side in ("inside", "outside")))
    sizes = torch.cat([f.sizes for f in kept])
    units = len(sizes)
    folds = range(len(kept))
    lost = torch.cat([_lost(kept, k, "observed_lost", "observed") - _lost(kept, k, "lost", None) for k in folds])
    some = "1 sequence" if dropped == 1 else f"{dropped} sequences"
    note = f"{some} left out: too few others are of equal length" if dropped else None
    enough = units >= FEWEST_EFFECTIVE
    if not enough:
        note = f"cannot tell: {units} units in classes of equal length, fewer than {FEWEST_EFFECTIVE:g}"
    return Against(
        inside / (inside + outside) if inside + outside > 0 else math.nan,
        logit(inside, outside),
        _p(kept, observed) if enough else None,
        Spread.of(lost) if enough else None,
        units,
        observed=observed,
        effective=effective_units(sizes),
        note=note,
        draws=_draws(kept),
        arrangements=math.prod(f.arrangements for f in kept),
        lost=(lost,) if enough else (),
    )


def against_pairing_token(judged: Judged) -> Against:
    """Mean over permutations of tokens, in closed form; no interval."""
    found = [f.pairing["pairing-token"] for f in judged.folds]
    inside, outside = sum(f.inside for f in found), sum(f.outside for f in found)
    p = _p(found, judged.observed)
    return Against(inside / (inside + outside), logit(inside, outside), p, draws=_draws(found))


def _draws(found: list[PairingNull]) -> int:
    return min(0 if f.draws is None else len(f.draws[0]) for f in found)


def _p(found: list[PairingNull], observed: float) -> float | None:
    drawn = [f.draws for f in found if f.draws is not None]
    if len(drawn) < len(found):
        return None
    inside_R, outside_R = (torch.stack(parts).sum(0) for parts in zip(*drawn, strict=True))
    return two_sided_p(observed, log_odds(inside_R, outside_R))


def _lost(found: list[PairingNull], fold: int, lost: str, whole: str | None) -> torch.Tensor:
    """Log odds over all folds without each unit of one of them."""
    own = getattr(found[fold], lost)
    parts = []
    for side in ("inside", "outside"):
        others = [f for k, f in enumerate(found) if k != fold]
        rest = sum(float(getattr(getattr(f, whole) if whole else f, side)) for f in others)
        parts.append((getattr(own, side) + rest).clamp_min(0))
    return log_odds(*parts)
