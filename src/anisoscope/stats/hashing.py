"""Integer hashes computed on the device: the same content gets the same key on every rank, in every order.

Letters: B sequences, T positions, N rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_STAFFORD = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value


def _logical_shift(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix(x: Tensor, *, seed: int = 0) -> Tensor:
    """Scramble int64 values: the finaliser of SplitMix64 (Steele, Lea & Flood 2014) after a seeded offset."""
    x = x.to(torch.int64) + _signed((seed + 1) * _GOLDEN)
    x = (x ^ _logical_shift(x, 30)) * _signed(_STAFFORD[0])
    x = (x ^ _logical_shift(x, 27)) * _signed(_STAFFORD[1])
    return x ^ _logical_shift(x, 31)


def as_key(hashed: Tensor) -> Tensor:
    """Drop the sign, so that keys sort as uniform numbers in ``[0, 2⁶³)``."""
    return hashed & ((1 << 63) - 1)


def row_keys(rows_N: Tensor, *, seed: int) -> Tensor:
    """Keys of the rows of a plain file, from their row numbers."""
    return as_key(mix(mix(rows_N), seed=seed))


def sequence_keys(tokens_BT: Tensor, mask_BT: Tensor | None, *, seed: int) -> Tensor:
    """Keys of sequences from their unpadded token ids, in order; padding on either side changes nothing."""
    if mask_BT is None:
        mask_BT = torch.ones_like(tokens_BT, dtype=torch.bool)
    rank_BT = mask_BT.to(torch.int64).cumsum(1)
    terms_BT = mix(mix(tokens_BT.to(torch.int64)) + rank_BT * _signed(_GOLDEN))
    return as_key(mix((terms_BT * mask_BT).sum(1) + rank_BT[:, -1], seed=seed))


def unit_keys(tokens_BT: Tensor, mask_BT: Tensor | None, documents_B: Tensor | None, *, seed: int) -> Tensor:
    """Keys of what is independent of all else: documents where they are known, else sequences."""
    if documents_B is None:
        return sequence_keys(tokens_BT, mask_BT, seed=seed)
    return row_keys(documents_B.to(tokens_BT.device), seed=seed)


def second_fold(tokens_BT: Tensor, mask_BT: Tensor | None, *, seed: int, documents_B: Tensor | None = None) -> Tensor:
    """Which sequences belong to the second of two folds: a fair coin that their document, or their content, tosses."""
    return (as_key(mix(unit_keys(tokens_BT, mask_BT, documents_B, seed=seed), seed=seed)) & 1) == 1


def position_keys(sequence_keys_B: Tensor, positions_BT: Tensor) -> Tensor:
    """Keys of single tokens: their sequence's key and their position in it."""
    return as_key(mix(sequence_keys_B[:, None] + mix(positions_BT)))
