"""Judges in processes of their own, where the training is on a GPU and cores are spare.

Threads would share Python's global lock with the training, and every kernel that it launches takes that lock: an eager
training of Pythia-160M's shape was 6 % slower with judging threads in its process. The numbers are those of a judge in
this process, because each site is judged on one core in both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from anisoscope.evidence.nulls import registry as nulls
from anisoscope.geometry import registry as measures
from anisoscope.geometry import subspace
from anisoscope.observe.findings import Judgement
from anisoscope.observe.judge import Brief, Judge, Judging
from anisoscope.observe.judges import Judges
from anisoscope.observe.memory import Memory
from anisoscope.observe.statistics import Between, Observation
from anisoscope.observe.where import cores_are_spare
from anisoscope.plugins import origins


class JudgeBeside:
    """Judges on a GPU of this process, elsewhere if cores are spare when it is first asked, or here."""

    def __init__(self, brief: Brief, device: Callable[[], torch.device | None] = lambda: None) -> None:
        self._brief, self._device = brief, device
        self._judge: Judging | None = None

    def begin(self, observed: Observation) -> Callable[[], Judgement]:
        """Start on the next observation; see ``Judging``."""
        return self._chosen().begin(observed)

    def judged(self, observed: Observation) -> Judgement:
        """Rows of the next observation; raises if it cannot be judged."""
        return self._chosen().judged(observed)

    def memory(self, step: int, between: Between) -> Memory:
        """All that a restart needs."""
        return (self._judge or Judge(self._brief)).memory(step, between)

    def remember(self, memory: Memory) -> None:
        """Take up where ``memory`` left off."""
        self._chosen().remember(memory)

    def dismiss(self) -> None:
        """Let go of everything, a judgement under way included."""
        if self._judge is not None:
            self._judge.dismiss()

    def _chosen(self) -> Judging:
        if self._judge is None and (device := self._device()) is not None:
            self._judge = Judge(replace(self._brief, device=device))
        if self._judge is None:
            # What was registered from a script or a notebook exists in this process alone.
            plugins = origins(outside_modules())
            elsewhere = plugins is not None and cores_are_spare()
            self._judge = Judges(self._brief, plugins or ()) if elsewhere else Judge(self._brief)
        return self._judge


def outside_modules() -> set[str]:
    """Modules of all measures, nulls and proxies that were registered from outside."""
    return measures.outside_modules() | nulls.outside_modules() | subspace.outside_modules()
