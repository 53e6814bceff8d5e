"""How a spectrum falls: the decay of its eigenvalues as a power of their rank, and RankMe.

Letters: N rows, D width, G groups; λ eigenvalues of the covariance, in descending order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.geometry.cloud import Cloud, Measurable, as_cloud
from anisoscope.geometry.cloud_parts import Spectrum
from anisoscope.geometry.isotropy import NO_SPREAD, effective_rank
from anisoscope.geometry.jackknife import with_error
from anisoscope.geometry.noise import noise_eigenvalues
from anisoscope.geometry.results import Estimate
from anisoscope.stats.as_tensor import as_tensor
from anisoscope.stats.moments import Moments

FIRST = 11
FEWEST_LAST = 30
GROUPS = 8
HALVES = tuple(
    tuple(tuple(part for part in range(GROUPS) if (bits & part).bit_count() % 2 == side) for side in (0, 1))
    for bits in range(1, GROUPS)
)
"""The seven ways to halve eight parts in which any two parts are as often together as any others (Hadamard)."""
DEALINGS = 4
CURVED = 1.4
"""How the jackknife's variance exceeds the true one: by exp(1.4 q), q the spread of the mean of two halves over that of
half their difference. To second order in the groups it is 1 + 1.3 q; 1.4 is fitted on planted spectra."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecayEstimate(Estimate):
    """The decay of a spectrum over the ranks ``first`` … ``last``; ``floor`` is that of isotropic noise.

    The interval is for the mean of this estimator at this N.
    """

    width: int = 0
    first: int = FIRST
    last: int = 0

    @property
    def planted(self) -> float | None:
        """What independent rows read whose population falls with exactly this exponent, at this N and D.

        Its distance to the value is about the bias, or a lower bound of it where rows depend on one another. There is
        none for an undefined or negative decay.
        """
        if not self.last or not self.value >= 0:
            return None
        return planted_decay(self.n, self.width, round(self.value, 3))

    @property
    def details(self) -> str | None:
        """The ranks, and what a planted spectrum reads."""
        planted = self.planted
        if planted is None:
            return f"ranks {self.first} to {self.last}" if self.last else None
        return f"ranks {self.first} to {self.last}; a population of this exponent reads {planted:.3g}"


def decay_ranks(n: int, width: int) -> tuple[int, int]:
    """The first and the last rank that the decay is fitted on: ``11 … min(D, N − 1)//2``.

    >>> decay_ranks(4096, 768), decay_ranks(200, 768)
    ((11, 384), (11, 99))
    """
    return FIRST, min(width, n - 1) // 2


def spectral_decay(x: Measurable | Spectrum, *, groups: Any = None) -> DecayEstimate:
    """Exponent α of ``λᵢ ∝ i^(−α)``: minus the slope of ``log λᵢ`` on ``log i`` over ``i = 11 … min(D, N − 1)//2``.

    ``groups`` has one id a row (its sequence, say); its whole groups, dealt out to 8 parts four times, give the
    interval. Its error is that of a jackknife over the parts, which is too large here (up to twice), divided by a
    factor that the seven balanced halves of each dealing tell: where the two halves of a pair move together, the
    estimator is curved. Where a half has no more rows than the fit needs, the error is that of the jackknife as it is.
    The interval says where the mean of this estimator at this N lies, not the population's exponent: compare α at
    equal N.

    >>> import torch
    >>> falling = torch.arange(1, 101.0).pow(-0.5)  # standard deviations: variances fall with exponent 1
    >>> x = torch.randn(20000, 100, generator=torch.Generator().manual_seed(0)) * falling
    >>> round(spectral_decay(x).value, 1)
    1.0
    """
    if groups is not None:
        if isinstance(x, Moments | Spectrum):
            raise broken("an interval by groups needs the rows of a cloud", type(x).__name__, "pass the rows")
        return _with_interval(as_cloud(x), groups)
    found = x if isinstance(x, Spectrum) else Spectrum(x if isinstance(x, Moments) else _moments(as_cloud(x)))
    n, width = round(float(found.moments.count)), found.moments.width
    first, last = decay_ranks(n, width)
    if last < FEWEST_LAST:
        why = f"the fit needs {2 * FEWEST_LAST} columns and more rows than that"
        return DecayEstimate(value=math.nan, n=n, note=why)
    values_D = found.centred.flip(0)
    if float(values_D[0]) == 0:
        return DecayEstimate(value=math.nan, n=n, note=NO_SPREAD)
    if float(values_D[last - 1]) <= 0:
        filled = int((values_D > 0).sum())
        why = f"only {filled} directions have any variance, fewer than the {last} of the fit"
        return DecayEstimate(value=math.nan, n=n, note=why)
    value, floor = _slope(values_D, first, last), noise_decay(n, width)
    return DecayEstimate(value=value, floor=floor, n=n, width=width, first=first, last=last)


def rankme(x: Measurable | Spectrum) -> Estimate:
    """RankMe (Garrido et al. 2023): ``exp(H(σ/Σσ))`` of the matrix as it is, not centred.

    It is ``effective_rank(x, centre=False)``; the epsilon of its authors changes nothing in float64. ``floor`` is what
    isotropic noise without a mean scores.

    >>> import torch
    >>> round(float(rankme(torch.eye(4))), 6)
    4.0
    """
    return effective_rank(x, centre=False)


def permuted(x: Cloud, *, seed: int = 0) -> Tensor:
    """Each coordinate permuted over rows by itself: marginal laws stay, and no two coordinates are correlated."""
    x_ND = as_cloud(x)
    generator = torch.Generator().manual_seed(seed)
    columns = [
        x_ND[torch.randperm(len(x_ND), generator=generator, device="cpu").to(x_ND.device), d]
        for d in range(x_ND.shape[1])
    ]
    return torch.stack(columns, 1)


@lru_cache(maxsize=256)
def noise_decay(n: int, width: int) -> float:
    """The decay that isotropic noise of this shape shows, from the quantiles of its law."""
    first, last = decay_ranks(n, width)
    return _slope(torch.from_numpy(noise_eigenvalues(n, width)), first, last)


@lru_cache(maxsize=256)
def planted_decay(n: int, width: int, alpha: float, seed: int = 0) -> float:
    """What one seeded draw of n independent Gaussian rows reads whose population falls with exponent ``alpha``."""
    rng = np.random.default_rng(seed)
    spread_D = np.arange(1, width + 1) ** (-alpha / 2)
    if n > width:  # Bartlett: a triangle with chi-distributed diagonal, so that no cost grows with the rows
        rows = np.tril(rng.standard_normal((width, width)), -1)
        rows[np.arange(width), np.arange(width)] = np.sqrt(rng.chisquare(n - 1 - np.arange(width)))
        rows = rows.T
    else:
        rows = rng.standard_normal((n - 1, width))  # centring takes one degree of freedom
    values = np.linalg.svd(rows * spread_D, compute_uv=False) ** 2
    first, last = decay_ranks(n, width)
    return _slope(torch.from_numpy(values), first, last)


def _slope(values_D: Tensor, first: int, last: int) -> float:
    """Minus the least-squares slope of log eigenvalue on log rank; eigenvalues in descending order."""
    log_rank = torch.arange(first, last + 1, dtype=torch.float64, device=values_D.device).log()
    off = log_rank - log_rank.mean()
    return -float((off @ values_D[first - 1 : last].double().log()) / off.square().sum())


def _with_interval(x_ND: Tensor, groups: Any) -> DecayEstimate:
    group_N = as_tensor(groups).reshape(-1)
    if len(group_N) != len(x_ND):
        raise broken(f"groups must have one id for each of {len(x_ND)} rows", len(group_N), "pass sequence ids")
    group_N = torch.unique(group_N, return_inverse=True)[1].to(x_ND.device)
    count = int(group_N.max()) + 1
    whole = _moments(x_ND)
    found = spectral_decay(whole)
    if count < GROUPS or not math.isfinite(found.value):
        why = f"no interval: {count} groups, fewer than {GROUPS}" if count < GROUPS else None
        return replace(found, note="; ".join(part for part in (found.note, why) if part) or None)
    generator = torch.Generator().manual_seed(0)
    reads = []
    for _ in range(DEALINGS):
        dealt_N = torch.randperm(count, generator=generator, device="cpu").to(x_ND.device)[group_N] % GROUPS
        reads.append(_Dealing.of(x_ND, whole.mean, dealt_N, found.first, found.last))
    jackknife = sum(one.jackknife for one in reads) / DEALINGS
    if not math.isfinite(jackknife):
        return replace(found, note="no interval: a part of the groups has fewer directions")
    found = replace(found, units=float(count))
    if any(one.apart is None or not math.isfinite(one.apart) for one in reads):
        wide = "error by a jackknife, up to twice too large: half of the groups are too few rows to tell it better"
        return with_error(replace(found, note=wide), math.sqrt(jackknife), df=GROUPS - 1.0)
    apart, together = (sum(one.apart or 0.0 for one in reads), sum(one.together for one in reads))
    curved = together / apart if apart > 0 else 0.0
    df = min(DEALINGS * (GROUPS - 1), count - 1) / 4  # the factor costs three of four degrees of freedom
    return with_error(found, math.sqrt(jackknife * math.exp(-CURVED * curved)), df=df)


@dataclass(frozen=True, slots=True)
class _Dealing:
    """What the groups tell, dealt out once to 8 parts: variances of the estimator, each of them of a kind."""

    jackknife: float
    apart: float | None  # of half the difference between two halves; None where they have too few rows
    together: float  # of the mean of two halves

    @classmethod
    def of(cls, x_ND: Tensor, mean_D: Tensor, dealt_N: Tensor, first: int, last: int) -> _Dealing:
        rows = [x_ND[dealt_N == part].double() - mean_D for part in range(GROUPS)]
        count_P = torch.tensor([float(len(part)) for part in rows], dtype=torch.float64, device=x_ND.device)
        sum_PD = torch.stack([part.sum(0) for part in rows])
        second_PDD = torch.stack([part.T @ part for part in rows])

        def read(members: Sequence[Sequence[int]]) -> np.ndarray:
            found = []
            for chosen in map(list, members):
                n, about_D = count_P[chosen].sum(), sum_PD[chosen].sum(0)
                covariance = second_PDD[chosen].sum(0) / n - torch.outer(about_D / n, about_D / n)
                found.append(_slope(torch.linalg.eigvalsh(covariance).flip(0), first, last))
            return np.array(found)

        without = read([[other for other in range(GROUPS) if other != part] for part in range(GROUPS)])
        jackknife = float(np.square(without - without.mean()).sum()) * (GROUPS - 1) / GROUPS
        if min(float(count_P[list(half)].sum()) for pair in HALVES for half in pair) <= 2 * last:
            return cls(jackknife, None, 0.0)
        halves = read([half for pair in HALVES for half in pair]).reshape(-1, 2)
        apart = float(np.square(halves[:, 0] - halves[:, 1]).mean()) / 4
        return cls(jackknife, apart, float(halves.mean(1).var(ddof=1)))


def _moments(x_ND: Tensor) -> Moments:
    return Moments.of(x_ND.double(), higher=False)
