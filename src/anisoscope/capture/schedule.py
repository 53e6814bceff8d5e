"""When to look: a pure function of the step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from anisoscope.errors import broken

MOST = 16


@dataclass(frozen=True, slots=True)
class Schedule:
    """Steps to observe: an explicit set, or every n-th, or (``every`` 0 and no set) the powers of two."""

    chosen: frozenset[int] | None = None
    every: int = 0

    @classmethod
    def of(cls, schedule: str | int | Sequence[int], *, steps: int | None = None) -> Schedule:
        """``"log"`` (at most 16 steps from the first to the last), a number n for every n-th, or the steps themselves.

        >>> sorted(Schedule.of("log", steps=2000).chosen)
        [0, 2, 3, 5, 8, 13, 21, 35, 58, 96, 159, 263, 437, 726, 1204, 1999]
        >>> [step for step in range(40) if Schedule.of("log").due(step)]
        [0, 1, 2, 4, 8, 16, 32]
        """
        if schedule == "log":
            return cls(chosen=_log_spaced(steps)) if steps is not None else cls()
        if isinstance(schedule, str):
            raise broken("schedule must be 'log', a number of steps, or a list of steps", repr(schedule), "use 'log'")
        if isinstance(schedule, int):
            if schedule < 1:
                raise broken("schedule must observe every n ≥ 1 steps", schedule, "use a larger number")
            return cls(every=schedule)
        if not schedule or min(schedule) < 0:
            raise broken("a list of steps must hold numbers from 0 on", list(schedule)[:4], "name at least one")
        return cls(chosen=frozenset(schedule))

    def due(self, step: int) -> bool:
        """Whether to observe this step, counted from 0."""
        if self.chosen is not None:
            return step in self.chosen
        if self.every:
            return step % self.every == 0
        return step == 0 or step & (step - 1) == 0


def _log_spaced(steps: int) -> frozenset[int]:
    if steps < 1:
        raise broken("steps must be at least 1", steps, "pass the length of training")
    last = steps - 1
    if last < MOST:
        return frozenset(range(steps))
    return frozenset({0, last} | {max(i, round(math.exp(math.log(last) * i / (MOST - 1)))) for i in range(1, MOST - 1)})
