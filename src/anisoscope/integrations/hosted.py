"""A scope whose steps are begun and ended by a host's events instead of a ``with`` block."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from anisoscope.errors import AnisoscopeError, ScopeWarning
from anisoscope.evaluate.row_builders import Row
from anisoscope.record.scope_options import EvidenceOptions, SessionOptions
from anisoscope.record.settings_check import live_nulls, proxy_names, require_options, require_plain
from anisoscope.scope import Scope


class Hosted:
    """What the callbacks of all hosts share; a host must call ``abandon`` when a step ends in an exception.

    Options that are wrong whatever the model is are an error at once, before the host has begun anything.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        require_options(options, Scope)
        _require_right(options)
        self._options = options
        self.session: SessionOptions = options.get("session") or SessionOptions()
        self.scope: Scope | None = None

    @property
    def has_store(self) -> bool:
        """Whether what the host logs has a place of its own."""
        return self._options.get("store") is not None

    def start(
        self,
        model: nn.Module,
        *,
        steps: int | None,
        first_step: int,
        config: Mapping[str, Any],
        trackers: Callable[[], Sequence[Any]],
        state: Callable[[], bytes | None] = lambda: None,
    ) -> None:
        """Make the scope, and restore it if there is a state; what was left of an earlier training is closed.

        Where the environment does not allow it (a store that is another training's, a damaged state), the training goes
        on all the same and a warning says why, unless the scope is ``strict``.
        """
        if self.scope is not None:
            self.scope.close_interrupted()
        self.scope = None
        session = replace(self.session, first_step=first_step)
        given: dict[str, Any] = {"steps": steps} | self._options | {"session": session}
        given["config"] = dict(config) | dict(self._options.get("config") or {})
        try:
            self.scope = Scope(model, **given)
            self._restore(self.scope, state)
        except AnisoscopeError as error:
            if given.get("strict"):
                raise
            what = "is not observed" if self.scope is None else "is observed without what the scope knew"
            warnings.warn(f"this training {what}: {error}", ScopeWarning, stacklevel=2)
        if self.scope is not None:
            self.scope.publish_to(lambda: [*trackers(), *session.trackers])

    def begin(self, tokens: int | None = None, documents: Any = None) -> None:
        """An optimiser step begins, unless one is open."""
        if self.scope is not None:
            self.scope.begin(tokens, documents=documents)

    def end(self) -> None:
        """Forward and backward passes of the step are done."""
        if self.scope is not None and self.scope.in_step:
            self.scope.end()

    def abandon(self) -> None:
        """The step failed: hooks go, nothing is observed."""
        if self.scope is not None:
            self.scope.abandon()

    def log(self, values: Mapping[str, Any]) -> None:
        """Numbers of the host that belong into the run."""
        if self.scope is not None and self.has_store:
            self.scope.log(**values)

    def flush(self, *, wait: bool = False) -> None:
        """Write to the trackers what has been judged."""
        if self.scope is not None:
            self.scope.flush(wait=wait)

    def state(self) -> bytes | None:
        """What a restart needs, as ``Scope.state``."""
        return None if self.scope is None else self.scope.state()

    def close(self, *, interrupted: bool = False) -> None:
        """The training is over, or was left by an exception."""
        self.abandon()
        if self.scope is not None and interrupted:
            self.scope.close_interrupted()
        elif self.scope is not None:
            self.scope.close()

    def rows(self) -> list[Row]:
        """All rows so far, as ``Scope.rows``."""
        return [] if self.scope is None else self.scope.rows()

    @staticmethod
    def _restore(scope: Scope, state: Callable[[], bytes | None]) -> None:
        content = state()
        if content is not None:
            scope.restore(content)


def _require_right(options: dict[str, Any]) -> None:
    evidence = options.get("evidence") or EvidenceOptions()
    proxy_names(options.get("proxies", ("pca",)))
    live_nulls(options.get("nulls"), targets=bool(options.get("targets")))
    numbers = {name: options.get(name, usual) for name, usual in (("rank", 32), ("seed", 0), ("steps", None))}
    require_plain(**numbers, resamples=options.get("resamples"), ranks=evidence.ranks, subsets=evidence.subsets)
