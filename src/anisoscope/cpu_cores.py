"""How many cores a process may use. Needs no torch."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Cores that this process is bound to, and no more than ``OMP_NUM_THREADS`` asks for."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return min(bound, int(asked)) if asked.isdigit() and int(asked) > 0 else bound
