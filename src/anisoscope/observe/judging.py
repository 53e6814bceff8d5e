"""An observation judged: proxies fitted on one fold and tested on the other, against every null that is there.

Letters: n sequences, T positions, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from anisoscope.capture.sites import SiteKey
from anisoscope.evidence.conclude import conclude
from anisoscope.evidence.energy import EnergyShare, energy_share
from anisoscope.evidence.fold import Fold, additive_units, radial_energy
from anisoscope.evidence.pairing import sequence_null
from anisoscope.evidence.result import Evidence
from anisoscope.evidence.typed_units import TypedUnits
from anisoscope.evidence.units import BilinearUnits, Units
from anisoscope.geometry.subspace import Method, Subspace, fit_subspace
from anisoscope.observe.embedding import type_folds
from anisoscope.observe.statistics import Cloud, Name, Observation
from anisoscope.stats.moments import Moments
from anisoscope.stats.reservoir import Reservoir, Sample
from anisoscope.verdict import MARGIN
from anisoscope.vocabulary import LABEL_NULLS, MAIN_SUBSET, NULLS, PROXIES, VIEWS

DRAWS = 999
SEMI_NMF_ITERATIONS = 60  # the span has settled by then; what is left moves codes within it


@dataclass(frozen=True, slots=True)
class Place:
    """Where a proxy was fitted."""

    view: str
    at: SiteKey
    subset: str
    proxy: Method


@dataclass(frozen=True, slots=True)
class Case:
    """A proxy and the tensor that it is judged on."""

    place: Place
    tensor: str


def basis_name(place: Place, fold: int) -> str:
    """The name under which the basis of a proxy is kept: view, layer, module, subset, proxy, fold."""
    return "/".join((place.view, str(place.at.layer), place.at.name, place.subset, place.proxy, str(fold)))


def basis_place(name: str) -> tuple[Place, int]:
    """Place and fold of a kept basis.

    >>> basis_place("weight/3/h.2.mlp.c_fc/all/pca/1")[0].at.layer
    3
    """
    view, layer, site, subset, proxy, fold = name.split("/")
    return Place(view, SiteKey(int(layer), site), subset, proxy), int(fold)


Each = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]
Proxies = dict[Place, tuple[Subspace, Subspace]]
Evidences = dict[Case, Evidence]


def each_in_turn(act: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """One after the other; whoever has cores to spare may do it otherwise."""
    return [act(item) for item in items]


@dataclass(frozen=True, slots=True)
class Request:
    """What a judgement is asked for."""

    proxies: tuple[Method, ...]
    rank: int
    subsets: tuple[str, ...]
    nulls: tuple[str, ...]
    resamples: int | None  # draws of each null; None: enough for the family of layers
    seed: int
    ranks: tuple[int, ...] = ()  # other ranks to show beside
    isotropy: bool = True
    margin: float = MARGIN  # odds ratios between 1/margin and margin are as good as 1


def fit_proxies(
    observed: Observation, request: Request, each: Each = each_in_turn, *, views: Sequence[str] | None = None
) -> Proxies:
    """One proxy a view, layer, selection of tokens, method and fold, from the activations of that fold."""
    places = [
        Place(view.name, at, subset, method)
        for view in VIEWS.values()
        if views is None or view.name in views
        for at in observed.sites(view.name, view.fitted_on)
        for subset in (request.subsets if view.name == "representation" else (MAIN_SUBSET,))
        for method in request.proxies
        if view.name in PROXIES[method].views
    ]

    def fit(place: Place) -> tuple[Subspace, Subspace]:
        generator = torch.Generator().manual_seed(request.seed)
        tensor = VIEWS[place.view].fitted_on
        first, second = (observed.cloud(place.view, place.at, tensor, fold) for fold in (0, 1))
        a, b = (_fitted(c, place.subset, place.proxy, request.rank, generator) for c in (first, second))
        return a, b

    return dict(zip(places, each(fit, places), strict=True))


def judge_observation(
    observed: Observation,
    proxies: Proxies,
    request: Request,
    initial: Mapping[Case, Evidence],
    each: Each = each_in_turn,
) -> Evidences:
    """Judge every proxy on the fold it was not fitted on."""
    cases = [
        Case(place, tensor)
        for place in proxies
        for tensor in VIEWS[place.view].judged_on
        if place.at in observed.sites(place.view, tensor)
    ]

    families = {view: {place.at for place in proxies if place.view == view} for view in VIEWS}
    draws = {view: (draws_for(len(sites), request.resamples), len(sites)) for view, sites in families.items()}

    def judge(case: Case) -> Evidence:
        pair, start = proxies[case.place], initial.get(case)
        asked = _asked(request, observed, start, case)
        if case.place.view == "weight":
            return _judge_weight(observed, case.place, pair, asked, start, request, draws[case.place.view])
        if case.place.view == "embedding":
            return _judge_embedding(observed, case, pair, asked, start, request, draws[case.place.view])
        return _judge_additive(observed, case, pair, asked, start, request, draws[case.place.view])

    longest_first = sorted(cases, key=lambda case: case.place.view != "weight")
    found = dict(zip(longest_first, each(judge, longest_first), strict=True))
    return {case: found[case] for case in cases}


def _asked(request: Request, observed: Observation, initial: Evidence | None, case: Case) -> list[str]:
    """The nulls asked for that can be had here."""

    def possible(null: str) -> bool:
        if null in LABEL_NULLS:  # other labels were not tried on the output side, nor stepped upon
            return null in observed.others and case.tensor == "gradients"
        if null == "init":
            return initial is not None
        return case.place.view in NULLS[null].views and null != "pairing-token"  # tokens that were kept are sketched

    return [null for null in request.nulls if possible(null)]


def _fitted(cloud: Cloud, selection: str, method: Method, rank: int, generator: torch.Generator) -> Subspace:
    word = PROXIES[method]
    source = cloud.sample(selection).values.float() if word.needs == "sample" else cloud.of(selection)
    rank = word.rank or rank
    return fit_subspace(source, method=method, rank=rank, generator=generator, iterations=SEMI_NMF_ITERATIONS)


def _judge_additive(
    observed: Observation,
    case: Case,
    pair: tuple[Subspace, Subspace],
    nulls: Sequence[str],
    initial: Evidence | None,
    request: Request,
    draws: tuple[int, int],
) -> Evidence:
    """A view in which energies add up over sequences."""
    view, at, subset, tensor = case.place.view, case.place.at, case.place.subset, case.tensor
    folds = []
    for fitted_on in (0, 1):
        held, subspace = 1 - fitted_on, pair[fitted_on]
        found = observed.cloud(view, at, tensor, held)
        sample = found.sample(subset)
        units = additive_units(sample.values, subspace, sample.sequences)
        fold = replace(_fold(found.of(subset), subspace, units), sample=(sample.values, sample.sequences))
        targets: dict[str, tuple[EnergyShare, Units | None]] = {}
        for null in nulls:
            if null in LABEL_NULLS:
                other = observed.cloud(view, at, tensor, held, under=null)
                rows = other.sample(subset)
                their_units = additive_units(rows.values, subspace, rows.sequences)
                targets[null] = energy_share(other.of(subset), subspace), their_units
        radial = _radial(sample, observed.cloud(view, at, "activations", held).sample(subset))
        folds.append(replace(fold, radial=radial, targets=targets))
    return conclude(folds, nulls=nulls, initial=initial, **_how(request, draws))


def _judge_embedding(
    observed: Observation,
    case: Case,
    pair: tuple[Subspace, Subspace],
    nulls: Sequence[str],
    initial: Evidence | None,
    request: Request,
    draws: tuple[int, int],
) -> Evidence:
    """Folds of types; sequences, which hold types of both, are the units of the input side's gradient.

    The output side is not kept by sequence, and an update is no function of the observed sequences alone: no interval.
    """
    place, tensor = case.place, case.tensor
    by_sequence = tensor == "gradients"
    units = typed_units(observed, pair) if by_sequence else None
    theirs = {null: typed_units(observed, pair, null) for null in nulls if null in LABEL_NULLS}
    folds = []
    for fitted_on in (0, 1):
        held, subspace = 1 - fitted_on, pair[fitted_on]
        fold = _fold(observed.cloud("embedding", place.at, tensor, held).of(place.subset), subspace, units)
        targets: dict[str, tuple[EnergyShare, Units | None]] = {}
        for null, other in theirs.items():
            cloud = observed.cloud("embedding", place.at, tensor, held, under=null)
            targets[null] = energy_share(cloud.of(place.subset), subspace), other
        folds.append(replace(fold, targets=targets))
    return conclude(folds, nulls=nulls, initial=initial, **_how(request, draws))


def typed_units(observed: Observation, pair: tuple[Subspace, Subspace], under: str | None = None) -> TypedUnits | None:
    """The gradient of the embedding by sequence, of those kept, for proxies that were fitted on two folds of types."""
    source = observed.statistics if under is None else observed.others[under]
    found = [source.get(Name("embedding", 0, "looked-up", fold, "kept")) for fold in (0, 1)]
    kept = [one for one in found if isinstance(one, Reservoir)]
    if len(kept) < len(found):
        return None
    samples = [one.sample() for one in kept]
    rows, types, units = (
        torch.cat([getattr(sample, name) for sample in samples]) for name in ("values", "tokens", "sequences")
    )
    side = type_folds(types, seed=kept[0].seed)
    return TypedUnits.of(rows, types, units, side, (pair[1].basis.to(rows.device), pair[0].basis.to(rows.device)))


def _judge_weight(
    observed: Observation,
    place: Place,
    pair: tuple[Subspace, Subspace],
    nulls: Sequence[str],
    initial: Evidence | None,
    request: Request,
    draws: tuple[int, int],
) -> Evidence:
    """Energies come from the full gradient; pairing, its observed share included, from the sequences kept."""
    folds = []
    for fitted_on in (0, 1):
        held, subspace = 1 - fitted_on, pair[fitted_on]
        stacked = _stacked(observed, place.at, held, None)
        fold = _fold(_gradient(observed, place.at, held), subspace, _units(stacked, subspace))
        targets: dict[str, tuple[EnergyShare, Units | None]] = {}
        for null in nulls:
            if null in LABEL_NULLS:
                share = energy_share(_gradient(observed, place.at, held, null), subspace)
                targets[null] = share, _units(_stacked(observed, place.at, held, null), subspace)
        pairing = {}
        if "pairing" in nulls and len(stacked.inputs) > 1:
            x, d = stacked.inputs, stacked.deltas
            options = {"strata": stacked.strata, "units": stacked.unit, "draws": draws[0], "seed": request.seed}
            pairing["pairing"] = sequence_null(x, d, subspace.basis, **options)
        folds.append(replace(fold, targets=targets, pairing=pairing))
    if not all(fold.pairing for fold in folds):
        nulls = [null for null in nulls if null != "pairing"]
    return conclude(folds, nulls=nulls, initial=initial, **_how(request, draws))


def _how(request: Request, draws: tuple[int, int]) -> dict[str, Any]:
    return {"resamples": draws[0], "family": max(draws[1], 1), "seed": request.seed, "isotropy": request.isotropy}


def draws_for(family: int, asked: int | None) -> int:
    """Draws of each null: as many as were asked for, else enough for a lone layer to be significant in its family.

    A p cannot be below ``2/(R + 1)``, and adjusting over F layers multiplies it by F: with ``R = 40F − 1`` a single
    layer can still reach q = 0.05.

    >>> draws_for(12, None), draws_for(31, None), draws_for(31, 99)
    (999, 1239, 99)
    """
    return max(DRAWS, 40 * family - 1) if asked is None else asked


def _gradient(observed: Observation, at: SiteKey, fold: int, under: str | None = None) -> Moments:
    return Moments.of(observed.sum("weight", at, "gradients", fold, under=under), higher=False)


def _fold(moments: Moments, subspace: Subspace, units: Units | None) -> Fold:
    """Energies from the full moments, units from the sequences kept."""
    n, share = round(float(moments.count)), energy_share(moments, subspace)
    return Fold(subspace, share, moments.second, moments.covariance, n, units)


def _radial(gradients: Sample, activations: Sample) -> tuple[float, float] | None:
    """Energy along the activation, where both samples hold the same tokens in one order."""
    if not torch.equal(gradients.sequences, activations.sequences):
        return None
    return radial_energy(gradients.values, activations.values)


@dataclass(frozen=True, slots=True, eq=False)
class _Stacked:
    """Whole sequences as ``(n, T, ·)``; those of one document, or of equal contents, are apart, and of one unit."""

    inputs: Tensor
    deltas: Tensor
    strata: Tensor | None
    ids: Tensor
    unit: Tensor


def held_units(observed: Observation, at: SiteKey, held: int, subspace: Subspace) -> BilinearUnits:
    """The gradient of a linear map by sequence, of those kept of a fold, for a proxy of the other fold."""
    return _units(_stacked(observed, at, held, None), subspace)


def _units(stacked: _Stacked, subspace: Subspace) -> BilinearUnits:
    return BilinearUnits(stacked.ids, stacked.inputs, stacked.deltas, subspace.basis, stacked.unit)


def _stacked(observed: Observation, at: SiteKey, fold: int, under: str | None) -> _Stacked:
    """Rows of whole sequences put side by side.

    Where all sequences are of one length and labelled alike, aligned positions are of one kind and need no strata; else
    they are: first position, labelled, unlabelled, and −1 for padding.
    """
    rows = observed.kept("weight", at, "inputs", fold, under=under)
    d_rows = observed.kept("weight", at, "deltas", fold, under=under)
    sketch, flags = d_rows.values[:, :-1].float(), d_rows.values[:, -1]
    ids, unit_of_row = torch.unique(rows.sequences, return_inverse=True)
    length = int(rows.positions.max()) + 1
    contents, content_of_row = torch.unique(rows.keys, return_inverse=True)
    copy = _occurrence(content_of_row * length + rows.positions)
    slots, slot_of_row = torch.unique(copy * len(contents) + content_of_row, return_inverse=True)
    unit = torch.empty_like(slots).scatter_(0, slot_of_row, unit_of_row)
    x = torch.zeros(len(slots), length, rows.values.shape[1], device=rows.values.device)
    d = x.new_zeros(len(slots), length, sketch.shape[1])
    strata = torch.full((len(slots), length), -1, dtype=torch.int64, device=x.device)
    x[slot_of_row, rows.positions], d[slot_of_row, rows.positions] = rows.values.float(), sketch
    strata[slot_of_row, rows.positions] = torch.where(rows.positions == 0, 0, 1 + flags.long())
    alike = bool((strata == strata[:1]).all()) and bool((strata[:1] >= 0).all())
    return _Stacked(x, d, None if alike else strata, ids, unit)


def _occurrence(keys_N: Tensor) -> Tensor:
    """For each row how many rows before it have the same key."""
    order = torch.argsort(keys_N, stable=True)
    ordered = keys_N[order]
    index = torch.arange(len(keys_N), device=keys_N.device)
    start = torch.where(torch.cat([ordered.new_ones(1), ordered.diff()]) != 0, index, 0).cummax(0).values
    return torch.empty_like(index).scatter_(0, order, index - start)
