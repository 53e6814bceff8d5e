"""Memory: how a user writes a size, and whether there is enough of it before it is taken."""

from __future__ import annotations

import re
from pathlib import Path

from anisoscope.errors import AnisoscopeError, broken

_UNITS = {"": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_GROUP = Path("/sys/fs/cgroup")


def parse_bytes(memory: str | int) -> int:
    """A number of bytes, or a text such as ``"8GiB"``.

    >>> parse_bytes("1.5 GiB"), parse_bytes("500MB"), parse_bytes(1024)
    (1610612736, 500000000, 1024)
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", str(memory))
    unit = None if match is None else _UNITS.get(match[2].upper())
    found = 0 if match is None or unit is None else int(float(match[1]) * unit)
    if found < 1:
        raise broken("memory must be a size such as '8GiB' or '500MB'", repr(memory), "use a number with its unit")
    return found


def format_bytes(count: int) -> str:
    """A size to three digits.

    >>> format_bytes(1610612736), format_bytes(52428800)
    ('1.5GiB', '50MiB')
    """
    return f"{count / 2**30:.3g}GiB" if count >= 2**30 else f"{count / 2**20:.3g}MiB"


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
