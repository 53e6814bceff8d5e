"""Several judges in processes of their own, each for some of the places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from anisoscope.evaluate.evaluation import Evaluation, combine
from anisoscope.evaluate.evaluator import Evaluator, EvaluatorSettings
from anisoscope.evaluate.remote.partition import Partition, memory_of
from anisoscope.evaluate.remote.placement import cores
from anisoscope.evaluate.remote.subprocess_evaluator import SubprocessEvaluator
from anisoscope.observe.state import ScopeState
from anisoscope.observe.statistics import Observation, SkippedSteps, Statistics

MOST_EVALUATORS = 12
_OTHERS = 4  # cores for the training's own threads and for what feeds it with data


def evaluators_for_cores() -> int:
    """As many as cores are spare, and at least two."""
    return max(2, min(MOST_EVALUATORS, cores() - _OTHERS))


class EvaluatorPool:
    """Judges places side by side; rows are those of one judge of all places.

    Each judge takes its part of the next observation as soon as it is done with that of the last: it does not wait for
    the others, so places that take longer at one observation hold up nothing.
    """

    def __init__(self, brief: EvaluatorSettings, plugins: Sequence[str] = (), *, most: int | None = None) -> None:
        self._brief, self._plugins = brief, plugins
        self._most = evaluators_for_cores() if most is None else most
        self._parts: Partition | None = None
        self._judges: list[SubprocessEvaluator] = []
        self._threads: list[ThreadPoolExecutor] = []  # one thread a judge: what it is asked, it is asked in order

    def begin(self, observed: Observation) -> Callable[[], Evaluation]:
        """Ask every judge for its part of the next observation; see ``EvaluatorProtocol``."""
        asked = self._each(
            "examined", [(part,) for part in self._started(observed.statistics).of_observation(observed)]
        )
        return lambda: combine(_answers(asked), self._brief.request.margin)

    def judged(self, observed: Observation) -> Evaluation:
        """Rows of the next observation; raises if it cannot be judged."""
        return self.begin(observed)()

    def memory(self, step: int, between: SkippedSteps) -> ScopeState:
        """All that a restart needs."""
        if not self._judges:
            return Evaluator(self._brief).memory(step, between)
        return memory_of(_answers(self._each("memory", [(step, between) for _ in self._judges])))

    def load_state(self, memory: ScopeState) -> None:
        """Take up where ``memory`` left off."""
        known = {name: s for found in memory.occasions.values() for name, s in found.items()}
        parts = self._started(known).of_memory(memory)
        _answers(self._each("load_state", [(part,) for part in parts]))

    def release(self) -> None:
        """End the processes, whatever they are at."""
        for judge in self._judges:
            judge.release()
        for thread in self._threads:
            thread.shutdown(wait=False, cancel_futures=True)

    def _started(self, statistics: Statistics) -> Partition:
        if self._parts is None:
            self._parts = Partition.of(statistics, self._most)
            self._judges = [SubprocessEvaluator(self._brief, self._plugins) for _ in range(self._parts.count)]
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
