"""Folds pooled and set against their nulls. Letters: D width, K rank, R draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.evidence.fold import Fold
from anisoscope.evidence.inference import FEWEST_UNITS, interval, jackknife_error, log_odds, paired, swap_p, two_sided_p
from anisoscope.evidence.pairing import PERMUTATIONS
from anisoscope.evidence.result import Evidence
from anisoscope.evidence.spectral import axes_draws, axes_mean, haar_draws, isotropy_gain, normal_draws
from anisoscope.evidence.units import Units, left_out
from anisoscope.geometry.results import Estimate


def conclude(
    folds: Sequence[Fold],
    *,
    nulls: Sequence[str],
    initial: Evidence | None,
    resamples: int,
    seed: int,
    isotropy: bool = True,
    p_paper: bool = True,
) -> Evidence:
    """Pool folds as ``(num₁ + num₂)/(den₁ + den₂)``, each null draw with the same random numbers in every fold."""
    inside, outside = sum(f.share.inside for f in folds), sum(f.share.outside for f in folds)
    width, rank = folds[0].subspace.width, folds[0].subspace.rank
    units = None if any(f.units is None for f in folds) else [f.units for f in folds if f.units is not None]
    base = Evidence(
        energy=inside / (inside + outside) if inside + outside > 0 else math.nan,
        inside=inside,
        outside=outside,
        width=width,
        rank=rank,
        n=sum(f.n for f in folds),
        units=None if units is None else sum(len(u.ids) for u in units),
        seed=seed,
        resamples=resamples,
        subspaces=tuple(f.subspace for f in folds),
        folds=None if units is None else tuple(units),
        radial=_pooled_radial(folds),
    )
    if inside + outside == 0:
        note = "gradients must have energy to be judged, got 0 everywhere; was backward called before the observation?"
        return replace(base, note=note)
    observed = math.log(inside / outside) if inside > 0 and outside > 0 else (math.inf if inside > 0 else -math.inf)
    lost = left_out(units) if units is not None else None
    lost_odds = None if lost is None else log_odds(lost.inside, lost.outside)
    enrichment: dict[str, Estimate] = {}
    means: dict[str, float] = {}
    p: dict[str, float] = {}
    paper = None
    for null in nulls:
        draws = 0 if null == "normal" and not p_paper else resamples
        found = _against(null, folds, units, initial, base, lost_odds, observed, draws, seed)
        means[null] = found.mean
        enrichment[null] = _odds_ratio(observed, found, base)
        if null == "normal":
            paper = found.p
        elif found.p is not None:
            p[null] = found.p
    result = replace(base, enrichment=enrichment, mean=means, p=p, p_paper=paper)
    return _with_isotropy(result, folds, resamples, seed) if isotropy else result


@dataclass(frozen=True, slots=True)
class _Null:
    """Mean share and its log odds; p; the standard error of the log odds ratio and the units it rests on."""

    mean: float
    odds: float
    p: float | None
    error: float | None = None
    units: int = 0


def _against(
    null: str,
    folds: Sequence[Fold],
    units: Sequence[Units] | None,
    initial: Evidence | None,
    base: Evidence,
    lost_odds: Tensor | None,
    observed: float,
    resamples: int,
    seed: int,
) -> _Null:
    count = base.units or 0
    chance = base.rank / base.width
    if chance == 1:
        return _Null(1.0, math.nan, 1.0)
    if null in ("haar", "normal"):
        error = None if lost_odds is None else jackknife_error(lost_odds)
        if null == "haar":
            mean, draws = chance, [haar_draws(f.second[None], base.rank, resamples, seed) for f in folds]
        else:
            mean = (1 - base.energy) * base.rank / (base.width - base.rank)
            if not resamples:
                return _Null(mean, math.log(chance / (1 - chance)), None, error, count)
            draws = [normal_draws(f.second[None], f.subspace.basis[None], resamples, seed) for f in folds]
        # Over `normal` the plain ratio is defined, and it is the odds ratio over `haar`.
        return _Null(mean, math.log(chance / (1 - chance)), _p(observed, draws), error, count)
    if null == "axes":
        axes = float(torch.stack([axes_mean(f.second[None], f.subspace.basis[None]) for f in folds]).sum())
        draws = [axes_draws(f.second[None], f.subspace.basis[None], resamples, seed) for f in folds]
        error = None
        if units is not None and lost_odds is not None:
            lost = left_out(units)
            error = jackknife_error(lost_odds - log_odds(lost.axes, lost.inside + lost.outside - lost.axes))
        total = base.inside + base.outside
        return _Null(axes / total, _logit(axes, total - axes), _p(observed, draws), error, count)
    if null in ("pairing", "pairing-token"):
        return _against_pairing(null, folds, lost_odds, observed, count)
    if null == "init":
        assert initial is not None, "checked by require_initial"
        return _against_initial(initial, units, lost_odds, base, resamples, seed)
    return _against_targets(null, folds, units, lost_odds, resamples, seed, count)


def _against_pairing(null: str, folds: Sequence[Fold], lost_odds: Tensor | None, observed: float, count: int) -> _Null:
    found = [f.pairing[null] for f in folds]
    inside, outside = sum(f.inside for f in found), sum(f.outside for f in found)
    p = error = None
    if all(f.draws is not None for f in found):
        drawn = [f.draws for f in found if f.draws is not None]
        inside_R, outside_R = (torch.stack(parts).sum(0) for parts in zip(*drawn, strict=True))
        p = two_sided_p(observed, log_odds(inside_R, outside_R))
    lost = [f.left_out for f in found if f.left_out is not None]
    if lost_odds is not None and len(lost) == len(found) and sum(len(part[0]) for part in lost) == len(lost_odds):
        null_odds = torch.cat(
            [
                log_odds(part[0] + inside - f.inside, part[1] + outside - f.outside)
                for part, f in zip(lost, found, strict=True)
            ]
        )
        error = jackknife_error(lost_odds - null_odds.to(lost_odds))
    return _Null(inside / (inside + outside), _logit(inside, outside), p, error, count)


def _against_targets(
    null: str,
    folds: Sequence[Fold],
    units: Sequence[Units] | None,
    lost_odds: Tensor | None,
    resamples: int,
    seed: int,
    count: int,
) -> _Null:
    found = [f.targets[null] for f in folds]
    inside, outside = sum(share.inside for share, _ in found), sum(share.outside for share, _ in found)
    if inside + outside == 0:
        return _Null(math.nan, math.nan, None)
    others = [u for _, u in found if u is not None]
    if units is None or lost_odds is None or len(others) < len(found):
        return _Null(inside / (inside + outside), _logit(inside, outside), None)
    lost = left_out(others)
    error = jackknife_error(lost_odds - log_odds(lost.inside, lost.outside))
    p = swap_p(units, others, resamples, seed)
    return _Null(inside / (inside + outside), _logit(inside, outside), p, error, count)


def _against_initial(
    initial: Evidence,
    units: Sequence[Units] | None,
    lost_odds: Tensor | None,
    base: Evidence,
    resamples: int,
    seed: int,
) -> _Null:
    odds = _logit(initial.inside, initial.outside)
    if initial.undetermined or units is None or lost_odds is None or initial.folds is None:
        return _Null(initial.energy, odds, None)
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
        error, count = jackknife_error(lost_odds - initial_lost), base.units or 0
    else:
        error = math.hypot(jackknife_error(lost_odds), jackknife_error(initial_lost))
        count = min(base.units or 0, initial.units or 0)
    return _Null(initial.energy, odds, swap_p(units, initial.folds, resamples, seed), error, count)


def _odds_ratio(observed: float, found: _Null, base: Evidence) -> Estimate:
    log_ratio = observed - found.odds
    if math.isnan(log_ratio):
        why = "the proxy is the whole space" if base.rank == base.width else "the null itself is undetermined"
        return Estimate(value=math.nan, n=found.units or base.n, note=why)
    bounds = None if found.error is None else interval(log_ratio, found.error, found.units)
    value = _exp(log_ratio)
    if bounds is None:
        few = found.error is not None and found.units < FEWEST_UNITS
        why = f"fewer than {FEWEST_UNITS} sequences" if few else None
        return Estimate(value=value, n=found.units or base.n, note=why)
    return Estimate(value=value, low=_exp(bounds[0]), high=_exp(bounds[1]), n=found.units)


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


def _logit(inside: float, outside: float) -> float:
    if inside <= 0 or outside <= 0:
        return math.nan if inside <= 0 and outside <= 0 else (math.inf if outside <= 0 else -math.inf)
    return math.log(inside / outside)


def _p(observed: float, draws: Sequence[Any]) -> float:
    inside, outside = (torch.stack([getattr(d, name)[0] for d in draws]).sum(0) for name in ("inside", "outside"))
    return two_sided_p(observed, log_odds(inside.clamp_min(0), outside.clamp_min(0)))


def _with_isotropy(base: Evidence, folds: Sequence[Fold], resamples: int, seed: int) -> Evidence:
    if base.width - base.rank < 2 or any(f.n < 2 or not float(f.covariance.diagonal().sum()) > 0 for f in folds):
        return base
    draws = min(resamples, PERMUTATIONS)
    gains = [isotropy_gain(f.covariance[None], f.subspace.basis[None], draws, seed) for f in folds]
    mean = {
        name: torch.stack([getattr(g, name) for g in gains]).mean(0)[0]
        for name in ("before", "gain", "gain_zeta0", "orthogonal", "haar")
    }
    return replace(
        base,
        isotropy_before=float(mean["before"]),
        isotropy_gain=float(mean["gain"]),
        isotropy_gain_zeta0=float(mean["gain_zeta0"]),
        isotropy_gain_null=float(mean["orthogonal"].mean()) if mean["orthogonal"].numel() else None,
        isotropy_gain_p=two_sided_p(float(mean["gain"]), mean["haar"]),
    )


def _pooled_radial(folds: Sequence[Fold]) -> float | None:
    parts = [f.radial for f in folds if f.radial is not None]
    if len(parts) < len(folds) or sum(total for _, total in parts) == 0:
        return None
    return sum(radial for radial, _ in parts) / sum(total for _, total in parts)
