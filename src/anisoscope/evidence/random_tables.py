"""Random numbers of the nulls, drawn once and shared by every site, step and proxy of equal shape.

Letters: D width, K rank, R draws. A table depends on its arguments alone, so results repeat. Numbers are drawn on the
host and worked on where the table is wanted, so draws are the same on every device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

HOST = torch.device("cpu")
_CHUNK_NUMBERS = 1 << 24
_STREAMS = {"weights": 1, "frames": 2, "signs": 3, "permutations": 4, "swaps": 5, "types": 6, "pairs": 7}


def stream(seed: int, name: str) -> torch.Generator:
    """A generator of its own for each kind of draw, so that asking for one null does not move another."""
    return torch.Generator().manual_seed((seed * 8 + _STREAMS[name]) % (1 << 63))


@lru_cache(maxsize=24)
def haar_weights(width: int, rank: int, draws: int, seed: int, device: torch.device = HOST) -> Tensor:
    """Squared row norms of R uniform random frames ``(R, D)``: all that an energy sees of a random subspace."""
    generator = stream(seed, "weights")

    def weights(gaussian_RDK: Tensor) -> Tensor:
        lower = torch.linalg.cholesky(gaussian_RDK.mT @ gaussian_RDK)
        return torch.linalg.solve_triangular(lower, gaussian_RDK.mT, upper=False).square().sum(1)

    return _in_chunks(weights, (draws, width, rank), generator, device)


@lru_cache(maxsize=6)
def frame_squares(width: int, columns: int, draws: int, seed: int, device: torch.device = HOST) -> Tensor:
    """Squared entries of R uniform random frames ``(R, b, D)``; float32 is far finer than their scatter."""
    generator = stream(seed, "pairs")

    def squares(gaussian_RDb: Tensor) -> Tensor:
        lower = torch.linalg.cholesky(gaussian_RDb.mT @ gaussian_RDb)
        return torch.linalg.solve_triangular(lower, gaussian_RDb.mT, upper=False).square().float()

    return _in_chunks(squares, (draws, width, columns), generator, device)


@lru_cache(maxsize=6)
def haar_frames(
    width: int, rank: int, draws: int, seed: int, dtype: torch.dtype = torch.float64, device: torch.device = HOST
) -> Tensor:
    """R uniform random orthonormal frames ``(R, D, K)``; made in float64, kept as ``dtype``."""
    generator = stream(seed, "frames")

    def frames(gaussian_RDK: Tensor) -> Tensor:
        # The signs that a QR decomposition gives to columns differ between devices. The second pass is for draws that
        # are nearly square, whose columns the first leaves orthonormal to some digits alone.
        for _ in range(2):
            upper = torch.linalg.cholesky(gaussian_RDK.mT @ gaussian_RDK, upper=True)
            gaussian_RDK = torch.linalg.solve_triangular(upper, gaussian_RDK, upper=True, left=False)
        return gaussian_RDK.to(dtype)

    return _in_chunks(frames, (draws, width, rank), generator, device)


@lru_cache(maxsize=24)
def random_signs(width: int, draws: int, seed: int, device: torch.device = HOST) -> Tensor:
    """R rows of D independent signs."""
    bits = torch.randint(0, 2, (draws, width), generator=stream(seed, "signs"), device="cpu")
    return bits.to(device).double() * 2 - 1


@lru_cache(maxsize=24)
def permutations(n: int, draws: int, seed: int, device: torch.device = HOST) -> Tensor:
    """R permutations of n things."""
    generator = stream(seed, "permutations")
    return torch.stack([torch.randperm(n, generator=generator, device="cpu") for _ in range(draws)]).to(device)


@lru_cache(maxsize=24)
def swaps(folds: tuple[tuple[int, int, bool], ...], draws: int, seed: int) -> tuple[Tensor, ...]:
    """For each fold rows of 0 and 1 over the n units of one side and the m of another, on the host.

    The first row is as they came; in the others pairs are swapped, or where units are not paired all are dealt anew.
    """
    generator, found = stream(seed, "swaps"), []
    for n, m, paired in folds:
        first = torch.cat([torch.ones(n, device="cpu"), torch.zeros(m, device="cpu")]).double()
        if paired:
            stay = torch.randint(0, 2, (draws, n), generator=generator, device="cpu").double()
            rest = torch.cat([stay, 1 - stay], 1)
        else:
            rest = first[torch.rand(draws, n + m, generator=generator, device="cpu").argsort(1)]
        found.append(torch.cat([first[None], rest]))
    return tuple(found)


def _in_chunks(
    make: Callable[[Tensor], Tensor], shape: tuple[int, int, int], generator: torch.Generator, device: torch.device
) -> Tensor:
    draws, width, rank = shape
    step = max(1, _CHUNK_NUMBERS // (width * rank))
    parts = []
    for start in range(0, draws, step):
        some = (min(step, draws - start), width, rank)
        parts.append(make(torch.randn(some, generator=generator, dtype=torch.float64, device="cpu").to(device)))
    return torch.cat(parts)
