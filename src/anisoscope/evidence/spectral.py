"""Nulls that need only moments, batched over sites: ``haar``, ``normal``, ``axes``, and the isotropy gain.

Letters: S sites, D width, K rank, R draws; M second moment, C covariance, Q basis.

A random subspace sees a moment through its eigenvalues alone, so a thousand controls cost one ``eigvalsh`` and one
small product. Energies inside and outside are kept apart: a share of 1 − 1e-7 still has its odds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from anisoscope.evidence.tables import haar_frames, haar_weights, random_signs

ZETA = 0.2
NARROW = 160  # up to this width tables of projectors are small and quicker than frames


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """Energies inside and outside, one a draw: ``(S, R)`` each."""

    inside: Tensor
    outside: Tensor


def haar_draws(second_SDD: Tensor, rank: int, draws: int, seed: int) -> Draws:
    """Energies of uniform random subspaces."""
    eigenvalues_SD = torch.linalg.eigvalsh(second_SDD).clamp_min(0)
    weights_RD = haar_weights(second_SDD.shape[-1], rank, draws, seed).to(second_SDD.device)
    return Draws(eigenvalues_SD @ weights_RD.T, eigenvalues_SD @ (1 - weights_RD).T)


def normal_draws(second_SDD: Tensor, basis_SDK: Tensor, draws: int, seed: int) -> Draws:
    """Energies of random subspaces orthogonal to Q: the paper's controls."""
    width, rank = basis_SDK.shape[-2:]
    eigenvalues_SD = torch.linalg.eigvalsh(without(second_SDD, basis_SDK)).clamp_min(0)[..., rank:]
    weights_RD = haar_weights(width - rank, rank, draws, seed).to(second_SDD.device)
    inside_SR = eigenvalues_SD @ weights_RD.T
    return Draws(inside_SR, _trace(second_SDD)[:, None] - inside_SR)


def axes_draws(second_SDD: Tensor, basis_SDK: Tensor, draws: int, seed: int) -> Draws:
    """Energies of Q with the sign of every coordinate flipped at random: ``sᵀ(M∘QQᵀ)s``."""
    product_SDD = second_SDD * (basis_SDK @ basis_SDK.mT)
    signs_RD = random_signs(second_SDD.shape[-1], draws, seed).to(second_SDD.device)
    inside_SR = ((signs_RD @ product_SDD) * signs_RD).sum(-1)
    return Draws(inside_SR, _trace(second_SDD)[:, None] - inside_SR)


def axes_mean(second_SDD: Tensor, basis_SDK: Tensor) -> Tensor:
    """Mean energy inside over all sign flips: ``Σ M_ii P_ii``."""
    return (second_SDD.diagonal(dim1=-2, dim2=-1) * basis_SDK.square().sum(-1)).sum(-1)


@dataclass(frozen=True, slots=True, eq=False)
class Gain:
    """Isotropy gained by removing Q, at ζ = 0.2 and ζ = 0, with its nulls: ``(S,)`` and ``(S, R)``."""

    before: Tensor
    gain: Tensor
    gain_zeta0: Tensor
    orthogonal: Tensor
    haar: Tensor


def isotropy_gain(covariance_SDD: Tensor, basis_SDK: Tensor, draws: int, seed: int) -> Gain:
    """IsoScore* of the cloud without Q, in D − K dimensions, minus that of the whole cloud, under one ``C₀``.

    The controls are frames orthogonal to Q (the paper's; their mean is shown) and uniform frames (they give the p).
    """
    width, rank = basis_SDK.shape[-2:]
    # In units of the mean variance C₀ is the identity, and no gradient is too small for its square.
    scaled = covariance_SDD * (width / _trace(covariance_SDD))[:, None, None]
    total = torch.stack([_trace(scaled), scaled.square().sum((-2, -1))])
    left = without(scaled, basis_SDK)
    kept = torch.stack([_trace(left), left.square().sum((-2, -1))])
    before, after = _score(total, width, ZETA), _score(kept, width - rank, ZETA)
    gain0 = _score(kept, width - rank, 0.0) - _score(total, width, 0.0)
    haar = orthogonal = before.new_full((before.shape[0], 0), torch.nan)
    if draws:
        removed = [_removed_frames(c, q, draws, seed) for c, q in zip(scaled, basis_SDK, strict=True)]
        haar = _score(_after_removal(total, torch.stack([r[0] for r in removed], 1)), width - rank, ZETA)
        if 2 * rank <= width:
            orthogonal = _score(_after_removal(total, torch.stack([r[1] for r in removed], 1)), width - rank, ZETA)
    return Gain(before, after - before, gain0, orthogonal - before[:, None], haar - before[:, None])


def without(matrix_SDD: Tensor, basis_SDK: Tensor) -> Tensor:
    """``(I − QQᵀ) M (I − QQᵀ)`` of a symmetric M, as ``M − QWᵀ − WQᵀ`` with ``W = MQ − Q(QᵀMQ)/2``."""
    along = matrix_SDD @ basis_SDK
    half = along - basis_SDK @ (basis_SDK.mT @ along) / 2
    once = torch.baddbmm(matrix_SDD, basis_SDK, half.mT, alpha=-1)
    return torch.baddbmm(once, half, basis_SDK.mT, alpha=-1)


def _trace(matrix_SDD: Tensor) -> Tensor:
    return matrix_SDD.diagonal(dim1=-2, dim2=-1).sum(-1)


def _score(trace_and_square: Tensor, dims: int, zeta: float) -> Tensor:
    """IsoScore* from trace and squared norm, in units where the reference is the identity."""
    trace, square = trace_and_square
    shrunk = (1 - zeta) * trace + zeta * dims
    norm = (1 - zeta) ** 2 * square + 2 * (1 - zeta) * zeta * trace + zeta**2 * dims
    return (shrunk.square() / norm - 1) / (dims - 1)


def _after_removal(total: Tensor, removed_3SR: Tensor) -> Tensor:
    """Trace and squared norm without F, from ``tr FᵀCF``, ``tr FᵀC²F`` and ``‖FᵀCF‖²``."""
    inside, squared, inner = removed_3SR
    return torch.stack([total[0][:, None] - inside, total[1][:, None] - 2 * squared + inner])


def _removed_frames(c_DD: Tensor, q_DK: Tensor, draws: int, seed: int) -> tuple[Tensor, Tensor]:
    """``tr FᵀCF``, ``tr FᵀC²F``, ``‖FᵀCF‖²`` for uniform frames F, and for the same frames made orthogonal to Q.

    With ``E = F − Q(QᵀF)`` the second kind is ``E R⁻¹``, ``RᵀR = EᵀE``: once the products ``CF`` exist, everything
    about it is K×K. No eigenvectors, no basis of the complement. Controls of wide clouds are multiplied in float32 on
    a CPU: their scatter over draws is far above its rounding.
    """
    width, rank = q_DK.shape
    if width <= NARROW:
        return _removed_narrow(c_DD, q_DK, draws, seed)
    dtype = torch.float32 if c_DD.device.type == "cpu" and width > 256 else torch.float64
    f_DRK = _frames_side_by_side(width, rank, draws, seed, dtype).to(c_DD.device)
    f_RDK = f_DRK.reshape(width, draws, rank).permute(1, 0, 2)  # a view: every frame where it stands
    c_DD, q_DK = c_DD.to(dtype), q_DK.to(dtype)
    cf_RDK = (c_DD @ f_DRK).reshape(width, draws, rank).permute(1, 0, 2)
    cq_DK = c_DD @ q_DK
    fcf, fccf = (f_RDK.mT @ cf_RDK).double(), (cf_RDK.mT @ cf_RDK).double()
    haar = torch.stack([_traces(fcf), _traces(fccf), fcf.square().sum((-2, -1))])
    if 2 * rank > width:
        return haar, haar.new_full(haar.shape, torch.nan)
    small = torch.cat([q_DK, cq_DK, c_DD @ cq_DK], 1).T @ f_DRK  # QᵀF, QᵀCF, QᵀC²F of all draws
    qf, qcf, qccf = (part.reshape(rank, draws, rank).permute(1, 0, 2).double() for part in small.split(rank))
    qcq, qccq = (q_DK.T @ cq_DK).double(), (cq_DK.T @ cq_DK).double()
    eye = torch.eye(rank, dtype=torch.float64, device=c_DD.device)
    lower = torch.linalg.cholesky(eye - qf.mT @ qf)
    ece = _orthonormalised(fcf - qf.mT @ qcf - qcf.mT @ qf + qf.mT @ qcq @ qf, lower)
    ecce = _orthonormalised(fccf - qf.mT @ qccf - qccf.mT @ qf + qf.mT @ qccq @ qf, lower)
    return haar, torch.stack([_traces(ece), _traces(ecce), ece.square().sum((-2, -1))])


def _removed_narrow(c_DD: Tensor, q_DK: Tensor, draws: int, seed: int) -> tuple[Tensor, Tensor]:
    """The same for narrow clouds, from tables of projectors ``P = FFᵀ`` in the eigenbasis of what they meet.

    There ``tr FᵀΛF = Σ Λ_i P_ii`` and ``‖FᵀΛF‖² = Σ Λ_i Λ_j P_ij²``, so a draw is a quadratic form. Frames orthogonal
    to Q are uniform frames of its complement; the part of C that leads out of it adds ``‖B̃ᵀF‖² = Σ (B̃B̃ᵀ)_ij P_ij``.
    """
    width, rank = q_DK.shape
    spectrum = torch.linalg.eigvalsh(c_DD)
    haar = _quadratic(spectrum, None, *_projectors(width, rank, draws, seed))
    if 2 * rank > width:
        return haar, haar.new_full(haar.shape, torch.nan)
    rest = torch.linalg.qr(q_DK, mode="complete").Q[:, rank:]
    spectrum, vectors = torch.linalg.eigh(rest.T @ c_DD @ rest)
    axes = rest @ vectors
    largest = axes.gather(0, axes.abs().argmax(0, keepdim=True))
    out = (axes * largest.sign()).T @ (c_DD @ q_DK)  # a sign that no library chooses for us
    return haar, _quadratic(spectrum, out @ out.T, *_projectors(width - rank, rank, draws, seed))


def _quadratic(spectrum: Tensor, leading_out: Tensor | None, projectors_RX: Tensor, squares_RX: Tensor) -> Tensor:
    width = spectrum.shape[0]
    projectors, squares = projectors_RX.to(spectrum.device), squares_RX.to(spectrum.device)
    diagonal = projectors.reshape(-1, width, width).diagonal(dim1=1, dim2=2).double()
    inner = (squares @ torch.outer(spectrum, spectrum).reshape(-1).to(squares.dtype)).double()
    squared = diagonal @ spectrum.square()
    if leading_out is not None:
        squared = squared + (projectors @ leading_out.reshape(-1).to(projectors.dtype)).double()
    return torch.stack([diagonal @ spectrum, squared, inner])


@lru_cache(maxsize=12)
def _projectors(width: int, rank: int, draws: int, seed: int) -> tuple[Tensor, Tensor]:
    """``FFᵀ`` of uniform frames and its entries squared, a row a draw; float32 is far finer than their scatter."""
    frames = haar_frames(width, rank, draws, seed)
    projectors = (frames @ frames.mT).flatten(1)
    return projectors.float(), projectors.square().float()


@lru_cache(maxsize=12)
def _frames_side_by_side(width: int, rank: int, draws: int, seed: int, dtype: torch.dtype) -> Tensor:
    frames_RDK = haar_frames(width, rank, draws, seed)
    return frames_RDK.permute(1, 0, 2).reshape(width, draws * rank).to(dtype)


def _orthonormalised(form_RKK: Tensor, lower_RKK: Tensor) -> Tensor:
    """``L⁻¹ X L⁻ᵀ``: a quadratic form in the coordinates of the orthonormalised frame."""
    half = torch.linalg.solve_triangular(lower_RKK, form_RKK, upper=False)
    return torch.linalg.solve_triangular(lower_RKK, half.mT, upper=False)


def _traces(form_RKK: Tensor) -> Tensor:
    return form_RKK.diagonal(dim1=-2, dim2=-1).sum(-1)
