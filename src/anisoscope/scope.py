"""The scope: watches a PyTorch language model while it trains, without disturbing it.

One pass over the real training batch at an observation: taps hand activations and gradients to mergeable statistics; at
the end of the step they are reduced over ranks and handed to a thread that fits proxies on one fold of sequences and
judges them on the other. Between observations nothing is attached and nothing is paid.
"""

from __future__ import annotations

import os
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace

import numpy as np
import torch
from torch import Tensor, nn

from anisoscope.capture.compiled import eagerly
from anisoscope.capture.schedule import Schedule
from anisoscope.capture.sites import unwrapped
from anisoscope.capture.taps import Taps
from anisoscope.errors import AnisoscopeError, broken
from anisoscope.geometry.subspace import Method, Subspace, proxy_name
from anisoscope.observe.agreement import Said, agreed, parted
from anisoscope.observe.assemble import Assembly
from anisoscope.observe.beside import JudgeBeside
from anisoscope.observe.choosing import choose
from anisoscope.observe.cost import Cost
from anisoscope.observe.embedding import vocabulary_of
from anisoscope.observe.finalize import UpdateWait
from anisoscope.observe.gathering import Gathering
from anisoscope.observe.judge import Brief
from anisoscope.observe.judging import Request
from anisoscope.observe.memory import Memory
from anisoscope.observe.options import CaptureOptions, EvidenceOptions, SessionOptions
from anisoscope.observe.probing import Probe, ProbeInput
from anisoscope.observe.provenance import provenance
from anisoscope.observe.rounds import plan_rounds
from anisoscope.observe.rows import Row
from anisoscope.observe.series import Keeper, Series
from anisoscope.observe.statistics import Between, Observation, Statistics, together, tokens_of
from anisoscope.observe.tally import Tally
from anisoscope.observe.timing import Clock
from anisoscope.observe.where import Where
from anisoscope.observe.worker import Worker
from anisoscope.stats.reduce import Company
from anisoscope.store.run import Run, create_run
from anisoscope.vocabulary import CAPTURED_SUBSETS, LABEL_NULLS, NULLS, PROXIES, added, anchor_step, require_each

ALWAYS_TOKENS = 2048


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
    *anchored* proxies, which are judged only later; without it (and without ``evidence.anchor``) only *rolling* is
    reported. Unless ``strict``, nothing that goes wrong in the scope stops the training: it is recorded as a skipped
    observation.

    ``schedule`` is ``"log"`` (at most 16 observations), n for every n-th step, a list of steps, ``"1e6 tokens"``, or
    ``"always"``. ``proxies`` are names, or functions from rows to a ``Subspace``; the first is the main one, of rank
    ``rank``. ``views`` are by default those that the model has sites for, ``nulls`` all that need no extra pass.
    ``targets`` adds the two label nulls for an extra pass
    each; ``probe`` are held-out token ids for the dimension of every layer; ``frequency`` adds all that goes with how
    frequent tokens are: True counts those of the observed steps, or pass counts by type. Rows go into a new run in the
    folder ``store``, which ``open_run`` reads. ``resamples`` are the draws of each null; without it
    ``max(999, 40 × layers − 1)``, so that a single layer can be significant among all. ``evaluate`` says where
    observations are judged: on the GPU that trains (``"device"``), on the ``"host"``, or ``"auto"``. ``memory``
    (``"8GiB"``) bounds what the statistics of an observation take beside the training: where the blocks do not fit
    together they are watched in turn, over consecutive steps, and statistics go to the host in between.

    What few need is in three groups: ``evidence``, ``capture`` and ``session``. Under ``torch.distributed`` every rank
    makes a scope and takes the same steps; rank 0 has the rows.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        steps: int | None = None,
        schedule: str | int | Sequence[int] = "log",
        rank: int = 32,
        proxies: Sequence[Method | Callable[[Tensor], Subspace]] = ("pca",),
        views: Sequence[str] | None = None,
        nulls: Sequence[str] | None = None,
        targets: bool = False,
        probe: ProbeInput | None = None,
        frequency: bool | Tensor | np.ndarray = False,
        store: str | os.PathLike[str] | None = None,
        resamples: int | None = None,
        seed: int = 0,
        strict: bool = False,
        evaluate: str = "auto",
        memory: str | int | None = None,
        evidence: EvidenceOptions | None = None,
        capture: CaptureOptions | None = None,
        session: SessionOptions | None = None,
    ) -> None:
        evidence, capture = evidence or EvidenceOptions(), capture or CaptureOptions()
        session = session or SessionOptions()
        names = tuple(proxy_name(proxy) for proxy in proxies)
        require_each("proxies", names, PROXIES)
        require_each("subsets", evidence.subsets, CAPTURED_SUBSETS)
        live = [null.name for null in NULLS.values() if null.live]
        nulls = [null for null in live if null not in LABEL_NULLS] if nulls is None else nulls
        require_each("nulls", nulls or ("haar",), live)
        choice = choose(model, capture.sites, views)
        self.sites, self.views, self.notes = choice.sites, choice.views, list(choice.notes)
        self._whole_compiled = choice.whole_compiled
        self._model: nn.Module = model
        self._schedule = Schedule.of(schedule, steps=steps, budget=capture.budget)
        anchor = evidence.anchor
        anchor = anchor if anchor is not None else (None if steps is None else anchor_step(steps))
        every_null = tuple(dict.fromkeys((*nulls, *(LABEL_NULLS if targets else ()))))
        self._turns = plan_rounds(
            memory,
            self.sites,
            self.views,
            rows=capture.reservoir_rows,
            label_nulls=sum(null in LABEL_NULLS for null in every_null),
            evaluate=evaluate,
            always=self._schedule.always,
        )
        if self._turns is not None:
            self.notes.append(self._turns.rounds.note)
        request = Request(
            names,
            rank,
            tuple(evidence.subsets),
            every_null,
            resamples,
            seed,
            tuple(evidence.ranks),
            margin=evidence.margin,
        )
        self._company = Company(session.timeout)
        self._run: Run | None = None
        sink = session.sink
        if store is not None:
            if sink is not None:
                raise broken("rows must go to a sink or to a store", "both", "pass one of them")
            if self._company.leads:
                asked = asdict(request) | {"views": self.views, "steps": steps, "schedule": schedule}
                asked |= {"budget": capture.budget, "anchor": anchor, "memory": memory}
                about = {"kind": "scope", "steps": steps, "notes": self.notes, "vocabulary": added()}
                made = provenance(reservoir_rows=capture.reservoir_rows, fold_seed=seed)
                self._run = create_run(store, config=asked, **about, **made)
                self._run.keep_page()
                sink = self._run.sink("scope", model=type(unwrapped(model)).__name__, seed=seed)
        brief = Brief(request, anchor, resumable=session.resumable, keep=isinstance(sink, Keeper))
        told = {"keep_bases": session.keep_bases, "token_text": session.token_text}
        where = Where("host" if self._turns else evaluate, model)
        self._series = Series(JudgeBeside(brief, lambda: where.device), sink=sink, **told)
        self._worker = Worker(self._series.judge, pending=session.pending, on_device=lambda: where.device is not None)
        weakref.finalize(self, _abandoned, self._worker, self._series).atexit = False  # the worker sees to that
        self._tally = Tally.of(frequency, self.sites, self.views)
        self._assembly = Assembly(
            self.views,
            tuple(null for null in LABEL_NULLS if null in every_null),
            evidence.loss_fn,
            None if probe is None else Probe(probe, seed=seed),
            capture.reservoir_rows,
            seed,
            self._company,
        )
        self._update = UpdateWait(capture.reservoir_rows, seed)
        self._rows, self._seed, self._strict = capture.reservoir_rows, seed, strict
        self._clock = Clock()
        self._step, self._inside, self._closed = session.first_step, False, False
        self._between = Between()
        self._window: Gathering | None = None  # what "always" has gathered since the last judgement
        self._tokens_seen = 0

    @contextmanager
    def step(
        self, tokens: int | None = None, *, documents: Sequence[int] | Tensor | np.ndarray | None = None
    ) -> Iterator[None]:
        """One optimiser step, observed if it is due. An exception inside removes every hook and passes on.

        ``tokens`` says how many tokens the step trains on, on this rank; without it steps that are not observed are
        taken to be as large as the next one that is. ``documents`` are ids of the document that each sequence is of, in
        the order in which sequences pass, over all micro-batches: sequences of one document are then one unit of folds
        and intervals. Without it every sequence is taken to be independent of the others. Documents that hold an equal
        sequence should have one id (``anisoscope.data.tokens.joined_documents``): a step sees its micro-batches one by
        one, and when it meets the second copy the first has gone to its fold.
        """
        if self._closed:
            raise broken("a scope must be open to take a step", "closed", "make a new scope")
        if self._inside:
            raise broken("steps must not be nested", "a step inside a step", "leave the first one before")
        self._settle()
        self._raise_if_strict()
        self._inside = True
        watched = self._schedule.watched(self._step) or (self._turns is not None and self._turns.under_way)
        self._clock.begin(watched, self._worker.busy)
        try:
            if not watched:
                yield
            else:
                with ExitStack() as stack:
                    began = time.perf_counter()
                    taps = self._attached(stack, documents)
                    attaching = time.perf_counter() - began
                    yield
                try:
                    self._finish(taps, time.perf_counter() - attaching)
                except Exception as error:
                    self._worker.drain()  # judgements under way keep their place before this row
                    self._series.failed(self._step, error)
                    if self._turns is not None:
                        self._turns.drop()
                self._raise_if_strict()
            if not watched or (self._schedule.always and not self._schedule.judged(self._step)):
                self._between = _later(self._between, tokens, watched)
        finally:
            self._inside = False
            self._step += 1

    def wait(self) -> None:
        """Wait for judgements under way; in a process that was forked from the training there are none."""
        if not self._worker.forked:
            self._settle()
            self._worker.drain()
            self._raise_if_strict()

    def rows(self) -> list[Row]:
        """All rows so far, one number a row; waits for judgements under way."""
        self.wait()
        return self._series.rows

    def state(self) -> bytes:
        """What a restart needs, as a safetensors file; waits for judgements under way."""
        self._settle()
        self._worker.drain()
        memory = self._tally.added_to(self._series.memory(self._step, self._between))
        return (memory if self._turns is None else self._turns.added_to(memory)).to_bytes()

    def restore(self, state: bytes) -> None:
        """Go on where ``state`` was taken, in a new scope with the same options."""
        memory = self._tally.taken_from(Memory.from_bytes(state))
        if self._turns is not None:
            memory = self._turns.taken_from(memory)
        if self._company.leads:
            self._series.remember(memory)
        self._step, self._between = memory.step, memory.between

    def close(self, timeout: float | None = None) -> list[int]:
        """End the watch and let go of the model; returns the steps that could not be judged within ``timeout``.

        Under ``torch.distributed`` every rank must close; ranks that have not taken the same steps learn it here.
        """
        if self._closed or self._worker.forked:
            return []
        self._settle()
        self._part()
        dropped = self._worker.drain(timeout)
        if self._turns is not None and self._turns.under_way:
            self._series.skip(self._turns.start, self._turns.incomplete)
            self._turns.drop()
        self._closed = True
        self._series.dismiss()
        self._worker.stop()
        if dropped:
            warnings.warn(f"not judged within {timeout:g} s: the observations of steps {dropped}", stacklevel=2)
        if self._run is not None:
            try:
                self._run.close("interrupted" if dropped else "finished")
            except AnisoscopeError as error:
                if self._strict:
                    raise
                warnings.warn(str(error), stacklevel=2)
        self._model, self._window = nn.Identity(), None
        self._assembly = replace(self._assembly, probe=None)
        self.sites = replace(
            self.sites, blocks=(), weights=(), embedding=None, output=None, routers=(), lookups=(), inputs=None
        )
        self._raise_if_strict()
        return dropped

    @property
    def overhead(self) -> float | None:
        """Measured share of time that the scope has added to the steps so far; None before it can be told."""
        return self._clock.overhead

    @property
    def judged_rows(self) -> list[Row]:
        """Rows that are there already, without waiting."""
        return self._series.rows

    def judged_since(self, count: int) -> tuple[list[Row], int]:
        """Rows judged after the first ``count``, without waiting, and how many there are by now."""
        return self._series.since(count), self._series.count

    def _attached(self, stack: ExitStack, documents: Sequence[int] | Tensor | np.ndarray | None) -> Taps:
        """Hooks on for this step."""
        known = None if documents is None else torch.as_tensor(documents).reshape(-1)
        completes = self._schedule.judged(self._step) if self._turns is None else self._turns.is_last
        views = self.views if completes else tuple(view for view in self.views if view != "embedding")
        embedding = self.sites.embedding if "embedding" in views else None
        always = self._schedule.always
        every = self.sites.layers
        layers = self._schedule.turn(self._step, every) if self._turns is None else self._turns.layers
        listener = self._window or Gathering(views, seed=self._seed, guard=always, answers=self._tally.wanted)
        self._window = listener if always else None
        listener.next_step(
            views,
            rows=self._rows if self._schedule.samples(self._step) else 0,
            vocabulary=0 if embedding is None else vocabulary_of(embedding.module),
            most_tokens=ALWAYS_TOKENS if always and not self._schedule.samples(self._step) else 0,
            layers=layers,
        )
        sites = replace(
            self.sites, weights=tuple(site for site in self.sites.weights if site.view in views), embedding=embedding
        )
        if self._whole_compiled:
            stack.enter_context(eagerly())
        remember = bool(self._assembly.label_nulls) and not always
        tapped = Taps(self._model, sites, listener, layers=layers, remember=remember, documents=known)
        return stack.enter_context(tapped)

    def _finish(self, taps: Taps, began: float) -> None:
        """The end of a step: nothing is lost if this rank fails here, for it says so to the others."""
        listener = taps.listener
        assert isinstance(listener, Gathering)
        listener.end_step()
        error = None
        try:
            self._require_in_place()
            taps.require_heard()
        except Exception as trouble:
            if self._company.alone or (self._turns is None and not self._schedule.judged(self._step)):
                raise
            error = str(trouble)
        if self._turns is None and not self._schedule.judged(self._step):
            return
        self._window = None
        statistics = listener.statistics
        self._agree(error, statistics)
        between, self._between = self._between, Between()
        statistics = together(statistics, self._company)
        refused = "labels are not tried again where steps are accumulated" if self._schedule.always else None
        turns, assembly, step = self._turns, self._assembly, self._step
        whole = turns is None or turns.is_last
        if turns is not None:
            turns.require_each_block_once(taps.blocks_called, self.sites.layers[-1])
            step = turns.observed_step(self._step)
        if not whole:  # the probe and the embedding are looked at once
            assembly = replace(assembly, probe=None, views=tuple(v for v in self.views if v != "embedding"))
        frequency = self._tally.plus(statistics) if whole else None
        about = {"step": step, "between": between, "frequency": frequency, "refused": refused}
        observation = assembly.make(self._model, self.sites, taps, statistics, **about)
        observation = replace(observation, cost=Cost(watched=taps.seconds + time.perf_counter() - began))
        if turns is not None and not whole:
            turns.keep(observation if self._company.leads else None)
            return
        if "embedding" in self.views and self.sites.embedding is not None:
            self._update.hold(observation, self.sites.embedding.module)
        else:
            self._hand_over(observation)

    def _settle(self) -> None:
        """Hand over an observation that waited for the optimiser to step."""
        self._hand_over(self._update.release())

    def _hand_over(self, observed: Observation | None) -> None:
        if observed is None:
            return
        if self._turns is not None:
            observed = self._turns.complete(observed)
        if self._company.leads:
            self._worker.submit(observed)

    def _agree(self, error: str | None, statistics: Statistics) -> None:
        """All ranks are at the same step and none has failed; together they know when the next observation is."""
        own = tokens_of(statistics) if self._schedule.tokens else 0  # waits for the device, so only where needed
        found = agreed(self._company, Said(self._step, error, self._clock.plan, own, self._between))
        self._tokens_seen += found.tokens
        self._schedule.plan(self._step, clock=found.plan, tokens=self._tokens_seen)
        found.require_no_trouble()

    def _part(self) -> None:
        """Say goodbye to the other ranks."""
        if self._company.broken:
            return
        try:
            parted(self._company, self._step)
        except AnisoscopeError as error:
            self._series.failed(self._step, error)
            if not self._strict:
                warnings.warn(str(error), stacklevel=3)

    def _raise_if_strict(self) -> None:
        error = self._series.error
        if self._strict and error is not None:
            self._series.error = None
            raise error

    def _require_in_place(self) -> None:
        """Raise if a module that is watched is no longer the one in the model."""
        names = dict(unwrapped(self._model).named_modules(remove_duplicate=False))
        for site in (*self.sites.blocks, *self.sites.weights):
            if names.get(site.name) is not site.module:
                raise AnisoscopeError(f"the module {site.name} was replaced since the scope was made; make a new scope")


def _abandoned(worker: Worker, series: Series) -> None:
    """A scope that was dropped without being closed: its threads end once they have judged what they hold."""
    if not worker.forked:
        worker.abandon(series.dismiss)


def _later(between: Between, tokens: int | None, accumulated: bool) -> Between:
    """One more step that was not judged; one that was accumulated is counted in its window."""
    if accumulated:
        return between
    if tokens is None or (between.steps and between.tokens is None):
        return Between(between.steps + 1, None)
    return Between(between.steps + 1, (between.tokens or 0) + tokens)
