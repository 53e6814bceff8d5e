"""Draws that follow from a seed alone, on the CPU, whatever torch's default device is."""

from __future__ import annotations

import torch
from torch import Tensor


def seeded(seed: int) -> torch.Generator:
    """A generator of this seed."""
    return torch.Generator().manual_seed(seed)


def normals(*shape: int, generator: torch.Generator) -> Tensor:
    """Standard normal numbers in float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")
