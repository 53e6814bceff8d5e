"""Random numbers of the nulls, drawn once and shared by every site, step and proxy of equal shape.

Letters: D width, K rank, R draws. A table depends on its arguments alone, so results repeat.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

_CHUNK_NUMBERS = 1 << 24
_STREAMS = {"weights": 1, "frames": 2, "signs": 3, "permutations": 4, "swaps": 5, "types": 6, "pairs": 7}


def stream(seed: int, name: str) -> torch.Generator:
    """A generator of its own for each kind of draw, so that asking for one null does not move another."""
    return torch.Generator().manual_seed((seed * 8 + _STREAMS[name]) % (1 << 63))


@lru_cache(maxsize=24)
def haar_weights(width: int, rank: int, draws: int, seed: int) -> Tensor:
    """Squared row norms of R uniform random frames ``(R, D)``: all that an energy sees of a random subspace."""
    generator = stream(seed, "weights")

    def weights(gaussian_RDK: Tensor) -> Tensor:
        lower = torch.linalg.cholesky(gaussian_RDK.mT @ gaussian_RDK)
        return torch.linalg.solve_triangular(lower, gaussian_RDK.mT, upper=False).square().sum(1)

    return _in_chunks(weights, width, rank, draws, generator)


@lru_cache(maxsize=6)
def frame_squares(width: int, columns: int, draws: int, seed: int) -> Tensor:
    """Squared entries of R uniform random frames ``(R, b, D)``; float32 is far finer than their scatter."""
    generator = stream(seed, "pairs")

    def squares(gaussian_RDb: Tensor) -> Tensor:
        lower = torch.linalg.cholesky(gaussian_RDb.mT @ gaussian_RDb)
        return torch.linalg.solve_triangular(lower, gaussian_RDb.mT, upper=False).square().float()

    return _in_chunks(squares, width, columns, draws, generator)


@lru_cache(maxsize=6)
def haar_frames(width: int, rank: int, draws: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """R uniform random orthonormal frames ``(R, D, K)``; made in float64, kept as ``dtype``."""
    frames = stream(seed, "frames")
    return _in_chunks(lambda gaussian: torch.linalg.qr(gaussian).Q.to(dtype), width, rank, draws, frames)


@lru_cache(maxsize=24)
def random_signs(width: int, draws: int, seed: int) -> Tensor:
    """R rows of D independent signs."""
    return torch.randint(0, 2, (draws, width), generator=stream(seed, "signs"), device="cpu").double() * 2 - 1


@lru_cache(maxsize=24)
def permutations(n: int, draws: int, seed: int) -> Tensor:
    """R permutations of n things."""
    generator = stream(seed, "permutations")
    return torch.stack([torch.randperm(n, generator=generator, device="cpu") for _ in range(draws)])


def _in_chunks(
    make: Callable[[Tensor], Tensor], width: int, rank: int, draws: int, generator: torch.Generator
) -> Tensor:
    step = max(1, _CHUNK_NUMBERS // (width * rank))
    parts = []
    for start in range(0, draws, step):
        shape = (min(step, draws - start), width, rank)
        parts.append(make(torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")))
    return torch.cat(parts)
