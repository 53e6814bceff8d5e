"""A judge in another process, and the connection to it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from anisoscope.errors import AnisoscopeError, BrokenRuleError
from anisoscope.evaluate.evaluator import EvaluatorSettings
from anisoscope.evaluate.remote.serialization import receive, send
from anisoscope.own_process import command_of, environment_of

_PATIENCE = 5.0  # seconds for a process that was told to go


class SubprocessEvaluator:
    """The judge of another process; one call at a time."""

    def __init__(self, brief: EvaluatorSettings, plugins: Sequence[str] = ()) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            hidden = {"CUDA_VISIBLE_DEVICES": ""} if brief.device is None else {}  # numbers on the host need no GPU
            environment = environment_of(OMP_NUM_THREADS="1", **hidden)
            command = command_of("anisoscope.evaluate.remote.evaluator_process", str(theirs.fileno()), *plugins)
            self.process = subprocess.Popen(
                command, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        self._connection = Connection(ours.detach())
        self._brief: EvaluatorSettings | None = brief
        self._dismissed = False

    def release(self) -> None:
        """End the process, whatever it is at."""
        self._dismissed = True
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_PATIENCE)
        self._connection.close()

    def asked(self, what: str, *args: object) -> Any:
        """What the judge answers; raises what it raised, and if it is gone."""
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
