"""The page of a run while rows are written: made by a process of its own, so that training never waits for it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import Any

from anisoscope.own_process import command_of, environment_of

MAKER = "anisoscope.report.live"
SWITCH = "ANISOSCOPE_LIVE_PAGE"
_PATIENCE = 60.0


class PageProcess:
    """Begins with the first rows, ends with the run or with the process that it serves; whatever fails, rows do not."""

    def __init__(self, path: str, *, last: bool) -> None:
        self._path, self._last = path, last
        self._process: subprocess.Popen[Any] | None = None

    def begin(self) -> None:
        """Start it, if it does not run and is wanted (``ANISOSCOPE_LIVE_PAGE=0`` says no)."""
        if self._process is None and _is_wanted():
            with contextlib.suppress(OSError):
                self._process = subprocess.Popen([*_command(self._path), "--follow"], **_apart(subprocess.PIPE))

    def stop(self) -> None:
        """End it; what it has written is whole."""
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE)

    def finish(self, *, is_whole: bool) -> None:
        """Write the page of the closed run, if nobody else does: of one that was stopped or failed nobody may."""
        if self._process is not None and (self._last or not is_whole):
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(_command(self._path), timeout=_PATIENCE, **_apart(subprocess.DEVNULL))
        self._process = None


def _is_wanted() -> bool:
    return bool(sys.executable) and os.environ.get(SWITCH, "1") != "0"


def _command(path: str) -> list[str]:
    return command_of(MAKER, path)


def _apart(stdin: int) -> dict[str, Any]:
    """Ctrl-C is for the training, which then ends this process itself; it says nothing, and has no GPU."""
    environment = environment_of(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return {"stdin": stdin, **silent, "start_new_session": True, "env": environment}
