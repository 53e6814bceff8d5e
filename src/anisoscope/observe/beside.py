"""A judge in a process of its own, where the training is on a GPU and cores are spare.

Threads would share Python's global lock with the training, and every kernel that it launches takes that lock: an eager
training of Pythia-160M's shape was 6 % slower with judging threads in its process. The numbers are those of a judge in
this process, because each site is judged on one core in both.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import torch

from anisoscope.errors import AnisoscopeError, BrokenRuleError
from anisoscope.evidence.nulls import registry as nulls
from anisoscope.geometry import registry as measures
from anisoscope.geometry import subspace
from anisoscope.observe.judge import Brief, Judge, Judgement, Judging
from anisoscope.observe.memory import Memory
from anisoscope.observe.statistics import Between, Observation
from anisoscope.observe.wire import receive, send
from anisoscope.plugins import origins

FEWEST_CORES = 4
_PATIENCE = 5.0  # seconds for a process that was told to go


def cores_are_spare() -> bool:
    """Whether judging may take cores beside the training."""
    return torch.cuda.is_initialized() and os.name == "posix" and (os.cpu_count() or 1) >= FEWEST_CORES


class JudgeBeside:
    """Judges on a GPU of this process, elsewhere if cores are spare when it is first asked, or here."""

    def __init__(self, brief: Brief, device: Callable[[], torch.device | None] = lambda: None) -> None:
        self._brief, self._device = brief, device
        self._judge: Judging | None = None

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
            self._judge = Elsewhere(self._brief, plugins or ()) if elsewhere else Judge(self._brief)
        return self._judge


def outside_modules() -> set[str]:
    """Modules of all measures, nulls and proxies that were registered from outside."""
    return measures.outside_modules() | nulls.outside_modules() | subspace.outside_modules()


class Elsewhere:
    """The judge of another process; one call at a time."""

    def __init__(self, brief: Brief, plugins: Sequence[str] = ()) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            environment = os.environ | {
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                "CUDA_VISIBLE_DEVICES": "",  # its numbers are on the host
                "OMP_NUM_THREADS": "1",
            }
            # -P: without it a file of the working directory named like a module would be run in its place.
            command = [sys.executable, "-P", "-m", "anisoscope.observe.judging_process", str(theirs.fileno()), *plugins]
            self.process = subprocess.Popen(
                command, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        self._connection = Connection(ours.detach())
        self._brief: Brief | None = brief
        self._dismissed = False

    def judged(self, observed: Observation) -> Judgement:
        """Rows of the next observation; raises if it cannot be judged."""
        return self._asked("judged", observed)

    def memory(self, step: int, between: Between) -> Memory:
        """All that a restart needs."""
        return self._asked("memory", step, between)

    def remember(self, memory: Memory) -> None:
        """Take up where ``memory`` left off."""
        self._asked("remember", memory)

    def dismiss(self) -> None:
        """End the process, whatever it is at."""
        self._dismissed = True
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_PATIENCE)
        self._connection.close()

    def _asked(self, what: str, *args: object) -> Any:
        try:
            if self._brief is not None:
                send(self._connection, self._brief)
                self._brief = None
            send(self._connection, (what, args))
            kind, answer = receive(self._connection)
        except (EOFError, OSError) as error:
            raise AnisoscopeError(f"the judging process {self._end()}; later observations are not judged") from error
        if kind == "fine":
            return answer
        raise {"rule": BrokenRuleError, "fault": AnisoscopeError}[kind](answer)

    def _end(self) -> str:
        if self._dismissed:
            return "was dismissed before it was done"
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.process.wait(_PATIENCE)
            return f"was ended by signal {-code}, perhaps for want of memory" if code < 0 else f"ended with code {code}"
        return "does not answer"
