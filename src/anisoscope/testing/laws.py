"""Laws that tokens follow, and pairs of activations and gradients made of them: related by nothing, or by a plan.

Letters: n sequences, T positions, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.testing.draws import normals, seeded
from anisoscope.testing.planted_clouds import rotation


@dataclass(frozen=True, slots=True)
class Law:
    """How the tokens of a made-up cloud lie: a function of ``(n, T, D)`` and a generator."""

    about: str
    draw: Callable[[int, int, int, torch.Generator], Tensor]


def _student(degrees: int) -> Callable[[int, int, int, torch.Generator], Tensor]:
    def draw(n: int, length: int, width: int, generator: torch.Generator) -> Tensor:
        chi = normals(n, length, degrees, generator=generator).square().sum(2, keepdim=True)
        return normals(n, length, width, generator=generator) / (chi / degrees).sqrt()

    return draw


def _clustered(n: int, length: int, width: int, generator: torch.Generator) -> Tensor:
    own = normals(n, 1, width, generator=generator)
    return own + normals(n, length, width, generator=generator)


def _common_mean(n: int, length: int, width: int, generator: torch.Generator) -> Tensor:
    return normals(width, generator=generator) + normals(n, length, width, generator=generator)


def _low_rank(n: int, length: int, width: int, generator: torch.Generator) -> Tensor:
    few = normals(n, length, 3, generator=generator) @ normals(3, width, generator=generator)
    return 2 * few + 0.3 * normals(n, length, width, generator=generator)


def _outliers(n: int, length: int, width: int, generator: torch.Generator) -> Tensor:
    large = torch.rand(n, length, 1, generator=generator) < 0.01
    return torch.where(large, 30.0, 1.0) * normals(n, length, width, generator=generator)


def _dominant(n: int, length: int, width: int, generator: torch.Generator) -> Tensor:
    x = normals(n, length, width, generator=generator)
    x[0] *= 100
    return x


def _bursts(n: int, length: int, width: int, generator: torch.Generator) -> Tensor:
    """A token that comes again and again within a sequence: half of the positions repeat one vector."""
    x = normals(n, length, width, generator=generator)
    again = torch.rand(n, length, 1, generator=generator) < 0.5
    return torch.where(again, x[:, :1], x)


def _lognormal(n: int, length: int, width: int, generator: torch.Generator) -> Tensor:
    sizes = normals(n, 1, 1, generator=generator).exp()
    return sizes * normals(n, length, width, generator=generator)


LAWS: dict[str, Law] = {
    "gaussian": Law("independent tokens", lambda n, t, d, g: normals(n, t, d, generator=g)),
    "t3": Law("heavy tails, without a fourth moment", _student(3)),
    "t2": Law("heavier tails, without a second moment", _student(2)),
    "clustered": Law("tokens of a sequence share half of their variance", _clustered),
    "common mean": Law("all tokens share an offset", _common_mean),
    "low rank": Law("three strong directions and noise", _low_rank),
    "outliers": Law("one token in a hundred is 30 times larger", _outliers),
    "dominant": Law("one sequence is 100 times larger", _dominant),
    "bursts": Law("half of the positions of a sequence repeat one vector", _bursts),
    "lognormal": Law("sequences differ in size by a factor of e", _lognormal),
}
"""Laws that nulls and intervals are tried on; see ``docs/calibration.md``."""


def cloud_of_law(law: str, n: int, *, length: int = 16, width: int = 24, seed: int = 0) -> Tensor:
    """Tokens ``(n, T, D)`` of one law, with standard deviations from 3 to 0.3 along the axes.

    >>> cloud_of_law("bursts", 5, length=4, width=6).shape
    torch.Size([5, 4, 6])
    """
    _require(law)
    return LAWS[law].draw(n, length, width, seeded(seed)) * _spectrum(width)


def independent_clouds(
    law: str, *, n: int = 32, length: int = 16, width: int = 24, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Activations and gradients ``(n, T, D)`` of one law that know nothing of one another, each in its own orientation.

    Every null about orientation is true for them: an effect that is found is false.

    >>> x, g = independent_clouds("t3", n=8, length=4, width=6)
    >>> x.shape, g.shape
    (torch.Size([8, 4, 6]), torch.Size([8, 4, 6]))
    """
    _require(law)
    generator, scale = seeded(seed), _spectrum(width)
    x, g = (LAWS[law].draw(n, length, width, generator) * scale @ rotation(width, seed=4 * seed + k) for k in (1, 2))
    return x, g


def planted_effect(
    n: int, *, factor: float, own_spectrum: bool = False, length: int = 16, width: int = 24, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Activations and gradients ``(n, T, D)`` whose energy is ``factor`` times larger in six directions of the former.

    Activations are three times as large along these six as along the others. Gradients are isotropic but for the
    factor; with ``own_spectrum`` they have standard deviations from 3 to 0.3 in an orientation of their own before, so
    that chance alone moves their energy inside any six directions.

    >>> x, g = planted_effect(200, factor=4.0)
    >>> main = torch.linalg.eigh(x.flatten(0, 1).T @ x.flatten(0, 1)).eigenvectors[:, -6:]
    >>> share = float((g @ main).square().sum() / g.square().sum())
    >>> round(share / (1 - share) / (6 / 18), 1)
    4.0
    """
    generator, turn = seeded(seed), rotation(width, seed=seed)
    scale, lift = torch.ones(2, width, dtype=torch.float64, device="cpu")
    scale[:6], lift[:6] = 3.0, factor**0.5
    x, g = (normals(n, length, width, generator=generator) for _ in range(2))
    if own_spectrum:
        g = g * _spectrum(width) @ rotation(width, seed=4 * seed + 2)
    return x * scale @ turn, g * lift @ turn


def _spectrum(width: int) -> Tensor:
    return torch.linspace(3, 0.3, width, dtype=torch.float64, device="cpu")


def _require(law: str) -> None:
    if law not in LAWS:
        raise broken(f"law must be one of {', '.join(LAWS)}", repr(law), "use 'gaussian'")
