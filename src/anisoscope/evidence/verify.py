"""The referee's checks as one call: whether a proxy is more than its construction, and whether it is tangent at all.

Letters: n sequences, T positions, D width, K rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from anisoscope.errors import BrokenRuleError, broken
from anisoscope.evidence.cross_fit import cross_fit
from anisoscope.evidence.result import Evidence
from anisoscope.geometry.curvature import curvature
from anisoscope.geometry.dimension import two_nn
from anisoscope.geometry.neighbours import nearest
from anisoscope.geometry.results import Estimate
from anisoscope.geometry.subspace import Method, Subspace, fit_subspace, principal_angles
from anisoscope.stats.given import as_tensor

ALPHA = 0.05
_POINTS = 64
_RANDOM_FRAMES = 20
_Z95 = 1.959964


@dataclass(frozen=True, slots=True)
class VerifyRow:
    """One line of the table.

    ``check``: ``proxy`` (enrichment over ``haar``; the baselines are methods too), ``normal`` (mean angle in degrees
    to the bottom of the local spectrum), ``refit`` (mean angle in degrees between fits on two halves), ``curvature``
    (along the proxy over that along random tangent directions), ``settling`` (share of layers and seeds at which random
    directions do as well). ``chance`` is what random directions of the same rank would give.
    """

    check: str
    method: str
    rank: int
    seed: Any
    layer: Any
    value: float | None
    low: float | None
    high: float | None
    p: float | None
    chance: float | None
    n: int
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Verification:
    """The table of all checks."""

    rows: tuple[VerifyRow, ...]

    def select(self, check: str) -> tuple[VerifyRow, ...]:
        """The rows of one check."""
        return tuple(row for row in self.rows if row.check == check)

    def as_dicts(self) -> list[dict[str, Any]]:
        """Plain rows, for ``pandas.DataFrame(...)``."""
        return [asdict(row) for row in self.rows]


def verify(
    x: Any,
    gradients: Any,
    *,
    ranks: Sequence[int] | None = None,
    methods: Sequence[Method] = ("pca",),
    groups: Any = None,
    resamples: int = 199,
    generator: torch.Generator | None = None,
) -> Verification:
    """Check proxies against what the referee asked for.

    ``x`` and ``gradients`` are ``(n, T, D)``, or rows with ``groups``; or mappings from ``(seed, layer)`` to such, for
    models that were never looked at before. ``ranks`` defaults to 1, 2, 4, … ≤ D/4. Everything is cross-fitted.

    1. ``proxy``: each method against the baselines ``haar``, ``top-variance`` and ``mean+haar`` (the mean direction,
       completed at random) of the same rank.
    2. ``normal`` and ``refit``: angles of the proxy to the normal directions that local spectra suggest (a tangent
       proxy is as far from them as it can be), and between refits on two halves.
    3. ``curvature``: curvature along the proxy's directions over that along random tangent directions.
    4. ``settling``: the share of layers and seeds at which random directions of equal rank do as well.
    """
    cells = _cells(x, gradients)
    if "mean" in methods:
        raise broken("methods must be of any rank", "mean, which has one direction", "it is a baseline already")
    seed = 0 if generator is None else generator.initial_seed()
    rows: list[VerifyRow] = []
    settled: dict[tuple[str, int], list[bool]] = {}
    for (cell_seed, layer), (cloud, gradient) in cells.items():
        width = cloud.shape[-1]
        for rank in _ranks(ranks, width):
            for name, method in _contestants(methods, rank, seed):
                found = cross_fit(
                    cloud,
                    gradient,
                    method=method,
                    rank=rank,
                    groups=groups,
                    resamples=resamples,
                    generator=generator,
                    isotropy=False,
                )
                rows.append(_proxy_row(found, name, rank, cell_seed, layer))
                if name in methods and "haar" in found.p:
                    settled.setdefault((name, rank), []).append(_random_does_as_well(found))
            for name in methods:
                common = (name, rank, cell_seed, layer)
                flat = cloud.reshape(-1, width)
                rows.append(_normal_row(flat, *common, generator))
                rows.append(_refit_row(cloud, groups, *common, seed, generator))
                rows.append(_curvature_row(flat, *common, generator))
    for (name, rank), same in settled.items():
        share, n = sum(same) / len(same), len(same)
        low, high = _wilson(share, n)
        note = f"{sum(same)} of {n} layers and seeds"
        rows.append(VerifyRow("settling", name, rank, None, None, share, low, high, None, 1.0 - ALPHA / 2, n, note))
    return Verification(tuple(rows))


def _cells(x: Any, gradients: Any) -> dict[tuple[Any, Any], tuple[Tensor, Tensor]]:
    if isinstance(x, Mapping) != isinstance(gradients, Mapping):
        raise broken("x and gradients must both be mappings or both be clouds", type(gradients).__name__, "pass alike")
    if not isinstance(x, Mapping):
        return {(None, 0): (as_tensor(x).detach(), as_tensor(gradients).detach())}
    if x.keys() != gradients.keys() or not x:
        raise broken("x and gradients must have the same (seed, layer) keys", sorted(map(str, gradients)), "pass alike")
    if not all(isinstance(key, tuple) and len(key) == 2 for key in x):
        raise broken("keys must be pairs (seed, layer)", sorted(map(str, x)), "name the seed and the layer")
    return {key: (as_tensor(x[key]).detach(), as_tensor(gradients[key]).detach()) for key in x}


def _ranks(ranks: Sequence[int] | None, width: int) -> list[int]:
    limit = max(1, width // 4)
    chosen = list(ranks) if ranks is not None else [2**i for i in range(limit.bit_length())]
    for rank in chosen:
        if not 1 <= rank <= limit:
            raise broken(f"ranks must lie in 1…{limit} (a quarter of the width {width})", rank, "lower it")
    return chosen


def _contestants(methods: Sequence[Method], rank: int, seed: int) -> list[tuple[str, Any]]:
    return [
        *((name, name) for name in methods),
        ("haar", "haar"),
        ("top-variance", "pca"),
        ("mean+haar", lambda rows: _mean_and_random(rows, rank, seed)),
    ]


def _mean_and_random(rows: Tensor, rank: int, seed: int) -> Subspace:
    try:
        mean = fit_subspace(rows, method="mean", rank=1).basis
    except BrokenRuleError:  # a centred cloud has no mean direction: then all directions are random ones
        mean = torch.zeros(rows.shape[1], 0, dtype=torch.float64, device=rows.device)
    generator, shape = torch.Generator().manual_seed(seed), (mean.shape[0], rank - mean.shape[1])
    draw = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
    return Subspace(torch.linalg.qr(torch.cat([mean, draw.to(mean.device)], 1)).Q, method="mean+haar", n=len(rows))


def _proxy_row(found: Evidence, name: str, rank: int, seed: Any, layer: Any) -> VerifyRow:
    e = found.enrichment.get("haar", Estimate(value=math.nan, n=found.n, note=found.note))
    note = f"energy share {found.energy:.3g}" if found.note is None else found.note
    return VerifyRow(
        "proxy", name, rank, seed, layer, e.value, e.low, e.high, found.p.get("haar"), 1.0, found.units or found.n, note
    )


def _random_does_as_well(found: Evidence) -> bool:
    return not (found.enrichment["haar"].value > 1 and found.p.get("haar", 1.0) <= ALPHA)


def _normal_row(
    flat: Tensor, name: Method, rank: int, seed: Any, layer: Any, generator: torch.Generator | None
) -> VerifyRow:
    """Mean angle between the proxy and the bottom of the local spectrum around seeded points."""
    proxy = fit_subspace(flat, method=name, rank=rank, generator=generator)
    normals, note = _local_normals(flat, rank, generator)
    if normals is None:
        return VerifyRow("normal", name, rank, seed, layer, None, None, None, None, None, 0, note)
    angles = _mean_angles(proxy.basis, normals)
    random = torch.Generator().manual_seed(0 if generator is None else generator.initial_seed())
    frames = torch.linalg.qr(
        torch.randn(_RANDOM_FRAMES, flat.shape[1], proxy.rank, generator=random, dtype=torch.float64, device="cpu")
    ).Q
    chance = float(torch.stack([_mean_angles(f.to(proxy.basis.device), normals).mean() for f in frames]).mean())
    half = _Z95 * float(angles.std()) / math.sqrt(len(angles))
    mean = float(angles.mean())
    return VerifyRow("normal", name, rank, seed, layer, mean, mean - half, mean + half, None, chance, len(angles), note)


def _curvature_row(
    flat: Tensor, name: Method, rank: int, seed: Any, layer: Any, generator: torch.Generator | None
) -> VerifyRow:
    """Curvature along the proxy's directions over that along random tangent directions; 1 is no difference."""
    dimension = float(two_nn(flat)) if len(flat) >= 3 else math.nan
    common = ("curvature", name, rank, seed, layer)
    if math.isnan(dimension):
        return VerifyRow(*common, None, None, None, None, 1.0, 0, "no intrinsic dimension, so no tangents")
    dim = max(1, min(round(dimension), flat.shape[1] - 1))
    proxy = fit_subspace(flat, method=name, rank=rank, generator=generator)
    points = torch.arange(0, len(flat), max(1, len(flat) // _POINTS), device=flat.device)
    try:
        found = curvature(flat, dim=dim, points=points, along=proxy).ratio
    except BrokenRuleError as error:
        return VerifyRow(*common, None, None, None, None, 1.0, 0, str(error))
    assert found is not None, "directions were given"
    value = None if math.isnan(found.value) else found.value
    return VerifyRow(*common, value, found.low, found.high, None, 1.0, found.n, found.note)


def _local_normals(flat: Tensor, rank: int, generator: torch.Generator | None) -> tuple[Tensor | None, str]:
    """Bottom directions of the local spectrum at up to 64 seeded points: ``(points, D, m)``."""
    dimension = float(two_nn(flat)) if len(flat) >= 3 else math.nan
    if math.isnan(dimension):
        return None, "no intrinsic dimension, so no normal directions"
    tangent = max(1, round(dimension))
    k = min(len(flat) - 1, max(4 * tangent, 2 * tangent + 2 * rank))
    m = min(rank, k - 1 - tangent, flat.shape[1] - tangent)
    if m < 1:
        return None, f"{len(flat)} rows are too few beside a dimension of {tangent}"
    random = torch.Generator().manual_seed(0 if generator is None else generator.initial_seed())
    _, indices = nearest(flat, k)
    points = torch.randperm(len(flat), generator=random, device="cpu")[:_POINTS].to(flat.device)
    around = flat[indices[points]].double()
    around = around - around.mean(1, keepdim=True)
    _, _, right = torch.linalg.svd(around, full_matrices=False)
    filled = min(k - 1, flat.shape[1])  # centring takes one direction away
    return right[:, filled - m : filled].mT, f"{k} neighbours, tangent dimension {tangent}"


def _mean_angles(basis: Tensor, normals: Tensor) -> Tensor:
    """Mean principal angle in degrees between the basis and each set of normals."""
    cosines = torch.linalg.svdvals(basis.T @ normals).clamp(0, 1)
    return torch.acos(cosines).mean(-1).rad2deg()


def _refit_row(
    cloud: Tensor,
    groups: Any,
    name: Method,
    rank: int,
    layer_seed: Any,
    layer: Any,
    seed: int,
    generator: torch.Generator | None,
) -> VerifyRow:
    every = groups is None or cloud.ndim == 3
    units = torch.arange(len(cloud), device="cpu") if every else as_tensor(groups).reshape(-1)
    ids = torch.unique(units)
    order = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed), device="cpu")]
    halves = [torch.isin(units, part) for part in order.tensor_split(2)]
    fits = [
        fit_subspace(cloud[half].reshape(-1, cloud.shape[-1]), method=name, rank=rank, generator=generator)
        for half in halves
    ]
    angle = float(principal_angles(*fits).mean().rad2deg())
    draw = torch.Generator().manual_seed(seed + 1)
    random = torch.randn(2, cloud.shape[-1], rank, generator=draw, dtype=torch.float64, device="cpu")
    chance = float(principal_angles(*(Subspace(torch.linalg.qr(r).Q) for r in random)).mean().rad2deg())
    return VerifyRow("refit", name, rank, layer_seed, layer, angle, None, None, None, chance, len(ids))


def _wilson(share: float, n: int) -> tuple[float, float]:
    """95 % interval of a proportion (Wilson 1927)."""
    z2 = _Z95**2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)
