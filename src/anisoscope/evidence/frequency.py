"""Evidence by how frequent tokens are: bins of frequency, the trend across them, and what each contributes.

Letters: N rows (tokens), V vocabulary, n units (sequences, or types), F bins, D width, K rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from scipy import stats
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.evidence.inference import FEWEST_UNITS, interval, jackknife_error
from anisoscope.geometry.results import Estimate

BINS = 5
By = Literal["tokens", "types"]


def frequency_bins(counts_V: Tensor, *, by: By, bins: int = BINS) -> Tensor:
    """The bin of each type, 0 the rarest; −1 for types that were never seen.

    Types in order of their count (then of their id) are cut where equal shares of all tokens, or of all types, lie
    below. A type is never cut: one that is very frequent fills a bin, and may leave one empty.

    >>> import torch
    >>> frequency_bins(torch.tensor([1, 1, 0, 2, 8]), by="tokens", bins=2).tolist()
    [0, 0, -1, 0, 1]
    >>> frequency_bins(torch.tensor([1, 1, 0, 2, 8]), by="types", bins=2).tolist()
    [0, 0, -1, 1, 1]
    """
    if bins < 2:
        raise broken("there must be at least 2 bins of frequency", bins, f"use {BINS}")
    if by not in ("tokens", "types"):
        raise broken("bins must be of equal tokens or of equal types", repr(by), 'use "tokens" or "types"')
    if counts_V.ndim != 1 or bool((counts_V < 0).any()):
        raise broken("counts must be one number of 0 or more a type", tuple(counts_V.shape), "pass TokenCounts.counts")
    if not bool((counts_V > 0).any()):
        raise broken("some type must have been seen", "only counts of 0", "count tokens before judging by frequency")
    counts = counts_V.double()
    order = torch.argsort(counts, stable=True)
    weight = counts[order] if by == "tokens" else (counts[order] > 0).double()
    middle = (weight.cumsum(0) - weight / 2) / weight.sum()
    place = (middle * bins).floor().clamp(0, bins - 1).long()
    found = torch.empty_like(place).scatter_(0, order, place)
    return torch.where(counts_V > 0, found, -1)


@dataclass(frozen=True, slots=True, eq=False)
class ByUnit:
    """Sums of rows by unit and bin ``(n, F)``: what intervals over units are made of."""

    sums: dict[str, Tensor]
    rows: Tensor  # (n, F), how many rows

    @classmethod
    def of(cls, columns: dict[str, Tensor], bins_N: Tensor, groups_N: Tensor, *, bins: int = BINS) -> ByUnit:
        """Add up columns of numbers, wherever they lie; rows in bin −1 are left out. The sums are on the CPU."""
        inside = bins_N >= 0
        _, unit = torch.unique(groups_N[inside], return_inverse=True)
        place = unit * bins + bins_N[inside]
        size = (int(unit.max()) + 1 if unit.numel() else 0) * bins
        sums = {}
        for name, column in columns.items():
            zeros = torch.zeros(size, dtype=torch.float64, device=column.device)
            sums[name] = zeros.index_add_(0, place, column[inside].double()).reshape(-1, bins).cpu()
        return cls(sums, torch.bincount(place, minlength=size).reshape(-1, bins).cpu())

    def and_also(self, other: ByUnit) -> ByUnit:
        """Units of both, which are different ones: two folds."""
        sums = {name: torch.cat([table, other.sums[name]]) for name, table in self.sums.items()}
        return ByUnit(sums, torch.cat([self.rows, other.rows]))


@dataclass(frozen=True, slots=True)
class Trend:
    """Change of the logarithm from one bin to the next more frequent one, by least squares; p against no change."""

    slope: Estimate
    p: float | None


def enrichment_by_bin(units: ByUnit, *, rank: int, width: int) -> tuple[list[Estimate], Trend]:
    """Odds ratio of the energy ``inside`` a proxy over ``haar`` in every bin, and its trend.

    Over ``haar``, random subspaces of the same rank, a share of ``rank/width`` is expected in every bin, whatever the
    spectrum of its gradients.
    """
    if not 0 < rank < width:
        raise broken("the rank must lie between 0 and the width", f"{rank} of {width}", "lower the rank")
    inside, outside = units.sums["inside"], units.sums["outside"]
    chance = math.log(rank / (width - rank))

    def log_ratio(a: Tensor, b: Tensor) -> Tensor:
        return a.log() - b.log() - chance

    return _ratios(units, inside, outside, log_ratio)


def ratio_by_bin(units: ByUnit, above: str, below: str) -> tuple[list[Estimate], Trend]:
    """Ratio of two sums in every bin, and its trend."""
    return _ratios(units, units.sums[above], units.sums[below], lambda a, b: a.log() - b.log())


def _ratios(
    units: ByUnit, above_nF: Tensor, below_nF: Tensor, log_ratio: Callable[[Tensor, Tensor], Tensor]
) -> tuple[list[Estimate], Trend]:
    above, below = above_nF.sum(0), below_nF.sum(0)
    whole = log_ratio(above, below)
    lost = log_ratio((above - above_nF).clamp_min(0), (below - below_nF).clamp_min(0))
    found = []
    for k, value in enumerate(whole.tolist()):
        present = units.rows[:, k] > 0
        n, tokens = int(present.sum()), int(units.rows[:, k].sum())
        if not tokens:
            found.append(Estimate(value=math.nan, n=0, note="no tokens in this bin"))
            continue
        if not math.isfinite(value):
            found.append(Estimate(value=math.nan, n=tokens, note="no energy on one side"))
            continue
        error = jackknife_error(lost[:, k]) if n >= FEWEST_UNITS else math.nan
        bounds = interval(value, error, n)
        low, high = (None, None) if bounds is None else (math.exp(bounds[0]), math.exp(bounds[1]))
        note = None if n >= FEWEST_UNITS else f"fewer than {FEWEST_UNITS} units in this bin: no interval"
        found.append(Estimate(value=math.exp(value), low=low, high=high, n=tokens, note=note))
    return found, _trend(whole, lost, units.rows)


def _trend(whole_F: Tensor, lost_nF: Tensor, rows_nF: Tensor) -> Trend:
    used = torch.isfinite(whole_F) & (rows_nF.gt(0).sum(0) >= FEWEST_UNITS)
    n = len(lost_nF)
    if int(used.sum()) < 2 or n < FEWEST_UNITS:
        return Trend(Estimate(value=math.nan, n=n, note="fewer than two bins hold enough units"), None)
    place = torch.arange(len(whole_F), dtype=torch.float64, device=whole_F.device)[used]
    weights = (place - place.mean()) / (place - place.mean()).square().sum()
    slope, lost = float(whole_F[used] @ weights), lost_nF[:, used] @ weights
    error = jackknife_error(lost[torch.isfinite(lost)])
    bounds = interval(slope, error, n)
    if bounds is None or not error > 0:
        return Trend(Estimate(value=slope, n=n), None)
    p = float(2 * stats.t.sf(abs(slope) / error, n - 1))
    return Trend(Estimate(value=slope, low=bounds[0], high=bounds[1], n=n), p)


def shares_by_bin(units: ByUnit, what: str) -> list[Estimate]:
    """What each bin contributes to a sum over all rows; shares add up to 1."""
    table = units.sums[what]
    total = float(table.sum())
    if not total > 0:
        note = "there is nothing to share out"
        return [Estimate(value=math.nan, n=int(units.rows[:, k].sum()), note=note) for k in range(table.shape[1])]
    lost = table.sum(0) - table
    lost = lost / lost.sum(1, keepdim=True)
    found = []
    for k in range(table.shape[1]):
        bounds = interval(float(table[:, k].sum()) / total, jackknife_error(lost[:, k]), len(table))
        low, high = (None, None) if bounds is None else bounds
        tokens = int(units.rows[:, k].sum())
        found.append(Estimate(value=float(table[:, k].sum()) / total, low=low, high=high, n=tokens))
    return found


def isotropy_losses(rows_ND: Tensor, second_DD: Tensor) -> Tensor:
    """What each row adds to the part of the second moment that is not isotropic.

    ``second_DD`` is that of all rows, of which those given may be a sample. With ``C = Σ ggᵀ`` and
    ``C̃ = C − (tr C/D)·1``, isotropy is lost as far as ``‖C̃‖²`` is above 0 (IsoScore and the participation ratio are
    functions of ``‖C̃‖²/(tr C)²``), and ``‖C̃‖² = Σ_i gᵢᵀC̃gᵢ``: a sum over rows. A row along directions with less than
    the mean energy counts negative.
    """
    # The product with D² numbers is all the time this takes, and shares need no more than float32. Gradients are small,
    # and their fourth powers would be too small for it: so at unit scale.
    uneven = second_DD.double().clone()
    uneven.diagonal().sub_(uneven.diagonal().mean())
    size, scale = (_rms(t) for t in (rows_ND, uneven))
    unit = (rows_ND / size).float()
    return ((unit @ (uneven / scale).float()) * unit).sum(1, dtype=torch.float64) * size**2 * scale


def _rms(x: Tensor) -> float:
    return max(float(torch.linalg.vector_norm(x, dtype=torch.float64)) / math.sqrt(max(x.numel(), 1)), 1e-300)


@dataclass(frozen=True, slots=True, eq=False)
class Types:
    """Contextual vectors by type, those with enough of them: mean, and spread about it."""

    ids: Tensor  # (k,)
    means: Tensor  # (k, D)
    spread: Tensor  # (k,), root mean square distance to the mean, unbiased in its square
    number: Tensor  # (k,)
    place: Tensor  # (N,), which of them a row belongs to; −1 for none

    def distance(self, centre_D: Tensor) -> Tensor:
        """Distance of each mean to a centre, without what the noise of a mean of few vectors adds to it."""
        square = (self.means - centre_D).square().sum(1) - self.spread.square() / self.number
        return square.clamp_min(0).sqrt()


def by_type(rows_ND: Tensor, tokens_N: Tensor, *, least: int = 4) -> Types:
    """Mean and spread of every type that has at least ``least`` vectors."""
    ids, place, number = torch.unique(tokens_N, return_inverse=True, return_counts=True)
    enough = number >= max(2, least)
    new = torch.where(enough, enough.long().cumsum(0) - 1, -1)
    place = new[place]
    ids, number = ids[enough], number[enough].double()
    inside = place >= 0
    rows, where = rows_ND[inside].double(), place[inside]
    means = rows.new_zeros(len(ids), rows.shape[1]).index_add_(0, where, rows)
    means = means / number[:, None]
    squares = rows.new_zeros(len(ids)).index_add_(0, where, (rows - means[where]).square().sum(1))
    return Types(ids, means, (squares / (number - 1)).sqrt(), number, place)
