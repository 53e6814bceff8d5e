"""Fit on one fold of sequences, judge on the other, both ways. Letters: n sequences, T positions, D width, K rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.evidence.conclude import conclude
from anisoscope.evidence.fold import prepare, require_initial
from anisoscope.evidence.inference import FEWEST_UNITS
from anisoscope.evidence.result import Evidence
from anisoscope.geometry.results import Estimate
from anisoscope.geometry.subspace import Method, Subspace, fit_subspace
from anisoscope.stats.given import as_tensor
from anisoscope.stats.hashing import as_key, mix


def fold_of(ids: Tensor, *, seed: int = 0) -> Tensor:
    """0 or 1 for each sequence (or type) by a fixed hash of its id and the seed."""
    return as_key(mix(mix(ids.to(torch.int64)), seed=seed)) & 1


def cross_fit(
    activations: Any,
    gradients: Any = None,
    *,
    method: Method | Callable[[Tensor], Subspace] = "pca",
    rank: int | str = 32,
    nulls: Sequence[str] = ("haar",),
    groups: Any = None,
    folds: Any = None,
    deltas: Any = None,
    strata: Any = None,
    shuffled: Any = None,
    uniform: Any = None,
    initial: Evidence | None = None,
    radial: bool = False,
    resamples: int = 999,
    generator: torch.Generator | None = None,
    isotropy: bool = True,
) -> Evidence:
    """Judge a proxy on tokens it was not fitted on: two folds of sequences, both ways, pooled.

    ``activations`` and ``gradients`` are ``(n, T, D)``, or rows with ``groups``. In the weight view ``activations``
    are the inputs ``(n, T, D)`` and ``deltas (n, T, E)`` stand in place of gradients: each fold's ``G`` is formed from
    its own sequences. ``method`` may also be a function from rows to a ``Subspace``. ``folds`` (0 or 1, one a
    sequence) overrides the hash of the ids (without ids, halves
    by hash of the place). A fold under 2 sequences is an error; under 4, values are given without p and
    intervals.

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> x, g = torch.randn(2, 16, 20, 12, generator=generator)
    >>> found = cross_fit(x, g, rank=3)
    >>> found.units, len(found.subspaces), found.p["haar"] > 0.05
    (16, 2, True)
    """
    require_initial(nulls, initial)
    seed = 0 if generator is None else generator.initial_seed()
    x = as_tensor(activations).detach()
    weight = deltas is not None
    if (gradients is None) == (deltas is None):
        raise broken("cross_fit needs gradients, or deltas in the weight view", "both or neither", "pass one of them")
    if x.ndim not in (2, 3) or (weight and x.ndim != 3):
        raise broken("activations must be (n, T, D), or rows with groups", f"shape {tuple(x.shape)}", "stack sequences")
    ids = _ids(x, groups)
    unique, place = torch.unique(ids, return_inverse=True)
    if folds is not None:
        side = _given_folds(folds, unique, ids)
    elif groups is None:
        side = _halves(unique, seed)
    else:
        side = fold_of(unique, seed=seed)
    sizes = [int((side == f).sum()) for f in (0, 1)]
    if min(sizes) < 2:
        raise broken(
            "each fold must hold at least 2 sequences",
            f"{sizes[0]} and {sizes[1]}",
            "observe more sequences in a batch",
        )
    member = side[place]
    if isinstance(rank, str) and not callable(method):  # one rank for both folds, resolved on all rows
        rank = fit_subspace(
            x.reshape(-1, x.shape[-1]), method="pca" if method == "semi_nmf" else method, rank=rank
        ).rank
    prepared = []
    for fit_on in (0, 1):
        inside, held = member == fit_on, member != fit_on
        rows = x[inside].reshape(-1, x.shape[-1])
        if callable(method):
            subspace = method(rows)
        else:
            subspace = replace(fit_subspace(rows, method=method, rank=rank, generator=generator), factors=None)
        picked = {
            name: _pick(value, held)
            for name, value in (("strata", strata), ("shuffled", shuffled), ("uniform", uniform))
        }
        inputs = held_deltas = None
        if weight:
            inputs, held_deltas = x[held], _pick(deltas, held)
            cloud: Any = inputs.flatten(0, 1).double()
            own = as_tensor(held_deltas).detach().flatten(0, 1).double().T @ cloud
        else:
            own = _pick(gradients, held)
        prepared.append(
            prepare(
                own,
                subspace,
                nulls=nulls,
                activations=x[held] if radial and not weight else None,
                inputs=inputs,
                deltas=held_deltas,
                groups=ids[held],
                resamples=resamples,
                seed=seed,
                **picked,
            )
        )
    if len({f.subspace.rank for f in prepared}) > 1:
        raise broken("both folds must have one rank", [f.subspace.rank for f in prepared], "give the rank as a number")
    found = conclude(prepared, nulls=nulls, initial=initial, resamples=resamples, seed=seed, isotropy=isotropy)
    return _without_inference(found, sizes) if min(sizes) < FEWEST_UNITS else found


def _halves(ids: Tensor, seed: int) -> Tensor:
    """Two folds of equal size by the order of the hashes: for sequences that have a place in a batch but no id."""
    order = as_key(mix(mix(ids.to(torch.int64)), seed=seed)).argsort()
    side = torch.zeros(len(ids), dtype=torch.int64, device=ids.device)
    side[order[len(ids) // 2 :]] = 1
    return side


def _ids(x: Tensor, groups: Any) -> Tensor:
    """One id a sequence, or a row."""
    if groups is None:
        if x.ndim == 2:
            raise broken("rows must come with groups", "none", "pass the sequence id of each row")
        return torch.arange(len(x), device=x.device)
    ids = as_tensor(groups).reshape(-1).to(x.device)
    if len(ids) != len(x):
        raise broken(f"groups must have one id for each of {len(x)}", len(ids), "pass sequence ids")
    return ids


def _given_folds(folds: Any, unique: Tensor, ids: Tensor) -> Tensor:
    given = as_tensor(folds).reshape(-1).to(unique.device).long()
    if len(given) != len(ids) or not bool(((given == 0) | (given == 1)).all()):
        raise broken(f"folds must be 0 or 1, one for each of {len(ids)}", f"{len(given)} values", "pass one a sequence")
    side = torch.zeros(len(unique), dtype=torch.int64, device=unique.device)
    side[torch.searchsorted(unique, ids)] = given
    if not bool((side[torch.searchsorted(unique, ids)] == given).all()):
        raise broken("a sequence must lie in one fold", "rows of one sequence in both", "assign folds by sequence")
    return side


def _pick(value: Any, held: Tensor) -> Any:
    if value is None:
        return None
    tensor = as_tensor(value)
    if tensor.shape[0] != held.shape[0]:
        raise broken(
            f"everything given must be of the same {held.shape[0]} sequences or rows", tensor.shape[0], "pass one batch"
        )
    return tensor[held.to(tensor.device)]


def _without_inference(found: Evidence, sizes: list[int]) -> Evidence:
    note = f"folds of {sizes[0]} and {sizes[1]} sequences: no p and no intervals below {FEWEST_UNITS}"
    plain = {name: Estimate(value=e.value, n=e.n, note=note) for name, e in found.enrichment.items()}
    return replace(found, enrichment=plain, p={}, p_paper=None, isotropy_gain_p=None, note=note)
