"""What has come of one training so far: rows, on to the sink as they come, and what went wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from anisoscope.errors import AnisoscopeError, BrokenRuleError
from anisoscope.observe.findings import Judgement
from anisoscope.observe.judge import Judging
from anisoscope.observe.memory import Memory
from anisoscope.observe.rows import Row, cost_rows, skipped_row, with_token_texts
from anisoscope.observe.statistics import Between, Observation

_REMEMBERED = 4096  # rows beside those of the last observation


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


class Series:
    """Rows of one training, judged one observation after the other."""

    def __init__(
        self,
        judge: Judging,
        *,
        sink: Sink | None = None,
        keep_bases: bool = False,
        token_text: Callable[[int], str] | None = None,
    ) -> None:
        self._kept: list[Row] = []  # all, or where the sink has them those that it could not take
        self._fresh: list[Row] = []  # of the last observations, for whoever shows them
        self.count = 0
        self.error: Exception | None = None
        self._judge, self._sink = judge, sink
        self._keep_bases, self._token_text = keep_bases, token_text
        self._unwritten: str | None = None

    @property
    def rows(self) -> list[Row]:
        """All rows so far; those that went to a store are read from there."""
        return [*self._sink.read(), *self._kept] if isinstance(self._sink, Reader) else list(self._kept)

    def since(self, count: int) -> list[Row]:
        """Rows after the first ``count``, as far back as they are remembered, without reading them again."""
        known = self._fresh if isinstance(self._sink, Reader) else self._kept
        return known[max(0, len(known) - (self.count - count)) :] if count < self.count else []

    def judge(self, observed: Observation) -> None:
        """Judge and write; whatever goes wrong becomes a row."""
        began = time.perf_counter()
        try:
            found = self._judge.judged(observed)
        except Exception as error:
            self.failed(observed.step, error)
        else:
            cost = replace(observed.cost, evaluated=time.perf_counter() - began)
            tokens = found.rows[0]["tokens"] if found.rows else None
            self._write(replace(found, rows=[*found.rows, *cost_rows(observed.step, tokens, cost)]), observed.step)

    def failed(self, step: int, error: Exception) -> None:
        """Record an observation that did not come about; the error is kept for whoever is strict."""
        self.error = self.error or error
        expected = isinstance(error, BrokenRuleError | AnisoscopeError)
        why = str(error) if expected else f"{type(error).__name__}: {error}"
        self._write(Judgement([skipped_row(step, why)]), step)

    def skip(self, step: int, why: str) -> None:
        """Record an observation that did not come about, where nothing went wrong."""
        self._write(Judgement([skipped_row(step, why)]), step)

    def memory(self, step: int, between: Between) -> Memory:
        """All that a restart needs, once everything that was handed over is judged.

        Raises if rows could not be written: a restart from here would go on without them.
        """
        if self._unwritten is not None:
            raise AnisoscopeError(f"the scope is not saved, for rows were lost since: {self._unwritten}")
        return self._judge.memory(step, between)

    def remember(self, memory: Memory) -> None:
        """Take up where ``memory`` left off."""
        self._judge.remember(memory)

    def dismiss(self) -> None:
        """Let go of everything but the rows."""
        self._judge.dismiss()

    def _write(self, found: Judgement, step: int) -> None:
        rows = found.rows if self._token_text is None else with_token_texts(found.rows, self._token_text)
        self.count += len(rows)
        if isinstance(self._sink, Reader):
            self._fresh = [*self._fresh[-_REMEMBERED:], *rows]
        else:
            self._kept += rows
        if self._sink is None:
            return
        try:
            self._sink.write(rows)
            if isinstance(self._sink, Keeper):
                for timing, bases in found.bases.items():
                    self._sink.keep("subspaces", timing, step, bases, every=self._keep_bases)
                if found.spectra:
                    self._sink.keep("spectra", None, step, found.spectra, every=True)
        except Exception as error:  # a full disk must not stop a training; strict raises it
            self.error = self.error or error
            self._unwritten = str(error)
            lost = skipped_row(step, f"the sink failed: {type(error).__name__}: {error}")
            self._kept += [*rows, lost] if isinstance(self._sink, Reader) else [lost]
            self._fresh = [*self._fresh, lost]
            self.count += 1
