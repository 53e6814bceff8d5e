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
from anisoscope.evaluate.place_ranks import FoundRank, rank_at
from anisoscope.evaluate.site_gradients import Gradients
from anisoscope.evidence.energy import EnergyShare
from anisoscope.evidence.inference import draws_to_tell
from anisoscope.evidence.pool_folds import pool_folds
from anisoscope.evidence.result import Evidence
from anisoscope.evidence.units import Units, forget_shared
from anisoscope.geometry.semi_nmf import SemiNMF
from anisoscope.geometry.semi_nmf_together import semi_nmf_together
from anisoscope.geometry.subspace import Method, Subspace, fit_subspace
from anisoscope.observe.statistics import Cloud, Observation
from anisoscope.verdict import MARGIN
from anisoscope.vocabulary import LABEL_NULLS, MAIN_SUBSET, NULLS, PROXIES, VIEWS

DRAWS = 999
SEMI_NMF_ITERATIONS = 60  # the energy inside the span has settled by then; the span still turns (docs/evidence.md)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a proxy was fitted."""

    view: str
    at: SiteKey
    subset: str
    proxy: Method


@dataclass(frozen=True, slots=True)
class JudgedCase:
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
Evidences = dict[JudgedCase, Evidence]


def each_in_turn(act: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """One after the other; whoever has cores to spare may do it otherwise."""
    return [act(item) for item in items]


@dataclass(frozen=True, slots=True)
class Request:
    """What a judgement is asked for."""

    proxies: tuple[Method, ...]
    rank: int | str  # a number, or a rule by which every place finds its own
    subsets: tuple[str, ...]
    nulls: tuple[str, ...]
    resamples: int | None  # draws of each null; None: enough for the family of layers
    seed: int
    ranks: tuple[int, ...] = ()  # other ranks to show beside
    isotropy: bool = True
    margin: float = MARGIN  # odds ratios between 1/margin and margin are as good as 1


def fit_proxies(
    observed: Observation,
    request: Request,
    each: Each = each_in_turn,
    *,
    views: Sequence[str] | None = None,
    notes: dict[Place, str] | None = None,
) -> Proxies:
    """One proxy a view, layer, selection of tokens, method and fold, from the activations of that fold.

    What is to be known of a rank that a place found for itself goes to ``notes``.
    """
    places = [
        Place(view.name, at, subset, method)
        for view in VIEWS.values()
        if views is None or view.name in views
        for at in observed.sites(view.name, view.fitted_on)
        for subset in (request.subsets if view.kind == "representation" else (MAIN_SUBSET,))
        for method in request.proxies
        if view.name in PROXIES[method].views
    ]

    ranks = _ranks(observed, places, request, each, {} if notes is None else notes)
    places = [place for place in places if place in ranks]
    factors = _factors_on_device(observed, places, ranks, request) if observed.on_cuda else {}

    def fit(place: Place) -> tuple[Subspace, Subspace]:
        generator = torch.Generator().manual_seed(request.seed)
        a, b = (_fitted(observed, place, fold, ranks[place], generator, factors) for fold in (0, 1))
        return a, b

    return dict(zip(places, each(fit, places), strict=True))


@dataclass(frozen=True, slots=True)
class Question:
    """Proxies to be judged on one observation, what is asked of them, and their evidence at step 0."""

    proxies: Proxies
    request: Request
    initial: Mapping[JudgedCase, Evidence]


def judge_observation(
    observed: Observation, questions: Sequence[Question], each: Each = each_in_turn
) -> list[Evidences]:
    """Judge every proxy on the fold it was not fitted on.

    All questions that are about one place are judged together there, so that nothing is computed twice.
    """
    trials = [trial for number, question in enumerate(questions) for trial in _trials(observed, number, question)]
    places: dict[tuple[str, SiteKey, str], list[_Trial]] = {}
    for trial in trials:
        places.setdefault((trial.case.place.view, trial.case.place.at, trial.case.tensor), []).append(trial)

    def judge(where: tuple[str, SiteKey, str]) -> list[Evidence]:
        gradients = Gradients(observed, *where)
        how = {"weight": _judge_weight, "embedding": _judge_embedding}.get(VIEWS[where[0]].kind, _judge_additive)
        found = [how(gradients, trial) for trial in places[where]]
        before = [trial.initial for trial in places[where] if trial.initial is not None]
        for evidence in (*found, *before):  # those of step 0 are held on to for the whole training
            forget_shared(evidence.folds)
        return found

    longest_first = sorted(places, key=lambda where: VIEWS[where[0]].kind != "weight")
    found: dict[tuple[int, JudgedCase], Evidence] = {}
    for where, evidences in zip(longest_first, each(judge, longest_first), strict=True):
        found |= {(t.number, t.case): e for t, e in zip(places[where], evidences, strict=True)}
    answers: list[Evidences] = [{} for _ in questions]
    for trial in trials:  # in the order in which they were asked
        answers[trial.number][trial.case] = found[trial.number, trial.case]
    return answers


def _trials(observed: Observation, number: int, question: Question) -> list[_Trial]:
    proxies, request, initial = question.proxies, question.request, question.initial
    own = {view: len({place.at for place in proxies if place.view == view}) for view in VIEWS}
    families = own | {view: count for view, count in observed.families.items() if own.get(view)}
    trials = []
    for place, pair in proxies.items():
        for tensor in VIEWS[place.view].judged_on:
            if place.at in observed.sites(place.view, tensor):
                case = JudgedCase(place, tensor)
                start = initial.get(case)
                if start is not None and start.rank != pair[0].rank:
                    start = None  # shares inside so many and inside other many directions do not compare
                nulls = _asked(request, observed, start, case)
                trials.append(_Trial(number, case, pair, nulls, start, request, families[place.view]))
    return trials


def _asked(request: Request, observed: Observation, initial: Evidence | None, case: JudgedCase) -> list[str]:
    """The nulls asked for that can be had here."""

    def possible(null: str) -> bool:
        if null in LABEL_NULLS:  # other labels were not tried on the output side, nor stepped upon
            return null in observed.others and case.tensor == "gradients"
        if null == "init":
            return initial is not None
        return case.place.view in NULLS[null].views and NULLS[null].live

    return [null for null in request.nulls if possible(null)]


def _fitted(
    observed: Observation,
    place: Place,
    fold: int,
    rank: int,
    generator: torch.Generator,
    factors: Mapping[tuple[Place, int], SemiNMF],
) -> Subspace:
    cloud, word = _cloud(observed, place, fold), PROXIES[place.proxy]
    source = cloud.sample(place.subset).values.float() if word.needs == "sample" else cloud.of(place.subset)
    options = {"generator": generator, "iterations": SEMI_NMF_ITERATIONS, "factors": factors.get((place, fold))}
    return fit_subspace(source, method=place.proxy, rank=rank, **options)


def _ranks(
    observed: Observation, places: Sequence[Place], request: Request, each: Each, notes: dict[Place, str]
) -> dict[Place, int]:
    """The rank of every place that has one."""
    if isinstance(request.rank, int):
        return {place: PROXIES[place.proxy].rank or request.rank for place in places}
    rule = request.rank

    def found(place: Place) -> FoundRank:
        fixed = PROXIES[place.proxy].rank
        if fixed is not None:
            return FoundRank(fixed)
        clouds = _cloud(observed, place, 0), _cloud(observed, place, 1)
        return rank_at(clouds, place.subset, rule, place.proxy)

    ranks: dict[Place, int] = {}
    for place, one in zip(places, each(found, places), strict=True):
        if one.rank is not None:
            ranks[place] = one.rank
        if one.note is not None:
            notes[place] = one.note
    return ranks


def _cloud(observed: Observation, place: Place, fold: int) -> Cloud:
    return observed.cloud(place.view, place.at, VIEWS[place.view].fitted_on, fold)


def _factors_on_device(
    observed: Observation, places: Sequence[Place], ranks: Mapping[Place, int], request: Request
) -> dict[tuple[Place, int], SemiNMF]:
    """The factorisations of clouds of one width and rank together: one by one they would be all launches, no work."""
    widths: dict[tuple[int, int], dict[tuple[Place, int], Tensor]] = {}
    for place in places:
        if place.proxy == "semi_nmf":
            for fold in (0, 1):
                values = _cloud(observed, place, fold).sample(place.subset).values.float()
                widths.setdefault((values.shape[1], ranks[place]), {})[place, fold] = values
    found: dict[tuple[Place, int], SemiNMF] = {}
    for (_, rank), clouds in widths.items():
        generator = torch.Generator().manual_seed(request.seed)
        options = {"generator": generator, "iterations": SEMI_NMF_ITERATIONS}
        fits = semi_nmf_together(list(clouds.values()), rank, **options)
        found |= dict(zip(clouds, fits, strict=True))
    return found


@dataclass(frozen=True, slots=True)
class _Trial:
    """A proxy with the nulls that it is set against, and how many layers it is judged among."""

    number: int  # of the question that it is part of
    case: JudgedCase
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
    def label_nulls(self) -> list[str]:
        """Nulls that consist of the gradients under other labels."""
        return [null for null in self.nulls if null in LABEL_NULLS]

    @property
    def options(self) -> dict[str, Any]:
        """How folds are concluded upon."""
        asked = {"nulls": self.nulls, "initial": self.initial, "resamples": self.draws, "family": max(self.family, 1)}
        return asked | {"seed": self.request.seed, "isotropy": self.request.isotropy}


def _judge_additive(gradients: Gradients, trial: _Trial) -> Evidence:
    """A view in which energies add up over sequences."""
    subset, folds = trial.case.place.subset, []
    for fitted_on in (0, 1):
        held, subspace = 1 - fitted_on, trial.pair[fitted_on]
        sample = gradients.sample(subset, held)
        fold = gradients.fold(subset, held, subspace, gradients.additive_units(subset, held, subspace))
        targets: dict[str, tuple[EnergyShare, Units | None]] = {
            null: (
                gradients.share(subset, held, subspace, null),
                gradients.additive_units(subset, held, subspace, null),
            )
            for null in trial.label_nulls
        }
        about = {"sample": (sample.values, sample.sequences), "radial": gradients.radial(subset, held)}
        folds.append(replace(fold, targets=targets, **about))
    return pool_folds(folds, **trial.options, shared=gradients.shared)


def _judge_embedding(gradients: Gradients, trial: _Trial) -> Evidence:
    """Folds of types; sequences, which hold types of both, are the units of the input side's gradient.

    The output side is not kept by sequence, and an update is no function of the observed sequences alone: no interval.
    """
    subset, pair, folds = trial.case.place.subset, trial.pair, []
    units = gradients.typed_units(pair) if trial.case.tensor == "gradients" else None
    theirs = {null: gradients.typed_units(pair, null) for null in trial.label_nulls}
    for fitted_on in (0, 1):
        held, subspace = 1 - fitted_on, pair[fitted_on]
        targets: dict[str, tuple[EnergyShare, Units | None]] = {
            null: (gradients.share(subset, held, subspace, null), other) for null, other in theirs.items()
        }
        folds.append(replace(gradients.fold(subset, held, subspace, units), targets=targets))
    return pool_folds(folds, **trial.options, shared=gradients.shared)


def _judge_weight(gradients: Gradients, trial: _Trial) -> Evidence:
    """Energies come from the full gradient; pairing, its observed share included, from the sequences kept."""
    subset, folds = trial.case.place.subset, []
    paired = "pairing" in trial.nulls and all(len(gradients.sequences(held).inputs) > 1 for held in (0, 1))
    for fitted_on in (0, 1):
        held, subspace = 1 - fitted_on, trial.pair[fitted_on]
        fold = gradients.fold(subset, held, subspace, gradients.bilinear_units(held, subspace))
        targets: dict[str, tuple[EnergyShare, Units | None]] = {
            null: (gradients.share(subset, held, subspace, null), gradients.bilinear_units(held, subspace, null))
            for null in trial.label_nulls
        }
        pairing = {"pairing": gradients.pairing(held, subspace, trial.draws, trial.request.seed)} if paired else {}
        folds.append(replace(fold, targets=targets, pairing=pairing))
    if not paired:
        trial = replace(trial, nulls=[null for null in trial.nulls if null != "pairing"])
    return pool_folds(folds, **trial.options, shared=gradients.shared)


def draws_for(family: int, asked: int | None) -> int:
    """Draws of each null: as many as were asked for, else enough for a lone layer to be significant in its family.

    >>> draws_for(12, None), draws_for(31, None), draws_for(31, 99)
    (999, 1239, 99)
    """
    return max(DRAWS, draws_to_tell(family)) if asked is None else asked
