"""What has come of one training so far: rows, on to the sink as they come, and what went wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

from anisoscope.errors import AnisoscopeError, BrokenRuleError
from anisoscope.evaluate.evaluation import Evaluation
from anisoscope.evaluate.evaluator import EvaluatorProtocol
from anisoscope.evaluate.row_builders import Row, cost_rows, skipped_row, with_token_texts
from anisoscope.observe.observation_cost import Cost
from anisoscope.observe.state import ScopeState
from anisoscope.observe.statistics import Observation, SkippedSteps
from anisoscope.record.notices import Notices


@runtime_checkable
class Sink(Protocol):
    """Whoever wants the rows as they come."""

    def write(self, rows: list[Row]) -> None:
        """Take the rows of one observation."""


@runtime_checkable
class Keeper(Protocol):
    """A sink that keeps arrays too: subspaces and spectra."""

    def keep(self, what: str, timing: str | None, step: int, tensors: dict[str, Any], *, every: bool) -> None:
        """Take the arrays of one observation; unless ``every`` one is kept, later ones take their place."""


@runtime_checkable
class Reader(Protocol):
    """A sink that can be asked for the rows again: they need not stay in memory."""

    def read(self) -> list[Row]:
        """All rows that it took, in the order of steps."""
        ...


class EvaluatedSeries:
    """Rows of one training, judged one observation after the other."""

    def __init__(
        self,
        judge: EvaluatorProtocol,
        *,
        sink: Sink | None = None,
        keep_bases: bool = False,
        token_text: Callable[[int], str] | None = None,
        notices: Notices | None = None,
        heard: Callable[[int, list[Row]], None] = lambda step, rows: None,
    ) -> None:
        self._kept: list[Row] = []  # all, or where the sink has them those that it could not take
        self.error: Exception | None = None
        self._judge, self._sink = judge, sink
        self._keep_bases, self._token_text = keep_bases, token_text
        self._notices, self._heard = notices or Notices(), heard
        self._unwritten: str | None = None
        self._finished = 0.0  # when the observation before was written

    @property
    def rows(self) -> list[Row]:
        """All rows so far; those that went to a store are read from there."""
        return [*self._sink.read(), *self._kept] if isinstance(self._sink, Reader) else list(self._kept)

    def judge(self, observed: Observation) -> None:
        """Judge and write; whatever goes wrong becomes a row."""
        self.begin(observed)()

    def begin(self, observed: Observation) -> Callable[[], None]:
        """Start to judge the next observation; what is returned waits for the rows and writes them.

        Another may be begun before. Seconds of evaluation are those since the one before was written, so that what two
        observations share is counted once.
        """
        began = time.perf_counter()
        try:
            answer = self._judge.begin(observed)
        except Exception as error:
            return partial(self.failed, observed.step, error)
        return partial(self._finish, answer, observed.step, observed.cost, began)

    def _finish(self, answer: Callable[[], Evaluation], step: int, cost: Cost, began: float) -> None:
        try:
            found = answer()
        except Exception as error:
            self.failed(step, error)
        else:
            cost = replace(cost, evaluated=time.perf_counter() - max(began, self._finished))
            tokens = found.rows[0]["tokens"] if found.rows else None
            self._notices.count(step, watched=cost.watched, evaluated=cost.evaluated)
            self._write(replace(found, rows=[*found.rows, *cost_rows(step, tokens, cost)]), step)
        self._finished = time.perf_counter()

    def failed(self, step: int, error: Exception) -> None:
        """Record an observation that did not come about; the error is kept for whoever is strict."""
        self.error = self.error or error
        expected = isinstance(error, BrokenRuleError | AnisoscopeError)
        why = str(error) if expected else f"{type(error).__name__}: {error}"
        self._notices.skip(step, why)
        self._write(Evaluation([skipped_row(step, why)]), step)

    def skip(self, step: int, why: str) -> None:
        """Record an observation that did not come about, where nothing went wrong."""
        self._notices.skip(step, why)
        self._write(Evaluation([skipped_row(step, why)]), step)

    def add(self, rows: list[Row], sink: Sink | None) -> None:
        """Keep rows that are of no observation, in a sink of their own where there is one."""
        if not isinstance(self._sink, Reader):
            self._kept += rows
        if sink is not None:
            try:
                sink.write(rows)
            except Exception as error:
                self._lose(rows, rows[0]["step"], error)

    def memory(self, step: int, between: SkippedSteps) -> ScopeState:
        """All that a restart needs, once everything that was handed over is judged.

        Raises if rows could not be written: a restart from here would go on without them.
        """
        if self._unwritten is not None:
            raise AnisoscopeError(f"the scope is not saved, for rows were lost since: {self._unwritten}")
        return self._judge.memory(step, between)

    def load_state(self, memory: ScopeState) -> None:
        """Take up where ``memory`` left off."""
        self._judge.load_state(memory)

    def release(self) -> None:
        """Let go of everything but the rows."""
        self._judge.release()

    def _write(self, found: Evaluation, step: int) -> None:
        rows = found.rows if self._token_text is None else with_token_texts(found.rows, self._token_text)
        self._heard(step, rows)
        if not isinstance(self._sink, Reader):
            self._kept += rows
        if self._sink is None:
            return
        written = False
        try:
            self._sink.write(rows)
            written = True
            self._keep(self._sink, found, step)
        except Exception as error:
            self._lose(rows if not written else [], step, error)

    def _keep(self, sink: Sink, found: Evaluation, step: int) -> None:
        """Hand on subspaces and spectra."""
        if not isinstance(sink, Keeper):
            return
        for timing, bases in found.bases.items():
            sink.keep("subspaces", timing, step, bases, every=self._keep_bases)
        if found.spectra:
            sink.keep("spectra", None, step, found.spectra, every=True)

    def _lose(self, rows: list[Row], step: int, error: Exception) -> None:
        """Rows that the sink could not take: a full disk must not stop a training; strict raises it."""
        self.error = self.error or error
        self._unwritten = str(error)
        why = f"the sink failed: {type(error).__name__}: {error}"
        lost = skipped_row(step, why)
        self._notices.lose(step, why)
        self._kept += [*rows, lost] if isinstance(self._sink, Reader) else [lost]
