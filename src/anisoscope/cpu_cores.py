"""How many cores a process may use, and how it shares them. Needs no torch."""

from __future__ import annotations

import os

_SPINS = "1000"  # some microseconds


def wait_without_spinning() -> None:
    """Let threads of torch sleep while they wait for one another; to be called before torch is imported.

    By default they spin for milliseconds. Where another process wants the same cores, the thread that is waited for
    then does not come to run: a pass on two threads took 45 s of CPU time beside other work and takes 11 s so.
    ``GOMP_SPINCOUNT`` or ``OMP_WAIT_POLICY`` of the caller's own stay.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)


def usable_cores() -> int:
    """Cores that this process is bound to, and no more than ``OMP_NUM_THREADS`` asks for."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return min(bound, int(asked)) if asked.isdigit() and int(asked) > 0 else bound
