"""Two bounds of normal over tangent gradient, tried on random cases. Letters: N tokens, E outputs, d dimension.

Published: the ratio of the two upper bounds, ``βt``. Corrected: ``βt/γ``, with γ from the same tokens (a theorem), or
from other sequences (what one can do in practice), then only where γ is clearly above noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from anisoscope.evidence.cancellation import NonCancellation, gradient_ratio, non_cancellation
from anisoscope.study.theory.linear_layer import LinearLayer, Loss, outer
from anisoscope.study.theory.manifolds import Patch, all_patches, ball, tilted
from anisoscope.vocabulary import SAMPLINGS

UNIT = 4  # tokens of a sequence
FLIPS = 199
SLACK = 1 + 1e-9  # rounding


@dataclass(frozen=True, slots=True)
class BoundCase:
    """One random manifold, layer, loss and sample of tokens, with what the bounds say of it."""

    patch: str
    dim: int
    sampling: str
    radius: float
    tokens: int
    ratio: float
    published: float
    gamma: NonCancellation
    held_ratio: float  # of the half of the sequences that γ was not estimated on
    held_bound: float | None  # None where γ of the other half is not clearly above noise

    @property
    def corrected(self) -> float:
        """The bound with the constant that was missing."""
        return self.published / self.gamma.value if self.gamma.value else float("inf")

    @property
    def published_holds(self) -> bool:
        """Whether the ratio is at most the ratio of the upper bounds."""
        return self.ratio <= self.published * SLACK

    @property
    def corrected_holds(self) -> bool:
        """Whether the ratio is at most the corrected bound."""
        return self.ratio <= self.corrected * SLACK

    @property
    def held_holds(self) -> bool | None:
        """Whether a bound from half of the sequences holds on the other half; ``None`` where there is no bound."""
        return None if self.held_bound is None else self.held_ratio <= self.held_bound * SLACK


def random_cases(
    draws: int,
    dims: tuple[int, ...],
    radius: float,
    curvature: float,
    rng: np.random.Generator,
    told: Callable[[float], None] = lambda share: None,
) -> Iterator[BoundCase]:
    """Cases of every kind: manifold, dimension, radius, loss, size of the weights, and how tokens lie.

    Weights are drawn in units of the curvature: a case is the same in any unit of length.
    """
    for i in range(draws):
        patches = all_patches(dims, curvature * rng.uniform(0.2, 1))
        yield _case(patches[rng.integers(len(patches))], radius * 10 ** rng.uniform(-2, 0), curvature, rng)
        told((i + 1) / draws)


def _case(patch: Patch, t: float, unit: float, rng: np.random.Generator) -> BoundCase:
    units = int(rng.choice([16, 32, 64]))
    samplings = (*reversed(SAMPLINGS), "off centre")  # half of them off centre
    sampling = samplings[rng.integers(len(samplings))]
    u_Nd = _sample(units * UNIT, patch.dim, t, sampling, rng)
    n_NM = patch.height(u_Nd)
    x_ND = np.concatenate([u_Nd, n_NM], 1)
    loss: Loss = "squared" if rng.random() < 0.5 else "cross-entropy"
    outputs = int(rng.integers(2, 7))
    layer = LinearLayer.drawn(x_ND.shape[1], outputs, loss, rng, scale=unit * 10 ** rng.uniform(-1, 1))
    deltas = layer.deltas(x_ND)
    tangent, normal = outer(deltas, u_Nd), outer(deltas, n_NM)
    groups = np.arange(len(u_Nd)) // UNIT
    whole = gradient_ratio(tangent, normal, groups, draws=FLIPS)
    kept, other = groups % 2 == 0, groups % 2 == 1
    estimate = non_cancellation(tangent[kept], groups[kept], draws=FLIPS)
    published = patch.bend(t) * t
    low = estimate.low if estimate.clear else None
    return BoundCase(
        patch=patch.name,
        dim=patch.dim,
        sampling=sampling,
        radius=t,
        tokens=len(u_Nd),
        ratio=whole.ratio,
        published=published,
        gamma=whole.tangent,
        held_ratio=float(np.linalg.norm(normal[other].sum(0)) / np.linalg.norm(tangent[other].sum(0))),
        held_bound=published / low if low else None,
    )


def _sample(n: int, dim: int, t: float, sampling: str, rng: np.random.Generator) -> np.ndarray:
    u_Nd = ball(n, dim, t, rng)
    if sampling == "mirrored":
        return np.stack([u_Nd[: n // 2], -u_Nd[: n // 2]], 1).reshape(n, dim)
    return tilted(u_Nd, rng.uniform(), rng) if sampling == "off centre" else u_Nd
