"""Clouds with known answers: for our tests, and for anyone who wants to try a measure before believing it.

Letters: N rows, D width, d intrinsic dimension. Every cloud is float64 and drawn from ``seed`` alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from anisoscope.errors import broken


def rotation(width: int, *, seed: int = 0) -> Tensor:
    """A rotation (or reflection) of R^D, uniform by the Haar measure."""
    gaussian = torch.randn(width, width, generator=_generator(seed), dtype=torch.float64, device="cpu")
    q, r = torch.linalg.qr(gaussian)
    return q * r.diagonal().sign()


def gaussian(n: int, variances: Sequence[float], *, mean: float = 0.0, seed: int = 0) -> Tensor:
    """Gaussian rows of known spectrum, randomly rotated; participation ratio ``(Σv)²/Σv²``."""
    spread_D = torch.tensor(list(variances), dtype=torch.float64, device="cpu").sqrt()
    x_ND = torch.randn(n, len(spread_D), generator=_generator(seed), dtype=torch.float64, device="cpu") * spread_D
    return x_ND @ rotation(len(spread_D), seed=seed + 1).T + mean


def sphere(n: int, *, dim: int, width: int, radius: float = 1.0, seed: int = 0) -> Tensor:
    """The ``dim``-sphere of given radius in R^width: of intrinsic dimension ``dim``, isotropic in ``dim + 1``."""
    x = torch.randn(n, dim + 1, generator=_generator(seed), dtype=torch.float64, device="cpu")
    return _embedded(radius * x / torch.linalg.vector_norm(x, dim=1, keepdim=True), width, seed)


def plane(n: int, *, dim: int, width: int, seed: int = 0) -> Tensor:
    """Uniform points of a ``dim``-dimensional flat torus, unfolded: a cube in a plane of R^width."""
    return _embedded(torch.rand(n, dim, generator=_generator(seed), dtype=torch.float64, device="cpu"), width, seed)


def cone(n: int, *, width: int, half_angle: float = 0.3, seed: int = 0) -> Tensor:
    """Unit vectors at a fixed angle to one axis: the average cosine is ``cos²(half_angle)`` in the limit."""
    around = torch.randn(n, width - 1, generator=_generator(seed), dtype=torch.float64, device="cpu")
    around = around / torch.linalg.vector_norm(around, dim=1, keepdim=True)
    axis = torch.full((n, 1), math.cos(half_angle), dtype=torch.float64, device="cpu")
    return torch.cat([axis, math.sin(half_angle) * around], 1) @ rotation(width, seed=seed + 1).T


def lattice(side: int, *, dim: int) -> Tensor:
    """The integer points of a cube: every neighbour is equally far, so neighbour ratios carry no dimension."""
    axis = torch.arange(side, dtype=torch.float64, device="cpu")
    return torch.cartesian_prod(*[axis] * dim).reshape(-1, dim)


def with_duplicates(x_ND: Tensor, share: float, *, noise: float = 0.0, seed: int = 0) -> Tensor:
    """Replace the last ``share`` of the rows by copies of earlier ones, moved by ``noise`` of the rms centred norm."""
    if not 0 <= share < 1:
        raise broken("share must lie in 0 ≤ share < 1", share, "at least one row must stay")
    n = x_ND.shape[0]
    copies = round(n * share)
    generator = _generator(seed)
    source = torch.randint(n - copies, (copies,), generator=generator, device="cpu")
    step = torch.randn(copies, x_ND.shape[1], generator=generator, dtype=torch.float64, device="cpu")
    step = step / torch.linalg.vector_norm(step, dim=1, keepdim=True)
    scale = (x_ND - x_ND.mean(0)).square().sum(1).mean().sqrt()
    return torch.cat([x_ND[: n - copies], x_ND[source] + noise * scale * step])


def _embedded(x: Tensor, width: int, seed: int) -> Tensor:
    if width < x.shape[1]:
        raise broken(f"width must be at least {x.shape[1]} here", width, "raise width or lower dim")
    return x @ rotation(width, seed=seed + 1)[:, : x.shape[1]].T


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@dataclass(frozen=True, slots=True)
class Law:
    """How the tokens of a made-up cloud lie: a function of ``(n, T, D)`` and a generator."""

    about: str
    draw: Callable[[int, int, int, torch.Generator], Tensor]


def _normal(*shape: int, generator: torch.Generator) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _student(degrees: int) -> Callable[[int, int, int, torch.Generator], Tensor]:
    def draw(n: int, length: int, width: int, generator: torch.Generator) -> Tensor:
        chi = _normal(n, length, degrees, generator=generator).square().sum(2, keepdim=True)
        return _normal(n, length, width, generator=generator) / (chi / degrees).sqrt()

    return draw


def _clustered(n: int, length: int, width: int, generator: torch.Generator) -> Tensor:
    own = _normal(n, 1, width, generator=generator)
    return own + _normal(n, length, width, generator=generator)


def _common_mean(n: int, length: int, width: int, generator: torch.Generator) -> Tensor:
    return _normal(width, generator=generator) + _normal(n, length, width, generator=generator)


def _low_rank(n: int, length: int, width: int, generator: torch.Generator) -> Tensor:
    few = _normal(n, length, 3, generator=generator) @ _normal(3, width, generator=generator)
    return 2 * few + 0.3 * _normal(n, length, width, generator=generator)


def _outliers(n: int, length: int, width: int, generator: torch.Generator) -> Tensor:
    large = torch.rand(n, length, 1, generator=generator) < 0.01
    return torch.where(large, 30.0, 1.0) * _normal(n, length, width, generator=generator)


def _dominant(n: int, length: int, width: int, generator: torch.Generator) -> Tensor:
    x = _normal(n, length, width, generator=generator)
    x[0] *= 100
    return x


def _bursts(n: int, length: int, width: int, generator: torch.Generator) -> Tensor:
    """A token that comes again and again within a sequence: half of the positions repeat one vector."""
    x = _normal(n, length, width, generator=generator)
    again = torch.rand(n, length, 1, generator=generator) < 0.5
    return torch.where(again, x[:, :1], x)


def _lognormal(n: int, length: int, width: int, generator: torch.Generator) -> Tensor:
    sizes = _normal(n, 1, 1, generator=generator).exp()
    return sizes * _normal(n, length, width, generator=generator)


LAWS: dict[str, Law] = {
    "gaussian": Law("independent tokens", lambda n, t, d, g: _normal(n, t, d, generator=g)),
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


def independent_clouds(
    law: str, *, n: int = 32, length: int = 16, width: int = 24, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Activations and gradients ``(n, T, D)`` of one law that know nothing of one another, each in its own orientation.

    Every null about orientation is true for them: an effect that is found is false.

    >>> x, g = independent_clouds("t3", n=8, length=4, width=6)
    >>> x.shape, g.shape
    (torch.Size([8, 4, 6]), torch.Size([8, 4, 6]))
    """
    if law not in LAWS:
        raise broken(f"law must be one of {', '.join(LAWS)}", repr(law), "use 'gaussian'")
    generator = torch.Generator().manual_seed(seed)
    scale = torch.linspace(3, 0.3, width, dtype=torch.float64)
    x, g = (LAWS[law].draw(n, length, width, generator) * scale @ rotation(width, seed=4 * seed + k) for k in (1, 2))
    return x, g


def coupled_energies(
    n: int, *, sigma: float = 1.0, coupling: float = 0.5, tail: float | None = None, seed: int = 0
) -> tuple[Tensor, float]:
    """Gradients ``(n, 2, 6)`` whose sequences that are large also lie more inside the first two coordinates.

    Sizes are log-normal with ``sigma``, or Pareto with the index ``tail``; shares follow them by ``coupling``, which
    makes intervals hard. Also returned is the true odds ratio over random directions of rank 2.
    """
    generator = torch.Generator().manual_seed(seed)

    def shares(z: Tensor, own: Tensor) -> Tensor:
        return torch.sigmoid(coupling * z + 0.5 * own - 0.5)

    def sizes(z: Tensor) -> Tensor:
        return (sigma * z).exp() if tail is None else (torch.special.erfc(z / 2**0.5) / 2) ** (-1 / tail)

    many, other = (_normal(1 << 18, generator=torch.Generator().manual_seed(k)) for k in (1, 2))
    weight = sizes(many)
    if tail is not None:  # a mean over draws of such a law hardly settles: places are set, dense where sizes are large
        place = (torch.arange(1 << 18, dtype=torch.float64) + 0.5) / (1 << 18)
        many = -torch.special.ndtri(place**3)
        weight = 3 * place**2 * sizes(many)
    mean = float((weight * shares(many, other)).sum() / weight.sum())
    z, own = _normal(2, n, generator=generator)
    share, energy = shares(z, own), sizes(z)
    return _of_shares(energy, share), mean / (1 - mean) / (2 / 4)


def sequences_of_documents(
    documents: int, *, each: int = 4, spread: float = 1.0, seed: int = 0
) -> tuple[Tensor, Tensor, float]:
    """Gradients ``(n, 2, 6)`` of which ``each`` sequences share a document, and with it most of their direction.

    Also returned are the document of each sequence and the true odds ratio over random directions of rank 2. Sequences
    of one document are not independent: an interval over sequences is too narrow.
    """
    generator = torch.Generator().manual_seed(seed)

    def shares(common: Tensor, own: Tensor) -> Tensor:
        return torch.sigmoid(spread * common + 0.3 * own - 0.5)

    mean = float(shares(*(_normal(1 << 18, generator=torch.Generator().manual_seed(k)) for k in (1, 2))).mean())
    ids = torch.arange(documents).repeat_interleave(each)
    common = _normal(documents, generator=generator)[ids]
    own, size = _normal(2, len(ids), generator=generator)
    return _of_shares((0.3 * size).exp(), shares(common, own)), ids, mean / (1 - mean) / (2 / 4)


def rare_large_tokens(
    n: int, *, length: int = 64, factor: float = 100.0, rate: float = 0.01, lift: float = 2.0, seed: int = 0
) -> tuple[Tensor, float]:
    """Gradients ``(n, T, 6)`` of which one token in a hundred is ``factor`` times larger; the rest of all is alike.

    The first two coordinates have ``lift`` times the energy of the others, which is the true odds ratio over random
    directions of rank 2. A handful of tokens holds nearly all of the energy, so few units are behind any number.
    """
    generator = torch.Generator().manual_seed(seed)
    large = torch.rand(n, length, 1, generator=generator) < rate
    scale = torch.tensor([lift, lift, 1, 1, 1, 1], dtype=torch.float64).sqrt()
    return torch.where(large, factor, 1.0) * _normal(n, length, 6, generator=generator) * scale, lift


def _of_shares(energy_n: Tensor, share_n: Tensor) -> Tensor:
    """Sequences of two tokens, one inside the first two coordinates and one outside, with given energy and share."""
    g = torch.zeros(len(energy_n), 2, 6, dtype=torch.float64)
    g[:, 0, 0], g[:, 1, 4] = (energy_n * share_n).sqrt(), (energy_n * (1 - share_n)).sqrt()
    return g


RADII: dict[str, Callable[[int, torch.Generator], Tensor]] = {
    "gaussian": lambda n, g: torch.ones(n, dtype=torch.float64),
    "t4": lambda n, g: _normal(n, 4, generator=g).square().mean(1).rsqrt(),
    "t3": lambda n, g: _normal(n, 3, generator=g).square().mean(1).rsqrt(),
    "lognormal": lambda n, g: (0.7 * _normal(n, generator=g)).exp(),
}
"""Laws of the size of rows of an elliptical cloud, relative to a Gaussian."""


def elliptical(n: int, width: int, *, radii: str = "gaussian", turn: int = 0, seed: int = 0) -> Tensor:
    """Rows of an elliptical law: Gaussian directions with variances ``1, 1/2, … 1/D``, each row of a size of its own.

    There is no manifold under it, so no proxy is tangent. ``turn`` seeds the orientation: clouds of one ``turn`` are of
    one law.

    >>> elliptical(5, 3, radii="t4").shape
    torch.Size([5, 3])
    """
    if radii not in RADII:
        raise broken(f"radii must be one of {', '.join(RADII)}", repr(radii), "use 'gaussian'")
    generator = _generator(seed)
    size_N = RADII[radii](n, generator)
    x_ND = _normal(n, width, generator=generator) * torch.arange(1, width + 1, dtype=torch.float64).rsqrt()
    return size_N[:, None] * x_ND @ rotation(width, seed=turn).T


def parallel_sheets(
    n: int, *, width: int = 16, sheets: int = 6, noise: float = 0.02, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Flat sheets along the same two directions, apart in five others; also returned are these two ``(D, 2)``.

    All tangents lie in the two directions, up to noise, and those do not hold most of the variance.
    """
    generator = _generator(seed)
    offsets = _normal(sheets, 5, generator=generator)
    along = 2 * torch.rand(n, 2, generator=generator, dtype=torch.float64)
    where = offsets[torch.randint(0, sheets, (n,), generator=generator)]
    frame = rotation(width, seed=seed)[:, :7]
    x_ND = torch.cat([along, where], 1) @ frame.T
    return x_ND + noise * _normal(n, width, generator=generator), frame[:, :2]


def partly_cancelling(
    n: int, *, tangent: float, normal: float, noise: float = 0.5, tails: float = 0.0, length: int = 12, seed: int = 0
) -> tuple[Tensor, Tensor, float]:
    """Inputs ``(n, T, 6)`` and error signals ``(n, T, 4)`` whose sum partly cancels, and the true ``γ^T/γ^N``.

    The first three coordinates of the inputs are tangent. ``tangent`` and ``normal`` are the means of both parts, in
    units of a token's own noise; ``noise`` is what a sequence shares, ``tails`` the deviation of the logarithm of a
    sequence's size.
    """
    generator = _generator(seed)
    means = torch.tensor([tangent] * 3 + [normal] * 3, dtype=torch.float64)
    x = _normal(n, length, 6, generator=generator) + noise * _normal(n, 1, 6, generator=generator) + means
    d = 1 + 0.5 * _normal(n, length, 4, generator=generator) + noise * _normal(n, 1, 4, generator=generator)
    d = d * (tails * _normal(n, 1, 1, generator=generator)).exp()
    truth = tangent / normal * _mean_length(normal, noise) / _mean_length(tangent, noise) if normal else math.inf
    return x, d, truth


@lru_cache(maxsize=64)
def _mean_length(mean: float, noise: float) -> float:
    """Of three coordinates with this mean and this noise."""
    many = math.hypot(1, noise) * _normal(1 << 17, 3, generator=_generator(1)) + mean
    return float(torch.linalg.vector_norm(many, dim=1).mean())


def paired_properties(n: int, rho: float, *, counts: bool = False, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two properties of ``n`` token types that go together by ``rho`` in a Gaussian copula.

    With ``counts`` the first follows Zipf's law: a count is at least k with probability 1/k, so half of the types are
    seen once, and the mean is infinite.
    """
    a, b = _normal(2, n, generator=_generator(seed))
    y = rho * a + math.sqrt(1 - rho * rho) * b
    return (1 / torch.special.ndtr(-a)).floor() if counts else a, y
