"""How far embeddings wander over the observations of a training: running statistics, no history.

Letters: n types, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.observe.statistics import Name, Statistics
from anisoscope.observe.tables import TableReading
from anisoscope.stats.chunks import at_once

FEWEST = 3  # observations before a variance over them says anything


@dataclass(slots=True, eq=False)
class Trajectory:
    """Mean of every row over observations, and its summed square distance to it (Welford's recurrence)."""

    ids: Tensor
    count: int
    mean: Tensor  # (n, D)
    squares: Tensor  # (n,)

    @classmethod
    def start(cls, reading: TableReading) -> Trajectory:
        """At the first observation."""
        mean = reading.rows.double()
        return cls(reading.ids, 1, mean, mean.new_zeros(len(reading.ids)))

    def add(self, reading: TableReading) -> None:
        """One observation more."""
        self.count += 1
        size = at_once(self.mean)  # temporaries of a large table would weigh more than what is kept
        parts = zip(reading.rows.split(size), self.mean.split(size), self.squares.split(size), strict=True)
        for rows, mean, squares in parts:
            before = rows.double() - mean
            mean += before / self.count
            squares += (before * (rows.double() - mean)).sum(1)

    @property
    def variance(self) -> Tensor | None:
        """Mean square distance of each type to its mean place; None before there are enough observations."""
        return self.squares / self.count if self.count >= FEWEST else None


class Trajectories:
    """Of every table."""

    def __init__(self) -> None:
        self.tables: dict[str, Trajectory] = {}

    def add(self, readings: dict[str, TableReading]) -> None:
        """Take in one observation."""
        for name, reading in readings.items():
            if name in self.tables:
                self.tables[name].add(reading)
            else:
                self.tables[name] = Trajectory.start(reading)

    def state(self) -> Statistics:
        """As named tensors."""
        found: Statistics = {}
        for name, t in self.tables.items():
            parts = (t.ids, torch.tensor(t.count, device="cpu"), t.mean, t.squares)
            found |= {Name("trajectory", 0, name, k, "sum"): part for k, part in enumerate(parts)}
        return found

    def restore(self, state: Statistics) -> None:
        """Go on from there."""
        for name in dict.fromkeys(key.points for key in state):  # in their order: rows keep theirs
            ids, count, mean, squares = (state[Name("trajectory", 0, name, k, "sum")] for k in range(4))
            assert isinstance(ids, Tensor)
            assert isinstance(count, Tensor)
            assert isinstance(mean, Tensor)
            assert isinstance(squares, Tensor)
            self.tables[name] = Trajectory(ids, int(count), mean.clone(), squares.clone())
