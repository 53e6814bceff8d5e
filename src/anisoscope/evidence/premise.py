"""The premise of the theory at a linear layer: tangent parts of its gradient cancel no more than normal ones.

Letters: n sequences, T positions, R draws.

The gradient is ``G = Σ_i δ_i x_iᵀ`` over tokens; ``δ_i (QQᵀx_i)ᵀ`` are its tangent parts, ``δ_i (x_i − QQᵀx_i)ᵀ`` its
normal ones. With γ as in ``cancellation``, ``‖G^N‖/‖G^T‖ = (Σ‖g_i^N‖/Σ‖g_i^T‖)·γ^N/γ^T``: what holds of single tokens,
that their normal parts are small, holds of the gradient as long as γ^T is not below γ^N. No threshold is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.evidence.cancellation import root, square_without_noise
from anisoscope.evidence.inference import FEWEST_UNITS, Spread
from anisoscope.evidence.tables import random_signs
from anisoscope.evidence.units import BilinearUnits
from anisoscope.geometry.results import Estimate

HOLDS, FAILS, OPEN = "holds", "fails", "cannot tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Premise:
    """γ of both parts, and their quotient ``γ^T/γ^N`` with its interval over sequences.

    ``tangent`` and ``normal`` hold γ of these tokens; their intervals are of γ without the noise of the sequences,
    which random signs alone would make as large as ``floor`` (97.5 %). ``p`` is one-sided, of tangent parts against
    random signs.
    """

    tangent: Estimate
    normal: Estimate
    quotient: Estimate
    p: float

    @property
    def verdict(self) -> str:
        """Whether the premise holds, fails, or cannot be told."""
        low, high = self.quotient.low, self.quotient.high
        if low is not None and low >= 1:
            return HOLDS
        return FAILS if high is not None and high < 1 else OPEN


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """One part of a gradient by sequence: inner products ``(n, n)`` of its sums, and summed lengths ``(n,)``."""

    gram: Tensor
    length: Tensor

    @property
    def square(self) -> Tensor:
        """γ²."""
        return self.gram.sum() / self.length.sum().square()

    def left_out(self) -> Tensor:
        """γ² without one sequence, for each."""
        return self._energy_without() / (self.length.sum() - self.length).square()

    def true_square(self) -> Tensor:
        """γ² without the noise of the sequences."""
        return square_without_noise(self.gram.sum(), self.gram.trace(), self.length.sum(), len(self.length))

    def true_left_out(self) -> Tensor:
        """The same without one sequence, for each."""
        own, length, n = self.gram.diagonal(), self.length, len(self.length)
        return square_without_noise(self._energy_without(), own.sum() - own, length.sum() - length, n - 1)

    def signed(self, signs_Rn: Tensor) -> Tensor:
        """γ² under random signs of the sequences."""
        return ((signs_Rn @ self.gram) * signs_Rn).sum(1).clamp_min(0) / self.length.sum().square()

    def _energy_without(self) -> Tensor:
        return (self.gram.sum() - 2 * self.gram.sum(1) + self.gram.diagonal()).clamp_min(0)


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
        return Premise(tangent=nothing, normal=nothing, quotient=nothing, p=math.nan)
    signs = [random_signs(len(side.length), draws, seed + k) for k, side in enumerate(tangent)]
    signed = torch.stack([side.signed(drawn) for side, drawn in zip(tangent, signs, strict=True)]).mean(0)
    square = float(torch.stack([side.square for side in tangent]).mean())
    return Premise(
        tangent=_gamma(tangent, tokens, float(signed.quantile(0.975).sqrt())),
        normal=_gamma(normal, tokens, None),
        quotient=_quotient(tangent, normal, tokens),
        p=(1 + int((signed >= square * (1 - 1e-9)).sum())) / (1 + draws),
    )


def _gamma(sides: list[_Side], tokens: int, floor: float | None) -> Estimate:
    value = root(float(torch.stack([side.square for side in sides]).mean()))
    true = float(torch.stack([side.true_square() for side in sides]).mean())
    ends = _interval(true, [side.true_left_out() for side in sides])
    low, high = (None, None) if ends is None else (root(ends[0]), root(ends[1]))
    return Estimate(value=value, low=low, high=high, n=tokens, floor=floor)


def _quotient(tangent: list[_Side], normal: list[_Side], tokens: int) -> Estimate:
    """Geometric mean over folds; half the difference of the logarithms of γ²."""
    pairs = list(zip(tangent, normal, strict=True))
    logs = [(a.square / b.square).log() / 2 for a, b in pairs]
    value = float(torch.stack(logs).mean())
    if not math.isfinite(value):
        return Estimate(value=math.nan, n=tokens, note="one of the two parts cancels completely")
    ends = _interval(value, [(a.left_out() / b.left_out()).log() / 2 for a, b in pairs])
    low, high = (None, None) if ends is None else (math.exp(ends[0]), math.exp(ends[1]))
    return Estimate(value=math.exp(value), low=low, high=high, n=tokens)


def _interval(value: float, left_out: list[Tensor]) -> tuple[float, float] | None:
    """Of a mean over folds, whose errors are independent."""
    if min(len(part) for part in left_out) < FEWEST_UNITS:
        return None
    error = math.sqrt(sum(Spread.of(part).error ** 2 for part in left_out)) / len(left_out)
    return Spread(error, min(len(part) for part in left_out) - 1).interval(value)
