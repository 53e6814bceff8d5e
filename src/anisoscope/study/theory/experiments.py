"""What the theory says of small patches, simulated. Letters: N points, K places, R replicates, d dimension.

Every place of every replicate has draws of its own: with the same points scaled down, exponents would come out right
by arithmetic and show nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from anisoscope.study.theory.linear_layer import LinearLayer, mean_gradient
from anisoscope.study.theory.manifolds import Patch, ball, circle, clothoid, helix, tilted

TYPES = 2000
OUTPUTS = 5
OFF_CENTRE = 0.5  # three of four tokens on one side
Told = Callable[[float], None]


@dataclass(frozen=True, slots=True, eq=False)
class Scaling:
    """A quantity against a place (an arc or a radius), replicate by replicate, and the exponent that theory gives it.

    With ``limit`` the claim is about the value at 0 instead.
    """

    claim: str
    expected: float
    places: np.ndarray  # K
    curves: dict[str, np.ndarray]  # (R, K) by the name of the curve or manifold
    limit: bool = False

    @property
    def replicates(self) -> np.ndarray:
        """All replicates of all manifolds."""
        return np.concatenate(list(self.curves.values()))


def chords(arcs_K: np.ndarray, curvature: float, replicates: int, rng: np.random.Generator) -> list[Scaling]:
    """Chord against arc on three curves: ``a² − c² = κ²a⁴/12 + O(a⁵)``; torsion and growth of the curvature vary."""
    deficits: dict[str, np.ndarray] = {}
    coefficients: dict[str, np.ndarray] = {}
    makers = {
        "circle": lambda: circle(curvature * rng.uniform(0.5, 1)),
        "helix": lambda: helix(curvature * rng.uniform(0.5, 1), curvature * rng.uniform(-1, 1)),
        "clothoid": lambda: clothoid(curvature * rng.uniform(0.5, 1), curvature**2 * rng.uniform(0.2, 1)),
    }
    for name, made in makers.items():
        curves = [made() for _ in range(replicates)]
        deficits[name] = np.stack([arcs_K**2 - curve.chord(arcs_K) ** 2 for curve in curves])
        squares = np.array([[curve.curvature**2] for curve in curves])
        coefficients[name] = deficits[name] / (squares * arcs_K**4)
    return [
        Scaling("chord", 4, arcs_K, deficits),
        Scaling("chord-coefficient", 1 / 12, arcs_K, coefficients, limit=True),
    ]


def variances(
    patches: Sequence[Patch],
    radii_K: np.ndarray,
    replicates: int,
    points: int,
    rng: np.random.Generator,
    told: Told = lambda share: None,
) -> list[Scaling]:
    """Tangent variance, normal variance and their ratio, of points uniform in a ball of the tangent space."""
    found = {name: _empty(patches, replicates, len(radii_K)) for name in ("tangent", "normal", "visible")}
    for patch, r, k in _places(patches, replicates, len(radii_K), told):
        u_Nd = ball(points, patch.dim, radii_K[k], rng)
        tangent, normal = (float(part.var(0).sum()) for part in (u_Nd, patch.height(u_Nd)))
        found["tangent"][patch.label][r, k] = tangent
        found["normal"][patch.label][r, k] = normal
        found["visible"][patch.label][r, k] = normal / tangent
    return [
        Scaling("tangent-variance", 2, radii_K, found["tangent"]),
        Scaling("normal-variance", 4, radii_K, found["normal"]),
        Scaling("visible-curvature", 2, radii_K, found["visible"]),
    ]


def gradients(
    patches: Sequence[Patch],
    radii_K: np.ndarray,
    replicates: int,
    points: int,
    rng: np.random.Generator,
    told: Told = lambda share: None,
) -> list[Scaling]:
    """Tangent and normal part of the mean gradient, with tokens off the centre and with tokens all round it.

    All round means that every token has its mirror image; then only the slope of the loss is left of the tangent part,
    and that is of the order t². The exponent of the ratio is the published one in both cases. Patches of mean curvature
    0 are left out: their normal parts cancel as well. Weights go with the curvature, so that only κt counts: others
    would drive the softmax into saturation wherever lengths are large numbers.
    """
    bent = [patch for patch in patches if patch.mean_curvature > 0]
    kinds = ("tangent", "normal", "ratio", "tangent all round", "normal all round", "ratio all round")
    found = {kind: _empty(bent, replicates, len(radii_K)) for kind in kinds}
    for patch, r, k in _places(bent, replicates, len(radii_K), told):
        u_Nd = ball(points, patch.dim, radii_K[k], rng)
        width = patch.dim + patch.height(u_Nd[:1]).shape[1]
        layer = LinearLayer.drawn(width, OUTPUTS, "cross-entropy", rng, scale=patch.curvature)
        tangent, normal = _parts(patch, layer, tilted(u_Nd, OFF_CENTRE, rng))
        found["tangent"][patch.label][r, k] = tangent
        found["normal"][patch.label][r, k] = normal
        found["ratio"][patch.label][r, k] = normal / tangent
        half = u_Nd[: points // 2]
        tangent, normal = _parts(patch, layer, np.concatenate([half, -half]))
        found["tangent all round"][patch.label][r, k] = tangent
        found["normal all round"][patch.label][r, k] = normal
        found["ratio all round"][patch.label][r, k] = normal / tangent
    return [
        Scaling("tangent-gradient", 1, radii_K, found["tangent"]),
        Scaling("normal-gradient", 2, radii_K, found["normal"]),
        Scaling("gradient-ratio", 1, radii_K, found["ratio"]),
        Scaling("symmetric-tangent-gradient", 2, radii_K, found["tangent all round"]),
        Scaling("symmetric-normal-gradient", 2, radii_K, found["normal all round"]),
        Scaling("symmetric-gradient-ratio", 1, radii_K, found["ratio all round"]),
    ]


def zipf(exponent: float, types: int = TYPES) -> np.ndarray:
    """The law of frequency: ``p(rank) ∝ rank^-s``."""
    weights = np.arange(1, types + 1, dtype=np.float64) ** -exponent
    return weights / weights.sum()


def radii_of(p_V: np.ndarray, radius: float, falloff: float) -> np.ndarray:
    """The radius at which a type's neighbourhood is seen: ``t_0 · (p_min/p)^falloff``.

    The rarest type is seen at the radius ``t_0``, the more frequent the narrower. Under Zipf's law this is
    ``t_0 (rank/V)^(s·falloff)``, and with falloff ½ and many types the mixture shows ``1/(1 + s)`` of the curvature.
    """
    return radius * (p_V.min() / p_V) ** falloff


def effective_radius(p_V: np.ndarray, t_V: np.ndarray) -> float:
    """``√(Σp t⁴ / Σp t²)``: to leading order the mixture shows as much curvature as one patch of this radius."""
    return math.sqrt(float((p_V * t_V**4).sum() / (p_V * t_V**2).sum()))


def mixtures(
    patch: Patch,
    exponents: Sequence[float],
    radius: float,
    falloff: float,
    replicates: int,
    pairs: int,
    rng: np.random.Generator,
    told: Told = lambda share: None,
) -> tuple[Scaling, np.ndarray]:
    """Visible curvature of a mixture over Zipf's law by its exponent, and the effective radii.

    Variances are those within types, from pairs of tokens of one type: ``½E‖x − x'‖²``. Every type has as many pairs,
    which weigh by its frequency: drawn by frequency, the rare types that decide a steep law would hardly be met.
    """
    seen_RK, effective_K = np.empty((replicates, len(exponents))), np.empty(len(exponents))
    for k, s in enumerate(exponents):
        p_V = zipf(s)
        t_V = radii_of(p_V, radius, falloff)
        effective_K[k] = effective_radius(p_V, t_V)
        for r in range(replicates):
            t_N, p_N = np.repeat(t_V, pairs), np.repeat(p_V, pairs)
            a_Nd, b_Nd = ball(len(t_N), patch.dim, t_N, rng), ball(len(t_N), patch.dim, t_N, rng)
            normal, tangent = (
                p_N @ ((x - y) ** 2).sum(1) for x, y in ((patch.height(a_Nd), patch.height(b_Nd)), (a_Nd, b_Nd))
            )
            seen_RK[r, k] = normal / tangent
        told((k + 1) / len(exponents))
    return Scaling("mixture", 2, effective_K, {patch.label: seen_RK}), effective_K


def counter_example(
    tilts: Sequence[int], steps: int, radius: float, magnitudes: int = 50
) -> Iterator[tuple[float, ...]]:
    """Tangent gradient, normal gradient and γ on ``x = (u, u²)`` for each tilt ``k/steps``.

    A unit at 0 under ½(y − target)², target −1, has δ = 1, so a token's gradient is the token itself. Each size of
    |u| stands ``steps + k`` times on the right side and ``steps − k`` times on the left. Sums are exact (``fsum``):
    what cancels is 0 and not rounding.
    """
    sizes = radius * (np.arange(magnitudes) + 0.5) / magnitudes
    for k in tilts:
        u_N = np.concatenate([np.repeat(sizes, steps + k), -np.repeat(sizes, steps - k)])
        layer = LinearLayer(np.zeros((1, 2)), np.zeros(1), -np.ones(1), "squared")
        g_N2 = layer.deltas(np.stack([u_N, u_N**2], 1)) * np.stack([u_N, u_N**2], 1)
        tangent, normal, whole = (math.fsum(part) / len(u_N) for part in (g_N2[:, 0], g_N2[:, 1], np.abs(g_N2[:, 0])))
        yield k / steps, tangent, normal, abs(tangent) / whole


def _parts(patch: Patch, layer: LinearLayer, u_Nd: np.ndarray) -> tuple[float, float]:
    n_NM = patch.height(u_Nd)
    deltas = layer.deltas(np.concatenate([u_Nd, n_NM], 1))
    return mean_gradient(deltas, u_Nd), mean_gradient(deltas, n_NM)


def _empty(patches: Sequence[Patch], replicates: int, places: int) -> dict[str, np.ndarray]:
    return {patch.label: np.full((replicates, places), np.nan) for patch in patches}


def _places(patches: Sequence[Patch], replicates: int, places: int, told: Told) -> Iterator[tuple[Patch, int, int]]:
    for i, patch in enumerate(patches):
        for r in range(replicates):
            for k in range(places):
                yield patch, r, k
        told((i + 1) / len(patches))
