"""A scope whose steps are begun and ended by a host's events instead of a ``with`` block."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from torch import nn

from anisoscope.observe.headline import by_step, headline
from anisoscope.observe.options import SessionOptions
from anisoscope.observe.rows import Row
from anisoscope.scope import Scope


class Hosted:
    """What the callbacks of all hosts share; a host must call ``abandon`` when a step ends in an exception."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self.scope: Scope | None = None
        self._open: AbstractContextManager[None] | None = None
        self._logged = 0

    def start(self, model: nn.Module, *, steps: int | None, first_step: int) -> None:
        """Make the scope; what was left of an earlier training goes."""
        self.abandon()
        session = self._options.get("session") or SessionOptions()
        known: dict[str, Any] = {"steps": steps} | self._options | {"session": replace(session, first_step=first_step)}
        self.scope, self._logged = Scope(model, **known), 0

    def begin(self, tokens: int | None = None, documents: Any = None) -> None:
        """An optimiser step begins, unless one is open."""
        if self.scope is not None and self._open is None:
            self._open = self.scope.step(tokens, documents=documents)
            self._open.__enter__()

    def end(self) -> None:
        """Forward and backward passes of the step are done."""
        opened, self._open = self._open, None
        if opened is not None:
            opened.__exit__(None, None, None)

    def abandon(self) -> None:
        """The step failed: hooks go, nothing is observed."""
        opened, self._open = self._open, None
        if opened is not None:
            trouble = RuntimeError("the step was left by an exception")
            try:
                opened.__exit__(RuntimeError, trouble, None)
            except RuntimeError as error:
                if error is not trouble:
                    raise

    def news(self, *, wait: bool = False) -> list[dict[str, float]]:
        """Headline numbers of observations that were judged since the last call."""
        if self.scope is None:
            return []
        if wait:
            self.scope.wait()
        fresh, self._logged = self.scope.judged_since(self._logged)
        return [headline(part) for part in by_step(fresh)]

    def state(self) -> bytes | None:
        """What a restart needs, as ``Scope.state``."""
        return None if self.scope is None else self.scope.state()

    def restore(self, state: bytes) -> None:
        """Go on where the state was taken."""
        if self.scope is not None:
            self.scope.restore(state)

    def close(self) -> None:
        """The training is over."""
        self.abandon()
        if self.scope is not None:
            self.scope.close()

    def rows(self) -> list[Row]:
        """All rows so far, as ``Scope.rows``."""
        return [] if self.scope is None else self.scope.rows()
