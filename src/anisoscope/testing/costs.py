"""Changes of loss by unit whose mean is known. Letters: n units, R draws."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.testing.draws import normals, seeded

LAWS = ("normal", "lognormal", "lognormal 1.5", "rare")
_TOKENS, _NOISE = 128, 1.5  # of a unit, on average; of a token


def unit_costs(
    units: int, *, law: str = "normal", draws: int = 1, between: float = 0.0, seed: int = 0
) -> tuple[Tensor, Tensor, float]:
    """Summed changes of loss by draw and unit ``(R, n)``, tokens by unit ``(n,)``, and the mean change a token.

    ``law`` is that of a unit's own mean: ``normal`` (mean 0.1, deviation 0.3), ``lognormal`` (σ = 1, or 1.5 where it
    says so), or ``rare``: one unit in ten changes by 3, the others by 0.05. Lengths vary, and tokens have noise of
    their own. ``between`` is the deviation over draws of a control; the mean is over all draws that could be made.

    >>> changes, tokens, mean = unit_costs(8, law="lognormal", draws=2)
    >>> changes.shape, tokens.shape, round(mean, 3)
    (torch.Size([2, 8]), torch.Size([8]), 1.649)
    """
    generator = seeded(seed)
    own_n = normals(units, generator=generator)
    if law == "normal":
        own_n, mean = 0.1 + 0.3 * own_n, 0.1
    elif law in ("lognormal", "lognormal 1.5"):
        sigma = 1.5 if law.endswith("1.5") else 1.0
        own_n, mean = (sigma * own_n).exp(), math.exp(sigma * sigma / 2)
    elif law == "rare":
        chosen_n = torch.rand(units, generator=generator, dtype=torch.float64, device="cpu") < 0.1
        own_n, mean = torch.where(chosen_n, 3.0, 0.05) + 0.05 * own_n, 0.345
    else:
        raise broken(f"law must be one of {', '.join(LAWS)}", repr(law), "check the spelling")
    tokens_n = (_TOKENS * (0.3 * normals(units, generator=generator)).exp()).round().clamp_min(4)
    noise_n = _NOISE * tokens_n.sqrt() * normals(units, generator=generator)
    moved_R = between * normals(draws, generator=generator)
    return (own_n + moved_R[:, None]) * tokens_n + noise_n, tokens_n, mean
