"""The scope: watches a PyTorch language model while it trains, without disturbing it.

One pass over the real training batch at an observation: taps hand activations and gradients to mergeable statistics; at
the end of the step proxies are fitted on one fold of sequences and judged on the other. Between observations nothing is
attached and nothing is paid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

from torch import nn

from anisoscope.capture.schedule import Schedule
from anisoscope.capture.sites import find_sites
from anisoscope.capture.taps import Taps
from anisoscope.errors import AnisoscopeError, BrokenRuleError, broken
from anisoscope.evidence.result import Evidence
from anisoscope.geometry.subspace import METHODS, Method
from anisoscope.observe.judging import fit_proxies, fold_sizes, judge_observation
from anisoscope.observe.rows import Proxies, Row, cloud_rows, drift_rows, row
from anisoscope.observe.statistics import Observation

VIEWS = ("representation", "weight")
EARLY = 0.3


@runtime_checkable
class Sink(Protocol):
    """Whoever wants the rows as they come."""

    def write(self, rows: list[Row]) -> None:
        """Take the rows of one observation."""


class Scope:
    """An instrument beside a training loop.

    Example::

        scope = Scope(model, steps=2000)
        for batch in loader:
            with scope.step():                 # one optimiser step; may hold several micro-batches
                model(**batch).loss.backward()
            optimizer.step(); optimizer.zero_grad()
        scope.close()
        scope.rows()

    ``steps`` (the length of training) fixes what *early* means: observations in the first 30 % are pooled into
    *anchored* proxies, which are judged only later; without it ``anchor`` gives that step; with neither, only
    *rolling* is reported. Unless ``strict``, nothing that goes wrong in the scope stops the training: it is recorded
    as a skipped observation.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        steps: int | None = None,
        rank: int = 32,
        proxies: Sequence[Method] = ("pca",),
        views: Sequence[str] | None = None,
        schedule: str | int | Sequence[int] = "log",
        nulls: Sequence[str] = ("haar", "normal", "pairing", "axes", "init"),
        anchor: int | None = None,
        blocks: Sequence[str] | None = None,
        weights: Sequence[str] | None = None,
        sink: Sink | None = None,
        reservoir_rows: int = 8192,
        resamples: int = 999,
        seed: int = 0,
        strict: bool = False,
    ) -> None:
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise broken("a model to observe must have parameters that require gradients", "none", "unfreeze it")
        for method in proxies:
            if method not in METHODS:
                raise broken(f"proxies must be among {' '.join(METHODS)}", repr(method), "use 'pca'")
        self.sites = find_sites(model, blocks=blocks, weights=weights)
        self.views = self._chosen_views(views)
        self.notes: list[str] = list(self.sites.notes)
        self._model, self._rank, self._proxies, self._nulls = model, rank, tuple(proxies), tuple(nulls)
        self._schedule = Schedule.of(schedule, steps=steps)
        self._anchor = anchor if anchor is not None else (None if steps is None else int(EARLY * steps))
        self._sink, self._reservoir_rows, self._resamples, self._seed = sink, reservoir_rows, resamples, seed
        self._strict = strict
        self._step, self._inside, self._closed, self._tokens = 0, False, False, 0
        self._rows: list[Row] = []
        self._initial: dict[Any, Evidence] = {}
        self._early: Observation | None = None
        self._anchored: Proxies = {}
        self._first: Proxies = {}
        self._previous: Proxies = {}

    @contextmanager
    def step(self) -> Iterator[None]:
        """One optimiser step, observed if it is due. An exception inside removes every hook and passes on."""
        if self._closed:
            raise broken("a scope must be open to take a step", "closed", "make a new scope")
        if self._inside:
            raise broken("steps must not be nested", "a step inside a step", "leave the first one before")
        self._inside = True
        try:
            if not self._schedule.due(self._step):
                yield
                return
            observation = Observation(self._step, self._reservoir_rows, self._seed, self.views)
            with Taps(self._model, self.sites, observation) as taps:
                yield
                self._guarded(taps, observation)
        finally:
            self._inside = False
            self._step += 1

    def rows(self) -> list[Row]:
        """All rows so far, one number a row."""
        return list(self._rows)

    def close(self) -> None:
        """End the watch and let go of the model."""
        self._closed = True
        self._early, self._model = None, nn.Identity()
        for held in (self._initial, self._anchored, self._first, self._previous):
            held.clear()

    def _chosen_views(self, views: Sequence[str] | None) -> tuple[str, ...]:
        has = {"representation": bool(self.sites.blocks), "weight": bool(self.sites.weights)}
        if views is None:
            return tuple(view for view in VIEWS if has[view])
        for view in views:
            if view not in VIEWS:
                raise broken(f"views must be among {' '.join(VIEWS)}", repr(view), "check the spelling")
            if not has[view]:
                raise broken(
                    f"a model observed in the {view} view must have sites for it",
                    "; ".join(self.sites.notes) or "none",
                    "name them with blocks= or weights=",
                )
        return tuple(views)

    def _guarded(self, taps: Taps, observation: Observation) -> None:
        """Judge, and unless strict turn whatever goes wrong into a row."""
        try:
            taps.require_heard()
            self._write(self._judged(observation))
        except Exception as error:
            if self._strict:
                raise
            expected = isinstance(error, BrokenRuleError | AnisoscopeError)
            why = str(error) if expected else f"{type(error).__name__}: {error}"
            self._write([row(step=observation.step, tokens=observation.tokens, measure="skipped", note=why)])

    def _judged(self, observation: Observation) -> list[Row]:
        sizes = fold_sizes(observation)
        if min(sizes) < 2:
            raise broken(
                "each fold must hold at least 2 sequences", f"{sizes[0]} and {sizes[1]}", "observe larger batches"
            )
        rows = cloud_rows(observation)
        options = {"nulls": self._nulls, "initial": self._initial, "resamples": self._resamples, "seed": self._seed}
        rolling = fit_proxies(observation, self._proxies, self._rank, self._seed)
        judged, evidences = judge_observation(observation, rolling, timing="rolling", **options)
        rows += judged
        rows += drift_rows(observation, rolling, self._first, since="first")
        rows += drift_rows(observation, rolling, self._previous, since="previous")
        self._first, self._previous = self._first or rolling, rolling
        if observation.step == 0:
            self._initial = evidences
        rows += self._anchored_rows(observation, options)
        return rows

    def _anchored_rows(self, observation: Observation, options: dict[str, Any]) -> list[Row]:
        """Pool early observations; once past the anchor, freeze their proxies and judge them."""
        if self._anchor is None:
            return []
        if observation.step <= self._anchor:
            self._early = observation if self._early is None else pooled(self._early, observation)
            return []
        if self._early is not None:
            self._anchored = fit_proxies(self._early, self._proxies, self._rank, self._seed)
            self._early = None
        if not self._anchored:
            return []
        return judge_observation(observation, self._anchored, timing="anchored", **options)[0]

    def _write(self, rows: list[Row]) -> None:
        self._rows += rows
        if self._sink is not None:
            self._sink.write(rows)


def pooled(first: Observation, second: Observation) -> Observation:
    """The activations of two observations together: all that an anchored proxy is fitted on."""
    for layer, site in second.representation.items():
        for own, other in zip(first.representation[layer].activations, site.activations, strict=True):
            _pool(own, other)
    for layer, site in second.weight.items():
        for own, other in zip(first.weight[layer].inputs, site.inputs, strict=True):
            _pool(own, other)
    return first


def _pool(own: Any, other: Any) -> None:
    own.moments, own.kept = own.moments.merge(other.moments), own.kept.merge(other.kept)
