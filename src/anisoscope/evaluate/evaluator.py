"""The observations of one training, judged one after the other: what a judgement must remember of those before it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch

from anisoscope.capture.sites import SiteKey
from anisoscope.errors import broken
from anisoscope.evaluate.evaluation import Evaluation, PartialEvaluation, combine, layers_of
from anisoscope.evaluate.frequency_rows import frequency_rows, trajectory_rows
from anisoscope.evaluate.judge_sites import (
    Each,
    Evidences,
    Place,
    Proxies,
    Question,
    Request,
    basis_name,
    each_in_turn,
    fit_proxies,
    judge_observation,
)
from anisoscope.evaluate.place_ranks import DIMENSION
from anisoscope.evaluate.rank_rows import concept_rows, rank_questions, rank_rows
from anisoscope.evaluate.router_rows import router_rows
from anisoscope.evaluate.row_builders import (
    Row,
    drift_rows,
    evidence_rows,
    fit_rows,
    measure_rows,
    other_rank_rows,
    probe_rows,
    rank_notes,
    stamp,
    undetermined_row,
)
from anisoscope.evaluate.small_scale_rows import local_rows
from anisoscope.evaluate.trajectories import Trajectories, TypeMeans
from anisoscope.evidence.result import Evidence
from anisoscope.observe.probe import FEWEST
from anisoscope.observe.state import ScopeState
from anisoscope.observe.statistics import Name, Observation, SkippedSteps, Statistics, merged, require_finite
from anisoscope.stats.moments import Moments
from anisoscope.vocabulary import PROXIES, VIEWS


@dataclass(frozen=True, slots=True)
class EvaluatorSettings:
    """What a judge must know before it begins.

    With ``resumable`` the statistics behind its memory are held on to; with ``keep`` judgements come with bases.
    ``measured`` are the tensors whose isotropy is measured: whoever measures activations elsewhere leaves them out.
    """

    request: Request
    anchor: int | None
    resumable: bool = False
    keep: bool = False
    device: torch.device | None = None  # that observations are judged on; None: where they are
    measured: tuple[str, ...] = ("activations", "gradients")


@runtime_checkable
class EvaluatorProtocol(Protocol):
    """A judge, here or elsewhere."""

    def begin(self, observed: Observation) -> Callable[[], Evaluation]:
        """Start on the next observation; whoever calls the answer waits for its rows, or for why there are none.

        Another observation may be begun before the answer is called. Answers are called in order.
        """
        ...

    def judged(self, observed: Observation) -> Evaluation:
        """Rows of the next observation; raises if it cannot be judged."""
        ...

    def memory(self, step: int, between: SkippedSteps) -> ScopeState:
        """All that a restart needs."""
        ...

    def load_state(self, memory: ScopeState) -> None:
        """Take up where ``memory`` left off."""

    def release(self) -> None:
        """Let go of everything."""


class Evaluator:
    """Remembers step 0 to compare with, early activations to anchor on, earlier proxies for drift."""

    def __init__(self, brief: EvaluatorSettings, each: Each = each_in_turn) -> None:
        self._request, self._anchor, self._each = brief.request, brief.anchor, each
        self._resumable, self._keep, self._device = brief.resumable, brief.keep, brief.device
        self._measured = brief.measured
        self._tokens = 0
        self._initial: Evidences = {}
        self._early: Statistics = {}
        self._anchored: Proxies = {}
        self._first: Proxies = {}
        self._previous: Proxies = {}
        self._held: dict[str, Observation] = {}
        self.trajectories = Trajectories()

    def release(self) -> None:
        """Let go of everything; a judgement under way in another thread goes on with what it has in hand."""
        self._initial, self._early, self._held = {}, {}, {}
        self._anchored, self._first, self._previous = {}, {}, {}
        self.trajectories = Trajectories()

    def memory(self, step: int, between: SkippedSteps) -> ScopeState:
        """All that a restart needs, once everything that was handed over is judged."""
        occasions = {occasion: observed.statistics for occasion, observed in self._held.items()}
        steps = {occasion: observed.step for occasion, observed in self._held.items()}
        frozen = bool(self._anchored)
        occasions |= {"early": self._early, "trajectory": self.trajectories.state()}
        return ScopeState(step, self._tokens, between, frozen, steps, occasions)

    def load_state(self, memory: ScopeState) -> None:
        """Take up where ``memory`` left off."""
        self._tokens, memory = memory.tokens, memory if self._device is None else memory.to(self._device)
        self._early = memory.occasions.get("early", {})
        self.trajectories.restore(memory.occasions.get("trajectory", {}))
        self._held = {
            occasion: Observation(step, memory.occasions.get(occasion, {})) for occasion, step in memory.steps.items()
        }
        bare = replace(self._request, nulls=(), isotropy=False)
        if "initial" in self._held:
            start = self._held["initial"]
            question = Question(fit_proxies(start, bare, self._each), bare, {})
            (self._initial,) = judge_observation(start, [question], self._each)
        if "updates" in self._held:
            start = self._held["updates"]
            question = Question(fit_proxies(start, bare, self._each, views=("embedding",)), bare, {})
            (updates,) = judge_observation(start, [question], self._each)
            self._initial |= {case: e for case, e in updates.items() if case.tensor.startswith("update")}
        for occasion in ("first", "previous"):
            if occasion in self._held:
                proxies = fit_proxies(self._held[occasion], self._request, self._each)
                self._first, self._previous = self._first or proxies, proxies
        if memory.frozen:
            self._anchored = fit_proxies(Observation(memory.step, self._early), self._request, self._each)

    def begin(self, observed: Observation) -> Callable[[], Evaluation]:
        """The judgement to come: all of it is done when it is called."""
        return partial(self.judged, observed)

    def judged(self, observed: Observation) -> Evaluation:
        """Rows of the next observation; raises if it cannot be judged."""
        return combine([self.examined(observed)], self._request.margin)

    def examined(self, observed: Observation) -> PartialEvaluation:
        """What is found at the places of the next observation, which may be a part of it."""
        observed = self._counted(observed if self._device is None else observed.to(self._device))
        sizes = observed.units(0), observed.units(1)
        if min(sizes) < 2:
            raise broken(
                "each fold must hold at least 2 sequences, of 2 documents where these are given",
                f"{sizes[0]} and {sizes[1]}",
                "observe larger batches",
            )
        require_finite(observed.statistics)
        sections = {
            "measures": measure_rows(observed, self._each, tensors=self._measured),
            "probe": probe_rows(observed, FEWEST, self._each),
        }
        notes: dict[Place, str] = {}
        rolling = fit_proxies(observed, self._request, self._each, notes=notes)
        anchored = self._anchored_for(observed)
        questions = [Question(rolling, self._request, self._initial), Question(anchored, self._request, self._initial)]
        questions += rank_questions(observed, self._request, self._each)
        found, found_anchored, *other_ranks = judge_observation(observed, questions, self._each)
        judged = {"rolling": found, "anchored": found_anchored if anchored else {}}
        for timing, evidences in judged.items():
            sections[timing] = [r for case, e in evidences.items() for r in evidence_rows(case, e, timing, observed)]
            sections[timing] += other_rank_rows(evidences, self._initial, timing, observed)
        sections["drift"] = drift_rows(observed, rolling, self._first, since="first")
        sections["drift"] += drift_rows(observed, rolling, self._previous, since="previous")
        sections["missing"] = [undetermined_row(observed, what, why) for what, why in observed.missing.items()]
        sections["missing"] += rank_notes(observed, notes)
        sections["routers"] = router_rows(observed)
        sections["ranks"] = rank_rows(other_ranks, observed)
        sections["fits"] = [*fit_rows(observed, rolling, "rolling"), *fit_rows(observed, anchored, "anchored")]
        sections["concepts"] = concept_rows(observed, rolling)
        sections["frequency"] = self._frequency_rows(observed, rolling)
        if self._resumable:
            self._hold(observed)
        self._first, self._previous = self._first or rolling, rolling
        if observed.step == 0:
            self._initial = dict(found)
        self._first_updates(observed, found)
        kept = {"rolling": self._previous, "anchored": self._anchored} if self._keep else {}
        return PartialEvaluation(
            stamp(observed),
            sections,
            {timing: layers_of(evidences) for timing, evidences in judged.items()},
            {timing: _bases(proxies) for timing, proxies in kept.items() if proxies},
            spectra_of(observed, self._each) if self._keep else {},
            self._request.rank if isinstance(self._request.rank, str) else None,
        )

    def _frequency_rows(self, observed: Observation, proxies: Proxies) -> list[Row]:
        if observed.frequency is None:
            return []
        sites = observed.sites("representation", "activations")
        means = self._each(lambda at: TypeMeans.of(observed, at), sites)
        self.trajectories.add(observed.tables, dict(zip(sites, means, strict=True)))
        when: dict[str, Any] = {"step": observed.step, "tokens": observed.tokens}
        rows = frequency_rows(observed, proxies, self._request, self._each)
        rows += local_rows(observed, proxies, self._request, self._each)
        when["embedding_site"] = observed.embedding_site
        return rows + trajectory_rows(self.trajectories, observed.frequency, self._request, **when)

    def _first_updates(self, observed: Observation, found: Evidences) -> None:
        """`init` of an update is the first that is not zero: a warm-up begins with a learning rate of 0."""
        new = {
            case: evidence
            for case, evidence in found.items()
            if case.tensor.startswith("update") and not _is_known(self._initial.get(case)) and _is_known(evidence)
        }
        if not new or not self._initial:  # without a step 0 there is no beginning
            return
        self._initial |= new
        if self._resumable and observed.step > 0:
            own = {name: s for name, s in observed.statistics.items() if name.view == "embedding"}
            self._held["updates"] = replace(observed, statistics=own, others={}, probe={}, tables={})

    def _hold(self, observed: Observation) -> None:
        """Hold on to what proxies were fitted on; of step 0 to all, for its energies are compared with."""
        if observed.step == 0:
            self._held["initial"] = replace(observed, others={}, probe={}, tables={})
        fitted = {name: s for name, s in observed.statistics.items() if _is_fitted_on(name)}
        self._held["previous"] = replace(observed, statistics=fitted, others={}, probe={}, tables={})
        self._held.setdefault("first", self._held["previous"])

    def _counted(self, observed: Observation) -> Observation:
        """With the tokens trained on so far; steps in between that nobody counted are taken to be as large as this."""
        between = observed.between
        self._tokens += observed.own_tokens
        self._tokens += observed.own_tokens * between.steps if between.tokens is None else between.tokens
        return replace(observed, tokens=self._tokens)

    def _anchored_for(self, observed: Observation) -> Proxies:
        """Pool early observations; once past the anchor, freeze the proxies of all of them and hand them out."""
        if self._anchor is None:
            return {}
        if observed.step <= self._anchor:
            self._early = merged(self._early, self._to_pool(observed.statistics))
            return {}
        if self._early and not self._anchored:
            early = replace(observed, statistics=self._early)
            self._anchored = fit_proxies(early, self._request, self._each)
            self._early = self._early if self._resumable else {}
        return self._anchored

    def _to_pool(self, statistics: Statistics) -> Statistics:
        """All that anchored proxies are fitted on: moments, and samples only where a method reads rows."""
        samples = any(PROXIES[proxy].needs == "sample" for proxy in self._request.proxies)
        samples |= self._request.rank == DIMENSION
        return {name: s for name, s in statistics.items() if _is_fitted_on(name) and (samples or name.part != "kept")}


def _is_known(found: Evidence | None) -> bool:
    return found is not None and math.isfinite(found.energy)


def _bases(proxies: Proxies) -> dict[str, Any]:
    """Orthonormal bases by place and the fold they were fitted on."""
    return {
        basis_name(place, fold): subspace.basis.float().cpu().numpy()
        for place, pair in proxies.items()
        for fold, subspace in enumerate(pair)
    }


def spectra_of(observed: Observation, each: Each = each_in_turn) -> dict[str, Any]:
    """Eigenvalues of the covariance of activations and gradients, descending, by view, layer, module and tensor.

    In the weight view the rows of G serve as the cloud.
    """
    cases = [
        (view.name, tensor, at)
        for view in VIEWS.values()
        for tensor in dict.fromkeys((view.fitted_on, "gradients"))
        for at in observed.sites(view.name, tensor)
    ]

    def eigenvalues(case: tuple[str, str, SiteKey]) -> Any:
        view, tensor, at = case
        if VIEWS[view].kind == "weight" and tensor == "gradients":
            summed = observed.sum(view, at, tensor, 0) + observed.sum(view, at, tensor, 1)
            covariance = Moments.of(summed, higher=False).covariance
        else:
            first, second = (observed.cloud(view, at, tensor, fold).moments for fold in (0, 1))
            covariance = first.merge(second).covariance
        return torch.linalg.eigvalsh(covariance).flip(0).clamp_min(0).float().cpu().numpy()

    names = ["/".join((view, str(at.layer), at.name, tensor)) for view, tensor, at in cases]
    return dict(zip(names, each(eigenvalues, cases), strict=True))


def _is_fitted_on(name: Name) -> bool:
    return name.view in VIEWS and VIEWS[name.view].fitted_on == name.tensor
