"""Several judges in processes of their own, each for some of the places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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
    """Judges places side by side; rows are those of one judge of all places."""

    def __init__(self, brief: Brief, plugins: Sequence[str] = (), *, most: int | None = None) -> None:
        self._brief, self._plugins = brief, plugins
        self._most = judges_for_cores() if most is None else most
        self._parts: Parts | None = None
        self._judges: list[Remote] = []

    def judged(self, observed: Observation) -> Judgement:
        """Rows of the next observation; raises if it cannot be judged."""
        parts = self._started(observed.statistics).of_observation(observed)
        found = self._each(lambda judge, part: judge.asked("examined", part), parts)
        return put_together(found, self._brief.request.margin)

    def memory(self, step: int, between: Between) -> Memory:
        """All that a restart needs."""
        if not self._judges:
            return Judge(self._brief).memory(step, between)
        return memory_of(self._each(lambda judge, _: judge.asked("memory", step, between), self._judges))

    def remember(self, memory: Memory) -> None:
        """Take up where ``memory`` left off."""
        known = {name: s for found in memory.occasions.values() for name, s in found.items()}
        parts = self._started(known).of_memory(memory)
        self._each(lambda judge, part: judge.asked("remember", part), parts)

    def dismiss(self) -> None:
        """End the processes, whatever they are at."""
        for judge in self._judges:
            judge.dismiss()

    def _started(self, statistics: Statistics) -> Parts:
        if self._parts is None:
            self._parts = Parts.of(statistics, self._most)
            self._judges = [Remote(self._brief, self._plugins) for _ in range(self._parts.count)]
        return self._parts

    def _each(self, ask: Callable[[Remote, Any], Any], given: Sequence[Any]) -> list[Any]:
        """Ask all judges at once; if several fail, the first failure is told once all have answered."""
        with ThreadPoolExecutor(len(self._judges)) as threads:
            asked = [threads.submit(ask, judge, one) for judge, one in zip(self._judges, given, strict=True)]
        return [answer.result() for answer in asked]
