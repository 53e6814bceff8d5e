"""One writer to a run: a lock that the operating system holds for a process and takes back when it dies."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path

from filelock import FileLock, Timeout

from anisoscope.errors import AnisoscopeError

NAME = "writer.lock"


class Lock:
    """Held by one process on a local run. Its file says who that is, and is empty when nobody holds it.

    The file stays: if it were removed, two processes could each hold a lock on a file of this name.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._lock = FileLock(self._path, thread_local=False)

    def acquire(self) -> None:
        """Take the lock or say who has it."""
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise AnisoscopeError(
                f"{self._path.parent} is being written by {self._holder()}; wait for it, or stop it"
            ) from None
        except (OSError, NotImplementedError) as error:
            why = getattr(error, "strerror", None) or error
            raise AnisoscopeError(f"cannot write in {self._path.parent}: {why}") from error
        with contextlib.suppress(OSError):  # a full disk: the lock is held all the same
            self._path.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}), encoding="utf-8")

    def release(self) -> None:
        """Give it back."""
        if self._lock.is_locked:
            if self._path.exists():  # a run that was removed is not made again
                with contextlib.suppress(OSError):
                    self._path.write_text("", encoding="utf-8")
            self._lock.release()

    def _holder(self) -> str:
        """Who holds it, as far as its file says."""
        try:
            said = json.loads(self._path.read_text(encoding="utf-8"))
            pid, host = int(said["pid"]), str(said["host"])
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"  # it has only just taken it
        return f"process {pid}" if host == socket.gethostname() else f"process {pid} on {host}"
