"""Judges in processes of their own, where the training is on a GPU and cores are spare.

Threads would share Python's global lock with the training, and every kernel that it launches takes that lock: an eager
training of Pythia-160M's shape was 6 % slower with judging threads in its process. The numbers are those of a judge in
this process, because each site is judged on one core in both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from anisoscope.evaluate.evaluation import Evaluation
from anisoscope.evaluate.evaluator import Evaluator, EvaluatorProtocol, EvaluatorSettings
from anisoscope.evaluate.remote.evaluator_pool import EvaluatorPool
from anisoscope.evaluate.remote.placement import cores_are_spare
from anisoscope.evidence.nulls import registry as nulls
from anisoscope.geometry import measure_registry as measures
from anisoscope.geometry import subspace
from anisoscope.observe.state import ScopeState
from anisoscope.observe.statistics import Observation, SkippedSteps
from anisoscope.plugins import origins


class AutoEvaluator:
    """Judges on a GPU of this process, elsewhere if cores are spare when it is first asked, or here."""

    def __init__(self, brief: EvaluatorSettings, device: Callable[[], torch.device | None] = lambda: None) -> None:
        self._brief, self._device = brief, device
        self._judge: EvaluatorProtocol | None = None

    def begin(self, observed: Observation) -> Callable[[], Evaluation]:
        """Start on the next observation; see ``EvaluatorProtocol``."""
        return self._chosen().begin(observed)

    def judged(self, observed: Observation) -> Evaluation:
        """Rows of the next observation; raises if it cannot be judged."""
        return self._chosen().judged(observed)

    def memory(self, step: int, between: SkippedSteps) -> ScopeState:
        """All that a restart needs."""
        return (self._judge or Evaluator(self._brief)).memory(step, between)

    def load_state(self, memory: ScopeState) -> None:
        """Take up where ``memory`` left off."""
        self._chosen().load_state(memory)

    def release(self) -> None:
        """Let go of everything, a judgement under way included."""
        if self._judge is not None:
            self._judge.release()

    def _chosen(self) -> EvaluatorProtocol:
        if self._judge is None and (device := self._device()) is not None:
            self._judge = Evaluator(replace(self._brief, device=device))
        if self._judge is None:
            # What was registered from a script or a notebook exists in this process alone.
            plugins = origins(outside_modules())
            elsewhere = plugins is not None and cores_are_spare()
            self._judge = EvaluatorPool(self._brief, plugins or ()) if elsewhere else Evaluator(self._brief)
        return self._judge


def outside_modules() -> set[str]:
    """Modules of all measures, nulls and proxies that were registered from outside."""
    return measures.outside_modules() | nulls.outside_modules() | subspace.outside_modules()
