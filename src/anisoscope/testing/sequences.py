"""Gradients of sequences that make intervals and tests hard, each with the true answer.

Letters: n sequences, T positions.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from anisoscope.testing.draws import normals, seeded


def coupled_energies(
    n: int, *, sigma: float = 1.0, coupling: float = 0.5, tail: float | None = None, seed: int = 0
) -> tuple[Tensor, float]:
    """Gradients ``(n, 2, 6)`` whose sequences that are large also lie more inside the first two coordinates.

    Sizes are log-normal with ``sigma``, or Pareto with the index ``tail``; shares follow them by ``coupling``, which
    makes intervals hard. Also returned is the true odds ratio over random directions of rank 2.

    >>> g, truth = coupled_energies(16, sigma=1.0)
    >>> g.shape, round(truth, 2)
    (torch.Size([16, 2, 6]), 2.01)
    """
    z, own = normals(2, n, generator=seeded(seed))
    share, energy = _coupled_shares(z, own, coupling), _sizes(z, sigma, tail)
    mean = coupled_share(sigma, coupling, tail)
    return of_shares(energy, share), mean / (1 - mean) / (2 / 4)


def _coupled_shares(z: Tensor, own: Tensor, coupling: float) -> Tensor:
    return torch.sigmoid(coupling * z + 0.5 * own - 0.5)


def _sizes(z: Tensor, sigma: float, tail: float | None) -> Tensor:
    return (sigma * z).exp() if tail is None else (torch.special.erfc(z / 2**0.5) / 2) ** (-1 / tail)


@lru_cache(maxsize=64)
def coupled_share(sigma: float, coupling: float, tail: float | None = None) -> float:
    """The share inside of all energy, over very many sequences of ``coupled_energies``."""
    many, other = (normals(1 << 18, generator=seeded(k)) for k in (1, 2))
    weight = _sizes(many, sigma, tail)
    if tail is not None:  # a mean over draws of such a law hardly settles: places are set, dense where sizes are large
        place = (torch.arange(1 << 18, dtype=torch.float64, device="cpu") + 0.5) / (1 << 18)
        many = -torch.special.ndtri(place**3)
        weight = 3 * place**2 * _sizes(many, sigma, tail)
    return float((weight * _coupled_shares(many, other, coupling)).sum() / weight.sum())


def sequences_of_documents(
    documents: int, *, each: int = 4, spread: float = 1.0, seed: int = 0
) -> tuple[Tensor, Tensor, float]:
    """Gradients ``(n, 2, 6)`` of which ``each`` sequences share a document, and with it most of their direction.

    Also returned are the document of each sequence and the true odds ratio over random directions of rank 2. Sequences
    of one document are not independent: an interval over sequences is too narrow.
    """
    generator, mean = seeded(seed), _document_share(spread)
    ids = torch.arange(documents, device="cpu").repeat_interleave(each)
    common = normals(documents, generator=generator)[ids]
    own, size = normals(2, len(ids), generator=generator)
    share = _document_shares(common, own, spread)
    return of_shares((0.3 * size).exp(), share), ids, mean / (1 - mean) / (2 / 4)


def _document_shares(common: Tensor, own: Tensor, spread: float) -> Tensor:
    return torch.sigmoid(spread * common + 0.3 * own - 0.5)


@lru_cache(maxsize=64)
def _document_share(spread: float) -> float:
    common, own = (normals(1 << 18, generator=seeded(k)) for k in (1, 2))
    return float(_document_shares(common, own, spread).mean())


def rare_large_tokens(
    n: int, *, length: int = 64, factor: float = 100.0, rate: float = 0.01, lift: float = 2.0, seed: int = 0
) -> tuple[Tensor, float]:
    """Gradients ``(n, T, 6)`` of which one token in a hundred is ``factor`` times larger; the rest of all is alike.

    The first two coordinates have ``lift`` times the energy of the others, which is the true odds ratio over random
    directions of rank 2. A handful of tokens holds nearly all of the energy, so few units are behind any number.
    """
    generator = seeded(seed)
    large = torch.rand(n, length, 1, generator=generator) < rate
    scale = torch.tensor([lift, lift, 1, 1, 1, 1], dtype=torch.float64).sqrt()
    return torch.where(large, factor, 1.0) * normals(n, length, 6, generator=generator) * scale, lift


def partly_cancelling(
    n: int, *, tangent: float, normal: float, noise: float = 0.5, tails: float = 0.0, length: int = 12, seed: int = 0
) -> tuple[Tensor, Tensor, float]:
    """Inputs ``(n, T, 6)`` and error signals ``(n, T, 4)`` whose sum partly cancels, and the true ``γ^T/γ^N``.

    The first three coordinates of the inputs are tangent. ``tangent`` and ``normal`` are the means of both parts, in
    units of a token's own noise; ``noise`` is what a sequence shares, ``tails`` the deviation of the logarithm of a
    sequence's size.
    """
    generator = seeded(seed)
    means = torch.tensor([tangent] * 3 + [normal] * 3, dtype=torch.float64)
    x = normals(n, length, 6, generator=generator) + noise * normals(n, 1, 6, generator=generator) + means
    d = 1 + 0.5 * normals(n, length, 4, generator=generator) + noise * normals(n, 1, 4, generator=generator)
    d = d * (tails * normals(n, 1, 1, generator=generator)).exp()
    truth = tangent / normal * _mean_length(normal, noise) / _mean_length(tangent, noise) if normal else math.inf
    return x, d, truth


@lru_cache(maxsize=64)
def _mean_length(mean: float, noise: float) -> float:
    """Of three coordinates with this mean and this noise."""
    many = math.hypot(1, noise) * normals(1 << 17, 3, generator=seeded(1)) + mean
    return float(torch.linalg.vector_norm(many, dim=1).mean())


def paired_properties(n: int, rho: float, *, counts: bool = False, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two properties of ``n`` token types that go together by ``rho`` in a Gaussian copula.

    With ``counts`` the first follows Zipf's law: a count is at least k with probability 1/k, so half of the types are
    seen once, and the mean is infinite.
    """
    a, b = normals(2, n, generator=seeded(seed))
    y = rho * a + math.sqrt(1 - rho * rho) * b
    return (1 / torch.special.ndtr(-a)).floor() if counts else a, y


def of_shares(energy_n: Tensor, share_n: Tensor) -> Tensor:
    """Sequences of two tokens, one inside the first two coordinates and one outside, with given energy and share."""
    g = torch.zeros(len(energy_n), 2, 6, dtype=torch.float64)
    g[:, 0, 0], g[:, 1, 4] = (energy_n * share_n).sqrt(), (energy_n * (1 - share_n)).sqrt()
    return g
