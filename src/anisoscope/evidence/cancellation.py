"""How far the parts of a gradient cancel: the condition under which a ratio of two upper bounds means something.

Letters: N tokens, T width of the tangent part, M width of the normal part, n units, R draws.

The gradient of a batch is a sum over tokens, ``G = Σ g_i``, and so are its tangent and normal parts. Per token the
normal part is the smaller one; of the sums that follows only if the tangent parts do not cancel. How far they do is

    γ = ‖Σ_i g_i‖ / Σ_i ‖g_i‖,    from 0 (they cancel) to 1 (they all point the same way),

and ``‖Σ g_i^N‖ / ‖Σ g_i^T‖ ≤ max_i(‖g_i^N‖/‖g_i^T‖) / γ^T`` is a theorem (docs/theory.md has the proof).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.evidence.inference import FEWEST_UNITS, Spread
from anisoscope.evidence.random_tables import random_signs
from anisoscope.geometry.results import Estimate
from anisoscope.stats.as_tensor import as_tensor

DRAWS = 999


@dataclass(frozen=True, slots=True, kw_only=True)
class NonCancellation(Estimate):
    """The constant γ of a sample, and what can be said beyond the sample.

    ``value`` is γ of these tokens, which the theorem about these tokens needs. Noise alone makes it larger than 0:
    ``floor`` is its root mean square if the sign of every unit were random (``1/√n`` for equal units) and
    ``floor_high`` its 97.5 % quantile. ``population`` is γ without that noise, and ``low`` and ``high`` are the 95 %
    interval of it over units. ``p`` is one-sided, against random signs.
    """

    units: int = 0
    population: float = math.nan
    floor_high: float = math.nan
    p: float = math.nan

    @property
    def clear(self) -> bool:
        """Whether γ is shown to be above 0; the interval is free of noise already."""
        return self.low is not None and self.low > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientRatio:
    """Normal over tangent gradient, taken apart: ``ratio = per_token · γ^N / γ^T``, an identity.

    ``steepest`` is the largest ratio of one token and ``bound = steepest / γ^T``, which ``ratio`` never exceeds.
    """

    ratio: float
    per_token: float
    steepest: float
    tangent: NonCancellation
    normal: NonCancellation

    @property
    def bound(self) -> float:
        """The corrected upper bound of the ratio; infinite where the tangent parts cancel."""
        return _over(self.steepest, self.tangent.value)


def non_cancellation(
    parts_NT: Tensor | np.ndarray,
    groups_N: Tensor | np.ndarray | None = None,
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> NonCancellation:
    """Estimate γ from the parts of single tokens; ``groups_N`` names the independent unit (sequence) of each.

    Without groups every token is a unit of its own, which is right only if tokens are independent. The interval is a
    jackknife over units of the square of γ, from which the noise of the units is taken away, so it may reach down to 0
    and lie below ``value`` where all there is is noise; there is none below 4 units.

    >>> same = non_cancellation(np.ones((64, 3)))
    >>> float(same), round(same.floor, 3), same.clear
    (1.0, 0.125, True)
    >>> float(non_cancellation(np.array([[1.0], [-1.0]])))
    0.0
    """
    parts_NT = _rows(parts_NT)
    length_N = torch.linalg.vector_norm(parts_NT, dim=1)
    sums_nT, length = _by_unit(parts_NT, length_N, groups_N)
    n, total = len(sums_nT), float(length.sum())
    if not math.isfinite(total) or total == 0:
        why = "all parts are 0" if total == 0 else "a part is not finite"
        return NonCancellation(value=math.nan, n=len(parts_NT), units=n, note=why)
    whole_T, own = sums_nT.sum(0), sums_nT.square().sum(1)
    value = float(torch.linalg.vector_norm(parts_NT.sum(0))) / float(length_N.sum())
    noise_R = _flipped(sums_nT, random_signs(n, draws, seed)) / total
    low = high = None
    energy = whole_T.square().sum()
    square = square_without_noise(energy, own.sum(), length.sum(), n) if n > 1 else energy.new_tensor(math.nan)
    if n >= FEWEST_UNITS:
        without = energy - 2 * (sums_nT @ whole_T) + own
        left_out = square_without_noise(without, own.sum() - own, length.sum() - length, n - 1)
        ends = Spread.plain(left_out).interval(float(square)) if n >= FEWEST_UNITS else None
        low, high = (root(ends[0]), root(ends[1])) if ends is not None else (None, None)
    return NonCancellation(
        value=min(value, 1.0),
        n=len(parts_NT),
        low=low,
        high=high,
        floor=float(own.sum().sqrt()) / total,
        floor_high=float(noise_R.quantile(0.975)) if draws else math.nan,
        p=(1 + int((noise_R >= value * (1 - 1e-9)).sum())) / (1 + draws),
        units=n,
        population=root(float(square)),
    )


def gradient_ratio(
    tangent_NT: Tensor | np.ndarray,
    normal_NM: Tensor | np.ndarray,
    groups_N: Tensor | np.ndarray | None = None,
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> GradientRatio:
    """Take the ratio of the summed normal to the summed tangent parts apart.

    A token without a tangent part but with a normal one makes ``steepest`` infinite: the theorem says nothing then.
    """
    tangent_NT, normal_NM = _rows(tangent_NT), _rows(normal_NM)
    if len(tangent_NT) != len(normal_NM):
        raise broken("both parts must be of the same tokens", f"{len(tangent_NT)} and {len(normal_NM)}", "pass both")
    small, large = (torch.linalg.vector_norm(part, dim=1) for part in (tangent_NT, normal_NM))
    steep = torch.where(large > 0, large / small, torch.zeros_like(large))
    of_sums = [float(torch.linalg.vector_norm(part.sum(0))) for part in (normal_NM, tangent_NT)]
    return GradientRatio(
        ratio=_over(*of_sums),
        per_token=_over(float(large.sum()), float(small.sum())),
        steepest=float(steep.max()),
        tangent=non_cancellation(tangent_NT, groups_N, draws=draws, seed=seed),
        normal=non_cancellation(normal_NM, groups_N, draws=draws, seed=seed),
    )


def _rows(parts: Tensor | np.ndarray) -> Tensor:
    """Rows in float64 on the CPU: sums that nearly cancel are all about the last digits."""
    made = as_tensor(parts).detach().to("cpu", torch.float64)
    if made.ndim != 2 or not len(made):
        raise broken("parts must be rows, one a token", f"shape {tuple(made.shape)}", "flatten what belongs to a token")
    return made


def _by_unit(parts_NT: Tensor, length_N: Tensor, groups_N: Tensor | np.ndarray | None) -> tuple[Tensor, Tensor]:
    """Sums of parts and of their lengths, unit by unit."""
    if groups_N is None:
        return parts_NT, length_N
    groups_N = as_tensor(groups_N).cpu()
    if groups_N.shape != length_N.shape:
        raise broken(
            "groups must name a unit for every token",
            f"{tuple(groups_N.shape)} for {len(length_N)}",
            "pass one id each",
        )
    ids, place = torch.unique(groups_N, return_inverse=True)
    sums = parts_NT.new_zeros(len(ids), parts_NT.shape[1]).index_add(0, place, parts_NT)
    return sums, length_N.new_zeros(len(ids)).index_add(0, place, length_N)


def _flipped(sums_nT: Tensor, signs_Rn: Tensor) -> Tensor:
    """``‖Σ ±S‖`` for each draw of signs; through the Gram matrix where that is the smaller one."""
    if sums_nT.shape[0] > sums_nT.shape[1]:
        return torch.linalg.vector_norm(signs_Rn @ sums_nT, dim=1)
    return ((signs_Rn @ (sums_nT @ sums_nT.T)) * signs_Rn).sum(1).clamp_min(0).sqrt()


def square_without_noise(whole: Tensor, own: Tensor, length: Tensor, n: int) -> Tensor:
    """γ² without noise: of ``‖ΣS‖²`` the expectation exceeds ``‖E ΣS‖²`` by the units' own scatter."""
    return (whole - own) * (n / (n - 1)) / length.square()


def root(square: float) -> float:
    """γ from γ², which noise may have carried beyond 0 or 1."""
    return math.sqrt(min(max(square, 0.0), 1.0)) if not math.isnan(square) else math.nan


def _over(a: float, b: float) -> float:
    return a / b if b else math.inf if a else math.nan
