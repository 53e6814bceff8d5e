"""Folds pooled and set against their nulls. Letters: D width, K rank, R draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from anisoscope.evidence.gain_units import Gains, gains_of_fold
from anisoscope.evidence.inference import (
    FEWEST_EFFECTIVE,
    Spread,
    bounded_exp,
    draws_to_tell,
    effective_units,
    log_odds,
    two_sided_p,
)
from anisoscope.evidence.isotropy_gain import FRAMES, isotropy_gains
from anisoscope.evidence.measure_fold import Fold
from anisoscope.evidence.nulls.comparison import Against, Judged
from anisoscope.evidence.nulls.registry import METHODS
from anisoscope.evidence.result import Evidence
from anisoscope.evidence.shared import Shared
from anisoscope.evidence.units import complete, left_out
from anisoscope.geometry.results import Estimate


def pool_folds(
    folds: Sequence[Fold],
    *,
    nulls: Sequence[str],
    initial: Evidence | None,
    resamples: int,
    seed: int,
    isotropy: bool = True,
    family: int = 1,
    shared: Shared | None = None,
) -> Evidence:
    """Pool folds as ``(num₁ + num₂)/(den₁ + den₂)``, each null draw with the same random numbers in every fold.

    Whoever judges several proxies on one cloud passes one ``shared`` to all, and the same tensors.
    """
    shared = shared or Shared()
    inside, outside = sum(f.share.inside for f in folds), sum(f.share.outside for f in folds)
    width, rank = folds[0].subspace.width, folds[0].subspace.rank
    units = complete([f.units for f in folds])
    base = Evidence(
        energy=inside / (inside + outside) if inside + outside > 0 else math.nan,
        inside=inside,
        outside=outside,
        width=width,
        rank=rank,
        n=sum(f.n for f in folds),
        units=None if units is None else sum(len(u.ids) for u in units),
        effective_units=None if units is None else effective_units(torch.cat([u.sizes for u in units])),
        seed=seed,
        resamples=resamples,
        subspaces=tuple(f.subspace for f in folds),
        folds=None if units is None else tuple(units),
        radial=_pooled_radial(folds),
    )
    if inside + outside == 0:
        note = "gradients must have energy to be judged, got 0 everywhere; was backward called before the observation?"
        nothing = {null: Estimate(value=math.nan, n=base.n, note=note) for null in nulls}
        return replace(base, note=note, enrichment=nothing)
    observed = math.log(inside / outside) if inside > 0 and outside > 0 else (math.inf if inside > 0 else -math.inf)
    lost = left_out(units) if units is not None else None
    lost_odds = None if lost is None else log_odds(lost.inside, lost.outside)
    enrichment: dict[str, Estimate] = {}
    means: dict[str, float] = {}
    p: dict[str, float] = {}
    p_floor: dict[str, float] = {}
    paper = None
    lost_ratios: dict[str, tuple[Tensor, ...]] = {}
    detectable: dict[str, float] = {}
    for null in nulls:
        judged = Judged(folds, units, base, observed, lost_odds, initial, resamples, seed, family, shared)
        found = Against(1.0, math.nan, 1.0) if rank == width else METHODS[null](judged)
        means[null] = found.mean
        enrichment[null] = _odds_ratio(observed, found, base)
        if enrichment[null].se is not None and found.spread is not None:
            lost_ratios[null] = found.lost
            detectable[null] = bounded_exp(found.spread.detectable(found.edge, family))
        made = resamples if found.draws is None else found.draws
        p_floor[null] = min(1.0, 2 / min(1 + made, found.arrangements))
        if null == "normal":
            paper = found.p
        elif found.p is not None:
            p[null] = max(found.p, p_floor[null])  # draws may miss that the data are one of a few arrangements
    said = {"p": p, "p_floor": p_floor, "p_paper": paper, "lost": lost_ratios, "detectable": detectable}
    result = replace(base, enrichment=enrichment, mean=means, **said)
    frames = min(resamples, max(FRAMES, draws_to_tell(family)))
    return _with_isotropy(result, folds, frames, seed, shared) if isotropy else result


def _odds_ratio(observed: float, found: Against, base: Evidence) -> Estimate:
    log_ratio = (observed if found.observed is None else found.observed) - found.odds
    if math.isnan(log_ratio):
        why = "the proxy is the whole space" if base.rank == base.width else "the null itself is undetermined"
        return Estimate(value=math.nan, n=found.units or base.n, note=found.note or why)
    value, spread = bounded_exp(log_ratio), found.spread
    effective = base.effective_units if found.effective is None else found.effective
    plain = Estimate(value=value, n=found.units or base.n, floor=1.0, units=effective, note=found.note)
    if spread is None or effective is None:
        return plain
    if effective < FEWEST_EFFECTIVE:
        few = f"cannot tell: {effective:.1f} effective units, fewer than {FEWEST_EFFECTIVE:g}"
        own = base.effective_units is not None and effective >= base.effective_units
        beside = f"gradient energy by unit: {largest_units(base)}" if own and found.note is None else found.note
        return replace(plain, note=f"{few}; {beside}" if beside else few)
    return spread.estimate(plain, log_ratio, ratio=True)


def largest_units(base: Evidence) -> str:
    """The units that dominate, with their share of the gradient's energy."""
    assert base.folds is not None, "effective units come from folds"
    sizes = torch.cat([units.sizes for units in base.folds])
    ids = torch.cat([units.ids for units in base.folds])
    largest = sizes.argsort(descending=True)[:3]
    total = float(sizes.sum())
    return ", ".join(f"{float(sizes[k]) / total:.0%} in {int(ids[k])}" for k in largest) if total > 0 else "none"


def _with_isotropy(base: Evidence, folds: Sequence[Fold], frames: int, seed: int, shared: Shared) -> Evidence:
    if base.width - base.rank < 2 or any(f.n < 2 or not float(f.covariance.diagonal().sum()) > 0 for f in folds):
        return base
    covariances, bases = [f.covariance for f in folds], [f.subspace.basis for f in folds]
    gains = isotropy_gains(covariances, bases, frames, seed, shared)
    mean = {
        name: torch.stack([getattr(g, name) for g in gains]).mean(0)
        for name in ("before", "gain", "gain_zeta0", "orthogonal", "haar")
    }
    before, gain, chance = float(mean["before"]), float(mean["gain"]), float(mean["haar"].mean())
    missing = 1 - before
    by_unit = [gains_of_fold(f.sample, f.units, f.subspace.basis, f.n, shared) for f in folds]
    errors = _gain_errors([g for g in by_unit if g is not None]) if all(g is not None for g in by_unit) else None
    return replace(
        base,
        isotropy_gain_chance=chance,
        isotropy_gain_estimate=_estimated(base, gain, chance, None if errors is None else Spread.of(errors[0])),
        captured_lost=None if errors is None else errors[1],
        captured_estimate=_estimated(
            base, gain / missing, chance / missing, None if errors is None else Spread.of(errors[1])
        )
        if missing > 0
        else None,
        isotropy_before=float(mean["before"]),
        isotropy_gain=float(mean["gain"]),
        isotropy_gain_zeta0=float(mean["gain_zeta0"]),
        isotropy_gain_null=float(mean["orthogonal"].mean()) if mean["orthogonal"].numel() else None,
        isotropy_gain_p=two_sided_p(float(mean["gain"]), mean["haar"]),
        isotropy_gain_p_floor=min(1.0, 2 / (1 + mean["haar"].numel())),
    )


def _gain_errors(folds: Sequence[Gains]) -> tuple[Tensor, Tensor]:
    """The gain and the captured share, means over folds, without each unit of all folds."""
    befores, gains = (torch.stack([getattr(fold, name) for fold in folds]) for name in ("before", "gain"))
    lost_gain, lost_share = [], []
    for k, fold in enumerate(folds):
        gain = gains.mean() + (fold.gain_without - gains[k]) / len(folds)
        before = befores.mean() + (fold.before_without - befores[k]) / len(folds)
        lost_gain.append(gain)
        lost_share.append(gain / (1 - before))
    return torch.cat(lost_gain), torch.cat(lost_share)


def _estimated(base: Evidence, value: float, chance: float, spread: Spread | None) -> Estimate:
    """A number with its interval over units, where there are enough of them."""
    effective = base.effective_units
    plain = Estimate(value=value, n=base.units or base.n, floor=chance, units=effective)
    if spread is None or effective is None or effective < FEWEST_EFFECTIVE:
        return plain
    return spread.estimate(plain, value)


def _pooled_radial(folds: Sequence[Fold]) -> float | None:
    parts = [f.radial for f in folds if f.radial is not None]
    if len(parts) < len(folds) or sum(total for _, total in parts) == 0:
        return None
    return sum(radial for radial, _ in parts) / sum(total for _, total in parts)
