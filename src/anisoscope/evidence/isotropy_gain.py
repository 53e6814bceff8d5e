"""Isotropy gained by removing a proxy from a gradient cloud, and what random directions gain.

Letters: D width, K rank, R frames, b columns of a frame; C covariance, Q basis, W uniform random frame.

One rotation turns the proxies of both folds, because their moments and proxies are alike. Bases are first aligned: then
``Q₂ = Q₁ cos θ + N sin θ`` with principal angles θ, and a random rotation takes Q₁ and N to the columns of W. So the
products ``CW`` and ``WᵀCW`` are those of every proxy of one cloud, and each proxy mixes them by its angles alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from anisoscope.evidence.random_tables import haar_frames
from anisoscope.evidence.shared import Shared
from anisoscope.evidence.spectral import aligned, draw_dtype, without

ZETA = 0.2
FRAMES = 199  # or as many as a layer needs to be told among all; whole frames are multiplied, which takes long
_CHUNK_NUMBERS = 1 << 24
NORMAL_FRAMES = 40  # of those made orthogonal to the proxy only the mean is shown; Bernas et al. (2026) take 20


@dataclass(frozen=True, slots=True, eq=False)
class Gain:
    """Isotropy before, the gain at ζ = 0.2 and ζ = 0, and the gains of random frames: ``()`` and ``(R,)``."""

    before: Tensor
    gain: Tensor
    gain_zeta0: Tensor
    orthogonal: Tensor
    haar: Tensor


def isotropy_gains(
    covariances: Sequence[Tensor], bases: Sequence[Tensor], frames: int, seed: int, shared: Shared | None = None
) -> list[Gain]:
    """IsoScore* of each fold's cloud without Q, in D − K dimensions, minus that of the whole cloud, under one ``C₀``.

    ``haar`` are frames turned by one rotation in all folds, which give the p; ``orthogonal`` the same frames made
    orthogonal to Q (the controls of Bernas et al. 2026).
    """
    shared = shared or Shared()
    width, rank = bases[0].shape
    turned, cosines, sines = aligned(bases)
    found = []
    for fold, (covariance, basis) in enumerate(zip(covariances, turned, strict=True)):
        scaled, total = shared.once("scaled", [covariance], partial(_in_units_of_mean_variance, covariance))
        seen_by = partial(_Seen.of, scaled, rank, rank + len(sines), frames, seed, bool(fold))
        seen = shared.once(("seen", rank, len(sines), frames, seed, bool(fold)), [covariance], seen_by)
        seen = seen.mixed(cosines, sines) if fold else seen
        kept = _forms(without(scaled[None], basis[None])[0])
        before, after = score(total, width, ZETA), score(kept, width - rank, ZETA)
        gain0 = score(kept, width - rank, 0.0) - score(total, width, 0.0)
        haar = score(_after_removal(total, seen.removed()), width - rank, ZETA)
        orthogonal = haar[:0]
        if 2 * rank <= width:
            beside = seen.removed_beside(scaled.to(seen.frames.dtype), basis.to(seen.frames.dtype))
            orthogonal = score(_after_removal(total, beside), width - rank, ZETA)
        found.append(Gain(before, after - before, gain0, orthogonal - before, haar - before))
    return found


def score(trace_and_square: Tensor, dims: int, zeta: float) -> Tensor:
    """IsoScore* from trace and squared norm, in units where the reference is the identity."""
    trace, square = trace_and_square
    shrunk = (1 - zeta) * trace + zeta * dims
    norm = (1 - zeta) ** 2 * square + 2 * (1 - zeta) * zeta * trace + zeta**2 * dims
    return (shrunk.square() / norm - 1) / (dims - 1)


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """A covariance as frames see it.

    ``inner``: ``WᵀCW (R, b, b)``; ``squared``: the diagonal of ``WᵀC²W (R, b)``; ``crossed``: its entries for the pairs
    of columns that an angle mixes; ``frames`` and ``products``: W and CW of the first frames ``(R', D, b)``.
    """

    inner: Tensor
    squared: Tensor
    crossed: Tensor
    frames: Tensor
    products: Tensor

    @classmethod
    def of(cls, c_DD: Tensor, rank: int, columns: int, draws: int, seed: int, mixes: bool) -> _Seen:
        """Of ``draws`` frames; without ``mixes`` of their first ``rank`` columns alone."""
        width = c_DD.shape[0]
        # A frame made orthogonal to Q nearly vanishes in some direction where K comes near D/2.
        dtype = torch.float64 if 3 * rank > width else draw_dtype(width)
        table_RDb = haar_frames(width, columns, draws, seed, dtype, c_DD.device)
        c_DD = c_DD.to(dtype)
        inner, squared, crossed, frames, products = [], [], [], [], []
        for some_RDb in table_RDb.split(max(1, _CHUNK_NUMBERS // (width * columns))):
            w_RDb = some_RDb if mixes else some_RDb[..., :rank]
            w_DRb = w_RDb.permute(1, 0, 2).reshape(width, -1)
            cw_RDb = (c_DD @ w_DRb).reshape(width, len(w_RDb), -1).permute(1, 0, 2)
            extra = w_RDb.shape[2] - rank
            inner.append((w_RDb.mT @ cw_RDb).double())
            squared.append(cw_RDb.square().sum(1).double())
            crossed.append((cw_RDb[..., rank - extra : rank] * cw_RDb[..., rank:]).sum(1).double())
            left = max(0, NORMAL_FRAMES - sum(map(len, frames)))
            # Copies: a part of a table must not hold on to the whole of it.
            frames.append(w_RDb[:left].clone())
            products.append(cw_RDb[:left].contiguous())
        return cls(*(torch.cat(parts) for parts in (inner, squared, crossed, frames, products)))

    def mixed(self, cosines: Tensor, sines: Tensor) -> _Seen:
        """As the frames ``W₁ cos θ + W₂ sin θ`` see it; W₂ has columns for the last angles only."""
        rank, extra = len(cosines), len(sines)
        old, new = slice(0, rank), slice(rank, rank + extra)
        tail = slice(rank - extra, rank)
        cosines, sines = cosines.to(self.inner.device), sines.to(self.inner.device)
        inner = cosines[:, None] * self.inner[:, old, old] * cosines
        half = cosines[:, None] * self.inner[:, old, new] * sines
        inner[:, :, tail] += half
        inner[:, tail] += half.mT
        inner[:, tail, tail] += sines[:, None] * self.inner[:, new, new] * sines
        squared = cosines.square() * self.squared[:, old]
        squared[:, tail] += 2 * cosines[tail] * sines * self.crossed + sines.square() * self.squared[:, new]
        few = []
        for part in (self.frames, self.products):
            turned = part[..., old] * cosines.to(part.dtype)
            turned[..., tail] += part[..., new] * sines.to(part.dtype)
            few.append(turned)
        return _Seen(inner, squared, self.crossed[:, :0], *few)

    def removed(self) -> Tensor:
        """``tr FᵀCF``, ``tr FᵀC²F`` and ``‖FᵀCF‖²``, ``(3, R)``, on the host as all that is small."""
        return torch.stack([_traces(self.inner), self.squared.sum(1), self.inner.square().sum((-2, -1))]).cpu()

    def removed_beside(self, c_DD: Tensor, q_DK: Tensor) -> Tensor:
        """The same for the first frames made orthogonal to Q.

        With ``E = F − Q(QᵀF)`` they are ``E R⁻¹``, ``RᵀR = EᵀE``: once the products ``CF`` exist, everything about
        them is K×K. No eigenvectors, no basis of the complement.
        """
        f, cf = self.frames, self.products
        cq = c_DD @ q_DK
        qf, qcf, qccf = ((part.T @ given).double() for part, given in ((q_DK, f), (q_DK, cf), (cq, cf)))
        qcq, qccq = (q_DK.T @ cq).double(), (cq.T @ cq).double()
        fcf, fccf = self.inner[: len(f)], (cf.mT @ cf).double()
        eye = torch.eye(q_DK.shape[1], dtype=torch.float64, device=c_DD.device)
        lower = torch.linalg.cholesky(eye - qf.mT @ qf)
        ece = _orthonormalised(fcf - qf.mT @ qcf - qcf.mT @ qf + qf.mT @ qcq @ qf, lower)
        ecce = _orthonormalised(fccf - qf.mT @ qccf - qccf.mT @ qf + qf.mT @ qccq @ qf, lower)
        return torch.stack([_traces(ece), _traces(ecce), ece.square().sum((-2, -1))]).cpu()


def _in_units_of_mean_variance(covariance_DD: Tensor) -> tuple[Tensor, Tensor]:
    """Then C₀ is the identity, and no gradient is too small for its square. With trace and squared norm."""
    scaled = covariance_DD * (covariance_DD.shape[0] / covariance_DD.diagonal().sum())
    return scaled, _forms(scaled)


def _forms(matrix_DD: Tensor) -> Tensor:
    return torch.stack([matrix_DD.diagonal().sum(), matrix_DD.square().sum()]).cpu()


def _after_removal(total: Tensor, removed_3R: Tensor) -> Tensor:
    """Trace and squared norm without F, from ``tr FᵀCF``, ``tr FᵀC²F`` and ``‖FᵀCF‖²``."""
    inside, squared, inner = removed_3R
    return torch.stack([total[0] - inside, total[1] - 2 * squared + inner])


def _orthonormalised(form_RKK: Tensor, lower_RKK: Tensor) -> Tensor:
    """``L⁻¹ X L⁻ᵀ``: a quadratic form in the coordinates of the orthonormalised frame."""
    half = torch.linalg.solve_triangular(lower_RKK, form_RKK, upper=False)
    return torch.linalg.solve_triangular(lower_RKK, half.mT, upper=False)


def _traces(form_RKK: Tensor) -> Tensor:
    return form_RKK.diagonal(dim1=-2, dim2=-1).sum(-1)
