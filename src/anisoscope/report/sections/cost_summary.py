"""What watching cost, summed over the observations of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from anisoscope.report.formatting import counted
from anisoscope.vocabulary import MEASURES

_SAID = {kind: said for kind, said in MEASURES["cost"].variants if kind}


def cost_in_words(rows: Iterable[Mapping[str, Any]]) -> str | None:
    """A line about all observations that say what they cost; None where none does.

    >>> cost_in_words([{"measure": "cost", "variant": "watched", "value": 1.5, "step": 0, "model": "m", "seed": 0}])
    'watching 1.5 s, over 1 observation'
    """
    seconds: dict[str, float] = {}
    seen = set()
    for row in rows:
        if row["measure"] == "cost" and row["value"] is not None:
            seconds[row["variant"]] = seconds.get(row["variant"], 0.0) + row["value"]
            seen.add((row.get("model"), row.get("seed"), row["step"]))
    parts = [f"{said} {_time(seconds[kind])}" for kind, said in _SAID.items() if seconds.get(kind)]
    return f"{', '.join(parts)}, over {counted(len(seen), 'observation')}" if parts else None


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.1f} min"
