"""Manifolds of known curvature, near one point. Letters: N points, d dimension, M normal directions.

A patch is a graph over its tangent space: a point is ``(u, n(u))``, with ``n(u) = ½ II(u,u) + O(|u|³)``. What theorems
need to know of it is known in closed form: its curvature, its mean curvature and ``bend(t) = sup ‖n(u)‖/‖u‖²``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from anisoscope.errors import broken


@dataclass(frozen=True, slots=True, eq=False)
class Patch:
    """A piece of a manifold around a point, in tangent and normal coordinates."""

    name: str
    dim: int
    curvature: float  # largest ‖II(v,v)‖ of a unit tangent v
    mean_curvature: float  # ‖tr II / d‖
    height: Callable[[np.ndarray], np.ndarray]  # u_Nd -> n_NM
    bend: Callable[[float], float]  # sup of ‖n(u)‖/‖u‖² over 0 < ‖u‖ ≤ t

    @property
    def label(self) -> str:
        """Name and dimension."""
        return f"{self.name}, d = {self.dim}"


def sphere(dim: int, curvature: float = 1.0) -> Patch:
    """The sphere of radius ``1/curvature``; a circle if ``dim`` is 1.

    >>> patch = sphere(2, 0.5)
    >>> patch.height(np.array([[2.0, 0.0]])).item(), patch.bend(2.0)  # a quarter of the way round
    (2.0, 0.5)
    """
    return Patch("sphere", dim, curvature, curvature, lambda u: _sagitta(_squares(u), curvature), _arch(curvature))


def cylinder(dim: int, curvature: float = 1.0) -> Patch:
    """Curved along one direction, straight along the others."""
    return Patch(
        "cylinder", dim, curvature, curvature / dim, lambda u: _sagitta(u[:, :1] ** 2, curvature), _arch(curvature)
    )


def quadric(curvatures_Md: np.ndarray, name: str = "quadric") -> Patch:
    """``n_m = ½ Σ_i κ_mi u_i²``: principal curvatures of one's choice, in as many normal directions.

    ``‖II(v,v)‖`` is convex in the squares of v, so it is largest along one of the axes.
    """
    largest = float(np.linalg.norm(curvatures_Md, axis=0).max())
    mean = float(np.linalg.norm(curvatures_Md.mean(1)))
    dim = curvatures_Md.shape[1]
    return Patch(name, dim, largest, mean, lambda u: 0.5 * u**2 @ curvatures_Md.T, lambda t: largest / 2)


def saddle(dim: int, curvature: float = 1.0) -> Patch:
    """As much up as down: its mean curvature is 0 if ``dim`` is even."""
    signs = np.where(np.arange(dim) % 2 == 0, 1.0, -1.0)
    return quadric(curvature * signs[None], "saddle")


def bowl(dim: int, curvature: float = 1.0) -> Patch:
    """A quadric with a different curvature along every axis and two normal directions."""
    ramp = np.linspace(1.0, 0.4, dim)
    forms = np.stack([ramp, 0.5 * ramp[::-1]])
    return quadric(curvature * forms / np.linalg.norm(forms, axis=0).max(), "quadric")


def all_patches(dims: tuple[int, ...], curvature: float) -> list[Patch]:
    """Every kind of patch in every dimension that it exists in."""
    found = []
    for dim in dims:
        kinds = (sphere, bowl) if dim == 1 else (sphere, cylinder, saddle, bowl)
        found += [kind(dim, curvature) for kind in kinds]
    return found


def ball(n: int, dim: int, radius: float | np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Points of a ball, uniform; ``radius`` may differ from point to point."""
    direction = rng.standard_normal((n, dim))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    return direction * (radius * rng.random(n) ** (1 / dim))[:, None]


def tilted(u_Nd: np.ndarray, tilt: float, rng: np.random.Generator) -> np.ndarray:
    """The same points, each turned to the side ``u_1 > 0`` with probability ``(1 + tilt)/2``, else to the other."""
    side = np.where(rng.random(len(u_Nd)) < (1 + tilt) / 2, 1.0, -1.0)
    return u_Nd * (side * np.where(u_Nd[:, 0] < 0, -1.0, 1.0))[:, None]


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A curve whose chords are known: ``chord(a)`` is the distance of its points 0 and a of arc length."""

    name: str
    curvature: float  # at the point 0
    chord: Callable[[np.ndarray], np.ndarray]


def circle(curvature: float = 1.0) -> Curve:
    """``c = 2R sin(a/2R)``: the geodesics of a sphere."""
    return Curve("circle", curvature, lambda a: 2 / curvature * np.sin(a * curvature / 2))


def helix(curvature: float = 1.0, torsion: float = 1.0) -> Curve:
    """A curve that leaves every plane: the geodesics of a cylinder."""
    square = curvature**2 + torsion**2

    def chord(a: np.ndarray) -> np.ndarray:
        around = 2 * curvature / square * np.sin(a * math.sqrt(square) / 2)
        return np.hypot(around, torsion / math.sqrt(square) * a)

    return Curve("helix", curvature, chord)


def clothoid(curvature: float = 1.0, growth: float = 1.0) -> Curve:
    """A curve whose curvature grows by ``growth`` a unit of length: the term in a⁵ is not 0 here."""
    nodes, weights = np.polynomial.legendre.leggauss(24)

    def chord(a: np.ndarray) -> np.ndarray:
        s = a[:, None] * (nodes + 1) / 2
        turned = curvature * s + growth * s**2 / 2
        return np.abs(np.exp(1j * turned) @ weights) * a / 2

    return Curve("clothoid", curvature, chord)


def require_inside(radius: float, curvature: float) -> None:
    """Raise where a patch of this radius is no small piece of the manifold, or too small a one to compute with."""
    if radius * curvature > 0.5:
        raise broken(
            f"the radius must be at most half the radius of curvature, {0.5 / curvature:g}", radius, "lower --radius"
        )
    if radius * curvature < 1e-3:
        least = 1e-3 / curvature
        raise broken(f"the radius must be at least {least:g}, below which rounding decides", radius, "raise --radius")


def _squares(u_Nd: np.ndarray) -> np.ndarray:
    return (u_Nd**2).sum(1, keepdims=True)


def _sagitta(square: np.ndarray, curvature: float) -> np.ndarray:
    """``R − √(R² − r²)``, written so that a small r loses no digits."""
    return curvature * square / (1 + np.sqrt(1 - curvature**2 * square))


def _arch(curvature: float) -> Callable[[float], float]:
    return lambda t: curvature / (1 + math.sqrt(1 - (curvature * t) ** 2))
