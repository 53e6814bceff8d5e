"""The two sides of a comparison: a proxy that was judged, and what a null says of it. Letters: D width, R draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from anisoscope.evidence.inference import Spread, effective_units, log_odds, two_sided_p
from anisoscope.evidence.measure_fold import Fold
from anisoscope.evidence.result import Evidence
from anisoscope.evidence.shared import Shared
from anisoscope.evidence.units import Units


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """A proxy with its folds pooled: all that a null may ask for."""

    folds: Sequence[Fold]
    units: Sequence[Units] | None
    base: Evidence
    observed: float  # log odds of the energy share
    lost_odds: Tensor | None  # the same with one unit left out, for each
    initial: Evidence | None
    resamples: int
    seed: int
    family: int = 1  # layers that p is adjusted over
    shared: Shared = field(default_factory=Shared)  # with other proxies of the same cloud

    @property
    def count(self) -> int:
        """Units behind the interval."""
        return self.base.units or 0

    @property
    def spread(self) -> Spread | None:
        """Error of the log odds themselves, for nulls whose mean is fixed."""
        return None if self.lost_odds is None else Spread.of(self.lost_odds)

    @property
    def lost(self) -> tuple[Tensor, ...]:
        """Leave-one-out log odds, as a null whose mean is fixed passes them on."""
        return () if self.lost_odds is None else (self.lost_odds,)

    def fewest_effective(self, others: Sequence[Units]) -> float:
        """Effective units of this side or of the one it is compared with, whichever has fewer."""
        theirs = effective_units(torch.cat([units.sizes for units in others]))
        return min(self.base.effective_units or 0.0, theirs)

    @property
    def chance(self) -> float:
        """K/D, the mean share of a random subspace."""
        return self.base.rank / self.base.width

    def p_of(self, draws: Sequence[Any]) -> float:
        """Two-sided p of the observed odds among draws of ``inside`` and ``outside``, one set a fold."""
        return two_sided_p(self.observed, _odds_of(draws))

    def edge_of(self, draws: Sequence[Any], odds: float) -> float:
        """How far above its mean the null itself goes: the ``1 − 0.025/family`` quantile of its log odds ratios."""
        drawn = _odds_of(draws) - odds
        drawn = drawn[torch.isfinite(drawn)]
        return max(0.0, float(drawn.quantile(1 - 0.025 / self.family))) if drawn.numel() else 0.0


def _odds_of(draws: Sequence[Any]) -> Tensor:
    inside, outside = (torch.stack([getattr(d, name)[0] for d in draws]).sum(0) for name in ("inside", "outside"))
    return log_odds(inside.clamp_min(0), outside.clamp_min(0))


@dataclass(frozen=True, slots=True)
class Against:
    """Mean share of a null and its log odds; p; the error of the log odds ratio and how many units are behind it."""

    mean: float
    odds: float
    p: float | None
    spread: Spread | None = None
    units: int = 0
    observed: float | None = None  # log odds that it is set against, where they are not those of the whole
    effective: float | None = None  # and the effective units behind them
    note: str | None = None
    draws: int | None = None  # behind p, where they are not as many as were asked for
    lost: tuple[Tensor, ...] = ()  # log odds ratios with one unit left out; of two sides, where they are independent
    arrangements: float = math.inf  # that the null draws from: p cannot be smaller than two of them allow
    edge: float = 0.0  # the log odds ratio that the null itself exceeds in 2.5 % of draws, adjusted over the family


def logit(inside: float, outside: float) -> float:
    """``log(inside/outside)``; infinite where one side is empty, NaN where both are."""
    if inside <= 0 or outside <= 0:
        return math.nan if inside <= 0 and outside <= 0 else (math.inf if outside <= 0 else -math.inf)
    return math.log(inside / outside)
