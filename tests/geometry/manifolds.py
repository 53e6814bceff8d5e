"""Planted surfaces with known second fundamental forms, turned at random into a wide space.

Each gives points, the truths ``rms²`` and ``mean²`` at each, and how far each is from a boundary (infinite if none).
For principal curvatures a, b in one normal direction: ``rms² = (3a² + 3b² + 2ab)/8`` and ``mean² = ((a + b)/2)²``.
"""

import math
from dataclasses import dataclass

import torch

from anisoscope.testing import rotation


@dataclass
class Planted:
    x: torch.Tensor
    rms2: torch.Tensor
    mean2: torch.Tensor
    edge: torch.Tensor

    def inside(self, margin):
        return (self.edge > margin).nonzero()[:, 0]

    def truth(self, rows):
        return float(self.rms2[rows].mean().sqrt()), float(self.mean2[rows].mean().sqrt())


def _draw(n, *shape, seed):
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _from_principal(x, a, b, edge=None):
    a, b = torch.as_tensor(a).expand(len(x)).double(), torch.as_tensor(b).expand(len(x)).double()
    edge = torch.full((len(x),), math.inf) if edge is None else edge
    return Planted(x, (3 * a**2 + 3 * b**2 + 2 * a * b) / 8, ((a + b) / 2) ** 2, edge)


def _unit(n, seed):
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x / x.norm(dim=1, keepdim=True)


def ball_surface(n, seed, radius=1.5):
    return _from_principal(radius * _unit(n, seed), 1 / radius, 1 / radius)


def torus(n, seed):
    """Tube of radius 1 around a circle of radius 2; by area, angles around the tube are drawn by rejection."""
    u, v, keep = _draw(4 * n, 3, seed=seed).unbind(1)
    theta = 2 * math.pi * u
    kept = (keep < (2 + theta.cos()) / 3).nonzero()[:n, 0]
    theta, phi = theta[kept], 2 * math.pi * v[kept]
    across = 2 + theta.cos()
    x = torch.stack([across * phi.cos(), across * phi.sin(), theta.sin()], 1)
    return _from_principal(x, 1.0, theta.cos() / across)


def cylinder(n, seed):
    angle, height = (_draw(n, 2, seed=seed) * torch.tensor([2 * math.pi, 6.0])).unbind(1)
    x = torch.stack([angle.cos(), angle.sin(), height], 1)
    return _from_principal(x, 1.0, 0.0, torch.minimum(height, 6 - height))


def _graph(n, seed, sign):
    """``z = (x² + sign·y²)/2`` over a disc of radius 1.2, by area."""
    draw = _draw(8 * n, 3, seed=seed)
    xy = 1.2 * (2 * draw[:, :2] - 1)
    area = (1 + xy.square().sum(1)).sqrt()
    kept = ((xy.norm(dim=1) < 1.2) & (draw[:, 2] < area / math.sqrt(1 + 1.44))).nonzero()[:n, 0]
    x, y = xy[kept].unbind(1)
    w2 = 1 + x**2 + y**2
    # H and K of a graph: with g = I + ∇z∇zᵀ and h = Hess z/w
    gauss = sign / w2**2
    mean = ((1 + y**2) + sign * (1 + x**2)) / (2 * w2**1.5)
    root = (mean**2 - gauss).clamp_min(0).sqrt()
    points = torch.stack([x, y, (x**2 + sign * y**2) / 2], 1)
    return _from_principal(points, mean + root, mean - root, 1.2 - xy[kept].norm(dim=1))


def paraboloid(n, seed):
    return _graph(n, seed, 1)


def saddle(n, seed):
    return _graph(n, seed, -1)


def swiss_roll(n, seed):
    """The spiral ``θ(cos θ, sin θ)``, θ in 1.5π…4.5π, times a height of 21; by area."""
    draw = _draw(3 * n, 3, seed=seed)
    first, last = 1.5 * math.pi, 4.5 * math.pi
    theta = first + (last - first) * draw[:, 0]
    speed = (1 + theta**2).sqrt()
    kept = (draw[:, 1] < speed / math.sqrt(1 + last**2)).nonzero()[:n, 0]
    theta, height, speed = theta[kept], 21 * draw[kept, 2], speed[kept]
    x = torch.stack([theta * theta.cos(), height, theta * theta.sin()], 1)

    def length(t):
        return (t * (1 + t**2) ** 0.5 + torch.asinh(torch.as_tensor(t))) / 2

    along = torch.minimum(length(theta) - length(first), length(last) - length(theta))
    edge = torch.minimum(along, torch.minimum(height, 21 - height))
    return _from_principal(x, (theta**2 + 2) / speed**3, 0.0, edge)


def veronese(n, seed):
    """``(yz, zx, xy, (x²−y²)/2, (x²+y²−2z²)/(2√3))·√3`` of the unit sphere: radius 1, in R^5.

    The map is ``√3`` times an isometry up to scale: lengths grow by √3. It is minimal in the unit sphere, so its mean
    curvature is 1; along any unit direction the geodesic is a circle of radius ``√3/2``: ``‖B(u,u)‖ = 2/√3``.
    """
    x, y, z = _unit(n, seed).unbind(1)
    points = math.sqrt(3) * torch.stack(
        [y * z, z * x, x * y, (x**2 - y**2) / 2, (x**2 + y**2 - 2 * z**2) / (2 * math.sqrt(3))], 1
    )
    full = torch.ones(n, dtype=torch.float64)
    return Planted(points, 4 / 3 * full, full, torch.full((n,), math.inf))


SURFACES = {
    "sphere": ball_surface,
    "torus": torus,
    "cylinder": cylinder,
    "paraboloid": paraboloid,
    "saddle": saddle,
    "swiss roll": swiss_roll,
    "veronese": veronese,
}


def turned(planted, width, seed=0, noise=0.0):
    """The surface in R^width, with Gaussian noise of total rms norm ``noise`` times the cloud's rms radius."""
    x = planted.x @ rotation(width, seed=seed)[:, : planted.x.shape[1]].T
    if noise:
        radius = float((x - x.mean(0)).square().sum(1).mean().sqrt())
        draw = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed + 77), dtype=torch.float64)
        x = x + noise * radius / math.sqrt(width) * draw
    return Planted(x, planted.rms2, planted.mean2, planted.edge)
