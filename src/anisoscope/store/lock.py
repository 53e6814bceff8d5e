"""One writer to a run: a lock file with the process that holds it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path

from anisoscope.errors import AnisoscopeError

NAME = "writer.lock"


class Lock:
    """Held by one process on a local run; a process that died has lost it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._held = False

    def acquire(self) -> None:
        """Take the lock or say who has it."""
        for _ in range(2):
            try:
                handle = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                holder = self._holder()
                if holder is not None:
                    raise AnisoscopeError(
                        f"{self._path.parent} is being written by {holder}; wait for it, or stop it"
                    ) from None
                with contextlib.suppress(FileNotFoundError):
                    self._path.unlink()
                continue
            except OSError as error:
                raise AnisoscopeError(f"cannot write in {self._path.parent}: {error.strerror or error}") from error
            with os.fdopen(handle, "w") as file:
                json.dump({"pid": os.getpid(), "host": socket.gethostname(), "began": _began(os.getpid())}, file)
            self._held = True
            return
        raise AnisoscopeError(f"{self._path.parent} is being taken by another process; try again")

    def release(self) -> None:
        """Give it back."""
        if self._held:
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
            self._held = False

    def _holder(self) -> str | None:
        """Who holds it, or None if that process is no more."""
        try:
            said = json.loads(self._path.read_text())
            pid, host = int(said["pid"]), str(said["host"])
        except (OSError, ValueError, KeyError, TypeError):
            return None  # torn: whoever wrote it died
        if host != socket.gethostname():
            return f"process {pid} on {host}"
        began = _began(pid)
        alive = began is not None and (said.get("began") in (None, began))
        return f"process {pid}" if alive else None


def _began(pid: int) -> str | None:
    """When a process began, to tell it from a later one with its number; None if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return ""
    return "" if not Path("/proc").exists() else None
