"""The premise of the theory at a linear layer: tangent parts of its gradient cancel no more than normal ones.

Letters: n sequences, T positions, R draws.

The gradient is ``G = Σ_i δ_i x_iᵀ`` over tokens; ``δ_i (QQᵀx_i)ᵀ`` are its tangent parts, ``δ_i (x_i − QQᵀx_i)ᵀ`` its
normal ones. With γ as in ``cancellation``, ``‖G^N‖/‖G^T‖ = (Σ‖g_i^N‖/Σ‖g_i^T‖)·γ^N/γ^T``: what holds of single tokens,
that their normal parts are small, holds of the gradient as long as γ^T is not below γ^N. No threshold is needed.

Noise makes both γ larger, and about equally, so their plain quotient lies too near 1, the more so the fewer sequences
there are. The quotient is one of γ without that noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from anisoscope.evidence.cancellation import root, square_without_noise
from anisoscope.evidence.inference import FEWEST_EFFECTIVE, FEWEST_UNITS, effective_units
from anisoscope.evidence.quotient import Jackknifed, quotient_detectable, quotient_interval
from anisoscope.evidence.random_tables import random_signs
from anisoscope.evidence.units import BilinearUnits
from anisoscope.geometry.results import Estimate
from anisoscope.verdict import MARGIN, outcome_of_quotient

_ROUNDING = 1e-24  # γ² of sums that cancel up to rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Premise:
    """γ of both parts, and their quotient ``γ^T/γ^N`` with its interval over sequences.

    ``tangent`` and ``normal`` hold γ of these tokens; their intervals are of γ without the noise of the sequences,
    which random signs alone would make as large as ``floor`` (97.5 %). ``p`` is one-sided, of tangent parts against
    random signs. ``quotient`` is of γ without noise. Where the interval of one of them reaches 0 it is NaN, and its
    note says which: a quotient of noise is none. ``difference`` is ``(γ^T)² − (γ^N)²``, also without noise; it needs
    neither to be above 0. ``detectable`` is about the smallest quotient above 1 that would have been found in 80 % of
    repetitions, where there is a quotient.
    """

    tangent: Estimate
    normal: Estimate
    quotient: Estimate
    difference: Estimate
    p: float
    detectable: float | None = None

    def outcome(self, margin: float = MARGIN) -> str:
        """Of γ^T/γ^N against 1, by its interval and the margin, or else by that of the difference.

        The premise holds where it is *above*, fails where it is *below*, and holds up to the margin where it is
        *equal*.
        """
        low, high = self.quotient.low, self.quotient.high
        if low is not None and high is not None:
            return outcome_of_quotient(low, high, margin)
        low, high = self.difference.low, self.difference.high
        if low is None or high is None:
            return "not measured" if math.isnan(self.tangent.value) else "cannot tell"
        return "above" if low > 0 else "below" if high < 0 else "cannot tell"


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """One part of a gradient by sequence: inner products ``(n, n)`` of its sums, and summed lengths ``(n,)``."""

    gram: Tensor
    length: Tensor

    @property
    def square(self) -> Tensor:
        """γ²."""
        return self.gram.sum() / self.length.sum().square()

    def true_square(self) -> Tensor:
        """γ² without the noise of the sequences."""
        return square_without_noise(self.gram.sum(), self.gram.trace(), self.length.sum(), len(self.length))

    def true_left_out(self) -> Tensor:
        """The same without one sequence, for each."""
        own, length, n = self.gram.diagonal(), self.length, len(self.length)
        energy = (self.gram.sum() - 2 * self.gram.sum(1) + own).clamp_min(0)
        return square_without_noise(energy, own.sum() - own, length.sum() - length, n - 1)

    def signed(self, signs_Rn: Tensor) -> Tensor:
        """γ² under random signs of the sequences."""
        return ((signs_Rn @ self.gram) * signs_Rn).sum(1).clamp_min(0) / self.length.sum().square()


def premise(folds: Sequence[BilinearUnits], *, draws: int = 199, seed: int = 0) -> Premise:
    """Judge the premise on folds, each with the proxy that was fitted on another; γ² is their mean."""
    tangent, normal = [], []
    for units in folds:
        grams, (inside, outside) = units.grams(), units.lengths()
        tangent.append(_Side(grams.inside.cpu(), inside.cpu()))
        normal.append(_Side(grams.outside.cpu(), outside.cpu()))
    tokens = sum(int((units.deltas != 0).any(2).sum()) for units in folds)
    least = min(len(side.length) for side in tangent)
    if least < 2 or not all(float(side.length.sum()) > 0 for side in (*tangent, *normal)):
        why = "fewer than 2 sequences" if least < 2 else "one of the two parts is 0 everywhere"
        nothing = Estimate(value=math.nan, n=tokens, note=why)
        return Premise(tangent=nothing, normal=nothing, quotient=nothing, difference=nothing, p=math.nan)
    signs = [random_signs(len(side.length), draws, seed + k) for k, side in enumerate(tangent)]
    signed = torch.stack([side.signed(drawn) for side, drawn in zip(tangent, signs, strict=True)]).mean(0)
    squares = [float(torch.stack([side.square for side in sides]).mean()) for sides in (tangent, normal)]
    found = Premise(
        tangent=Estimate(value=root(squares[0]), n=tokens, floor=float(signed.quantile(0.975).sqrt())),
        normal=Estimate(value=root(squares[1]), n=tokens),
        quotient=Estimate(value=math.nan, n=tokens),
        difference=Estimate(value=math.nan, n=tokens),
        p=(1 + int((signed >= squares[0] * (1 - 1e-9)).sum())) / (1 + draws),
    )
    few = _too_few(least, effective_units(torch.cat([units.sizes for units in folds])))
    return _with_intervals(found, _over_folds(tangent), _over_folds(normal)) if few is None else _without(found, few)


def _too_few(least: int, effective: float) -> str | None:
    """Why sequences allow no interval, if so."""
    if least < FEWEST_UNITS:
        return f"{least} sequences in a fold, fewer than {FEWEST_UNITS}"
    if effective < FEWEST_EFFECTIVE:
        return f"{effective:.1f} effective units, fewer than {FEWEST_EFFECTIVE:g}"
    return None


def _without(found: Premise, why: str) -> Premise:
    names = ("tangent", "normal", "quotient", "difference")
    return replace(found, **{name: replace(getattr(found, name), note=why) for name in names})


def _over_folds(sides: list[_Side]) -> Jackknifed:
    """γ² without noise, mean over folds."""
    return Jackknifed.mean([Jackknifed(float(side.true_square()), side.true_left_out()) for side in sides])


def _with_intervals(found: Premise, tangent: Jackknifed, normal: Jackknifed) -> Premise:
    difference = tangent.minus(normal)
    ends = [part.interval() for part in (tangent, normal, difference)]
    clear = [end is not None and end[0] > _ROUNDING for end in ends[:2]]
    return replace(
        found,
        tangent=_bounded(found.tangent, None if ends[0] is None else (root(ends[0][0]), root(ends[0][1]))),
        normal=_bounded(found.normal, None if ends[1] is None else (root(ends[1][0]), root(ends[1][1]))),
        quotient=_quotient(tangent, normal, found.quotient, clear),
        difference=_bounded(replace(found.difference, value=difference.value), ends[2]),
        detectable=_detectable(tangent, normal) if all(clear) else None,
    )


def _bounded(plain: Estimate, ends: tuple[float, float] | None) -> Estimate:
    return plain if ends is None else replace(plain, low=ends[0], high=ends[1])


def _detectable(tangent: Jackknifed, normal: Jackknifed) -> float | None:
    """Of γ: the estimates are of its square."""
    square = quotient_detectable(tangent, normal)
    return None if square is None else math.sqrt(square)


def _quotient(tangent: Jackknifed, normal: Jackknifed, nothing: Estimate, clear: list[bool]) -> Estimate:
    """``γ^T/γ^N``; none where one of them may be 0."""
    open_ = [name for name, shown in zip(("tangent", "normal"), clear, strict=True) if not shown]
    if open_:
        return replace(nothing, note=f"no quotient, the {' and the '.join(open_)} parts may cancel completely")
    ends = quotient_interval(tangent, normal)
    if ends is None:
        return replace(nothing, note="no quotient, its interval has no end")
    low, high = (math.sqrt(max(end, 0.0)) for end in ends)
    return replace(nothing, value=math.sqrt(tangent.value / normal.value), low=low, high=high)
