"""An observation judged: proxies fitted on one fold and tested on the other, against every null that is there.

Letters: n sequences, T positions, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from anisoscope.capture.sites import SiteKey
from anisoscope.evidence.conclude import conclude
from anisoscope.evidence.energy import EnergyShare, energy_share
from anisoscope.evidence.fold import Fold, additive_units, radial_energy
from anisoscope.evidence.pairing import sequence_null
from anisoscope.evidence.result import Evidence
from anisoscope.evidence.units import Units
from anisoscope.geometry.subspace import Method, Subspace, fit_subspace
from anisoscope.observe.kept_units import bilinear_units, stacked_sequences, typed_units
from anisoscope.observe.statistics import Cloud, Observation
from anisoscope.stats.moments import Moments
from anisoscope.stats.reservoir import Sample
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

    families = {view: len({place.at for place in proxies if place.view == view}) for view in VIEWS}

    def judge(case: Case) -> Evidence:
        start, family = initial.get(case), families[case.place.view]
        trial = _Trial(case, proxies[case.place], _asked(request, observed, start, case), start, request, family)
        if case.place.view == "weight":
            return _judge_weight(observed, trial)
        return _judge_embedding(observed, trial) if case.place.view == "embedding" else _judge_additive(observed, trial)

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


@dataclass(frozen=True, slots=True)
class _Trial:
    """A proxy with the nulls that it is set against, and how many layers it is judged among."""

    case: Case
    pair: tuple[Subspace, Subspace]
    nulls: list[str]
    initial: Evidence | None
    request: Request
    family: int

    @property
    def draws(self) -> int:
        """Draws of each null."""
        return draws_for(self.family, self.request.resamples)

    @property
    def options(self) -> dict[str, Any]:
        """How folds are concluded upon."""
        asked = {"nulls": self.nulls, "initial": self.initial, "resamples": self.draws, "family": max(self.family, 1)}
        return asked | {"seed": self.request.seed, "isotropy": self.request.isotropy}


def _judge_additive(observed: Observation, trial: _Trial) -> Evidence:
    """A view in which energies add up over sequences."""
    place, tensor = trial.case.place, trial.case.tensor
    view, at, subset = place.view, place.at, place.subset
    folds = []
    for fitted_on in (0, 1):
        held, subspace = 1 - fitted_on, trial.pair[fitted_on]
        found = observed.cloud(view, at, tensor, held)
        sample = found.sample(subset)
        units = additive_units(sample.values, subspace, sample.sequences)
        fold = replace(_fold(found.of(subset), subspace, units), sample=(sample.values, sample.sequences))
        targets: dict[str, tuple[EnergyShare, Units | None]] = {}
        for null in trial.nulls:
            if null in LABEL_NULLS:
                other = observed.cloud(view, at, tensor, held, under=null)
                rows = other.sample(subset)
                their_units = additive_units(rows.values, subspace, rows.sequences)
                targets[null] = energy_share(other.of(subset), subspace), their_units
        radial = _radial(sample, observed.cloud(view, at, "activations", held).sample(subset))
        folds.append(replace(fold, radial=radial, targets=targets))
    return conclude(folds, **trial.options)


def _judge_embedding(observed: Observation, trial: _Trial) -> Evidence:
    """Folds of types; sequences, which hold types of both, are the units of the input side's gradient.

    The output side is not kept by sequence, and an update is no function of the observed sequences alone: no interval.
    """
    place, tensor, pair = trial.case.place, trial.case.tensor, trial.pair
    by_sequence = tensor == "gradients"
    units = typed_units(observed, pair) if by_sequence else None
    theirs = {null: typed_units(observed, pair, null) for null in trial.nulls if null in LABEL_NULLS}
    folds = []
    for fitted_on in (0, 1):
        held, subspace = 1 - fitted_on, trial.pair[fitted_on]
        fold = _fold(observed.cloud("embedding", place.at, tensor, held).of(place.subset), subspace, units)
        targets: dict[str, tuple[EnergyShare, Units | None]] = {}
        for null, other in theirs.items():
            cloud = observed.cloud("embedding", place.at, tensor, held, under=null)
            targets[null] = energy_share(cloud.of(place.subset), subspace), other
        folds.append(replace(fold, targets=targets))
    return conclude(folds, **trial.options)


def _judge_weight(observed: Observation, trial: _Trial) -> Evidence:
    """Energies come from the full gradient; pairing, its observed share included, from the sequences kept."""
    place, folds = trial.case.place, []
    for fitted_on in (0, 1):
        held, subspace = 1 - fitted_on, trial.pair[fitted_on]
        stacked = stacked_sequences(observed, place.at, held, None)
        fold = _fold(_gradient(observed, place.at, held), subspace, bilinear_units(stacked, subspace))
        targets: dict[str, tuple[EnergyShare, Units | None]] = {}
        for null in trial.nulls:
            if null in LABEL_NULLS:
                share = energy_share(_gradient(observed, place.at, held, null), subspace)
                targets[null] = share, bilinear_units(stacked_sequences(observed, place.at, held, null), subspace)
        pairing = {}
        if "pairing" in trial.nulls and len(stacked.inputs) > 1:
            x, d = stacked.inputs, stacked.deltas
            options = {"strata": stacked.strata, "units": stacked.unit}
            options |= {"draws": trial.draws, "seed": trial.request.seed}
            pairing["pairing"] = sequence_null(x, d, subspace.basis, **options)
        folds.append(replace(fold, targets=targets, pairing=pairing))
    if not all(fold.pairing for fold in folds):
        trial = replace(trial, nulls=[null for null in trial.nulls if null != "pairing"])
    return conclude(folds, **trial.options)


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
