"""Losses that change the geometry of a cloud of vectors. Letters: N rows, D width, K rank, A anchors, k neighbours.

Each is a function ``penalty(x, mask=None)`` of vectors ``(…, D)`` and returns a scalar in the graph; a positive weight
makes its value smaller. All are over the whole batch of a data-parallel training, and computed in float32 at least.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.geometry.subspace import Subspace
from anisoscope.intervene.sums import WeightedRows, gathered, over_processes, processes
from anisoscope.stats.moments import Moments

ROWS = 4096
SCORE_ROWS = 2048  # of IStar: two products of (N, D) a layer are what it costs, and its reference is a running one
DECAY_EVERY = 20  # passes between two eigendecompositions of a layer
_FIRST_PLACE = 11  # of the eigenvalues that a decay is fitted to, as in its definition
_FEWEST_PLACES = 20
_TINY = 1e-30


@dataclass(slots=True, eq=False)
class CosReg:
    """The average cosine over all pairs of vectors (Gao et al. 2019): a positive weight spreads directions.

    ``(‖Σu‖² − n) / (n(n − 1))`` over unit vectors ``u``, exact over all pairs; vectors of length 0 do not count.

    >>> import torch
    >>> round(float(CosReg()(torch.eye(4))), 6), round(float(CosReg()(torch.ones(4, 3))), 6)
    (0.0, 1.0)
    """

    rows: int | None = ROWS

    def __call__(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The average cosine."""
        cloud = WeightedRows.of(x, mask, self.rows)
        squares_N = cloud.rows.square().sum(1)
        weights_N = cloud.weights * (squares_N > 0)
        # The root of 0 has no derivative.
        units_ND = cloud.rows / torch.where(squares_N > 0, squares_N, 1.0).sqrt()[:, None]
        n, total_D = over_processes(weights_N.sum()), over_processes(weights_N @ units_ND)
        return (total_D.square().sum() - n) / (n * (n - 1))


@dataclass(slots=True, eq=False)
class IStar:
    """``1 − IsoScore*``, differentiable: a positive weight makes the cloud more isotropic (Rudman & Eickhoff 2024).

    IsoScore* is ``(PR − 1)/(D − 1)`` with ``PR = tr(C)²/‖C‖²`` of ``(1 − ζ)C + ζC₀``, so no derivative of an
    eigenvector is needed. ``reference`` says what ``C₀`` is: ``running``, a covariance of the batches before this one
    that forgets with ``decay``, so that small batches are not judged by their own noise; or ``trace``, the batch's own
    mean variance in every direction. One instance serves one layer where the reference is running.

    >>> import torch
    >>> x = torch.randn(4000, 3, generator=torch.Generator().manual_seed(0))
    >>> round(float(IStar()(x)), 1), round(float(IStar()(x * torch.tensor([9.0, 0.0, 0.0]))), 1)
    (0.0, 1.0)
    """

    zeta: float = 0.2
    reference: Literal["running", "trace"] = "running"
    decay: float = 0.99
    rows: int | None = SCORE_ROWS
    _moments: Moments | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.zeta < 1:
            raise broken("zeta must lie in 0…1, without 1", self.zeta, "use 0.2")
        if not 0 <= self.decay <= 1:
            raise broken("decay must lie in 0…1", self.decay, "use 0.99")
        if self.reference not in ("running", "trace"):
            raise broken("reference must be running or trace", repr(self.reference), "check the spelling")

    def __call__(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """One minus the score."""
        cloud = WeightedRows.of(x, mask, self.rows)
        own_DD = cloud.covariance()
        width = own_DD.shape[0]
        if self.reference == "trace":
            base_DD = own_DD.diagonal().sum() / width * torch.eye(width, dtype=own_DD.dtype, device=own_DD.device)
        else:
            base_DD = self._running(cloud, own_DD.detach())
        mixed_DD = (1 - self.zeta) * own_DD + self.zeta * base_DD
        ratio = mixed_DD.diagonal().sum().square() / mixed_DD.square().sum().clamp_min(_TINY)
        return 1 - (ratio - 1) / (width - 1)

    def state_dict(self) -> dict[str, Tensor]:
        """The running reference, to be kept with a checkpoint."""
        return {} if self._moments is None else self._moments.state()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on with a reference that was kept."""
        self._moments = Moments.from_state(dict(state)) if state else None

    def _running(self, cloud: WeightedRows, own_DD: Tensor) -> Tensor:
        """The reference of the batches so far, which then takes this one up; the first batch is its own reference."""
        n = cloud.count.detach()
        batch = Moments(n.double(), cloud.centre().double(), own_DD.double() * (n.double() - 1), None, None)
        before = self._moments
        if before is None:
            self._moments = batch
            return own_DD
        base_DD = before.covariance.to(own_DD)
        faded = Moments(before.count * self.decay, before.mean, before.scatter * self.decay, None, None)
        self._moments = faded.merge(batch)
        return base_DD


@dataclass(slots=True, eq=False)
class SpectralDecay:
    """``(α̂ − α)²``, α̂ the spectral decay of the covariance: a positive weight draws it towards ``alpha``.

    α̂ is minus the slope of ``log λ_i`` on ``log i`` over ``i = 11 … min(D, n − 1)//2``. The derivative of an eigenvalue
    is that of a Rayleigh quotient: equal eigenvalues do no harm. It takes an eigendecomposition, so a
    ``Regularizer`` asks each layer in every ``every``-th pass only, with that many times the weight.
    """

    alpha: float = 1.0
    rows: int | None = ROWS
    every: int = DECAY_EVERY

    def __call__(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The squared distance of the decay from the one asked for."""
        return (self.slope(x, mask) - self.alpha).square()

    def slope(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """α̂ itself."""
        cloud = WeightedRows.of(x, mask, self.rows)
        last = min(cloud.rows.shape[1], len(cloud.rows) * processes() - 1) // 2
        if last < _FIRST_PLACE - 1 + _FEWEST_PLACES:
            raise broken(
                f"a decay must be fitted to at least {_FEWEST_PLACES} eigenvalues from place {_FIRST_PLACE} on",
                max(0, last - _FIRST_PLACE + 1),
                "use a wider layer or more rows",
            )
        values = torch.linalg.eigvalsh(cloud.covariance()).flip(0)[_FIRST_PLACE - 1 : last].clamp_min(_TINY).log()
        at = torch.arange(_FIRST_PLACE, last + 1, dtype=values.dtype, device=values.device).log()
        at = at - at.mean()
        return -(at @ values) / at.square().sum()


@dataclass(slots=True, eq=False)
class TangentReg:
    """The share of a cloud's variance inside a subspace: a positive weight empties it, a negative one fills it."""

    subspace: Subspace | Tensor
    rows: int | None = ROWS
    _basis: Tensor = field(init=False)

    def __post_init__(self) -> None:
        given = self.subspace if isinstance(self.subspace, Subspace) else Subspace(self.subspace)
        self._basis = given.basis

    def __call__(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """``tr(QᵀCQ)/tr C``."""
        if x.shape[-1] != self._basis.shape[0]:
            raise broken(
                f"vectors must have the width of the subspace, {self._basis.shape[0]}", x.shape[-1], "refit it"
            )
        cloud = WeightedRows.of(x, mask, self.rows)
        y_ND, weights_N = cloud.rows - cloud.centre(), cloud.weights
        inside_NK = y_ND @ self._basis.to(y_ND)
        n = cloud.count
        inside, whole = (_scatter(part, weights_N, n) for part in (inside_NK, y_ND))
        return inside / whole.clamp_min(_TINY)


@dataclass(slots=True, eq=False)
class CurvatureReg:
    """Normal over tangent variance of neighbourhoods in the batch: a positive weight flattens, a negative one bends.

    Around each of ``anchors`` vectors the variance of its ``neighbours`` nearest vectors is parted into that along the
    ``dimension`` leading principal directions (tangent) and the rest (normal); the value is the mean of their
    quotients. Who is whose neighbour is found without gradient.
    """

    dimension: int = 4
    neighbours: int = 24
    anchors: int = 64
    rows: int | None = 1024

    def __post_init__(self) -> None:
        if not 1 <= self.dimension < self.neighbours:
            raise broken(
                "there must be more neighbours than dimensions", f"{self.neighbours} and {self.dimension}", "use 24, 4"
            )
        if self.anchors < 1:
            raise broken("there must be at least one anchor", self.anchors, "use 64")

    def __call__(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The mean quotient."""
        cloud = WeightedRows.of(x, mask, self.rows)
        rows_ND, weights_N = gathered(cloud.rows), gathered(cloud.weights)
        count = len(rows_ND)
        if count <= self.neighbours:
            raise broken(f"a batch must have more than {self.neighbours} vectors", count, "lower neighbours")
        places_A = torch.arange(min(self.anchors, count), device=rows_ND.device)
        places_A = places_A * count // len(places_A)
        with torch.no_grad():
            distances_AN = torch.cdist(rows_ND[places_A], rows_ND).masked_fill(weights_N == 0, torch.inf)
            near_Ak = distances_AN.topk(self.neighbours + 1, largest=False).indices
            reached = distances_AN.gather(1, near_Ak).isfinite().all(1)
            weights_A = weights_N[places_A] * reached
        around_AkD = rows_ND[near_Ak]
        around_AkD = around_AkD - around_AkD.mean(1, keepdim=True)
        values_Ak = torch.linalg.eigvalsh(around_AkD @ around_AkD.mT)
        tangent_A = values_Ak[:, -self.dimension :].sum(1)
        quotients_A = values_Ak[:, : -self.dimension].sum(1) / tangent_A.clamp_min(_TINY)
        # Every process has the same rows and so the same value.
        return (weights_A * quotients_A).sum() / weights_A.sum().clamp_min(1)


def _scatter(y_NE: Tensor, weights_N: Tensor, n: Tensor) -> Tensor:
    """Summed squares about the mean."""
    total_E = over_processes(weights_N @ y_NE)
    return over_processes((weights_N @ y_NE.square()).sum()) - total_E.square().sum() / n
