"""What a user hears of a scope: a warning for each reason, once, and a summary at the end.

Reasons are gathered wherever they arise, also in the thread that judges, and told by the thread that trains: as a
``ScopeWarning`` that points at the user's own line, and as a record of the logger ``anisoscope``.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import warnings
from dataclasses import dataclass, field

from anisoscope.errors import ScopeWarning

LOGGER = logging.getLogger("anisoscope")
_INSIDE = ("anisoscope", "contextlib")
_WARNED = "anisoscope_warned"


@dataclass(slots=True)
class Skipped:
    """Observations, or parts of them, that did not come about for one reason."""

    why: str
    steps: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        at = ", ".join(map(str, self.steps[:4])) + (" …" if len(self.steps) > 4 else "")
        return f"{len(self.steps)} (step {at}): {self.why}"


class Notices:
    """Reasons by their kind: two that differ in numbers only are one.

    A ``strict`` scope raises for an observation that is skipped, so there is no need to warn of it too.
    """

    def __init__(self, *, strict: bool = False) -> None:
        self._strict = strict
        self._lock = threading.Lock()
        self._waiting: list[str] = []
        self._told: set[str] = set()
        self._skipped: dict[str, Skipped] = {}
        self._missing: dict[str, Skipped] = {}
        self._left_out: list[str] = []
        self.observed: list[int] = []
        self.watched = self.evaluated = 0.0  # seconds

    def warn(self, text: str) -> None:
        """Say it at the next occasion, unless its like was said before."""
        with self._lock:
            if _kind(text) not in self._told:
                self._told.add(_kind(text))
                self._waiting.append(text)

    def skip(self, step: int, why: str) -> None:
        """An observation did not come about."""
        with self._lock:
            self._skipped.setdefault(_kind(why), Skipped(why)).steps.append(step)
        if not self._strict:
            self.warn(f"the observation of step {step} was skipped: {why}")

    def miss(self, step: int, what: str, why: str) -> None:
        """A part of an observation could not be measured."""
        with self._lock:
            steps = self._missing.setdefault(_kind(f"{what}: {why}"), Skipped(f"{what}: {why}")).steps
            if step not in steps[-1:]:
                steps.append(step)
        self.warn(f"not measured at step {step}: {what}: {why}{remedy(why)}")

    def leave_out(self, why: str) -> None:
        """A part of the model is not watched in this training."""
        with self._lock:
            self._left_out.append(why)
        self.warn(why)

    def lose(self, step: int, why: str) -> None:
        """Rows could not be written."""
        if not self._strict:
            self.warn(f"rows of step {step} could not be written: {why}")

    def count(self, step: int, *, watched: float, evaluated: float) -> None:
        """An observation was judged."""
        with self._lock:
            self.observed.append(step)
            self.watched += watched
            self.evaluated += evaluated

    @property
    def judged(self) -> tuple[float, int]:
        """Seconds of evaluation, and of how many observations."""
        with self._lock:
            return self.evaluated, len(self.observed)

    @property
    def skipped(self) -> list[Skipped]:
        """What was skipped, by reason."""
        with self._lock:
            return [Skipped(each.why, list(each.steps)) for each in self._skipped.values()]

    def tell(self) -> None:
        """Say what waits to be said; called by the thread that trains."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for text in waiting:
            LOGGER.warning(text, extra={_WARNED: True})
            warnings.warn(text, ScopeWarning, stacklevel=_outside())

    def summary(self, overhead: float | None) -> str:
        """What was observed, what was not and why, and what it cost."""
        skipped = self.skipped
        left_out = sum(len(each.steps) for each in skipped)
        lines = [f"{len(self.observed)} observation{'' if len(self.observed) == 1 else 's'} judged, {left_out} skipped"]
        lines += [f"skipped {each}" for each in skipped]
        with self._lock:
            lines += [f"not measured {each}" for each in self._missing.values()]
            lines += [f"left out: {why}" for why in self._left_out]
        if self.observed:
            share = "" if overhead is None else f" ({100 * overhead:.2g} % of the bare steps' time)"
            cost = f"{self.watched:.3g} s in the training thread{share}, {self.evaluated:.3g} s of judging outside it"
            lines.append(f"cost: {cost}")
        return "\n".join(lines)


def show(text: str) -> None:
    """A message at level INFO; where nobody has set up logging, it goes to standard error."""
    if not LOGGER.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        handler.addFilter(lambda record: not getattr(record, _WARNED, False))  # warnings are printed by themselves
        LOGGER.addHandler(handler)
        if LOGGER.level == logging.NOTSET:
            LOGGER.setLevel(logging.INFO)
    LOGGER.info(text)


def remedy(why: str) -> str:
    """What to do about a part of an observation that could not be measured."""
    if "no labels" in why:
        return (
            ". Pass labels to the model's forward (CaptureOptions(labels='y') names its argument, if it is not labels, "
            "targets or target), or pass EvidenceOptions(loss_fn=) where the loss is taken outside"
        )
    if "no optimiser step" in why:
        return ". Is every micro-batch counted as a step, or was this step of the optimiser skipped for an overflow?"
    return ""


def _kind(text: str) -> str:
    """A reason without its numbers."""
    return re.sub(r"\d+(?:\.\d+)?", "#", text)


def _outside() -> int:
    """The level at which the code that uses this package stands."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    return level
