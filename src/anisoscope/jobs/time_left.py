"""How long something will still take, and how a time is written for people."""

from __future__ import annotations

import math
from collections.abc import Iterable


def time_left(total: int, over: int, shares: Iterable[float], spent: float) -> float | None:
    """Seconds left at the pace so far, where jobs are alike; None before a tenth of one is done.

    >>> time_left(4, 1, [0.5], 30.0), time_left(4, 0, [0.05], 3.0)
    (50.0, None)
    """
    worth = over + sum(shares)
    return spent / worth * max(total - worth, 0.0) if worth >= 0.1 else None


def clock(seconds: float | None) -> str:
    """Minutes and seconds, with hours where there are any; ``?`` while nobody knows.

    >>> clock(4.6), clock(3725), clock(None)
    ('0:05', '1:02:05', '?')
    """
    if seconds is None or math.isnan(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
