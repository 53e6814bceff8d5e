"""Low-rank directions fitted on a cloud: tangent proxies and their ablations.

Letters: N rows, D width, K rank. Bases are float64 and orthonormal; everything that can be read off moments is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from anisoscope import vocabulary
from anisoscope.errors import broken
from anisoscope.geometry.cloud import Cloud, Measurable, as_cloud
from anisoscope.geometry.dimension import two_nn
from anisoscope.geometry.semi_nmf import ConceptToken, SemiNMF, semi_nmf
from anisoscope.stats.as_tensor import as_tensor
from anisoscope.stats.moments import Moments
from anisoscope.stats.row_chunks import rows_per_chunk

Method = str  # a name of ``vocabulary.PROXIES``
Fit = Callable[[Any, int, torch.Generator], "Tensor | Subspace"]
_FITS: dict[str, Fit] = {}  # of methods from outside
_ORTHONORMAL = 1e-6
_EMPTY = 1e-12
_DEPENDENT = 1e-4  # what is left of a concept beside the others, of the longest: below it they may be dependent


@dataclass(frozen=True, slots=True, eq=False)
class Subspace:
    """An orthonormal basis ``(D, K)`` and where it came from.

    ``spectrum`` has the variances the method ranked (all of them for ``pca`` and ``svd``, descending), ``explained``
    the share of the cloud's variance inside (about the mean for ``pca`` and ``haar``, about 0 for the others).

    >>> import torch
    >>> x = torch.randn(200, 5, generator=torch.Generator().manual_seed(0)) * torch.tensor([9.0, 4.0, 1.0, 1.0, 1.0])
    >>> plane = fit_subspace(x, method="pca", rank=2)
    >>> plane.basis.shape, round(plane.explained, 1)
    (torch.Size([5, 2]), 1.0)
    >>> torch.allclose(plane.project(x) + plane.remove(x), x.double())
    True
    """

    basis: Tensor
    method: str = "given"
    spectrum: Tensor | None = None
    explained: float = math.nan
    n: int = 0
    seed: int | None = None
    factors: SemiNMF | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "basis", as_tensor(self.basis).detach())
        if self.basis.ndim != 2 or not 1 <= self.basis.shape[1] <= self.basis.shape[0]:
            raise broken(
                "a basis must have the shape (D, K) with 1 ≤ K ≤ D",
                f"shape {tuple(self.basis.shape)}",
                "pass directions as columns",
            )
        basis = self.basis.to(torch.float64)
        gap = float((basis.T @ basis - torch.eye(basis.shape[1], dtype=basis.dtype, device=basis.device)).abs().max())
        if not gap <= _ORTHONORMAL:
            raise broken(
                f"a basis must be orthonormal to {_ORTHONORMAL:g}",
                f"‖QᵀQ − I‖ = {gap:.2g}",
                "orthonormalise it with torch.linalg.qr(basis).Q",
            )
        eye = torch.eye(basis.shape[1], dtype=basis.dtype, device=basis.device)
        for _ in range(2):  # Newton's step to the nearest orthonormal basis: what float32 rounded away comes back
            basis = basis @ (1.5 * eye - 0.5 * basis.T @ basis)
        object.__setattr__(self, "basis", basis)

    @property
    def rank(self) -> int:
        """K, the number of directions."""
        return self.basis.shape[1]

    @property
    def width(self) -> int:
        """D, the width of the space."""
        return self.basis.shape[0]

    def complement(self) -> Subspace:
        """All directions orthogonal to these."""
        if self.rank == self.width:
            raise broken("a subspace with a complement must have rank below its width", self.rank, "lower the rank")
        whole = torch.linalg.qr(self.basis, mode="complete").Q
        return Subspace(whole[:, self.rank :], method=f"complement of {self.method}", n=self.n, seed=self.seed)

    def leading(self, rank: int) -> Subspace:
        """The first directions of a method that ranks them by variance: what it would have found at that rank."""
        if self.method not in ("pca", "svd") or self.spectrum is None or not 1 <= rank <= self.rank:
            rule = f"leading directions must be 1…{self.rank} of pca or svd"
            raise broken(rule, f"{rank} of {self.method}", "fit that rank by itself")
        explained = float(self.spectrum[:rank].sum() / self.spectrum.sum())
        return Subspace(self.basis[:, :rank], self.method, self.spectrum, explained, self.n, self.seed)

    def project(self, x: Cloud) -> Tensor:
        """The part of each row inside, in the full space and in float64."""
        rows = as_tensor(x).detach().double()
        if rows.shape[-1] != self.width:
            raise broken(f"rows must have the width of the subspace, {self.width}", rows.shape[-1], "use the same site")
        basis = self.basis.to(rows.device)
        return (rows @ basis) @ basis.T

    def remove(self, x: Cloud) -> Tensor:
        """The part of each row outside."""
        return as_tensor(x).detach().double() - self.project(x)

    @property
    def loss_trace(self) -> tuple[float, ...]:
        """Loss after each iteration of the semi-NMF behind this subspace."""
        return self._concepts().loss_trace

    @property
    def converged(self) -> bool:
        """Whether the semi-NMF behind this subspace had come to rest."""
        return self._concepts().converged

    def encode(self, x: Cloud) -> Tensor:
        """Nonnegative codes of rows in the concepts behind this subspace."""
        return self._concepts().encode(x)

    def top_tokens(self, tokens: Any, *, count: int = 10) -> tuple[tuple[ConceptToken, ...], ...]:
        """The tokens of each concept, given the token id of each fitted row."""
        return self._concepts().top_tokens(tokens, count=count)

    def _concepts(self) -> SemiNMF:
        if self.factors is None:
            raise broken("concepts come with the method semi_nmf fitted on rows", self.method, "fit with semi_nmf")
        return self.factors

    def to(self, device: torch.device | str) -> Subspace:
        """The same directions on another device."""
        spectrum = None if self.spectrum is None else self.spectrum.to(device)
        return Subspace(self.basis.to(device), self.method, spectrum, self.explained, self.n, self.seed, self.factors)


def fit_subspace(
    x: Measurable,
    *,
    method: Method,
    rank: int | str,
    generator: torch.Generator | None = None,
    iterations: int = 500,
    factors: SemiNMF | None = None,
) -> Subspace:
    """Fit K directions to a cloud, or to its ``Moments`` where the method needs no more.

    ``method``: ``pca`` (centred), ``svd`` (uncentred), ``semi_nmf`` (the span of its concepts; rows only), and the
    ablations ``haar`` (random) and ``mean`` (the mean direction alone), or one that was registered. ``rank``: a number,
    an explained share such as ``"95%"``, or ``"id"`` for the TwoNN dimension of the rows, rounded. Semi-NMF makes at
    most ``iterations``, unless its ``factors`` of these rows are given.
    """
    vocabulary.require("method", method, vocabulary.PROXIES)
    rows = None if isinstance(x, Moments) else as_cloud(x, at_least=2)
    if method == "semi_nmf" and rows is not None and isinstance(rank, int) and 1 <= rank <= min(rows.shape):
        found = _span_of_concepts(rows, rank, generator, iterations, factors)
        if found is not None:
            return found
    moments = x if isinstance(x, Moments) else Moments.of(as_cloud(x, at_least=2).double(), higher=False)
    n, seed = round(float(moments.count)), _seed(generator)
    if n < 2 or not bool(torch.isfinite(moments.scatter).all()):
        raise broken(
            "a subspace must be fitted on at least 2 finite rows", f"{n} rows or NaN", "pass more, finite rows"
        )
    if method in _FITS:
        return _fit_from_outside(x if rows is None else rows, method, rank, n, generator)
    if method == "mean":
        return _mean_direction(moments, rank, n)
    centred = method in ("pca", "haar")
    second = moments.scatter if centred else moments.second
    spectrum, vectors = torch.linalg.eigh(second)
    spectrum, vectors = spectrum.flip(0).clamp_min(0) / max(n - centred, 1), vectors.flip(1)
    k = _resolved_rank(rank, rows, spectrum, method, n)
    if method == "haar":
        basis, factors = _random_basis(moments.width, k, seed).to(second.device), None
        spectrum = _along(second, basis) / max(n - 1, 1)
    elif method == "semi_nmf":
        if rows is None:
            raise broken("semi_nmf must be fitted on rows", "Moments", "pass the rows, or use svd")
        factors = factors or semi_nmf(rows, k, generator=generator, iterations=iterations)
        basis = torch.linalg.qr(factors.concepts.T.double()).Q
        spectrum = _along(second, basis) / max(n, 1)
    else:
        basis, factors = vectors[:, :k], None
    explained = float(_along(second, basis).sum() / second.diagonal().sum())
    return Subspace(basis, method, spectrum, explained, n, seed, factors)


def register_proxy(
    name: str,
    *,
    about: str = "",
    needs: Literal["sample", "moments"] = "sample",
    views: Sequence[str] = tuple(vocabulary.VIEWS),
) -> Callable[[Fit], Fit]:
    """Register a method that fits a proxy: a function of rows ``(N, D)`` or ``Moments``, a rank, and a generator.

    It returns a ``Subspace``, or an orthonormal basis ``(D, K)``. The method is then asked for by name wherever proxies
    are, and its evidence is in rows and report like that of the others.

    >>> @register_proxy("first_columns", about="the first coordinate axes")
    ... def first_columns(x, rank, generator):
    ...     return torch.eye(x.shape[1], dtype=torch.float64)[:, :rank]
    >>> fit_subspace(torch.randn(9, 4), method="first_columns", rank=2).rank
    2
    >>> unregister_proxy("first_columns")
    """

    def register(fit: Fit) -> Fit:
        vocabulary.add(vocabulary.Proxy(name, about or name, needs, tuple(views)))
        _FITS[name] = fit
        return fit

    return register


def unregister_proxy(name: str) -> None:
    """Take a method that was registered from outside away again."""
    vocabulary.remove("proxies", name)
    if name not in vocabulary.PROXIES:
        _FITS.pop(name, None)


def proxy_name(method: Method | Callable[[Tensor], Subspace]) -> Method:
    """The name of a proxy; a function from rows to a ``Subspace`` is registered under its own name."""
    if isinstance(method, str):
        return method
    name = getattr(method, "__name__", type(method).__name__)
    fit = _FITS.get(name)
    if fit is None or getattr(fit, "function", None) is not method:
        unregister_proxy(name)
        register_proxy(name, about=f"the function {name}")(_Function(method))
    return name


@dataclass(frozen=True, slots=True)
class _Function:
    """A function from rows alone, called as a registered method is."""

    function: Callable[[Tensor], Subspace]

    def __call__(self, x: Any, rank: int, generator: torch.Generator) -> Subspace:
        return self.function(x)


def outside_modules() -> set[str]:
    """Modules that hold the methods from outside."""
    return {getattr(fit, "function", fit).__module__ for fit in _FITS.values()}


def _fit_from_outside(x: Any, method: Method, rank: int | str, n: int, generator: torch.Generator | None) -> Subspace:
    if not isinstance(rank, int):
        raise broken(f"rank must be a number for the method {method}", repr(rank), "use 32")
    found = _FITS[method](x, rank, generator or torch.Generator().manual_seed(0))
    if isinstance(found, Subspace):
        return found
    return Subspace(found, method=method, n=n, seed=_seed(generator))


def principal_angles(a: Subspace, b: Subspace) -> Tensor:
    """Angles between two subspaces in radians, ascending; exact for small angles too (Björck & Golub 1973).

    >>> import torch
    >>> e = torch.eye(3, dtype=torch.float64)
    >>> principal_angles(Subspace(e[:, :2]), Subspace(e[:, 1:])).rad2deg().tolist()
    [0.0, 90.0]
    """
    if a.width != b.width:
        raise broken(f"compared subspaces must share the width {a.width}", b.width, "compare within one site")
    if a.rank < b.rank:
        a, b = b, a
    other = b.basis.to(a.basis.device)
    inner = a.basis.T @ other
    cosines = torch.linalg.svdvals(inner).clamp(0, 1)
    sines = torch.linalg.svdvals(other - a.basis @ inner).clamp(0, 1).flip(0)
    return torch.where(cosines.square() < 0.5, torch.acos(cosines), torch.asin(sines))


def _span_of_concepts(
    rows: Tensor, rank: int, generator: torch.Generator | None, iterations: int, factors: SemiNMF | None
) -> Subspace | None:
    """The span of the concepts of a cloud, without its second moment ``(D, D)``.

    None where the cloud may have fewer than K directions: concepts then depend on one another. What to say of it takes
    a decomposition.
    """
    if not bool(torch.isfinite(rows).all()) or not bool(rows.any()):
        return None
    factors = factors or semi_nmf(rows, rank, generator=generator, iterations=iterations)
    basis, upper = torch.linalg.qr(factors.concepts.T.double())
    lengths = upper.diagonal().abs()
    if not bool(lengths.min() > _DEPENDENT * lengths.max()):
        return None
    inside, total = torch.zeros_like(lengths), 0.0
    for part in rows.split(rows_per_chunk(rows)):
        wide = part.double()
        inside += (wide @ basis).square().sum(0)
        total += float(wide.square().sum())
    spectrum = inside / len(rows)
    return Subspace(basis, "semi_nmf", spectrum, float(inside.sum()) / total, len(rows), _seed(generator), factors)


def _mean_direction(moments: Moments, rank: int | str, n: int) -> Subspace:
    if rank != 1:
        raise broken("rank must be 1 for the method mean", repr(rank), "it is one direction; use rank=1")
    length = torch.linalg.vector_norm(moments.mean)
    if float(length) <= _EMPTY * float(moments.second.diagonal().sum() / max(n, 1)) ** 0.5:
        raise broken("a cloud must have a mean to take its direction", "mean 0", "use another method")
    basis = (moments.mean / length)[:, None]
    second = moments.second
    inside = _along(second, basis)
    return Subspace(basis, "mean", inside / max(n, 1), float(inside.sum() / second.diagonal().sum()), n)


def _along(second: Tensor, basis: Tensor) -> Tensor:
    return ((second @ basis) * basis).sum(0)


def _random_basis(width: int, rank: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(width, rank, generator=generator, dtype=torch.float64, device="cpu")).Q


def _resolved_rank(rank: int | str, rows: Tensor | None, spectrum: Tensor, method: str, n: int) -> int:
    width = spectrum.shape[0]
    if rank == "id":
        if rows is None:
            raise broken("rank 'id' must be measured on rows", "Moments", "pass the rows or a number")
        dimension = float(two_nn(rows))
        if math.isnan(dimension):
            raise broken("rank 'id' needs a measurable intrinsic dimension", two_nn(rows).note, "give a number")
        rank = max(1, round(dimension))
    elif isinstance(rank, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)%", rank)
        if not match or not 0 < float(match[1]) <= 100:
            raise broken("rank must be a number, a share such as '95%', or 'id'", repr(rank), "use 32")
        share = spectrum.cumsum(0) / spectrum.sum()
        rank = int((share < float(match[1]) / 100 - 1e-12).sum()) + 1
    limit = width if method == "haar" else min(width, n - (method == "pca"))
    if not isinstance(rank, int) or not 1 <= rank <= limit:
        raise broken(
            f"rank must lie in 1…{limit} for {n} vectors of width {width}",
            rank,
            "lower the rank or observe more tokens",
        )
    filled = int((spectrum > _EMPTY * spectrum[0]).sum())
    if method != "haar" and filled == 0:
        raise broken("a cloud to fit directions on must have variance", "none", "all rows are equal; use another site")
    if method != "haar" and rank > filled:
        raise broken(f"rank must be at most {filled}, the number of directions with any variance", rank, "lower it")
    return rank


def _seed(generator: torch.Generator | None) -> int:
    return 0 if generator is None else generator.initial_seed()
