"""p-values, intervals and adjustment. Letters: n units, R draws."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.evidence.tables import stream
from anisoscope.evidence.units import AdditiveUnits, BilinearUnits, Units, totals

FEWEST_UNITS = 4
_MANY_UNITS, _FEWER_DRAWS = 1024, 199  # dealing thousands of types anew a thousand times takes longer than all else


def log_odds(inside: Tensor, outside: Tensor) -> Tensor:
    """``log(inside/outside)``; infinite where one side is empty."""
    return inside.log() - outside.log()


def two_sided_p(observed: float, draws_R: Tensor) -> float:
    """``min(1, 2·min(p_up, p_low))``, each ``(1 + #)/(1 + R)``: never 0, and exact if the draws are exchangeable."""
    if math.isnan(observed) or bool(draws_R.isnan().any()):
        return math.nan
    # Rounding must not turn a tie (a frame that changes nothing) into evidence.
    slack = 1e-9 * max(1.0, abs(observed)) if math.isfinite(observed) else 0.0
    above = int((draws_R >= observed - slack).sum())
    below = int((draws_R <= observed + slack).sum())
    return min(1.0, 2 * (1 + min(above, below)) / (1 + draws_R.numel()))


def jackknife_error(left_out_n: Tensor) -> float:
    """Standard error of a statistic from its values with one unit left out."""
    n = left_out_n.numel()
    return float(((left_out_n - left_out_n.mean()).square().sum() * (n - 1) / n).sqrt())


def interval(value: float, error: float, units: int, *, level: float = 0.95) -> tuple[float, float] | None:
    """Interval by Student's t around the plain estimate; none below 4 units."""
    if units < FEWEST_UNITS or not math.isfinite(error) or not math.isfinite(value):
        return None
    half = float(stats.t.ppf(0.5 + level / 2, units - 1)) * error
    return value - half, value + half


def swap_p(first: Sequence[Units], second: Sequence[Units], draws: int, seed: int) -> float:
    """Two-sided p of the difference in log odds between two sides that consist of units, fold by fold.

    Units with the same ids on both sides are swapped in pairs; otherwise they are dealt anew to the two sides. Each
    side's total is scaled to 1 before, so that a larger gradient does not weigh more.
    """
    generator = stream(seed, "swaps")
    if sum(len(units.ids) for side in (first, second) for units in side) > _MANY_UNITS:
        draws = min(draws, _FEWER_DRAWS)
    whole = [totals(side) for side in (first, second)]
    scales = (1 / float(whole[0].inside + whole[0].outside), 1 / float(whole[1].inside + whole[1].outside))
    sides = []
    for own, other in zip(first, second, strict=True):
        assert type(own) is type(other), "both sides of a swap are of one kind"
        if paired(own, other):
            own, other = _ordered(own), _ordered(other)
        chosen = _dealt(own, other, draws, generator)
        sides.append((*own.mixed(other, chosen, scales), *own.mixed(other, 1 - chosen, scales)))
    inside, outside, inside_rest, outside_rest = (torch.stack(parts).sum(0) for parts in zip(*sides, strict=True))
    difference = log_odds(inside, outside) - log_odds(inside_rest, outside_rest)
    return two_sided_p(float(difference[0]), difference[1:])


def paired(first: Units, second: Units) -> bool:
    """Whether both sides consist of the same units."""
    return first.ids.shape == second.ids.shape and bool((first.ids.sort().values == second.ids.sort().values).all())


def adjust(pvalues: Sequence[float] | np.ndarray) -> np.ndarray:
    """Benjamini-Hochberg q-values (scipy); NaN stays NaN and counts for nothing.

    >>> adjust([0.01, 0.02, 0.9]).round(3).tolist()
    [0.03, 0.03, 0.9]
    """
    p = np.asarray(pvalues, dtype=np.float64)
    known = ~np.isnan(p)
    if known.any() and not ((p[known] >= 0) & (p[known] <= 1)).all():
        raise broken("p-values must lie in 0…1", f"{p[known].min():g}…{p[known].max():g}", "pass p, not statistics")
    q = np.full_like(p, np.nan)
    if known.any():
        q[known] = stats.false_discovery_control(p[known])
    return q


def _ordered(units: Units) -> Units:
    order = units.ids.argsort()
    if isinstance(units, AdditiveUnits):
        e = units.energies
        return AdditiveUnits(units.ids[order], type(e)(e.inside[order], e.outside[order], e.axes[order]))
    rank = order.argsort()  # where each unit goes
    return BilinearUnits(units.ids[order], units.inputs, units.deltas, units.basis, rank[units.place])


def _dealt(own: Units, other: Units, draws: int, generator: torch.Generator) -> Tensor:
    """Rows of 0 and 1 over the units of both sides: the first as they came, the others swapped or dealt anew."""
    n, m = len(own.ids), len(other.ids)
    first = torch.cat([torch.ones(n, device="cpu"), torch.zeros(m, device="cpu")]).double()
    if paired(own, other):
        stay = torch.randint(0, 2, (draws, n), generator=generator, device="cpu").double()
        rest = torch.cat([stay, 1 - stay], 1)
    else:
        rest = first[torch.rand(draws, n + m, generator=generator, device="cpu").argsort(1)]
    return torch.cat([first[None], rest]).to(own.ids.device)
