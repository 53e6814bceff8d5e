"""Memory asked for before it is taken: a file may say that it is larger than the machine."""

from __future__ import annotations

import re
from pathlib import Path

from anisoscope.errors import AnisoscopeError

_GROUP = Path("/sys/fs/cgroup")


def available_memory() -> int | None:
    """Bytes that this process may still take; None where the system does not say."""
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="utf-8"))
    except OSError:
        return None
    free = None if found is None else int(found[1]) * 1024
    limit = _limit()
    return limit if free is None else free if limit is None else min(free, limit)


def require_memory(need: int, what: str, step: str) -> None:
    """Raise if there are fewer bytes than needed; sizes are those that a file says, before anything is read."""
    free = available_memory()
    if free is not None and need > free:
        raise AnisoscopeError(f"{what} needs about {need / 2**30:,.1f} GiB, and {free / 2**30:,.1f} are free; {step}")


def _limit() -> int | None:
    try:
        most, taken = ((_GROUP / name).read_text(encoding="utf-8").strip() for name in ("memory.max", "memory.current"))
        return int(most) - int(taken)
    except (OSError, ValueError):  # "max", or no control group
        return None
