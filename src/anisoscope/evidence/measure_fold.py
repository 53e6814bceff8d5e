"""One gradient cloud and one subspace: everything that can be wrong is checked, then all that nulls need is measured.

Letters: N rows, D width, K rank, n sequences, T positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.evidence.energy import EnergyShare, energy_share, gradient_rows, require_width, row_energies
from anisoscope.evidence.pairing_classes import PairingNull
from anisoscope.evidence.pairing_tokens import PERMUTATIONS, token_null
from anisoscope.evidence.result import Evidence
from anisoscope.evidence.sequence_pairing import sequence_null
from anisoscope.evidence.units import AdditiveUnits, BilinearUnits, Units, totals
from anisoscope.geometry.subspace import Subspace
from anisoscope.stats.as_tensor import as_tensor
from anisoscope.stats.moments import Moments
from anisoscope.stats.row_chunks import rows_per_chunk
from anisoscope.vocabulary import LABEL_NULLS, NULLS


@dataclass(frozen=True, slots=True, eq=False)
class Fold:
    """One gradient cloud and one subspace, measured but not yet concluded upon."""

    subspace: Subspace
    share: EnergyShare
    second: Tensor
    covariance: Tensor
    n: int
    units: Units | None
    sample: tuple[Tensor, Tensor] | None = None  # rows that belong to units, and which
    radial: tuple[float, float] | None = None
    targets: dict[str, tuple[EnergyShare, Units | None]] = field(default_factory=dict)
    pairing: dict[str, PairingNull] = field(default_factory=dict)


def measure_fold(
    gradients: Any,
    subspace: Subspace,
    *,
    nulls: Sequence[str],
    groups: Any,
    others: Mapping[str, Any],
    resamples: int,
    seed: int,
    activations: Any = None,
    inputs: Any = None,
    deltas: Any = None,
    strata: Any = None,
) -> Fold:
    """Check everything that can be wrong, then measure one fold."""
    _check_request(nulls, subspace, inputs, deltas, strata, others, resamples)
    weight = _ndim(inputs) == 3 and _ndim(deltas) == 3
    moments, rows, row_groups = _resolved(gradients, groups, weight)
    device = moments.mean.device
    dtypes = [t.dtype for t in (gradients, inputs, deltas) if isinstance(t, Tensor)]
    inputs, deltas = _beside("inputs", inputs, device), _beside("deltas", deltas, device)
    others = {name: _beside(f"gradients of {name}", other, device) for name, other in others.items()}
    require_width(moments.width, subspace)
    if "pairing" in nulls or "pairing-token" in nulls:
        _require_same_gradient(moments, inputs, deltas, dtypes)
    subspace = subspace.to(moments.mean.device)
    share = energy_share(rows if rows is not None else moments, subspace)
    units: Units | None = None
    if weight:
        units = _bilinear(inputs, deltas, subspace, groups)
    elif rows is not None and row_groups is not None:
        units = additive_units(rows, subspace, row_groups)
    targets = {
        name: _other_labels(others[name], subspace, inputs if weight else None, groups, row_groups, name)
        for name in LABEL_NULLS
        if name in nulls
    }
    pairing = {}
    if "pairing" in nulls:
        unit = units.place if isinstance(units, BilinearUnits) else None
        options = {"strata": strata, "units": unit, "draws": resamples, "seed": seed}
        pairing["pairing"] = sequence_null(inputs, deltas, subspace.basis, **options)
    if "pairing-token" in nulls:
        draws = min(resamples, PERMUTATIONS)
        pairing["pairing-token"] = token_null(inputs, deltas, subspace.basis, strata=strata, draws=draws, seed=seed)
    radial = _radial(rows, activations)
    n = round(float(moments.count))
    sample = None if rows is None or row_groups is None else (rows, row_groups)
    return Fold(subspace, share, moments.second, moments.covariance, n, units, sample, radial, targets, pairing)


def require_initial(nulls: Sequence[str], initial: Evidence | None) -> None:
    """Raise if ``init`` is asked for without the evidence of step 0."""
    if "init" in nulls and initial is None:
        raise broken(f"the null init needs {NULLS['init'].needs}", "nothing", "pass initial= or leave the null out")


def _ndim(x: Any) -> int:
    return x.ndim if isinstance(x, Tensor | np.ndarray) else 0


def _check_request(
    nulls: Sequence[str],
    subspace: Subspace,
    inputs: Any,
    deltas: Any,
    strata: Any,
    others: Mapping[str, Any],
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
    }
    given |= {name: others.get(name) is not None for name in LABEL_NULLS}
    for null, present in given.items():
        if null in nulls and not present:
            raise broken(
                f"the null {null} needs {NULLS[null].needs}", "nothing of that shape", "pass it or leave the null out"
            )


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
        ids = torch.arange(n, device="cpu") if groups is None else as_tensor(groups).reshape(-1)
        if ids.shape[0] != n:
            raise broken(f"groups must have one id a sequence ({n})", ids.shape[0], "pass sequence ids")
        groups = ids.repeat_interleave(length)
    if groups is None:
        return moments, rows, None
    ids = as_tensor(groups).reshape(-1).to(rows.device)
    if ids.shape[0] != rows.shape[0]:
        raise broken(
            f"groups must have one id a row ({rows.shape[0]})", ids.shape[0], "pass the sequence id of each token"
        )
    if torch.unique(ids).numel() < 2:
        raise broken(
            "groups must hold at least 2 different sequences", 1, "observe more sequences, or pass groups=None"
        )
    return moments, rows, ids


def additive_units(rows: Tensor, subspace: Subspace, groups: Tensor) -> AdditiveUnits:
    """Energies of rows summed by group."""
    return AdditiveUnits.of(*row_energies(rows, subspace), groups)


def _bilinear(inputs: Any, deltas: Any, subspace: Subspace, groups: Any) -> BilinearUnits:
    x, d = as_tensor(inputs).detach(), as_tensor(deltas).detach()
    if x.shape[:2] != d.shape[:2]:
        raise broken(
            "inputs and deltas must be of the same sequences",
            f"{tuple(x.shape)} and {tuple(d.shape)}",
            "pass (n, T, D) and (n, T, E)",
        )
    ids = torch.arange(len(x), device="cpu") if groups is None else as_tensor(groups).reshape(-1)
    if ids.shape[0] != len(x):
        raise broken(f"groups must have one id a sequence ({len(x)})", ids.shape[0], "pass sequence ids")
    unique, place = torch.unique(ids, return_inverse=True)
    if len(unique) < 2:
        raise broken("groups must hold at least 2 different sequences", len(unique), "observe more sequences")
    return BilinearUnits(unique.cpu(), x, d, subspace.basis.to(x.device), place.to(x.device))


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
    return share, additive_units(rows, subspace, row_groups)


def _beside(name: str, x: Any, device: torch.device) -> Any:
    """A tensor beside the gradients, finite and of at least float32; moments are left as they are."""
    if not isinstance(x, Tensor | np.ndarray):
        return x
    tensor = as_tensor(x).detach().to(device)
    if not tensor.is_floating_point():
        raise broken(f"{name} must be of a real floating-point dtype", tensor.dtype, "convert with .float()")
    if not bool(torch.isfinite(tensor).all()):
        raise broken(f"{name} must be finite", "NaN or Inf", "skip this observation; is the loss scale too high?")
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _require_same_gradient(moments: Moments, inputs: Any, deltas: Any, dtypes: Sequence[torch.dtype]) -> None:
    """With a pairing null the gradients must be ``deltasᵀ inputs``; from moments of tokens that cannot be checked."""
    if not isinstance(inputs, Tensor) or not isinstance(deltas, Tensor):
        return
    x, d = (as_tensor(t).detach().reshape(-1, t.shape[-1]).double() for t in (inputs, deltas))
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
    return radial_energy(rows, h)


def radial_energy(gradients_ND: Tensor, activations_ND: Tensor) -> tuple[float, float]:
    """Energy of the gradients along the activation of their own token, and all of it."""
    radial = total = 0.0
    rows = rows_per_chunk(gradients_ND)
    for g_part, h_part in zip(gradients_ND.split(rows), activations_ND.split(rows), strict=True):
        g, h = g_part.double(), h_part.double()
        norm = torch.linalg.vector_norm(h, dim=1).clamp_min(torch.finfo(torch.float64).tiny)
        radial += float(((g * h).sum(1) / norm).square().sum())
        total += float(g.square().sum())
    return radial, total
