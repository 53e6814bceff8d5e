"""The scope: watches a PyTorch language model while it trains, without disturbing it.

One pass over the real training batch at an observation: taps hand activations and gradients to mergeable statistics; at
the end of the step they are reduced over ranks and handed to a thread that fits proxies on one fold of sequences and
judges them on the other. Between observations nothing is attached and nothing is paid.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anisoscope.budget.block_rotation import plan_rounds, require_no_rounds
from anisoscope.budget.timing import Clock
from anisoscope.capture.compiled import eagerly
from anisoscope.capture.schedule import Schedule
from anisoscope.capture.sites import unwrapped
from anisoscope.capture.taps import Taps
from anisoscope.errors import AnisoscopeError, broken
from anisoscope.evaluate.evaluator import EvaluatorSettings
from anisoscope.evaluate.judge_sites import Request
from anisoscope.evaluate.remote.auto import AutoEvaluator
from anisoscope.evaluate.remote.placement import Where
from anisoscope.evaluate.row_builders import Row
from anisoscope.geometry.subspace import Method, Subspace
from anisoscope.observe.collector import Collector
from anisoscope.observe.embedding import vocabulary_of
from anisoscope.observe.finalize import FROZEN, Assembly, UpdateWait
from anisoscope.observe.observation_cost import Cost
from anisoscope.observe.probe import Probe, ProbeInput
from anisoscope.observe.rank_sync import RankStatus, sync_close, sync_step
from anisoscope.observe.site_selection import choose, frozen_embedding
from anisoscope.observe.state import ScopeState
from anisoscope.observe.statistics import Observation, SkippedSteps, Statistics, together, tokens_of
from anisoscope.observe.token_counts import Tally
from anisoscope.record.evaluation_worker import Worker
from anisoscope.record.logged_values import LoggedValues
from anisoscope.record.notices import Notices, show
from anisoscope.record.pipeline import EvaluatedSeries, Keeper
from anisoscope.record.report_page import report_of
from anisoscope.record.run_provenance import provenance
from anisoscope.record.run_writer import ScopeRun, open_together
from anisoscope.record.scope_options import CaptureOptions, EvidenceOptions, SessionOptions
from anisoscope.record.settings_check import frozen_note, live_nulls, proxy_names, require_plain, require_possible
from anisoscope.record.trackers import Publisher
from anisoscope.stats.reduce import RankGroup
from anisoscope.vocabulary import LABEL_NULLS, added, anchor_step

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
    reported. Settings that cannot work are a ``ValueError`` here. After that, unless ``strict``, nothing that goes
    wrong in the scope stops the training: it is recorded as a skipped observation, and warned of (``ScopeWarning``)
    once for each reason.

    ``schedule`` is ``"log"`` (at most 16 observations), n for every n-th step, a list of steps, ``"1e6 tokens"``, or
    ``"always"``. ``proxies`` are names, or functions from rows to a ``Subspace``; the first is the main one, of rank
    ``rank``, a number, or ``"95%"`` (of the variance) or ``"id"`` (the TwoNN dimension), which every place then finds
    for itself, at most half of its width. ``views`` are by default those that the model has sites for, ``nulls`` all
    that need no extra pass. ``targets`` adds the two label nulls for an extra pass each; ``probe`` are held-out token
    ids for the dimension of every layer; ``frequency`` adds all that goes with how frequent tokens are: True counts
    those of the observed steps, or pass counts by type. Rows go into a run in the
    folder ``store``, which ``open_run`` reads; a training that is resumed goes on with its own. ``config`` is what the
    training was set to, for the manifest: ``compare`` shows in what two runs differ. ``resamples`` are the draws of
    each null; without it ``max(999, 40 × layers − 1)``, so that a single layer can be significant among all.
    ``evaluate`` says where observations are judged: on the GPU that trains (``"device"``), on the ``"host"``, or
    ``"auto"``. ``memory`` (``"8GiB"``) bounds what the statistics of an observation take beside the training: where
    the blocks do not fit together they are watched in turn, over consecutive steps, and statistics go to the host in
    between.

    What few need is in three groups: ``evidence``, ``capture`` and ``session``. Under ``torch.distributed`` every rank
    makes a scope and takes the same steps; rank 0 has the rows.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        steps: int | None = None,
        schedule: str | int | Sequence[int] = "log",
        rank: int | str = 32,
        proxies: Sequence[Method | Callable[[Tensor], Subspace]] = ("pca",),
        views: Sequence[str] | None = None,
        nulls: Sequence[str] | None = None,
        targets: bool = False,
        probe: ProbeInput | None = None,
        frequency: bool | Tensor | np.ndarray = False,
        store: str | os.PathLike[str] | None = None,
        config: Mapping[str, Any] | None = None,
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
        names, every_null = proxy_names(proxies), live_nulls(nulls, targets=targets)
        plain = {"rank": rank, "ranks": evidence.ranks, "subsets": evidence.subsets}
        require_plain(**plain, resamples=resamples, steps=steps, seed=seed)
        if store is not None and session.sink is not None:
            raise broken("rows must go to a sink or to a store", "both", "pass one of them")
        if session.report and store is None:
            raise broken("a report must have a run to be made from", "report=True without store=", "pass store=")
        choice = choose(model, capture.sites, views, capture.maps)
        self.sites, self.views, self.notes = choice.sites, choice.views, list(choice.notes)
        require_possible(self.sites, self.views, ranks=(rank, *evidence.ranks), proxies=names, seed=seed)
        self._whole_compiled = choice.whole_compiled
        self._model: nn.Module = model
        self._schedule = Schedule.of(schedule, steps=steps, budget=capture.budget)
        anchor = evidence.anchor
        anchor = anchor if anchor is not None else (None if steps is None else anchor_step(steps))
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
        subsets, ranks = tuple(evidence.subsets), tuple(evidence.ranks)
        request = Request(names, rank, subsets, every_null, resamples, seed, ranks, margin=evidence.margin)
        self._notices = Notices(strict=strict)
        if (frozen := frozen_note(self.sites)) is not None:
            self._notices.warn(frozen)
        elif views is None and (frozen := frozen_embedding(self.sites)) is not None:
            self._notices.leave_out(frozen)
        self._rank_group = RankGroup(session.timeout)
        blocks = f"{len(self.sites.blocks)} block{'' if len(self.sites.blocks) == 1 else 's'}"
        self._watched_model = f"{type(unwrapped(model)).__name__} with {blocks}"
        self._steps, self._labels = steps, capture.labels
        self._config = asdict(request) | {"views": self.views, "steps": steps, "schedule": schedule}
        self._config |= {"budget": capture.budget, "anchor": anchor, "memory": memory} | (
            {"training": dict(config)} if config else {}
        )
        self._run: ScopeRun | None = None
        if store is not None:
            made = provenance(reservoir_rows=capture.reservoir_rows, fold_seed=seed)
            goes_on = session.resumable or session.first_step > 0
            about = {"model": self._about_model(), "goes_on": goes_on, "steps": steps, "notes": self.notes}
            constant = {"model": type(unwrapped(model)).__name__, "seed": seed}
            about |= {"config": self._config, "constant": constant, "vocabulary": added(), **made}
            self._run = open_together(store, self._rank_group, self._notices, **about)
        sink = session.sink if self._run is None else self._run.sink
        self._log_to, self._reports = session.sink, session.report
        brief = EvaluatorSettings(request, anchor, resumable=session.resumable, keep=isinstance(sink, Keeper))
        told = {"keep_bases": session.keep_bases, "token_text": session.token_text}
        where = Where("host" if self._turns else evaluate, model)
        self._publisher = Publisher(session.log, self._notices)
        self._publisher.to(lambda: session.trackers)
        told |= {"notices": self._notices, "heard": self._publisher.take}
        self._series = EvaluatedSeries(AutoEvaluator(brief, lambda: where.device), sink=sink, **told)
        self._logged = LoggedValues(steps)
        self._worker = Worker(self._series.begin, pending=session.pending, on_device=lambda: where.device is not None)
        weakref.finalize(self, _abandoned, self._worker, self._series).atexit = False  # the worker sees to that
        self._tally = Tally.of(frequency, self.sites, self.views)
        self._assembly = Assembly(
            self.views,
            tuple(null for null in LABEL_NULLS if null in every_null),
            evidence.loss_fn,
            None if probe is None else Probe(probe, seed=seed),
            capture.reservoir_rows,
            seed,
            self._rank_group,
        )
        self._update = UpdateWait(capture.reservoir_rows, seed)
        self._rows, self._seed, self._strict = capture.reservoir_rows, seed, strict
        self._clock = Clock()
        self._step, self._closed = session.first_step, False
        self._taken = self._restored = False
        self._open_step: _OpenStep | None = None
        self._resumable = session.resumable
        self._between = SkippedSteps()
        self._window: Collector | None = None  # what "always" has gathered since the last judgement
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
        if self._open_step is not None:
            raise broken("steps must not be nested", "a step inside a step", "leave the first one before")
        self.begin(tokens, documents=documents)
        try:
            yield
        except BaseException:
            self.abandon()
            raise
        self.end()

    def begin(self, tokens: int | None = None, *, documents: Sequence[int] | Tensor | np.ndarray | None = None) -> None:
        """Begin an optimiser step, as ``step`` does, where no ``with`` block fits; does nothing while one is open.

        So it may stand before every micro-batch, and ``end`` behind the last one. An exception in between must be
        followed by ``abandon``.
        """
        if self._closed:
            raise broken("a scope must be open to take a step", "closed", "make a new scope")
        if self._open_step is not None:
            return
        self._settle(by_next_step=True)
        self._raise_if_strict()
        if not self._taken:
            self._taken = True
            self._begin_training()
        if self._steps is not None and self._step >= self._steps:
            self._notices.warn(
                f"step {self._step} is past steps={self._steps}: the training is longer than was said. If "
                "micro-batches are counted as steps, put all of one optimiser step into one scope.step(), or between "
                "scope.begin() and scope.end(); else pass the right steps="
            )
        self._publisher.flush(most=1)
        self._notices.tell()
        under_way = self._turns is not None and self._turns.under_way
        opened = _OpenStep(self._schedule.watched(self._step) or under_way, tokens)
        self._clock.begin(opened.watched, self._worker.busy)
        if opened.watched:
            began = time.perf_counter()
            try:
                opened.taps = self._attached(opened.stack, documents)
            except Exception as error:
                opened.stack.close()
                self._failed(error)
            opened.attaching = time.perf_counter() - began
        self._open_step = opened
        self._raise_if_strict()

    def end(self) -> None:
        """End the step that ``begin`` has begun: its forward and backward passes are done."""
        opened, self._open_step = self._open_step, None
        if opened is None:
            raise broken("a step must have begun before it ends", "end() without begin()", "call scope.begin() first")
        try:
            opened.stack.close()
            if opened.taps is not None:
                try:
                    self._finish(opened.taps, time.perf_counter() - opened.attaching)
                except Exception as error:
                    self._failed(error)
            if not opened.watched or (self._schedule.always and not self._schedule.judged(self._step)):
                self._between = _later(self._between, opened.tokens, opened.watched)
        finally:
            self._step += 1
        self._raise_if_strict()
        self._notices.tell()

    def abandon(self) -> None:
        """The step that is open was left by an exception: hooks go, and nothing of it is observed."""
        opened, self._open_step = self._open_step, None
        if opened is not None:
            opened.stack.close()
            self._step += 1

    def log(self, **values: Any) -> None:
        """Keep numbers that the training knows beside the observations, at the step under way (or the last one).

        ``scope.log(loss=loss)`` gives rows ``loss`` that the report draws, ``eval_loss`` those of held-out text, and
        any other name rows ``logged``. About 200 values of a name are kept, the first and the last among them.
        """
        step = self._step if self._open_step is not None else max(self._step - 1, 0)
        if self._rank_group.is_first:
            self._keep(self._logged.log(step, values))

    def wait(self) -> None:
        """Wait for judgements under way; in a process that was forked from the training there are none."""
        if not self._worker.forked:
            self._settle()
            self._worker.drain()
            self._raise_if_strict()
            self._notices.tell()

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
        memory = self._tally.taken_from(ScopeState.from_bytes(state))
        if self._turns is None:
            require_no_rounds(memory)
        else:
            memory = self._turns.taken_from(memory)
        if self._rank_group.is_first:
            self._series.load_state(memory)
        self._step, self._between, self._restored = memory.step, memory.between, True

    def close(self, timeout: float | None = None) -> list[int]:
        """End the watch and let go of the model; returns the steps that could not be judged within ``timeout``.

        What was observed, skipped and why, and what it cost is told at the end (``summary``). Under
        ``torch.distributed`` every rank must close; ranks that have not taken the same steps learn it here.
        """
        return self._end(timeout)

    def close_interrupted(self, timeout: float | None = 60.0) -> list[int]:
        """Close a scope whose training was left by an exception: its run can be gone on with."""
        return self._end(timeout, "interrupted")

    @property
    def in_step(self) -> bool:
        """Whether a step is open."""
        return self._open_step is not None

    def summary(self) -> str:
        """What was observed so far, what was skipped and why, what it cost, and where the rows are."""
        said = self._notices.summary(self.overhead)
        return (
            said
            if self._run is None
            else f"{said}\nrows: {self._run.run.path} (anisoscope report {self._run.run.path})"
        )

    def flush(self, *, wait: bool = False) -> None:
        """Write what has been judged to the trackers; with ``wait`` all that was observed so far."""
        if wait:
            self.wait()
        self._publisher.flush(None if wait else 1)
        self._notices.tell()

    def publish_to(self, trackers: Callable[[], Sequence[Any]]) -> None:
        """Write to these from now on; they are asked for when there are numbers to write."""
        self._publisher.to(trackers)

    def __repr__(self) -> str:
        views = " ".join(self.views)
        request = self._config
        of = "" if self._steps is None else f" of {self._steps}"
        state = "closed" if self._closed else f"at step {self._step}{of}"
        skipped = sum(len(each.steps) for each in self._notices.skipped)
        said = [
            f"{self._watched_model}: {views}",
            f"{' '.join(request['proxies'])} of rank {request['rank']}, nulls {' '.join(request['nulls']) or 'none'}",
            f"schedule {request['schedule']!r}" if request["budget"] is None else f"budget {request['budget']!r}",
            f"{state}, {len(self._notices.observed)} observed, {skipped} skipped",
        ]
        if self._run is not None:
            said.append(f"store {self._run.run.path}")
        return f"Scope({'; '.join(said)})"

    @property
    def overhead(self) -> float | None:
        """Measured share of time that the scope has added to the steps so far; None before it can be told."""
        return self._clock.overhead

    @property
    def judged_rows(self) -> list[Row]:
        """Rows that are there already, without waiting."""
        return self._series.rows

    def _attached(self, stack: ExitStack, documents: Sequence[int] | Tensor | np.ndarray | None) -> Taps:
        """Hooks on for this step."""
        known = None if documents is None else torch.as_tensor(documents).reshape(-1)
        completes = self._schedule.judged(self._step) if self._turns is None else self._turns.is_last
        views = self.views if completes else tuple(view for view in self.views if view != "embedding")
        embedding = self.sites.embedding if "embedding" in views else None
        always = self._schedule.always
        every = self.sites.layers
        layers = self._schedule.turn(self._step, every) if self._turns is None else self._turns.layers
        listener = self._window or Collector(views, seed=self._seed, guard=always, answers=self._tally.wanted)
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
        keep_calls = bool(self._assembly.label_nulls) and not always
        options = {"layers": layers, "keep_calls": keep_calls, "documents": known, "labels": self._labels}
        tapped = Taps(self._model, sites, listener, **options)
        return stack.enter_context(tapped)

    def _finish(self, taps: Taps, began: float) -> None:
        """The end of a step: nothing is lost if this rank fails here, for it says so to the others."""
        listener = taps.listener
        assert isinstance(listener, Collector)
        listener.end_step()
        error = None
        try:
            self._require_in_place()
            taps.require_heard()
        except Exception as trouble:
            if self._rank_group.is_single or (self._turns is None and not self._schedule.judged(self._step)):
                raise
            error = str(trouble)
        if self._turns is None and not self._schedule.judged(self._step):
            return
        self._window = None
        statistics = listener.statistics
        self._agree(error, statistics)
        between, self._between = self._between, SkippedSteps()
        statistics = together(statistics, self._rank_group)
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
        self._warn_of_missing(observation)
        observation = replace(observation, cost=Cost(watched=taps.seconds + time.perf_counter() - began))
        if turns is not None and not whole:
            turns.keep(observation if self._rank_group.is_first else None)
            return
        if "embedding" in self.views and self.sites.embedding is not None:
            self._update.hold(observation, self.sites.embedding.module)
        else:
            self._hand_over(observation)

    def _settle(self, *, by_next_step: bool = False) -> None:
        """Hand over an observation that waited for the optimiser to step."""
        try:
            observed = self._update.release()
            if observed is not None and by_next_step:
                self._warn_of_missing(observed)
            self._hand_over(observed)
        except Exception as error:
            self._failed(error)

    def _about_model(self) -> dict[str, Any]:
        """What tells a model from another in the manifest."""
        root = unwrapped(self._model)
        parameters = sum(parameter.numel() for parameter in root.parameters())
        return {"class": type(root).__name__, "blocks": len(self.sites.blocks), "parameters": parameters}

    def _failed(self, error: Exception) -> None:
        self._worker.drain()  # judgements under way keep their place before this row
        self._series.failed(self._step, error)
        if self._turns is not None:
            self._turns.drop()

    def _warn_of_missing(self, observed: Observation) -> None:
        """Say why a null, or the update of the embedding, is not there."""
        places = [what for what, why in observed.missing.items() if why == FROZEN]
        frozen = [f"{at.layer}" for at in places if not isinstance(at, str)]
        reasons: dict[str, list[str]] = {FROZEN: [f"gradients at layer {' '.join(frozen)}"]} if frozen else {}
        for what, why in observed.missing.items():
            # Another note on the update says how it was read, not that it was not.
            if isinstance(what, str) and (what in LABEL_NULLS or what == "gradients" or "no optimiser step" in why):
                reasons.setdefault(why, []).append("the embedding" if what == "gradients" else what)
        for why, names in reasons.items():
            self._notices.miss(observed.step, " and ".join(names), why)

    def _hand_over(self, observed: Observation | None) -> None:
        if observed is None:
            return
        if self._turns is not None:
            observed = self._turns.complete(observed)
        if self._rank_group.is_first:
            self._worker.submit(observed)

    def _agree(self, error: str | None, statistics: Statistics) -> None:
        """All ranks are at the same step and none has failed; together they know when the next observation is."""
        own = tokens_of(statistics) if self._schedule.tokens else 0  # waits for the device, so only where needed
        plan = self._clock.plan(*self._notices.judged, self._worker.waiting + 1)
        found = sync_step(self._rank_group, RankStatus(self._step, error, plan, own, self._between))
        self._tokens_seen += found.tokens
        self._schedule.plan(self._step, clock=found.plan, tokens=self._tokens_seen)
        found.require_no_trouble()

    def _begin_training(self) -> None:
        """Before the first step: what an earlier session left is taken up, or what is unknown of it said."""
        if self._step > 0 and not self._restored:
            self._notices.warn(
                f"the training resumes at step {self._step}, but the scope starts afresh: its state of earlier steps "
                "is missing, so there is no null init and no drift since the start, and anchored proxies lack the "
                "earlier steps. Use session=SessionOptions(resumable=True): its state is saved with the checkpoints of "
                "Trainer and Lightning, or by scope.state() and scope.restore()"
            )
        if self._run is not None:
            try:
                self._run.begin(self._step, self._steps, self._notices)
            except Exception as error:
                self._failed(error)

    def _keep(self, logged: Iterator[tuple[str, Row]]) -> None:
        """Values that were logged."""
        for name, row in logged:
            self._series.add([row], self._log_to if self._run is None else self._run.sink_of(name))

    def _end(self, timeout: float | None = None, status: str = "finished") -> list[int]:
        """Close with a status."""
        if self._closed or self._worker.forked:
            return []
        if self._open_step is not None:
            self.abandon()
            self._notices.warn(
                "the scope was closed inside a step: scope.begin() without scope.end(); nothing of it is observed"
            )
        self._settle()
        self._part()
        dropped = self._worker.drain(timeout)
        if self._turns is not None and self._turns.under_way:
            self._series.skip(self._turns.start, self._turns.incomplete)
            self._turns.drop()
        if self._rank_group.is_first:
            self._keep(self._logged.end())
        self._closed = True
        self._series.release()
        self._worker.stop()
        if dropped:
            self._notices.warn(f"not judged within {timeout:g} s: the observations of steps {dropped}")
        if self._run is not None:
            try:
                self._run.close("interrupted" if dropped else status)
            except AnisoscopeError as error:
                if self._strict:
                    raise
                self._notices.warn(str(error))
        self._model, self._window = nn.Identity(), None
        self._assembly = replace(self._assembly, probe=None)
        self.sites = replace(
            self.sites, blocks=(), weights=(), embedding=None, output=None, routers=(), lookups=(), inputs=None
        )
        self._publish_at_end()
        if self._rank_group.is_first and (self._notices.observed or self._notices.skipped):
            show(self.summary())
        self._notices.tell()
        self._raise_if_strict()
        return dropped

    def _publish_at_end(self) -> None:
        self._publisher.flush()
        if self._reports and self._run is not None:
            page = report_of(self._run.run.path)
            if isinstance(page, str):
                self._notices.warn(f"no report was made: {page}")
            else:
                self._publisher.artefact(page)

    def _part(self) -> None:
        """Say goodbye to the other ranks."""
        if self._rank_group.broken:
            return
        try:
            sync_close(self._rank_group, self._step)
        except AnisoscopeError as error:
            self._series.failed(self._step, error)

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


@dataclass(slots=True)
class _OpenStep:
    """An optimiser step under way."""

    watched: bool
    tokens: int | None
    stack: ExitStack = field(default_factory=ExitStack)
    taps: Taps | None = None
    attaching: float = 0.0


def _abandoned(worker: Worker, series: EvaluatedSeries) -> None:
    """A scope that was dropped without being closed: its threads end once they have judged what they hold."""
    if not worker.forked:
        worker.abandon(series.release)


def _later(between: SkippedSteps, tokens: int | None, accumulated: bool) -> SkippedSteps:
    """One more step that was not judged; one that was accumulated is counted in its window."""
    if accumulated:
        return between
    if tokens is None or (between.steps and between.tokens is None):
        return SkippedSteps(between.steps + 1, None)
    return SkippedSteps(between.steps + 1, (between.tokens or 0) + tokens)
