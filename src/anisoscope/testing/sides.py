"""Two sides that differ in nothing a null is about, and constructions of the weight and the embedding view.

Letters: n sequences, T positions, D width, E columns of δ, V types.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from anisoscope.testing.draws import normals, seeded
from anisoscope.testing.planted_clouds import rotation
from anisoscope.testing.sequences import coupled_energies, coupled_share, of_shares


def unequal_dispersion(
    n: int, *, sigma: float = 1.0, others: int | None = None, length: int = 6, width: int = 8, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Gradients ``(n, T, D)`` of two sides with the same true share; on the first, sequences differ in size.

    Sizes are log-normal with ``sigma``. ``others`` is the number of sequences of the second side, if it is another.

    >>> first, second = unequal_dispersion(16, sigma=1.5, others=8)
    >>> first.shape, second.shape
    (torch.Size([16, 6, 8]), torch.Size([8, 6, 8]))
    """
    generator = seeded(seed)
    sizes = (sigma * normals(n, 1, 1, generator=generator)).exp()
    first = sizes * normals(n, length, width, generator=generator)
    return first, normals(n if others is None else others, length, width, generator=generator)


def coupled_on_one_side(
    n: int,
    *,
    sigma: float = 1.0,
    coupling: float = 0.5,
    other_sigma: float = 0.0,
    others: int | None = None,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Gradients ``(n, 2, 6)`` of two sides with the same true share; on the first alone it goes with the size.

    The first side is ``coupled_energies``. Shares of the second vary as much and have the same mean, its sizes are
    log-normal with ``other_sigma`` and independent of them. So the true odds ratio of the two sides is 1, and yet they
    cannot be exchanged. ``others`` is the number of sequences of the second side, if it is another.

    >>> sides = coupled_on_one_side(20000, sigma=1.0)
    >>> [round(float(g[..., :2].square().sum() / g.square().sum()), 2) for g in sides]
    [0.5, 0.5]
    """
    first, _ = coupled_energies(n, sigma=sigma, coupling=coupling, seed=seed)
    z, own, sizes = normals(3, n if others is None else others, generator=seeded(seed + 10**9))
    share = torch.sigmoid(coupling * z + 0.5 * own - 0.5 + _shift(sigma, coupling))
    return first, of_shares((other_sigma * sizes).exp(), share)


@lru_cache(maxsize=64)
def _shift(sigma: float, coupling: float) -> float:
    """What must be added to the logits of shares, for their plain mean to be that of coupled sequences."""
    wanted = coupled_share(sigma, coupling)
    many, own = (normals(1 << 18, generator=seeded(k)) for k in (1, 2))
    low, high = -10.0, 10.0
    for _ in range(40):
        middle = (low + high) / 2
        mean = float(torch.sigmoid(coupling * many + 0.5 * own - 0.5 + middle).mean())
        low, high = (middle, high) if mean < wanted else (low, middle)
    return (low + high) / 2


def two_labellings(n: int, *, signal: float = 0.0, length: int = 6, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs ``(n, T, 8)`` of a linear map and error signals ``(n, T, 5)`` under two labellings of one law.

    ``signal`` is added to every number, so that gradients of sequences have something in common. The true odds ratio of
    the two labellings is 1.

    >>> [part.shape[-1] for part in two_labellings(4)]
    [8, 5, 5]
    """
    generator = seeded(seed)
    x = normals(n, length, 8, generator=generator) + signal
    first, second = (normals(n, length, 5, generator=generator) + signal for _ in range(2))
    return x, first, second


def leaning_by_length(
    n: int, *, shortest: int = 8, longest: int = 64, lean: float = 2.0, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs ``(n, T, 10)`` and error signals ``(n, T, 4)`` that both lean one way by the length of their sequence.

    Given the length they are independent: which of them meet says nothing more. Also returned is which positions lie
    inside their sequence ``(n, T)``; the others are 0.

    >>> x, d, inside = leaning_by_length(6, shortest=2, longest=5)
    >>> x.shape, d.shape, bool((x[~inside] == 0).all())
    (torch.Size([6, 5, 10]), torch.Size([6, 5, 4]), True)
    """
    generator = seeded(seed)
    size = torch.randint(shortest, longest + 1, (n,), generator=generator, device="cpu")
    inside = torch.arange(longest, device="cpu")[None] < size[:, None]
    place = ((size - shortest) / (longest - shortest))[:, None, None].double()
    x = normals(n, longest, 10, generator=generator)
    d = normals(n, longest, 4, generator=generator)
    x[..., :2] += lean * place
    d[..., :1] += lean * place
    return x * inside[..., None], d * inside[..., None], inside


def embedding_batch(
    n: int, *, signal: float = 1.0, types: int = 60, length: int = 24, width: int = 12, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients ``(n, T, D)`` at the embedding, the type of each token ``(n, T)``, and a frame ``(D, D)``.

    Types follow Zipf's law. Each has a direction of its own that counts by ``signal``, larger along the first three
    columns of the frame; each sequence has another. Batches of other seeds have the same types and frame: they are new
    sequences of one corpus.

    >>> g, types, frame = embedding_batch(4)
    >>> g.shape, types.shape, frame.shape
    (torch.Size([4, 24, 12]), torch.Size([4, 24]), torch.Size([12, 12]))
    """
    frame, generator = rotation(width, seed=5), seeded(seed)
    weights = 1 / torch.arange(1, types + 1, dtype=torch.float64, device="cpu")
    drawn = torch.multinomial(weights.expand(n, -1), length, replacement=True, generator=generator)
    own = normals(types, width, generator=seeded(99))
    own[:, :3] *= 2.0
    shared = normals(n, 1, width, generator=generator)
    noise = normals(n * length, width, generator=generator).reshape(n, length, width)
    return (signal * own[drawn] + 0.5 * shared + noise) @ frame.T, drawn, frame
