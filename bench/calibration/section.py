"""A section of the page: what it tries, how its rows are made, and which rows are known to be above a bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.calibration.cells import ABOVE, Row


@dataclass(frozen=True, slots=True)
class Limit:
    """A known limit; ``rows`` is part of the first cell of rows that may be above a bar for it, None: of none."""

    text: str
    rows: str | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """One table. ``about`` may name ``{repetitions}``; ``part`` is the share of the repetitions asked for."""

    name: str
    title: str
    about: str
    heads: Row
    make: Callable[[int], Iterator[Row]]
    part: float = 1.0
    limits: tuple[Limit, ...] = ()

    def repetitions(self, asked: int) -> int:
        """How often each row is tried."""
        return max(100, round(asked * self.part)) if asked >= 100 else asked

    def unlisted(self, rows: list[Row]) -> list[Row]:
        """Rows above a bar that no limit explains."""
        known = [limit.rows for limit in self.limits if limit.rows is not None]
        above = [row for row in rows if any(ABOVE in cell for cell in row)]
        return [row for row in above if not any(part in row[0] for part in known)]
