"""The referee's checks as one call: whether a proxy is more than its construction, and whether it is tangent at all.

Letters: n sequences, T positions, D width, K rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from scipy.stats import binomtest
from torch import Tensor

from anisoscope.errors import BrokenRuleError, broken
from anisoscope.evidence.cross_fit import cross_fit
from anisoscope.evidence.inference import Spread
from anisoscope.evidence.local_checks import Half, Normals, curvature_along, normal_angle, random_frames
from anisoscope.evidence.result import Evidence
from anisoscope.geometry.results import Estimate
from anisoscope.geometry.subspace import Method, Subspace, fit_subspace, principal_angles
from anisoscope.stats.as_tensor import as_tensor

ALPHA = 0.05
METHODS: tuple[Method, ...] = ("pca", "svd", "semi_nmf")
_ROUNDING = 1e-9  # a share times its count may miss a whole number by this


@dataclass(frozen=True, slots=True)
class VerifyRow:
    """One line of the table.

    ``check``: ``proxy`` (enrichment over ``haar``; the baselines are methods too), ``anisotropy`` (share of the
    gradient's anisotropy captured; p of the isotropy gain), ``paired`` and ``paired-anisotropy`` (``semi_nmf`` against
    ``pca`` on the same sequences: ratio of odds, and difference of what is captured), ``normal`` (mean angle in degrees
    to the bottom of the local spectrum), ``refit`` (mean angle in degrees between the fits on two halves),
    ``curvature`` (along the proxy over that along random tangent directions), ``settling`` and
    ``settling-anisotropy`` (share of layers and seeds at which random directions are not shown to do worse).
    ``chance`` is what random directions of the same rank would
    give.
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
class CheckTable:
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
    methods: Sequence[Method] = METHODS,
    groups: Any = None,
    resamples: int = 199,
    generator: torch.Generator | None = None,
) -> CheckTable:
    """Check proxies against baselines of equal rank, on sequences that they were not fitted on.

    ``x`` and ``gradients`` are ``(n, T, D)``, or rows with ``groups``; or mappings from ``(seed, layer)`` to such, for
    models that were never looked at before. ``ranks`` defaults to 1, 2, 4, … ≤ D/4. Sequences fall into two halves, the
    same ones for all checks; a proxy is fitted on one and checked on the other, both ways.

    1. ``proxy`` and ``anisotropy``: each method beside the baselines ``haar``, ``top-variance`` (``pca``; left out
       where that is a method itself) and ``mean+haar`` (the mean direction, completed at random) of the same rank, by
       the energy and by the anisotropy of the gradient that it holds. ``paired`` and ``paired-anisotropy``:
       ``semi_nmf`` against the directions of largest variance, on the same sequences.
    2. ``normal`` and ``refit``: angles of the proxy to the normal directions that local spectra suggest (a tangent
       proxy is as far from them as it can be), and between the fits on the two halves.
    3. ``curvature``: curvature along the proxy's directions over that along random tangent directions.
    4. ``settling`` and ``settling-anisotropy``: the share of layers and seeds at which random directions of equal rank
       are not shown to do worse, by energy and by anisotropy. They are where p ≤ 0.05 and the whole interval is above
       what they give (the value, where there is no interval).

    >>> generator = torch.Generator().manual_seed(0)
    >>> x, g = torch.randn(2, 12, 10, 16, generator=generator)
    >>> table = verify(x, g, ranks=[2], methods=["svd"], resamples=99)
    >>> [row.method for row in table.select("proxy")]
    ['svd', 'haar', 'top-variance', 'mean+haar']
    """
    cells = _cells(x, gradients)
    if "mean" in methods:
        raise broken("methods must be of any rank", "mean, which has one direction", "it is a baseline already")
    seed = 0 if generator is None else generator.initial_seed()
    rows: list[VerifyRow] = []
    for (cell_seed, layer), (cloud, gradient) in cells.items():
        units, side = _two_halves(cloud, groups, seed)
        halves = [_half(cloud, units, side == k, seed) for k in (0, 1)]
        for rank in _ranks(ranks, cloud.shape[-1]):
            normals = [Normals.of(half, rank) for half in halves]
            judged: dict[str, Evidence] = {}
            for name, method in _contestants(methods, rank, seed):
                at = (name, rank, cell_seed, layer)
                found = cross_fit(
                    cloud,
                    gradient,
                    method=method,
                    rank=rank,
                    groups=groups,
                    folds=side,
                    resamples=resamples,
                    generator=generator,
                )
                judged[name] = found
                rows += [_proxy_row(found, *at), _anisotropy_row(found, *at)]
                if name not in methods:
                    continue
                angle = normal_angle(found.subspaces, normals, seed)
                rows.append(_row("normal", *at, angle, angle.floor))
                rows.append(_refit_row(found, *at, seed))
                rows.append(_row("curvature", *at, curvature_along(found.subspaces, halves), 1.0))
            rows += _paired_rows(judged, rank, cell_seed, layer)
    return CheckTable((*rows, *settling(rows, methods)))


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


def _two_halves(cloud: Tensor, groups: Any, seed: int) -> tuple[Tensor, Tensor]:
    """The unit of each sequence (or row), and the half that it falls into, on the CPU; halves hold equally many."""
    if groups is None and cloud.ndim != 3:
        raise broken("rows must come with groups", "none", "pass the sequence id of each row")
    units = torch.arange(len(cloud), device="cpu") if groups is None else as_tensor(groups).reshape(-1).cpu()
    if len(units) != len(cloud):
        raise broken(f"groups must have one id for each of {len(cloud)}", len(units), "pass sequence ids")
    ids = torch.unique(units)
    order = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed), device="cpu")]
    return units, torch.isin(units, order[: len(ids) // 2]).long()


def _half(cloud: Tensor, units: Tensor, here: Tensor, seed: int) -> Half:
    own = cloud[here.to(cloud.device)]
    each = own.shape[1] if own.ndim == 3 else 1
    return Half.of(own.reshape(-1, cloud.shape[-1]), units[here].repeat_interleave(each), seed)


def _contestants(methods: Sequence[Method], rank: int, seed: int) -> list[tuple[str, Any]]:
    """Methods, then the baselines that are not among them under another name."""
    baselines: dict[str, Method | Callable[[Tensor], Subspace]] = {
        "haar": "haar",
        "top-variance": "pca",
        "mean+haar": lambda rows: _mean_and_random(rows, rank, seed),
    }
    others = [(name, fit) for name, fit in baselines.items() if fit not in methods]
    return [*((name, name) for name in methods), *others]


def _mean_and_random(rows: Tensor, rank: int, seed: int) -> Subspace:
    try:
        mean = fit_subspace(rows, method="mean", rank=1).basis
    except BrokenRuleError:  # a centred cloud has no mean direction: then all directions are random ones
        mean = torch.zeros(rows.shape[1], 0, dtype=torch.float64, device=rows.device)
    generator, shape = torch.Generator().manual_seed(seed), (mean.shape[0], rank - mean.shape[1])
    draw = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
    return Subspace(torch.linalg.qr(torch.cat([mean, draw.to(mean.device)], 1)).Q, method="mean+haar", n=len(rows))


def _row(check: str, name: str, rank: int, seed: Any, layer: Any, found: Estimate, chance: float | None) -> VerifyRow:
    value = None if math.isnan(found.value) else found.value
    low, high = (found.low, found.high) if value is not None else (None, None)
    return VerifyRow(check, name, rank, seed, layer, value, low, high, None, chance, found.n, found.note)


def _proxy_row(found: Evidence, name: str, rank: int, seed: Any, layer: Any) -> VerifyRow:
    e = found.enrichment.get("haar", Estimate(value=math.nan, n=found.n, note=found.note))
    note = f"energy share {found.energy:.3g}" if found.note is None else found.note
    return VerifyRow(
        "proxy", name, rank, seed, layer, e.value, e.low, e.high, found.p.get("haar"), 1.0, found.units or found.n, note
    )


def _anisotropy_row(found: Evidence, name: str, rank: int, seed: Any, layer: Any) -> VerifyRow:
    e, n = found.captured_estimate, found.units or found.n
    common = ("anisotropy", name, rank, seed, layer)
    if e is None:
        why = found.note or "the gradient is isotropic, or has too few directions"
        return VerifyRow(*common, None, None, None, None, None, n, why)
    note = f"isotropy gain {found.isotropy_gain:.3g}; without shrinkage {found.isotropy_gain_zeta0:.3g}"
    return VerifyRow(*common, e.value, e.low, e.high, found.isotropy_gain_p, e.floor, n, found.note or note)


def _paired_rows(judged: Mapping[str, Evidence], rank: int, seed: Any, layer: Any) -> list[VerifyRow]:
    """Semi-NMF against the directions of largest variance, on the same sequences with the same folds."""
    first, second = judged.get("semi_nmf"), judged.get("pca", judged.get("top-variance"))
    if first is None or second is None:
        return []
    at = ("semi_nmf − pca", rank, seed, layer)
    return [
        _row("paired", *at, paired_energy(first, second), 1.0),
        _row("paired-anisotropy", *at, paired_captured(first, second), 0.0),
    ]


def paired_energy(first: Evidence, second: Evidence) -> Estimate:
    """Ratio of the odds of two proxies' energy shares, with a jackknife over units that both were judged on."""
    if min(first.inside, first.outside, second.inside, second.outside) <= 0:
        return Estimate(value=math.nan, n=first.n, note=first.note or "a proxy holds all of the gradient, or nothing")
    log_ratio = math.log(first.inside / first.outside) - math.log(second.inside / second.outside)
    plain = Estimate(value=math.exp(log_ratio), n=first.units or first.n, floor=1.0, units=first.effective_units)
    lost = [one.lost.get("haar", ()) for one in (first, second)]
    if not lost[0] or not lost[1]:
        return plain
    # Over one null of equal rank, whose share is the same constant for both.
    return Spread.of(lost[0][0] - lost[1][0]).estimate(plain, log_ratio, ratio=True)


def paired_captured(first: Evidence, second: Evidence) -> Estimate:
    """Difference of two proxies' shares of the gradient's anisotropy, with a jackknife over units."""
    a, b = first.captured_estimate, second.captured_estimate
    if a is None or b is None:
        return Estimate(value=math.nan, n=first.n, note="the gradient is isotropic, or has too few directions")
    plain = Estimate(value=a.value - b.value, n=a.n, floor=0.0, units=a.units)
    if a.low is None or b.low is None or first.captured_lost is None or second.captured_lost is None:
        return plain
    return Spread.of(first.captured_lost - second.captured_lost).estimate(plain, plain.value)


def settling(rows: Sequence[VerifyRow], methods: Sequence[Method]) -> list[VerifyRow]:
    """The rows ``settling`` and ``settling-anisotropy`` of tables that were made layer by layer."""
    answers: dict[tuple[str, str, int], list[tuple[Any, bool]]] = {}
    for row in rows:
        check = {"proxy": "settling", "anisotropy": "settling-anisotropy"}.get(row.check)
        if check and row.method in methods and row.value is not None and row.chance is not None and row.p is not None:
            least = row.value if row.low is None else row.low
            as_well = not (least > row.chance and row.p <= ALPHA)
            answers.setdefault((check, row.method, row.rank), []).append((row.seed, as_well))
    return [_settling_row(*key, same) for key, same in answers.items()]


def _refit_row(found: Evidence, name: str, rank: int, layer_seed: Any, layer: Any, seed: int) -> VerifyRow:
    angle = float(principal_angles(*found.subspaces).mean().rad2deg())
    pairs = zip(*random_frames(found.subspaces[0], seed), strict=True)
    angles = [float(principal_angles(Subspace(a), Subspace(b)).mean().rad2deg()) for a, b in pairs]
    n, chance = found.units or found.n, sum(angles) / len(angles)
    return VerifyRow("refit", name, rank, layer_seed, layer, angle, None, None, None, chance, n)


def _settling_row(check: str, name: str, rank: int, answers: list[tuple[Any, bool]]) -> VerifyRow:
    """Layers of one model are judged on the same sequences, so the interval counts seeds, not layers."""
    n, seeds, as_well = len(answers), len({seed for seed, _ in answers}), sum(same for _, same in answers)
    share = as_well / n
    low, high = _wilson(share, seeds)
    note = f"{as_well} of {n} layers and seeds; interval by the number of seeds, {seeds}"
    return VerifyRow(check, name, rank, None, None, share, low, high, None, 1.0 - ALPHA / 2, n, note)


def _wilson(share: float, n: int) -> tuple[float, float]:
    """95 % interval of a proportion (Wilson 1927) of n seeds.

    Layers answer apart, so the share need not be a whole number of seeds: the lower end counts down, the upper one up.
    """
    fewest, most = math.floor(share * n + _ROUNDING), math.ceil(share * n - _ROUNDING)
    low, high = (binomtest(k, n).proportion_ci(method="wilson") for k in (fewest, most))
    return float(low.low), float(high.high)
