"""What observing costs, measured beside the bare steps."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque


class Clock:
    """Wall time from the beginning of one step to that of the next.

    Steps that were neither observed nor shared the machine with a judgement are bare; what the others took beyond the
    median of those was spent on observing.
    """

    def __init__(self) -> None:
        self.spent = 0.0
        self.observed = 0
        self._bare: deque[float] = deque(maxlen=64)
        self._waiting: list[tuple[float, bool]] = []  # of steps before the first bare one, and whether observed
        self._watching = 0.0  # the part of ``spent`` that fell on observed steps
        self._began: float | None = None
        self._loaded = self._was_observed = False
        self._steps = 0

    def begin(self, observed: bool, busy: bool) -> None:
        """A step begins."""
        now = time.perf_counter()
        if self._began is not None:
            self._count(now - self._began, self._was_observed, self._loaded or busy)
        self._began, self._was_observed, self._loaded = now, observed, busy

    def _count(self, seconds: float, observed: bool, busy: bool) -> None:
        self._steps += 1
        self.observed += observed
        if not observed and not busy:
            self._bare.append(seconds)
        else:
            self._waiting.append((seconds, observed))
        bare = self.bare
        if bare is not None:
            self.spent += sum(taken - bare for taken, _ in self._waiting)
            self._watching += sum(taken - bare for taken, was_observed in self._waiting if was_observed)
            self._waiting.clear()

    @property
    def bare(self) -> float | None:
        """Median time of a bare step; None before there was one."""
        return statistics.median(self._bare) if self._bare else None

    def plan(self, evaluated: float, judged: int, waiting: int) -> tuple[float | None, float, float]:
        """What the next observation is planned from: seconds of a bare step, of all observations, of one.

        An observation takes what its steps took beyond bare ones, and the time it is evaluated for. ``judged`` of them
        took ``evaluated`` seconds, and those ``waiting`` are taken for alike; while none is judged the cost is
        infinite. Steps that an evaluation slowed down are not counted again: they passed while it ran.
        """
        if not judged:
            return self.bare, 0.0, math.inf
        observations = judged + waiting
        spent = max(self._watching, 0.0) + evaluated / judged * observations
        return self.bare, spent, spent / observations

    @property
    def overhead(self) -> float | None:
        """Share of the bare time that was spent on observing."""
        return None if self.bare is None else max(self.spent, 0.0) / (self.bare * self._steps)
