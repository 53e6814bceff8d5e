"""Mergeable central moments of a cloud of points.

Letters: N rows, D width.

**Precision, decided here once.** Everything is float64, whatever the dtype of the rows: at most ``CHUNK_ROWS`` rows at
a time are centred on their own mean and multiplied. Products in float32 would add rounding of 1e-8 of the largest
eigenvalue to all others; its square root, 1e-4 of the largest singular value, fills the empty directions of a low-rank
cloud (an effective rank of 4.99 read 5.27). Nothing here waits for the device.

Raw sums would lose everything on an offset cloud, so all sums are kept about the mean and moved exactly
(``Moments.about``) when means differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.stats.as_tensor import as_tensor

CHUNK_ROWS = 8192
STATE_DTYPE = torch.float64
_SYMMETRIC_BLOCK = 128


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Count, mean and central sums of a cloud: ``S = Σ yyᵀ``, ``T = Σ ‖y‖² y``, ``F = Σ ‖y‖⁴`` with ``y = x − mean``.

    ``third`` and ``fourth`` (``T`` and ``F``) are ``None`` where they were not asked for; they feed the bias correction
    of the participation ratio.

    >>> import torch
    >>> x = torch.tensor([[0.0, 1.0], [2.0, 1.0], [4.0, 4.0]])
    >>> whole = Moments.of(x)
    >>> parts = Moments.of(x[:1]).merge(Moments.empty(2)).merge(Moments.of(x[1:]))
    >>> torch.allclose(whole.covariance, parts.covariance)
    True
    >>> float(whole.count), whole.mean.tolist()
    (3.0, [2.0, 2.0])
    """

    count: Tensor
    mean: Tensor
    scatter: Tensor
    third: Tensor | None
    fourth: Tensor | None

    @classmethod
    def empty(cls, width: int, *, higher: bool = True, device: torch.device | str | None = None) -> Moments:
        """No rows at all: the neutral element of ``merge``."""
        if width < 1:
            raise broken("width must be at least 1", width, "pass the number of columns of the cloud")
        zeros = torch.zeros(width, dtype=STATE_DTYPE, device=device)
        return cls(
            count=zeros.new_zeros(()),
            mean=zeros,
            scatter=zeros.new_zeros(width, width),
            third=zeros.clone() if higher else None,
            fourth=zeros.new_zeros(()) if higher else None,
        )

    @classmethod
    def of(cls, x: Any, *, weights: Tensor | None = None, mask: Tensor | None = None, higher: bool = True) -> Moments:
        """Moments of the rows of ``x``, which may have any leading shape: ``(..., D)``.

        ``weights`` are frequencies: a row of weight 3 counts as three rows, one of weight 0 not at all. ``mask`` is the
        boolean form; with both, they multiply. A row that is masked out may hold anything finite.
        """
        x_ND, weights_N = _as_rows(as_tensor(x), weights, mask)
        total: Moments | None = None
        for start in range(0, x_ND.shape[0], CHUNK_ROWS):
            part = slice(start, start + CHUNK_ROWS)
            chunk = _of_chunk(x_ND[part], None if weights_N is None else weights_N[part], higher)
            total = chunk if total is None else total.merge(chunk)
        return total if total is not None else cls.empty(x_ND.shape[1], higher=higher, device=x_ND.device)

    def merge(self, other: Moments) -> Moments:
        """Moments of both clouds together; exact in any order and grouping, up to float64 rounding."""
        if self.width != other.width:
            raise broken(f"merged moments must have equal width {self.width}", other.width, "merge one site at a time")
        if self.higher != other.higher:
            raise broken(
                "both sides of a merge must keep the third and fourth sums, or neither",
                other.higher,
                "pass the same higher= to Moments.of on both sides",
            )
        count = self.count + other.count
        share = other.count / count.clamp_min(torch.finfo(STATE_DTYPE).tiny)
        mean = self.mean + share * (other.mean - self.mean)
        return self.about(mean).plus(other.about(mean))

    def about(self, centre: Tensor) -> Moments:
        """The same sums taken about ``centre`` instead of the mean (``mean`` then holds ``centre``)."""
        d = self.mean - centre
        d2 = d @ d
        scatter = torch.addr(self.scatter, d * self.count, d)
        if self.third is None or self.fourth is None:
            return replace(self, mean=centre, scatter=scatter)
        trace = self.scatter.diagonal().sum()
        scatter_d = self.scatter @ d
        third = self.third + trace * d + 2 * scatter_d + self.count * d2 * d
        fourth = self.fourth + 4 * (d @ self.third) + 2 * d2 * trace + 4 * (d @ scatter_d) + self.count * d2 * d2
        return Moments(self.count, centre, scatter, third, fourth)

    def plus(self, other: Moments) -> Moments:
        """Add sums that are about one and the same centre; the last step of a merge or of a reduction."""
        return Moments(
            self.count + other.count,
            self.mean,
            self.scatter + other.scatter,
            None if self.third is None or other.third is None else self.third + other.third,
            None if self.fourth is None or other.fourth is None else self.fourth + other.fourth,
        )

    @property
    def width(self) -> int:
        """D, the number of columns."""
        return self.mean.shape[0]

    @property
    def higher(self) -> bool:
        """Whether the third and fourth sums are kept."""
        return self.fourth is not None

    @property
    def covariance(self) -> Tensor:
        """``S / (N − 1)``; NaN below two rows."""
        return self.scatter / torch.where(self.count > 1, self.count - 1, torch.nan)

    @property
    def second(self) -> Tensor:
        """Uncentred second moment sum ``Σ xxᵀ = S + N·m·mᵀ``."""
        return torch.addr(self.scatter, self.mean * self.count, self.mean)

    def to(self, device: torch.device | str) -> Moments:
        """The same moments on another device."""
        return Moments.from_state({name: tensor.to(device) for name, tensor in self.state().items()})

    def state(self) -> dict[str, Tensor]:
        """Plain tensors, for safetensors or a checkpoint."""
        named = {name: getattr(self, name) for name in ("count", "mean", "scatter", "third", "fourth")}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> Moments:
        """The moments that ``state()`` described."""
        missing = {"count", "mean", "scatter"} - state.keys()
        if missing or ("third" in state) != ("fourth" in state):
            raise broken(
                "a state must hold count, mean, scatter, and both or none of third and fourth",
                sorted(state),
                "save it with Moments.state()",
            )
        return cls(state["count"], state["mean"], state["scatter"], state.get("third"), state.get("fourth"))


def symmetric_product(x_ND: Tensor, y_ND: Tensor) -> Tensor:
    """``xᵀy`` where it is known to be symmetric: only the blocks on and above the diagonal are multiplied."""
    width = x_ND.shape[1]
    if width < 4 * _SYMMETRIC_BLOCK:
        return x_ND.T @ y_ND
    product_DD = x_ND.new_empty(width, width)
    for start in range(0, width, _SYMMETRIC_BLOCK):
        stop = min(start + _SYMMETRIC_BLOCK, width)
        strip = x_ND[:, start:stop].T @ y_ND[:, start:]
        product_DD[start:stop, start:] = strip
        product_DD[start:, start:stop] = strip.T
    return product_DD


def _as_rows(x: Tensor, weights: Tensor | None, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    if not x.is_floating_point():
        raise broken("a cloud must be of a real floating-point dtype", x.dtype, "convert it with .float()")
    if x.ndim < 2:
        raise broken("a cloud must have rows and columns", f"shape {tuple(x.shape)}", "pass (N, D)")
    if x.device.type == "mps":  # has no float64, so the state could not live there
        x = x.cpu()
    weights_N: Tensor | None = None
    for name, given in (("weights", weights), ("mask", mask)):
        if given is None:
            continue
        if given.shape != x.shape[:-1]:
            raise broken(
                f"{name} must have the shape of the rows {tuple(x.shape[:-1])}",
                tuple(given.shape),
                "give one number a row",
            )
        flat = given.detach().reshape(-1).to(device=x.device, dtype=STATE_DTYPE)
        weights_N = flat if weights_N is None else weights_N * flat
    if weights_N is not None and weights_N.device.type == "cpu" and bool((weights_N < 0).any()):
        raise broken("weights must not be negative", float(weights_N.min()), "weights are frequencies of rows")
    return x.detach().reshape(-1, x.shape[-1]), weights_N


def _of_chunk(x_ND: Tensor, weights_N: Tensor | None, higher: bool) -> Moments:
    if weights_N is None:
        x_ND = x_ND.to(STATE_DTYPE)
        count = torch.full((), x_ND.shape[0], dtype=STATE_DTYPE, device=x_ND.device)
        centre_D = x_ND.mean(0)
        y_ND = x_ND - centre_D
        weighted_ND = y_ND
        total_D = y_ND.sum(0)
    else:
        # Rows of weight 0 become 0 before anything is summed, so that padding cannot pull the centre away.
        x_ND = torch.where(weights_N[:, None] > 0, x_ND, 0).to(STATE_DTYPE)
        count = weights_N.sum()
        centre_D = (weights_N @ x_ND) / count.clamp_min(torch.finfo(STATE_DTYPE).tiny)
        y_ND = x_ND - centre_D
        weighted_ND = y_ND * weights_N[:, None]
        total_D = weighted_ND.sum(0)
    scatter = symmetric_product(weighted_ND, y_ND)
    third = fourth = None
    if higher:
        norms_N = torch.linalg.vector_norm(y_ND, dim=1).square()
        third = norms_N @ weighted_ND
        squares_N = norms_N.square()
        fourth = squares_N.sum() if weights_N is None else squares_N @ weights_N
    return _recentred(count, centre_D, total_D, Moments(count, centre_D, scatter, third, fourth))


def _recentred(count: Tensor, centre_D: Tensor, total_D: Tensor, sums: Moments) -> Moments:
    """Move sums about a provisional centre, which rounding has put beside the mean, onto the mean."""
    d = total_D / count.clamp_min(torch.finfo(STATE_DTYPE).tiny)
    d2 = d @ d
    scatter = torch.addr(sums.scatter, d * count, d, alpha=-1)
    if sums.third is None or sums.fourth is None:
        return Moments(count, centre_D + d, scatter, None, None)
    trace = sums.scatter.diagonal().sum()
    scatter_d = sums.scatter @ d
    third = sums.third - trace * d - 2 * scatter_d + 2 * count * d2 * d
    fourth = sums.fourth - 4 * (d @ sums.third) + 4 * (d @ scatter_d) + 2 * d2 * trace - 3 * count * d2 * d2
    return Moments(count, centre_D + d, scatter, third, fourth)
