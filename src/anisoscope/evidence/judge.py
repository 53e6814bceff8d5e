"""A proxy judged against true gradients, beside every null it is asked to beat.

Letters: N rows, D width, K rank, n sequences, T positions, R draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.evidence.energy import EnergyShare, energy_share, gradient_rows, require_width, row_energies
from anisoscope.evidence.inference import FEWEST_UNITS, interval, jackknife_error, log_odds, paired, swap_p, two_sided_p
from anisoscope.evidence.pairing import PERMUTATIONS, PairingNull, sequence_null, token_null
from anisoscope.evidence.spectral import axes_draws, axes_mean, haar_draws, isotropy_gain, normal_draws
from anisoscope.evidence.units import AdditiveUnits, BilinearUnits, Units, left_out, totals
from anisoscope.geometry.results import Estimate
from anisoscope.geometry.subspace import Subspace
from anisoscope.stats.moments import Moments

NULLS = ("haar", "normal", "pairing", "pairing-token", "axes", "init", "targets", "targets-uniform")
_NEEDS = {
    "pairing": "inputs and deltas of shape (n, T, ·)",
    "pairing-token": "inputs and deltas as rows or Moments",
    "init": "initial, the Evidence of step 0",
    "targets": "shuffled, the gradients under permuted labels",
    "targets-uniform": "uniform, the gradients under uniform labels",
}


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """What a proxy captures of a gradient cloud, and what each null would.

    ``enrichment[null]`` is the odds ratio of the energy share over the null's mean share (for ``normal`` the paper's
    plain ratio, which equals the odds ratio over ``haar``), with an interval where sequences allow one. ``p[null]`` is
    two-sided. ``note`` says why nothing could be determined, if so.
    """

    energy: float
    inside: float
    outside: float
    width: int
    rank: int
    n: int
    units: int | None
    seed: int
    resamples: int
    enrichment: dict[str, Estimate] = field(default_factory=dict)
    mean: dict[str, float] = field(default_factory=dict)
    p: dict[str, float] = field(default_factory=dict)
    p_paper: float | None = None
    isotropy_before: float | None = None
    isotropy_gain: float | None = None
    isotropy_gain_zeta0: float | None = None
    isotropy_gain_null: float | None = None
    isotropy_gain_p: float | None = None
    radial: float | None = None
    note: str | None = None
    subspaces: tuple[Subspace, ...] = field(default=(), repr=False)
    folds: tuple[Units, ...] | None = field(default=None, repr=False)

    @property
    def undetermined(self) -> bool:
        """Whether there was nothing to judge."""
        return self.note is not None and math.isnan(self.energy)

    @property
    def captured(self) -> float | None:
        """Share of the gradient's anisotropy that the proxy carries: ``gain / (1 − before)``."""
        if self.isotropy_gain is None or self.isotropy_before is None:
            return None
        return self.isotropy_gain / (1 - self.isotropy_before) if self.isotropy_before < 1 else math.nan


def judge(
    gradients: Any,
    subspace: Subspace,
    *,
    nulls: Sequence[str] = ("haar",),
    activations: Any = None,
    inputs: Any = None,
    deltas: Any = None,
    strata: Any = None,
    shuffled: Any = None,
    uniform: Any = None,
    initial: Evidence | None = None,
    groups: Any = None,
    resamples: int = 999,
    generator: torch.Generator | None = None,
    isotropy: bool = True,
) -> Evidence:
    """Judge a subspace against gradients: rows, ``(n, T, D)``, or ``Moments``.

    ``groups`` has one id a row (or a sequence) and gives intervals and paired tests by group; ``(n, T, D)`` gradients
    are grouped by sequence. With ``pairing`` or ``pairing-token`` the gradients are the rows of ``G = deltasᵀ inputs``
    and must equal it. ``shuffled`` and ``uniform`` are gradients of the same tokens under other labels (in the weight
    view ``(n, T, E)`` deltas), ``initial`` the ``Evidence`` of step 0 with its own proxy. ``activations`` are rows
    aligned with the gradients, for ``.radial`` alone.

    >>> import torch
    >>> from anisoscope.geometry.subspace import fit_subspace
    >>> g = torch.randn(512, 16, generator=torch.Generator().manual_seed(0)) * torch.linspace(3, 1, 16)
    >>> evidence = judge(g, fit_subspace(g, method="pca", rank=4), groups=torch.arange(512) // 32)
    >>> evidence.enrichment["haar"].low > 1, evidence.p["haar"] <= 0.01
    (True, True)
    """
    require_initial(nulls, initial)
    seed = 0 if generator is None else generator.initial_seed()
    fold = prepare(
        gradients,
        subspace,
        nulls=nulls,
        activations=activations,
        inputs=inputs,
        deltas=deltas,
        strata=strata,
        shuffled=shuffled,
        uniform=uniform,
        groups=groups,
        resamples=resamples,
        seed=seed,
    )
    return conclude([fold], nulls=nulls, initial=initial, resamples=resamples, seed=seed, isotropy=isotropy)


@dataclass(frozen=True, slots=True, eq=False)
class Fold:
    """One gradient cloud and one subspace, measured but not yet concluded upon."""

    subspace: Subspace
    share: EnergyShare
    second: Tensor
    covariance: Tensor
    n: int
    units: Units | None
    radial: tuple[float, float] | None
    targets: dict[str, tuple[EnergyShare, Units | None]]
    pairing: dict[str, PairingNull]


def prepare(
    gradients: Any,
    subspace: Subspace,
    *,
    nulls: Sequence[str],
    activations: Any,
    inputs: Any,
    deltas: Any,
    strata: Any,
    shuffled: Any,
    uniform: Any,
    groups: Any,
    resamples: int,
    seed: int,
) -> Fold:
    """Check everything that can be wrong, then measure one fold."""
    _check_request(nulls, subspace, inputs, deltas, strata, shuffled, uniform, resamples)
    weight = _ndim(inputs) == 3 and _ndim(deltas) == 3
    moments, rows, row_groups = _resolved(gradients, groups, weight)
    device = moments.mean.device
    dtypes = [t.dtype for t in (gradients, inputs, deltas) if isinstance(t, Tensor)]
    inputs, deltas = _beside("inputs", inputs, device), _beside("deltas", deltas, device)
    shuffled, uniform = _beside("shuffled", shuffled, device), _beside("uniform", uniform, device)
    require_width(moments.width, subspace)
    if "pairing" in nulls or "pairing-token" in nulls:
        _require_same_gradient(moments, inputs, deltas, dtypes)
    subspace = subspace.to(moments.mean.device)
    share = energy_share(rows if rows is not None else moments, subspace)
    units: Units | None = None
    if weight:
        units = _bilinear(inputs, deltas, subspace, groups)
    elif rows is not None and row_groups is not None:
        units = _additive(rows, subspace, row_groups)
    targets = {}
    for name, other in (("targets", shuffled), ("targets-uniform", uniform)):
        if name in nulls:
            targets[name] = _other_labels(other, subspace, inputs if weight else None, groups, row_groups, name)
    pairing = {}
    if "pairing" in nulls:
        draws = min(resamples, PERMUTATIONS)
        pairing["pairing"] = sequence_null(inputs, deltas, subspace.basis, strata=strata, draws=draws, seed=seed)
    if "pairing-token" in nulls:
        draws = min(resamples, PERMUTATIONS)
        pairing["pairing-token"] = token_null(inputs, deltas, subspace.basis, strata=strata, draws=draws, seed=seed)
    radial = _radial(rows, activations)
    n = round(float(moments.count))
    return Fold(subspace, share, moments.second, moments.covariance, n, units, radial, targets, pairing)


def conclude(
    folds: Sequence[Fold],
    *,
    nulls: Sequence[str],
    initial: Evidence | None,
    resamples: int,
    seed: int,
    isotropy: bool = True,
) -> Evidence:
    """Pool folds as ``(num₁ + num₂)/(den₁ + den₂)``, each null draw with the same random numbers in every fold."""
    inside, outside = sum(f.share.inside for f in folds), sum(f.share.outside for f in folds)
    width, rank = folds[0].subspace.width, folds[0].subspace.rank
    units = None if any(f.units is None for f in folds) else [f.units for f in folds if f.units is not None]
    base = Evidence(
        energy=inside / (inside + outside) if inside + outside > 0 else math.nan,
        inside=inside,
        outside=outside,
        width=width,
        rank=rank,
        n=sum(f.n for f in folds),
        units=None if units is None else sum(len(u.ids) for u in units),
        seed=seed,
        resamples=resamples,
        subspaces=tuple(f.subspace for f in folds),
        folds=None if units is None else tuple(units),
        radial=_pooled_radial(folds),
    )
    if inside + outside == 0:
        note = "gradients must have energy to be judged, got 0 everywhere; was backward called before the observation?"
        return replace(base, note=note)
    observed = math.log(inside / outside) if inside > 0 and outside > 0 else (math.inf if inside > 0 else -math.inf)
    lost = left_out(units) if units is not None else None
    lost_odds = None if lost is None else log_odds(lost.inside, lost.outside)
    enrichment: dict[str, Estimate] = {}
    means: dict[str, float] = {}
    p: dict[str, float] = {}
    p_paper = None
    for null in nulls:
        found = _against(null, folds, units, initial, base, lost_odds, observed, resamples, seed)
        means[null] = found.mean
        enrichment[null] = _odds_ratio(observed, found, base)
        if null == "normal":
            p_paper = found.p
        elif found.p is not None:
            p[null] = found.p
    result = replace(base, enrichment=enrichment, mean=means, p=p, p_paper=p_paper)
    return _with_isotropy(result, folds, resamples, seed) if isotropy else result


@dataclass(frozen=True, slots=True)
class _Null:
    """Mean share and its log odds; p; the standard error of the log odds ratio and the units it rests on."""

    mean: float
    odds: float
    p: float | None
    error: float | None = None
    units: int = 0


def _against(
    null: str,
    folds: Sequence[Fold],
    units: Sequence[Units] | None,
    initial: Evidence | None,
    base: Evidence,
    lost_odds: Tensor | None,
    observed: float,
    resamples: int,
    seed: int,
) -> _Null:
    count = base.units or 0
    chance = base.rank / base.width
    if chance == 1:
        return _Null(1.0, math.nan, 1.0)
    if null in ("haar", "normal"):
        error = None if lost_odds is None else jackknife_error(lost_odds)
        if null == "haar":
            mean, draws = chance, [haar_draws(f.second[None], base.rank, resamples, seed) for f in folds]
        else:
            mean = (1 - base.energy) * base.rank / (base.width - base.rank)
            draws = [normal_draws(f.second[None], f.subspace.basis[None], resamples, seed) for f in folds]
        # Over `normal` the plain ratio is defined, and it is the odds ratio over `haar`.
        return _Null(mean, math.log(chance / (1 - chance)), _p(observed, draws), error, count)
    if null == "axes":
        axes = float(torch.stack([axes_mean(f.second[None], f.subspace.basis[None]) for f in folds]).sum())
        draws = [axes_draws(f.second[None], f.subspace.basis[None], resamples, seed) for f in folds]
        error = None
        if units is not None and lost_odds is not None:
            lost = left_out(units)
            error = jackknife_error(lost_odds - log_odds(lost.axes, lost.inside + lost.outside - lost.axes))
        total = base.inside + base.outside
        return _Null(axes / total, _logit(axes, total - axes), _p(observed, draws), error, count)
    if null in ("pairing", "pairing-token"):
        return _against_pairing(null, folds, lost_odds, observed, count)
    if null == "init":
        assert initial is not None, "checked by require_initial"
        return _against_initial(initial, units, lost_odds, base, resamples, seed)
    return _against_targets(null, folds, units, lost_odds, resamples, seed, count)


def _against_pairing(null: str, folds: Sequence[Fold], lost_odds: Tensor | None, observed: float, count: int) -> _Null:
    found = [f.pairing[null] for f in folds]
    inside, outside = sum(f.inside for f in found), sum(f.outside for f in found)
    p = error = None
    if all(f.draws is not None for f in found):
        drawn = [f.draws for f in found if f.draws is not None]
        together = log_odds(sum(d[0] for d in drawn), sum(d[1] for d in drawn))  # type: ignore[arg-type]
        p = two_sided_p(observed, together)
    lost = [f.left_out for f in found if f.left_out is not None]
    if lost_odds is not None and len(lost) == len(found) and sum(len(part[0]) for part in lost) == len(lost_odds):
        null_odds = torch.cat(
            [
                log_odds(part[0] + inside - f.inside, part[1] + outside - f.outside)
                for part, f in zip(lost, found, strict=True)
            ]
        )
        error = jackknife_error(lost_odds - null_odds.to(lost_odds))
    return _Null(inside / (inside + outside), _logit(inside, outside), p, error, count)


def _against_targets(
    null: str,
    folds: Sequence[Fold],
    units: Sequence[Units] | None,
    lost_odds: Tensor | None,
    resamples: int,
    seed: int,
    count: int,
) -> _Null:
    found = [f.targets[null] for f in folds]
    inside, outside = sum(share.inside for share, _ in found), sum(share.outside for share, _ in found)
    if inside + outside == 0:
        return _Null(math.nan, math.nan, None)
    others = [u for _, u in found if u is not None]
    if units is None or lost_odds is None or len(others) < len(found):
        return _Null(inside / (inside + outside), _logit(inside, outside), None)
    lost = left_out(others)
    error = jackknife_error(lost_odds - log_odds(lost.inside, lost.outside))
    p = swap_p(units, others, resamples, seed)
    return _Null(inside / (inside + outside), _logit(inside, outside), p, error, count)


def _against_initial(
    initial: Evidence,
    units: Sequence[Units] | None,
    lost_odds: Tensor | None,
    base: Evidence,
    resamples: int,
    seed: int,
) -> _Null:
    odds = _logit(initial.inside, initial.outside)
    if initial.undetermined or units is None or lost_odds is None or initial.folds is None:
        return _Null(initial.energy, odds, None)
    if len(units) != len(initial.folds) or any(
        type(a) is not type(b) for a, b in zip(units, initial.folds, strict=True)
    ):
        raise broken(
            "initial must be judged as this evidence is (same view, same number of folds)",
            f"{len(initial.folds)} folds",
            "judge step 0 with the same call",
        )
    lost = left_out(initial.folds)
    initial_lost = log_odds(lost.inside, lost.outside)
    same = all(paired(a, b) and bool((a.ids == b.ids).all()) for a, b in zip(units, initial.folds, strict=True))
    if same:
        error, count = jackknife_error(lost_odds - initial_lost), base.units or 0
    else:
        error = math.hypot(jackknife_error(lost_odds), jackknife_error(initial_lost))
        count = min(base.units or 0, initial.units or 0)
    return _Null(initial.energy, odds, swap_p(units, initial.folds, resamples, seed), error, count)


def _odds_ratio(observed: float, found: _Null, base: Evidence) -> Estimate:
    log_ratio = observed - found.odds
    if math.isnan(log_ratio):
        why = "the proxy is the whole space" if base.rank == base.width else "the null itself is undetermined"
        return Estimate(value=math.nan, n=found.units or base.n, note=why)
    bounds = None if found.error is None else interval(log_ratio, found.error, found.units)
    value = _exp(log_ratio)
    if bounds is None:
        few = found.error is not None and found.units < FEWEST_UNITS
        why = f"fewer than {FEWEST_UNITS} sequences" if few else None
        return Estimate(value=value, n=found.units or base.n, note=why)
    return Estimate(value=value, low=_exp(bounds[0]), high=_exp(bounds[1]), n=found.units)


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


def _logit(inside: float, outside: float) -> float:
    if inside <= 0 or outside <= 0:
        return math.nan if inside <= 0 and outside <= 0 else (math.inf if outside <= 0 else -math.inf)
    return math.log(inside / outside)


def _p(observed: float, draws: Sequence[Any]) -> float:
    inside, outside = (torch.stack([getattr(d, name)[0] for d in draws]).sum(0) for name in ("inside", "outside"))
    return two_sided_p(observed, log_odds(inside.clamp_min(0), outside.clamp_min(0)))


def _with_isotropy(base: Evidence, folds: Sequence[Fold], resamples: int, seed: int) -> Evidence:
    if base.width - base.rank < 2 or any(f.n < 2 or not float(f.covariance.diagonal().sum()) > 0 for f in folds):
        return base
    draws = min(resamples, PERMUTATIONS)
    gains = [isotropy_gain(f.covariance[None], f.subspace.basis[None], draws, seed) for f in folds]
    mean = {
        name: torch.stack([getattr(g, name) for g in gains]).mean(0)[0]
        for name in ("before", "gain", "gain_zeta0", "orthogonal", "haar")
    }
    return replace(
        base,
        isotropy_before=float(mean["before"]),
        isotropy_gain=float(mean["gain"]),
        isotropy_gain_zeta0=float(mean["gain_zeta0"]),
        isotropy_gain_null=float(mean["orthogonal"].mean()) if mean["orthogonal"].numel() else None,
        isotropy_gain_p=two_sided_p(float(mean["gain"]), mean["haar"]),
    )


def _pooled_radial(folds: Sequence[Fold]) -> float | None:
    parts = [f.radial for f in folds if f.radial is not None]
    if len(parts) < len(folds) or sum(total for _, total in parts) == 0:
        return None
    return sum(radial for radial, _ in parts) / sum(total for _, total in parts)


def _ndim(x: Any) -> int:
    return x.ndim if isinstance(x, Tensor | np.ndarray) else 0


def _check_request(
    nulls: Sequence[str],
    subspace: Subspace,
    inputs: Any,
    deltas: Any,
    strata: Any,
    shuffled: Any,
    uniform: Any,
    resamples: int,
) -> None:
    if resamples < 1:
        raise broken("resamples must be at least 1", resamples, "use 999")
    for null in nulls:
        if null not in NULLS:
            raise broken(f"nulls must be among {' '.join(NULLS)}", repr(null), "check the spelling")
    if "normal" in nulls and 2 * subspace.rank > subspace.width:
        raise broken(
            f"rank must be at most {subspace.width // 2} for the normal null at width {subspace.width}",
            subspace.rank,
            "lower the rank or leave normal out",
        )
    given = {
        "pairing": _ndim(inputs) == 3 and _ndim(deltas) == 3,
        "pairing-token": isinstance(strata, Mapping)
        or (inputs is not None and deltas is not None and _ndim(inputs) != 3 and _ndim(deltas) != 3),
        "targets": shuffled is not None,
        "targets-uniform": uniform is not None,
    }
    for null, present in given.items():
        if null in nulls and not present:
            raise broken(
                f"the null {null} needs {_NEEDS[null]}", "nothing of that shape", "pass it or leave the null out"
            )


def require_initial(nulls: Sequence[str], initial: Evidence | None) -> None:
    """Raise if ``init`` is asked for without the evidence of step 0."""
    if "init" in nulls and initial is None:
        raise broken(f"the null init needs {_NEEDS['init']}", "nothing", "pass initial= or leave the null out")


def _resolved(gradients: Any, groups: Any, weight: bool) -> tuple[Moments, Tensor | None, Tensor | None]:
    """Moments, rows where there are any, and one group a row where there are groups."""
    if isinstance(gradients, Moments):
        if not bool(torch.isfinite(gradients.scatter).all()):
            raise broken("gradients must be finite", "NaN or Inf", "skip this observation; is the loss scale too high?")
        if groups is not None and not weight:
            raise broken("groups need gradients as rows", "Moments", "pass the rows, or leave groups out")
        return gradients, None, None
    rows = gradient_rows(gradients)
    moments = Moments.of(rows.double(), higher=False)
    if weight:
        return moments, rows, None
    if _ndim(gradients) == 3:
        n, length = gradients.shape[:2]
        ids = torch.arange(n) if groups is None else torch.as_tensor(groups).reshape(-1)
        if ids.shape[0] != n:
            raise broken(f"groups must have one id a sequence ({n})", ids.shape[0], "pass sequence ids")
        groups = ids.repeat_interleave(length)
    if groups is None:
        return moments, rows, None
    ids = torch.as_tensor(groups).reshape(-1).to(rows.device)
    if ids.shape[0] != rows.shape[0]:
        raise broken(
            f"groups must have one id a row ({rows.shape[0]})", ids.shape[0], "pass the sequence id of each token"
        )
    if torch.unique(ids).numel() < 2:
        raise broken(
            "groups must hold at least 2 different sequences", 1, "observe more sequences, or pass groups=None"
        )
    return moments, rows, ids


def _additive(rows: Tensor, subspace: Subspace, groups: Tensor) -> AdditiveUnits:
    inside, outside = row_energies(rows, subspace)
    axes = rows.double().square() @ subspace.basis.square().sum(1)
    return AdditiveUnits.of(inside, outside, axes, groups)


def _bilinear(inputs: Any, deltas: Any, subspace: Subspace, groups: Any) -> BilinearUnits:
    x, d = torch.as_tensor(inputs).detach(), torch.as_tensor(deltas).detach()
    if x.shape[:2] != d.shape[:2]:
        raise broken(
            "inputs and deltas must be of the same sequences",
            f"{tuple(x.shape)} and {tuple(d.shape)}",
            "pass (n, T, D) and (n, T, E)",
        )
    ids = torch.arange(len(x)) if groups is None else torch.as_tensor(groups).reshape(-1)
    if ids.shape[0] != len(x):
        raise broken(f"groups must have one id a sequence ({len(x)})", ids.shape[0], "pass sequence ids")
    unique, place = torch.unique(ids, return_inverse=True)
    if len(unique) < 2:
        raise broken("groups must hold at least 2 different sequences", len(unique), "observe more sequences")
    return BilinearUnits(unique.to(x.device), x, d, subspace.basis, place.to(x.device))


def _other_labels(
    other: Any, subspace: Subspace, inputs: Any, groups: Any, row_groups: Tensor | None, name: str
) -> tuple[EnergyShare, Units | None]:
    """Energy of the gradients under other labels, with units where they can be paired."""
    if isinstance(other, Moments):
        return energy_share(other, subspace), None
    if inputs is not None and _ndim(other) == 3:
        units = _bilinear(inputs, other, subspace, groups)
        total = totals([units])
        return EnergyShare(float(total.inside), float(total.outside)), units
    rows = gradient_rows(other)
    share = energy_share(rows, subspace)
    if inputs is not None or row_groups is None:
        return share, None
    if len(rows) != len(row_groups):
        raise broken(
            f"gradients of {name} must be of the same tokens ({len(row_groups)} rows)",
            len(rows),
            "run the same batch with other labels",
        )
    return share, _additive(rows, subspace, row_groups)


def _beside(name: str, x: Any, device: torch.device) -> Any:
    """A tensor beside the gradients, finite and of at least float32; moments are left as they are."""
    if not isinstance(x, Tensor | np.ndarray):
        return x
    tensor = torch.as_tensor(x).detach().to(device)
    if not tensor.is_floating_point():
        raise broken(f"{name} must be of a real floating-point dtype", tensor.dtype, "convert with .float()")
    if not bool(torch.isfinite(tensor).all()):
        raise broken(f"{name} must be finite", "NaN or Inf", "skip this observation; is the loss scale too high?")
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _require_same_gradient(moments: Moments, inputs: Any, deltas: Any, dtypes: Sequence[torch.dtype]) -> None:
    """With a pairing null the gradients must be ``deltasᵀ inputs``; from moments of tokens that cannot be checked."""
    if not isinstance(inputs, Tensor) or not isinstance(deltas, Tensor):
        return
    x, d = (torch.as_tensor(t).detach().reshape(-1, t.shape[-1]).double() for t in (inputs, deltas))
    if len(x) != len(d):
        raise broken("inputs and deltas must be of the same tokens", f"{len(x)} and {len(d)}", "pass aligned rows")
    require = d.T @ x
    expected = (require.T @ require).to(moments.mean.device)
    gap = float(torch.linalg.matrix_norm(moments.second - expected))
    size = float(torch.linalg.matrix_norm(expected))
    # A sum of many products in a dtype of precision ε is off by some √ε at worst; a wrong gradient by far more.
    rounding = max([torch.finfo(dtype).eps for dtype in dtypes], default=torch.finfo(torch.float64).eps) ** 0.5
    if not gap <= rounding * size:
        raise broken(
            "with a pairing null the gradients must be the rows of deltasᵀ inputs",
            f"a second moment {gap / max(size, 1e-300):.2g} away",
            "pass G = deltas.T @ inputs of the same tokens",
        )


def _radial(rows: Tensor | None, activations: Any) -> tuple[float, float] | None:
    if activations is None:
        return None
    if rows is None:
        raise broken("the radial share needs gradients as rows", "Moments", "pass rows or leave activations out")
    h = gradient_rows(activations)
    if h.shape != rows.shape:
        raise broken(
            f"activations must be aligned with the gradients {tuple(rows.shape)}", tuple(h.shape), "use the same rows"
        )
    h, g = h.double(), rows.double()
    unit = h / torch.linalg.vector_norm(h, dim=1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    return float((g * unit).sum(1).square().sum()), float(g.square().sum())
