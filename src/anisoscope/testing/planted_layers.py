"""Numbers over the layers of a model whose effects and errors are known. Letters: n units, L layers, N nulls."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from anisoscope.testing.draws import normals, seeded


def planted_layers(
    layers: int,
    *,
    effect: float = 0.0,
    error: float = 0.1,
    nulls: int = 5,
    first: int | None = None,
    below: float = 0.0,
    shared: float = 0.0,
    units: int = 32,
    seed: int = 0,
) -> Tensor:
    """Log odds ratios ``(n, L, N)`` of each unit, whose mean over units is ``effect`` with this standard error.

    The effect is over all nulls or over the ``first`` few; a share of the layers lies as far ``below`` the nulls
    instead. ``shared`` is the correlation of the layers' noise, as they see the same units.

    >>> values = planted_layers(12, effect=0.5, first=3, below=0.5, error=0.01)
    >>> values.mean(0)[[0, -1]].round(decimals=1).abs().tolist()
    [[0.5, 0.5, 0.5, 0.0, 0.0], [0.5, 0.5, 0.5, 0.0, 0.0]]
    """
    generator = seeded(seed)
    true_LN = torch.zeros(layers, nulls, dtype=torch.float64, device="cpu")
    true_LN[:, : nulls if first is None else first] = effect
    true_LN[: round(below * layers)] *= -1
    common, own = normals(units, 1, nulls, generator=generator), normals(units, layers, nulls, generator=generator)
    noise_nLN = math.sqrt(shared) * common + math.sqrt(1 - shared) * own
    return true_LN + error * math.sqrt(units) * noise_nLN


def noisy_profile(layers: int, *, height: float = 0.0, seed: int = 0) -> Tensor:
    """A number a layer with a standard error of 1, about 10: noise, or a bell of this height in the middle.

    >>> noisy_profile(12, height=50.0).argmax()
    tensor(6)
    """
    place = torch.arange(layers, dtype=torch.float64, device="cpu")
    bell = height * (-((place - layers / 2) ** 2) / (layers / 2)).exp()
    return 10 + bell + normals(layers, generator=seeded(seed))
