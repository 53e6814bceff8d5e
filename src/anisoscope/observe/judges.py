"""Several judges in processes of their own, each for some of the places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from anisoscope.observe.findings import Judgement, put_together
from anisoscope.observe.judge import Brief, Judge
from anisoscope.observe.memory import Memory
from anisoscope.observe.parts import Parts, memory_of
from anisoscope.observe.remote import Remote
from anisoscope.observe.statistics import Between, Observation, Statistics
from anisoscope.observe.where import cores

MOST_JUDGES = 12
_OTHERS = 4  # cores for the training's own threads and for what feeds it with data


def judges_for_cores() -> int:
    """As many as cores are spare, and at least two."""
    return max(2, min(MOST_JUDGES, cores() - _OTHERS))


class Judges:
    """Judges places side by side; rows are those of one judge of all places.

    Each judge takes its part of the next observation as soon as it is done with that of the last: it does not wait for
    the others, so places that take longer at one observation hold up nothing.
    """

    def __init__(self, brief: Brief, plugins: Sequence[str] = (), *, most: int | None = None) -> None:
        self._brief, self._plugins = brief, plugins
        self._most = judges_for_cores() if most is None else most
        self._parts: Parts | None = None
        self._judges: list[Remote] = []
        self._threads: list[ThreadPoolExecutor] = []  # one thread a judge: what it is asked, it is asked in order

    def begin(self, observed: Observation) -> Callable[[], Judgement]:
        """Ask every judge for its part of the next observation; see ``Judging``."""
        asked = self._each(
            "examined", [(part,) for part in self._started(observed.statistics).of_observation(observed)]
        )
        return lambda: put_together(_answers(asked), self._brief.request.margin)

    def judged(self, observed: Observation) -> Judgement:
        """Rows of the next observation; raises if it cannot be judged."""
        return self.begin(observed)()

    def memory(self, step: int, between: Between) -> Memory:
        """All that a restart needs."""
        if not self._judges:
            return Judge(self._brief).memory(step, between)
        return memory_of(_answers(self._each("memory", [(step, between) for _ in self._judges])))

    def remember(self, memory: Memory) -> None:
        """Take up where ``memory`` left off."""
        known = {name: s for found in memory.occasions.values() for name, s in found.items()}
        parts = self._started(known).of_memory(memory)
        _answers(self._each("remember", [(part,) for part in parts]))

    def dismiss(self) -> None:
        """End the processes, whatever they are at."""
        for judge in self._judges:
            judge.dismiss()
        for thread in self._threads:
            thread.shutdown(wait=False, cancel_futures=True)

    def _started(self, statistics: Statistics) -> Parts:
        if self._parts is None:
            self._parts = Parts.of(statistics, self._most)
            self._judges = [Remote(self._brief, self._plugins) for _ in range(self._parts.count)]
            self._threads = [ThreadPoolExecutor(1, "anisoscope-ask") for _ in self._judges]
        return self._parts

    def _each(self, what: str, given: Sequence[tuple[Any, ...]]) -> list[Future[Any]]:
        """Ask all judges at once."""
        sides = zip(self._threads, self._judges, given, strict=True)
        return [thread.submit(judge.asked, what, *one) for thread, judge, one in sides]


def _answers(asked: Sequence[Future[Any]]) -> list[Any]:
    """What all have answered; if several fail, the first failure is told once all have answered."""
    wait(asked)
    return [answer.result() for answer in asked]
