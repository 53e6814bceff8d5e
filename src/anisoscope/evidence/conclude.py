"""Folds pooled and set against their nulls. Letters: D width, K rank, R draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from anisoscope.evidence.fold import Fold
from anisoscope.evidence.inference import FEWEST_UNITS, interval, log_odds, two_sided_p
from anisoscope.evidence.nulls.comparison import Against, Judged
from anisoscope.evidence.nulls.registry import METHODS
from anisoscope.evidence.pairing import PERMUTATIONS
from anisoscope.evidence.result import Evidence
from anisoscope.evidence.spectral import isotropy_gain
from anisoscope.evidence.units import left_out
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
        judged = Judged(folds, units, base, observed, lost_odds, initial, draws, seed)
        found = Against(1.0, math.nan, 1.0) if rank == width else METHODS[null](judged)
        means[null] = found.mean
        enrichment[null] = _odds_ratio(observed, found, base)
        if null == "normal":
            paper = found.p
        elif found.p is not None:
            p[null] = found.p
    result = replace(base, enrichment=enrichment, mean=means, p=p, p_paper=paper)
    return _with_isotropy(result, folds, resamples, seed) if isotropy else result


def _odds_ratio(observed: float, found: Against, base: Evidence) -> Estimate:
    log_ratio = observed - found.odds
    if math.isnan(log_ratio):
        why = "the proxy is the whole space" if base.rank == base.width else "the null itself is undetermined"
        return Estimate(value=math.nan, n=found.units or base.n, note=why)
    bounds = None if found.error is None else interval(log_ratio, found.error, found.units)
    value = _exp(log_ratio)
    if bounds is None:
        few = found.error is not None and found.units < FEWEST_UNITS
        why = f"fewer than {FEWEST_UNITS} sequences" if few else None
        return Estimate(value=value, n=found.units or base.n, note=why, floor=1.0)
    assert found.error is not None, "an interval comes from it"
    inner = interval(log_ratio, found.error, found.units, level=0.9) or bounds
    return Estimate(
        value=value,
        low=_exp(bounds[0]),
        high=_exp(bounds[1]),
        n=found.units,
        floor=1.0,
        se=found.error,
        low90=_exp(inner[0]),
        high90=_exp(inner[1]),
        units=float(found.units),
    )


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


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
