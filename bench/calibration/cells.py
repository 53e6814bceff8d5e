"""The cells of a table: rates with their intervals, and the bars of DEFINITIONS §11 that they are held against."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from scipy import stats

from anisoscope.geometry.results import Estimate

REJECTION_BAR, MISS_BAR = 0.07, 0.10
RESAMPLES = 199
ABOVE = "**above the bar**"
Row = list[str]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rate(hits: int, tries: int, bar: float | None) -> str:
    """A share with its 99 % interval; marked if all of that lies above the bar."""
    if not tries:
        return "–"
    ends = stats.binomtest(hits, tries).proportion_ci(0.99)
    mark = f" {ABOVE}" if bar is not None and ends.low > bar else ""
    return f"{hits / tries:.3f} [{ends.low:.3f}, {ends.high:.3f}]{mark}"


def missed(e: Estimate, truth: float) -> tuple[int, int]:
    """Whether an interval was issued, and whether it misses."""
    if e.low is None or e.high is None:
        return 0, 0
    return 1, int(not e.low <= truth <= e.high)


def coverage_row(name: str, n: int, found: Sequence[tuple[int, int]], bar: float | None = MISS_BAR) -> Row:
    """How often intervals were issued, and how often they missed."""
    issued, missing = (sum(column) for column in zip(*found, strict=True))
    held = f"{1 - missing / issued:.3f}" if issued else "–"
    return [name, str(n), f"{issued / len(found):.2f}", held, rate(missing, len(found), bar)]


def table(heads: Row, rows: Sequence[Row]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [heads, ["---"] * len(heads), *rows])
