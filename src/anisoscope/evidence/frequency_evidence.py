"""Evidence by how frequent tokens are: bins of frequency, the trend across them, and what each contributes.

Letters: N rows (tokens), V vocabulary, n units (sequences, or types), F bins, D width, K rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.evidence.inference import FEWEST_UNITS, Spread, bounded_exp
from anisoscope.geometry.results import Estimate
from anisoscope.vocabulary import BIN_SIZES

BINS = 5


def frequency_bins(counts_V: Tensor, *, by: str, bins: int = BINS) -> Tensor:
    """The bin of each type, 0 the rarest; −1 for types that were never seen.

    Types in order of their count (then of their id) are cut where equal shares of all tokens, or of all types, lie
    below. A type is never cut: one that is very frequent fills a bin, and may leave one empty. Types of one count may
    come to lie in two bins.

    >>> import torch
    >>> frequency_bins(torch.tensor([1, 1, 0, 2, 8]), by="tokens", bins=2).tolist()
    [0, 0, -1, 0, 1]
    >>> frequency_bins(torch.tensor([1, 1, 0, 2, 8]), by="types", bins=2).tolist()
    [0, 0, -1, 1, 1]
    """
    if bins < 2:
        raise broken("there must be at least 2 bins of frequency", bins, f"use {BINS}")
    if by not in BIN_SIZES:
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
    """Sums of rows by unit and bin ``(n, F)``: what intervals over units are made of.

    ``rest`` has the sums ``(n,)`` of rows in no bin: of types that have no count, or that nothing was asked of.
    """

    sums: dict[str, Tensor]
    rest: dict[str, Tensor]
    rows: Tensor  # (n, F), how many rows
    left: int  # how many in no bin

    @classmethod
    def of(cls, columns: dict[str, Tensor], bins_N: Tensor, groups_N: Tensor, *, bins: int = BINS) -> ByUnit:
        """Add up columns of numbers, wherever they lie; bin −1 is the rest. The sums are on the CPU."""
        _, unit = torch.unique(groups_N, return_inverse=True)
        place = unit * (bins + 1) + torch.where(bins_N < 0, bins, bins_N)
        size = (int(unit.max()) + 1 if unit.numel() else 0) * (bins + 1)
        tables = {}
        for name, column in columns.items():
            zeros = torch.zeros(size, dtype=torch.float64, device=column.device)
            tables[name] = zeros.index_add_(0, place, column.double()).reshape(-1, bins + 1).cpu()
        rows = torch.bincount(place, minlength=size).reshape(-1, bins + 1).cpu()
        sums, rest = ({n: t[:, part] for n, t in tables.items()} for part in (slice(bins), bins))
        return cls(sums, rest, rows[:, :bins], int(rows[:, bins].sum()))

    def and_also(self, other: ByUnit) -> ByUnit:
        """Units of both, which are different ones: two folds."""
        sums, rest = (
            {name: torch.cat([table, theirs[name]]) for name, table in own.items()}
            for own, theirs in ((self.sums, other.sums), (self.rest, other.rest))
        )
        return ByUnit(sums, rest, torch.cat([self.rows, other.rows]), self.left + other.left)


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
        bounds = Spread(Spread.of(lost[:, k]).error, n - 1).interval(value) if n >= FEWEST_UNITS else None
        low, high = (None, None) if bounds is None else (bounded_exp(bounds[0]), bounded_exp(bounds[1]))
        note = None if n >= FEWEST_UNITS else f"fewer than {FEWEST_UNITS} units in this bin: no interval"
        found.append(Estimate(value=bounded_exp(value), low=low, high=high, n=tokens, note=note))
    return found, _trend(whole, lost, units.rows)


def _trend(whole_F: Tensor, lost_nF: Tensor, rows_nF: Tensor) -> Trend:
    used = torch.isfinite(whole_F) & (rows_nF.gt(0).sum(0) >= FEWEST_UNITS)
    n = len(lost_nF)
    if int(used.sum()) < 2 or n < FEWEST_UNITS:
        return Trend(Estimate(value=math.nan, n=n, note="fewer than two bins hold enough units"), None)
    place = torch.arange(len(whole_F), dtype=torch.float64, device=whole_F.device)[used]
    weights = (place - place.mean()) / (place - place.mean()).square().sum()
    slope, lost = float(whole_F[used] @ weights), lost_nF[:, used] @ weights
    error = Spread.of(lost[torch.isfinite(lost)]).error
    bounds = Spread(error, n - 1).interval(slope) if n >= FEWEST_UNITS else None
    if bounds is None or not error > 0:
        return Trend(Estimate(value=slope, n=n), None)
    p = float(2 * stats.t.sf(abs(slope) / error, n - 1))
    return Trend(Estimate(value=slope, low=bounds[0], high=bounds[1], n=n), p)


def shares_by_bin(units: ByUnit, what: str, *, intervals: bool = True) -> list[Estimate]:
    """What each bin contributes to a sum over all rows, and last what rows in no bin do; shares add up to 1.

    Without ``intervals`` where the sum is not one of independent units.
    """
    table = torch.cat([units.sums[what], units.rest[what][:, None]], 1)
    tokens = [*units.rows.sum(0).tolist(), units.left]
    total = float(table.sum())
    if not total > 0:
        return [Estimate(value=math.nan, n=n, note="there is nothing to share out") for n in tokens]
    lost = table.sum(0) - table
    lost = lost / lost.sum(1, keepdim=True)
    found = []
    for k, n in enumerate(tokens):
        if n == 0:
            empty = "every token is in a bin" if k == table.shape[1] - 1 else "no tokens in this bin"
            found.append(Estimate(value=math.nan, n=0, note=empty))
            continue
        value = float(table[:, k].sum()) / total
        bounds = Spread.plain(lost[:, k]).interval(value) if intervals and len(table) >= FEWEST_UNITS else None
        low, high = (None, None) if bounds is None else bounds
        found.append(Estimate(value=value, low=low, high=high, n=n))
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
    """Contextual vectors by type, those that come in enough sequences: mean, and spread about it.

    Vectors of one sequence are alike, and rare types come in bursts. So the spread is that of pairs from different
    sequences, ``½·mean ‖x − x′‖²``, and the noise of a mean is told by how sequences differ.
    """

    ids: Tensor  # (k,)
    means: Tensor  # (k, D)
    spread: Tensor  # (k,), root mean square distance to the mean, unbiased in its square
    noise: Tensor  # (k,), variance of the mean, summed over directions; unbiased, so it may be below 0
    place: Tensor  # (N,), which of them a row belongs to; −1 for none

    def distance(self, centre_D: Tensor) -> Tensor:
        """Distance of each mean to a centre, without what the noise of a mean of few vectors adds to it."""
        return ((self.means - centre_D).square().sum(1) - self.noise).clamp_min(0).sqrt()


def by_type(rows_ND: Tensor, tokens_N: Tensor, sequences_N: Tensor, *, least: int = 4) -> Types:
    """Mean and spread of every type that comes in at least ``least`` sequences."""
    _, where_N = torch.unique(sequences_N, return_inverse=True)
    many = int(where_N.max()) + 1 if where_N.numel() else 1
    ids, type_N = torch.unique(tokens_N, return_inverse=True)
    burst, burst_N = torch.unique(type_N * many + where_N, return_inverse=True)  # a type in a sequence
    enough = torch.bincount(burst // many, minlength=len(ids)) >= max(3, least)
    place_N = torch.where(enough, enough.long().cumsum(0) - 1, -1)[type_N]
    inside_N = place_N >= 0
    rows, place, ids = rows_ND[inside_N].double(), place_N[inside_N], ids[enough]
    _, first = torch.unique(burst_N[inside_N], return_inverse=True)
    owner = torch.zeros_like(first).scatter_(0, first, place)[: int(first.max()) + 1 if first.numel() else 0]

    number = torch.bincount(place, minlength=len(ids)).double()
    means = _summed(rows, place, len(ids)) / number[:, None]
    off = rows - means[place]
    # Sums over pairs: N·Σ‖x‖² − ‖Σx‖² of the whole (whose Σ is 0 here), less the same of every burst.
    size, sums = torch.bincount(first, minlength=len(owner)).double(), _summed(off, first, len(owner))
    squares = off.square().sum(1)
    of_bursts = size * _summed(squares, first, len(owner)) - sums.square().sum(1)
    pairs = number.square() - _summed(size.square(), owner, len(ids))
    apart = number * _summed(squares, place, len(ids)) - _summed(of_bursts, owner, len(ids))
    noise = _summed(_variances(sums, size, owner, len(ids)), owner, len(ids)) / number.square()
    return Types(ids, means, (apart / pairs).clamp_min(0).sqrt(), noise, place_N)


def _variances(sums_bD: Tensor, size_b: Tensor, owner_b: Tensor, types: int) -> Tensor:
    """Variance of the sum of each burst, without bias whatever the sizes.

    With y and y′ the means of two other bursts of the type, ``(s − n·y)·(s − n·y′)`` has the expectation ``Var s``;
    this is its mean over all such pairs.
    """
    means_bD = sums_bD / size_b[:, None]
    others_b = torch.bincount(owner_b, minlength=types).double()[owner_b] - 1
    rest_bD = _summed(means_bD, owner_b, types)[owner_b] - means_bD
    squares_b = means_bD.square().sum(1)
    rest_b = _summed(squares_b, owner_b, types)[owner_b] - squares_b
    together = (others_b[:, None] * sums_bD - size_b[:, None] * rest_bD).square().sum(1)
    single = others_b * sums_bD.square().sum(1) - 2 * size_b * (sums_bD * rest_bD).sum(1) + size_b.square() * rest_b
    return (together - single) / (others_b * (others_b - 1))


def _summed(values: Tensor, index: Tensor, size: int) -> Tensor:
    return values.new_zeros(size, *values.shape[1:]).index_add_(0, index, values)
