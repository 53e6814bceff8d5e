"""Fit on one fold of sequences, judge on the other, both ways. Letters: n sequences, T positions, D width, K rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.evidence.inference import FEWEST_UNITS
from anisoscope.evidence.measure_fold import Fold, measure_fold, require_initial
from anisoscope.evidence.pool_folds import pool_folds
from anisoscope.evidence.result import Evidence
from anisoscope.geometry.results import Estimate
from anisoscope.geometry.subspace import Method, Subspace, fit_subspace
from anisoscope.stats.as_tensor import as_tensor
from anisoscope.stats.hashing import as_key, mix
from anisoscope.vocabulary import PROXIES


def fold_of(ids: Tensor, *, seed: int = 0) -> Tensor:
    """0 or 1 for each sequence (or type) by a fixed hash of its id and the seed."""
    return as_key(mix(mix(ids.to(torch.int64)), seed=seed)) & 1


@dataclass(frozen=True, slots=True)
class _Request:
    """What a judgement of two folds is asked for."""

    method: Method | Callable[[Tensor], Subspace]
    rank: int | str
    nulls: Sequence[str]
    initial: Evidence | None
    resamples: int
    generator: torch.Generator | None
    isotropy: bool

    @property
    def seed(self) -> int:
        return 0 if self.generator is None else self.generator.initial_seed()


def cross_fit(
    activations: Any,
    gradients: Any,
    *,
    method: Method | Callable[[Tensor], Subspace] = "pca",
    rank: int | str = 32,
    nulls: Sequence[str] = ("haar",),
    groups: Any = None,
    folds: Any = None,
    others: Mapping[str, Any] | None = None,
    initial: Evidence | None = None,
    resamples: int = 999,
    generator: torch.Generator | None = None,
    isotropy: bool = True,
) -> Evidence:
    """Judge a proxy on tokens it was not fitted on: two folds of sequences, both ways, pooled.

    ``activations`` and ``gradients`` are ``(n, T, D)``, or rows with ``groups``. ``method`` is a proxy by name, or a
    function from rows to a ``Subspace``. ``folds`` (0 or 1, one a sequence) overrides the hash of the ids (without ids,
    halves by hash of the place). ``others`` are gradients of the same tokens under other labels, by null (``targets``,
    ``targets-uniform``); ``initial`` is the ``Evidence`` of step 0. A fold under 2 sequences is an error; under 4,
    values are given without p and intervals. For the gradient of a weight see ``cross_fit_weight``.

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> x, g = torch.randn(2, 16, 20, 12, generator=generator)
    >>> found = cross_fit(x, g, rank=3)
    >>> found.units, len(found.subspaces), found.p["haar"] > 0.05
    (16, 2, True)
    """
    request = _Request(method, rank, nulls, initial, resamples, generator, isotropy)
    x = as_tensor(activations).detach()
    if x.ndim not in (2, 3):
        raise broken("activations must be (n, T, D), or rows with groups", f"shape {tuple(x.shape)}", "stack sequences")

    def measure(subspace: Subspace, held: Tensor, ids: Tensor) -> Fold:
        aligned = as_tensor(gradients).shape == x.shape
        return measure_fold(
            _pick(gradients, held),
            subspace,
            nulls=nulls,
            activations=x[held] if aligned else None,
            others={name: _pick(other, held) for name, other in (others or {}).items()},
            groups=ids[held],
            resamples=resamples,
            seed=request.seed,
        )

    return _both_ways(x, groups, folds, request, measure)


def cross_fit_weight(
    inputs: Any,
    deltas: Any,
    *,
    method: Method | Callable[[Tensor], Subspace] = "pca",
    rank: int | str = 32,
    nulls: Sequence[str] = ("haar", "pairing"),
    groups: Any = None,
    folds: Any = None,
    strata: Any = None,
    others: Mapping[str, Any] | None = None,
    initial: Evidence | None = None,
    resamples: int = 999,
    generator: torch.Generator | None = None,
    isotropy: bool = True,
) -> Evidence:
    """Judge a proxy of the inputs of a linear map on the gradient of its weight, ``G = Σ δxᵀ``.

    ``inputs`` are ``(n, T, D)``, ``deltas (n, T, E)`` the gradients of the map's outputs; each fold's ``G`` is formed
    from its own sequences. ``strata`` are integers ``(n, T)`` for the null ``pairing`` (−1 for padding). ``others`` are
    deltas under other labels. The rest is as in ``cross_fit``.
    """
    request = _Request(method, rank, nulls, initial, resamples, generator, isotropy)
    x = as_tensor(inputs).detach()
    if x.ndim != 3:
        raise broken("inputs must be (n, T, D)", f"shape {tuple(x.shape)}", "stack sequences")

    def measure(subspace: Subspace, held: Tensor, ids: Tensor) -> Fold:
        own, held_deltas = x[held], _pick(deltas, held)
        gradient = as_tensor(held_deltas).detach().flatten(0, 1).double().T @ own.flatten(0, 1).double()
        return measure_fold(
            gradient,
            subspace,
            nulls=nulls,
            inputs=own,
            deltas=held_deltas,
            strata=_pick(strata, held),
            others={name: _pick(other, held) for name, other in (others or {}).items()},
            groups=ids[held],
            resamples=resamples,
            seed=request.seed,
        )

    return _both_ways(x, groups, folds, request, measure)


def _both_ways(
    x: Tensor, groups: Any, folds: Any, request: _Request, measure: Callable[[Subspace, Tensor, Tensor], Fold]
) -> Evidence:
    """Fit on each fold in turn and measure on the other, then pool."""
    require_initial(request.nulls, request.initial)
    ids = _ids(x, groups)
    unique, place = torch.unique(ids, return_inverse=True)
    if folds is not None:
        side = _given_folds(folds, unique, ids)
    elif groups is None:
        side = _halves(unique, request.seed)
    else:
        side = fold_of(unique, seed=request.seed)
    sizes = [int((side == f).sum()) for f in (0, 1)]
    if min(sizes) < 2:
        raise broken(
            "each fold must hold at least 2 sequences",
            f"{sizes[0]} and {sizes[1]}",
            "observe more sequences in a batch",
        )
    member, rank = side[place], _rank_of_both(x, request)
    measured = []
    for fit_on in (0, 1):
        rows = x[member == fit_on].reshape(-1, x.shape[-1])
        measured.append(measure(_fit(rows, rank, request), member != fit_on, ids))
    if len({f.subspace.rank for f in measured}) > 1:
        raise broken("both folds must have one rank", [f.subspace.rank for f in measured], "give the rank as a number")
    found = pool_folds(
        measured,
        nulls=request.nulls,
        initial=request.initial,
        resamples=request.resamples,
        seed=request.seed,
        isotropy=request.isotropy,
    )
    return _without_inference(found, sizes) if min(sizes) < FEWEST_UNITS else found


def _rank_of_both(x: Tensor, request: _Request) -> int | str:
    """One rank for both folds: where it is not a number it is resolved on all rows."""
    method, rank = request.method, request.rank
    if not isinstance(rank, str) or callable(method):
        return rank
    own = "pca" if PROXIES[method].needs == "sample" else method
    return fit_subspace(x.reshape(-1, x.shape[-1]), method=own, rank=rank).rank


def _fit(rows: Tensor, rank: int | str, request: _Request) -> Subspace:
    if callable(request.method):
        return request.method(rows)
    fitted = fit_subspace(rows, method=request.method, rank=rank, generator=request.generator)
    return replace(fitted, factors=None)


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
