"""When to look."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from anisoscope.errors import broken
from anisoscope.vocabulary import nearest

MOST = 16
TURNS = 4
END = 12  # the last look comes this part of the training before its end, so that it is judged when the training is over


@dataclass(slots=True)
class Schedule:
    """Steps to observe: an explicit set, every n-th, powers of two, or planned from one observation to the next.

    ``tokens`` and ``budget`` are planned: at each observation one process says which step is the next, so that all
    ranks agree. ``always`` accumulates at every step and judges at the steps chosen.
    """

    chosen: frozenset[int] | None = None
    every: int = 0
    tokens: int = 0
    budget: float = 0.0
    always: bool = False
    next: int = 0
    _ends: list[int] = field(default_factory=list)

    @classmethod
    def of(
        cls, schedule: str | int | Sequence[int], *, steps: int | None = None, budget: str | float | None = None
    ) -> Schedule:
        """A schedule as a user writes it.

        ``"log"`` (at most 16 steps, the last one 8 % before the end), n for every n-th, the steps themselves,
        ``"1e6 tokens"`` or ``"always"``; a ``budget`` (``"1%"`` or 0.01) takes the place of a schedule.

        >>> sorted(Schedule.of("log", steps=2000).chosen)
        [0, 2, 3, 4, 7, 12, 20, 33, 55, 91, 150, 247, 408, 673, 1111, 1833]
        >>> [step for step in range(40) if Schedule.of("log").judged(step)]
        [0, 1, 2, 4, 8, 16, 32]
        """
        if budget is not None:
            return cls(budget=_share(budget))
        if schedule in ("log", "always"):
            chosen = log_spaced(steps, early_end=schedule == "log") if steps is not None else None
            return cls(chosen=chosen, always=schedule == "always", _ends=sorted(chosen or ()))
        if isinstance(schedule, str):
            return cls(tokens=_tokens(schedule))
        if isinstance(schedule, int):
            if schedule < 1:
                raise broken("schedule must observe every n ≥ 1 steps", schedule, "use a larger number")
            return cls(every=schedule)
        if not schedule or min(schedule) < 0:
            raise broken("a list of steps must hold numbers from 0 on", list(schedule)[:4], "name at least one")
        return cls(chosen=frozenset(schedule))

    def watched(self, step: int) -> bool:
        """Whether anything is attached at this step, counted from 0."""
        return self.always or self.judged(step)

    def judged(self, step: int) -> bool:
        """Whether this step ends in a judgement."""
        if self.tokens or self.budget:
            return step >= self.next
        if self.chosen is not None:
            return step in self.chosen
        if self.every:
            return step % self.every == 0
        return _is_power(step)

    def window(self, step: int) -> tuple[int, int]:
        """First and last step of what is judged together with this one."""
        if not self.always:
            return step, step
        if self.chosen is not None:
            end = next((end for end in self._ends if end >= step), step)
            return max((e + 1 for e in self._ends if e < step), default=0), end
        start = end = step
        while not _is_power(end):
            end += 1
        while start > 0 and not _is_power(start - 1):
            start -= 1
        return start, end

    def turn(self, step: int, layers: Sequence[int]) -> frozenset[int] | None:
        """Which layers are looked at in this step: all, or under ``always`` a quarter of them in turn."""
        start, end = self.window(step)
        turns = min(TURNS, end - start + 1)
        return None if turns == 1 else frozenset(x for x in layers if x % turns == (step - start) % turns)

    def samples(self, step: int) -> bool:
        """Whether sequences are kept: under ``always`` only in the last round before a judgement."""
        _, end = self.window(step)
        return step > end - TURNS

    def plan(self, step: int, *, clock: tuple[float | None, float, float], tokens: int) -> None:
        """Set the next observation after one at ``step``: ``tokens`` seen so far; ``clock`` as rank 0 measured it."""
        if self.budget:
            bare, spent, cost = clock
            self.next = next_by_budget(step, bare=bare, spent=spent, cost=cost, budget=self.budget)
        elif self.tokens:
            self.next = next_by_tokens(step, tokens, self.tokens)


def next_by_tokens(step: int, seen: float, every: int) -> int:
    """The step by which the next multiple of ``every`` tokens is reached at the rate so far."""
    rate = max(seen, 1) / (step + 1)
    missing = (math.floor(seen / every) + 1) * every - seen
    return step + max(1, math.ceil(missing / rate))


def next_by_budget(step: int, *, bare: float | None, spent: float, cost: float, budget: float) -> int:
    """The first step at which one more observation keeps what was spent under its share of the bare time.

    ``cost`` is infinite as long as no observation has been judged, and ``bare`` None as long as no step had the machine
    to itself: gaps double until both are known.
    """
    if math.isinf(cost) or bare is None or bare <= 0:
        return 2 * step + 8
    return max(step + 1, math.ceil((spent + cost) / (budget * bare)))


def _is_power(step: int) -> bool:
    return step == 0 or step & (step - 1) == 0


def _share(budget: str | float) -> float:
    try:
        share = float(budget[:-1]) / 100 if isinstance(budget, str) and budget.endswith("%") else float(budget)
    except ValueError:
        share = math.nan
    if not 0 < share < 1:
        raise broken("budget must be a share of the training time between 0 and 1", repr(budget), "use '1%'")
    return share


def _tokens(schedule: str) -> int:
    match = re.fullmatch(r"\s*([0-9][0-9_.eE+]*)\s*tokens\s*", schedule)
    try:
        every = int(float(match[1].replace("_", ""))) if match else 0
    except ValueError:
        every = 0
    if every < 1:
        raise broken(
            "schedule must be 'log', 'always', a number of steps, a list of steps, or like '1e6 tokens'",
            repr(schedule),
            nearest(schedule, ("log", "always")) or "use 'log'",
        )
    return every


def log_spaced(steps: int, *, most: int = MOST, early_end: bool = True) -> frozenset[int]:
    """At most so many steps of a training, the first one and one near the end among them.

    >>> sorted(log_spaced(400, most=6))
    [0, 3, 11, 35, 112, 366]
    """
    if steps < 1:
        raise broken("steps must be at least 1", steps, "pass the length of training")
    if steps <= most:
        return frozenset(range(steps))
    last = steps - 1 - (steps // END if early_end else 0)
    return frozenset({0, last} | {max(i, round(math.exp(math.log(last) * i / (most - 1)))) for i in range(1, most - 1)})
