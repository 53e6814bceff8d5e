"""p-values, intervals and adjustment. Letters: n units, R draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy import special, stats
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.evidence.random_tables import swaps
from anisoscope.evidence.units import Mixed, Mixture, Units, totals
from anisoscope.geometry.results import Estimate

FEWEST_UNITS = 4  # sequences in a fold: below it there is no p and no interval
FEWEST_EFFECTIVE = 8.0  # effective units of both folds: below it an interval would rest on a few dominating ones
FEWEST_SWAPPED = 16  # units a side: below it a swap test cannot tell
_CHUNK_NUMBERS = 1 << 24


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


@dataclass(frozen=True, slots=True)
class Spread:
    """A standard error with its degrees of freedom."""

    error: float
    df: float

    @classmethod
    def of(cls, left_out_n: Tensor) -> Spread:
        """From the values of a statistic with one unit left out (jackknife).

        The degrees of freedom are ``(Σd²)²/Σd⁴ − 1``, d the centred values, at least 1: where a few units decide the
        statistic, its error is known from those few. Each unit alike gives n − 1.
        """
        n = left_out_n.numel()
        squares = (left_out_n - left_out_n.mean()).square()
        total, fourth = float(squares.sum()), float(squares.square().sum())
        df = max(1.0, total * total / fourth - 1) if fourth > 0 else float(max(1, n - 1))
        return cls(math.sqrt(total * (n - 1) / n), df)

    @classmethod
    def of_parts(cls, parts: Sequence[Tensor]) -> Spread:
        """Of a statistic whose leave-one-outs come from one side, or from two that are independent."""
        found = cls.of(parts[0])
        for part in parts[1:]:
            found = found.plus(cls.of(part))
        return found

    @classmethod
    def plain(cls, left_out_n: Tensor) -> Spread:
        """The same with n − 1 degrees of freedom, for statistics that no few units decide."""
        return cls(cls.of(left_out_n).error, left_out_n.numel() - 1)

    def plus(self, other: Spread) -> Spread:
        """Of a difference of two independent statistics (Welch, Satterthwaite)."""
        a, b = self.error**2, other.error**2
        df = (a + b) ** 2 / (a * a / self.df + b * b / other.df) if a + b > 0 else min(self.df, other.df)
        return Spread(math.sqrt(a + b), df)

    def detectable(self, edge: float, family: int) -> float:
        """About the smallest logarithm of a ratio that would have been found in 80 % of repetitions.

        It must exceed what chance reaches, by its interval and by the null's own draws (``edge``), both adjusted over
        the family, and then by what its error takes away in one of five repetitions.
        """
        outer = _quantile(1 - 0.025 / family, self.df) * self.error
        return max(outer, edge) + _quantile(0.8, self.df) * self.error

    def interval(self, value: float, *, level: float = 0.95) -> tuple[float, float] | None:
        """By Student's t around the plain estimate; None where it is not finite."""
        if not math.isfinite(self.error) or not math.isfinite(value):
            return None
        half = _quantile(0.5 + level / 2, self.df) * self.error
        return value - half, value + half

    def estimate(self, plain: Estimate, centre: float, *, ratio: bool = False) -> Estimate:
        """``plain`` with this error and its 95 % and 90 % intervals about ``centre``.

        With ``ratio`` centre and error are of the logarithm, and the ends are ratios again.
        """
        outer, inner = self.interval(centre), self.interval(centre, level=0.9)
        if outer is None or inner is None:
            return plain
        low, high, low90, high90 = (bounded_exp(end) if ratio else end for end in (*outer, *inner))
        return replace(plain, se=self.error, df=self.df, low=low, high=high, low90=low90, high90=high90)


def _quantile(level: float, df: float) -> float:
    """Of Student's t. ``stats.t.ppf`` checks its arguments for a hundred times as long as it computes."""
    return float(special.stdtrit(df, level))


def bounded_exp(x: float) -> float:
    """``exp(x)``, infinite where it is too large for a float."""
    return math.exp(x) if x < 700 else math.inf


def sign_flips(count: int) -> float:
    """Ways to give signs to so many things; infinite beyond the range of floats."""
    return 2.0**count if count < 1024 else math.inf


def effective_units(energies_n: Tensor) -> float:
    """``(Σe)²/Σe²``: how many units of equal energy would be as informative.

    >>> effective_units(torch.tensor([1.0, 1.0, 1.0, 1.0])), effective_units(torch.tensor([9.0, 0.0, 0.0]))
    (4.0, 1.0)
    """
    total, squares = float(energies_n.sum()), float(energies_n.square().sum())
    return total * total / squares if squares > 0 else 0.0


def draws_to_tell(family: int) -> int:
    """Draws that a lone layer needs to reach q = 0.05 in its family.

    A p cannot be below ``2/(R + 1)``, and adjusting over F layers multiplies it by F.

    >>> draws_to_tell(12)
    479
    """
    return 40 * family - 1


def swap_p(first: Sequence[Units], second: Sequence[Units], draws: int, seed: int) -> float | None:
    """Two-sided p of the difference in log odds between two sides that consist of units, fold by fold.

    Units with the same ids on both sides are swapped in pairs; otherwise they are dealt anew to the two sides. Each
    side's total is scaled to 1 before, so that a larger gradient does not weigh more. The difference is divided by its
    jackknife standard error, anew in every swap: a plain difference rejects too often where the two sides differ in
    dispersion (Janssen 1997; Chung & Romano 2013). None below 16 units a side.
    """
    if min(sum(len(units.ids) for units in side) for side in (first, second)) < FEWEST_SWAPPED:
        return None
    whole = [totals(side) for side in (first, second)]
    scales = (1 / float(whole[0].inside + whole[0].outside), 1 / float(whole[1].inside + whole[1].outside))
    same = [paired(own, other) for own, other in zip(first, second, strict=True)]
    dealt = swaps(tuple((len(a.ids), len(b.ids), s) for a, b, s in zip(first, second, same, strict=True)), draws, seed)
    sides = []
    for own, other, together, chosen in zip(first, second, same, dealt, strict=True):
        assert type(own) is type(other), "both sides of a swap are of one kind"
        if together:
            own, other = _ordered(own), _ordered(other)
        sides.append((own.joined(other, scales), chosen, together))
    step = max(1, _CHUNK_NUMBERS // (4 * sum(chosen.shape[1] for _, chosen, _ in sides)))
    studentised = torch.cat(
        [
            _studentised([(joint, chosen[part : part + step], same) for joint, chosen, same in sides])
            for part in range(0, draws + 1, step)
        ]
    )
    return two_sided_p(float(studentised[0]), studentised[1:])


def _studentised(sides: Sequence[tuple[Mixture, Tensor, bool]]) -> Tensor:
    """Difference of log odds over its jackknife standard error, for each way of dealing."""
    mixed = [(joint.mix(chosen), joint.mix(1 - chosen)) for joint, chosen, _ in sides]
    own, rest = (
        tuple(torch.stack([getattr(pair[k], name) for pair in mixed]).sum(0) for name in ("inside", "outside"))
        for k in (0, 1)
    )  # totals over folds, (R,) each
    difference = log_odds(own[0], own[1]) - log_odds(rest[0], rest[1])
    values: list[Tensor] = []
    for (_, chosen, same), (first, second) in zip(sides, mixed, strict=True):
        lost_own = log_odds(*_without(own, first))
        lost_rest = log_odds(*_without(rest, second))
        if same:  # a pair goes from both sides at once
            n = chosen.shape[1] // 2
            a = torch.where(chosen[:, :n] > 0, lost_own[:, :n], lost_own[:, n:])
            b = torch.where(chosen[:, :n] > 0, lost_rest[:, n:], lost_rest[:, :n])
            values.append(a - b)
        else:
            here = chosen > 0
            values.append(torch.where(here, lost_own - log_odds(*rest)[:, None], log_odds(*own)[:, None] - lost_rest))
    left_out = torch.cat(values, 1)
    n = left_out.shape[1]
    variance = (left_out - left_out.mean(1, keepdim=True)).square().sum(1) * (n - 1) / n
    error = variance.sqrt()
    # Two sides that are equal differ by rounding alone, and so does their error.
    return torch.where(error > 1e-12, difference / error.clamp_min(1e-12), 0.0)


def _without(total: tuple[Tensor, ...], mixed: Mixed) -> tuple[Tensor, Tensor]:
    """Energies of a mixture without each of its units; rounding must not make one negative."""
    inside, outside = (
        (whole[:, None] - own).clamp_min(torch.finfo(whole.dtype).tiny)
        for whole, own in zip(total, (mixed.own_inside, mixed.own_outside), strict=True)
    )
    return inside, outside


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
    return units.ordered(units.ids.argsort())
