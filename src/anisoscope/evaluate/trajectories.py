"""How far embeddings, and contextual vectors averaged by type, wander over the observations of a training.

Running statistics, no history. Letters: n types, k types of an observation, N tokens, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.capture.sites import SiteKey
from anisoscope.evidence.frequency_evidence import by_type
from anisoscope.observe.embedding_tables import TableReading
from anisoscope.observe.statistics import Name, Observation, Statistics
from anisoscope.stats.hashing import as_key, mix
from anisoscope.stats.row_chunks import rows_per_chunk

FEWEST = 3  # observations before a variance over them says anything
FOLLOWED = 512  # types of a layer whose contextual means are followed: memory does not grow with the vocabulary


@dataclass(frozen=True, slots=True, eq=False)
class Wandered:
    """How far types went about their mean place, in mean square, and how far that place is from the origin."""

    ids: Tensor
    variance: Tensor
    norm: Tensor


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
        size = rows_per_chunk(self.mean)  # temporaries of a large table would weigh more than what is kept
        parts = zip(reading.rows.split(size), self.mean.split(size), self.squares.split(size), strict=True)
        for rows, mean, squares in parts:
            before = rows.double() - mean
            mean += before / self.count
            squares += (before * (rows.double() - mean)).sum(1)

    def wandered(self) -> Wandered | None:
        """Where the rows went; None before there are enough observations."""
        if self.count < FEWEST:
            return None
        return Wandered(self.ids, self.squares / self.count, self.mean.norm(dim=1))

    def parts(self) -> tuple[Tensor, ...]:
        """As tensors."""
        return self.ids, torch.tensor(self.count, device="cpu"), self.mean, self.squares

    @classmethod
    def of_parts(cls, ids: Tensor, count: Tensor, mean: Tensor, squares: Tensor) -> Trajectory:
        """Read them back."""
        return cls(ids, int(count), mean.clone(), squares.clone())


@dataclass(frozen=True, slots=True, eq=False)
class TypeMeans:
    """Contextual vectors of a layer, averaged by type."""

    ids: Tensor  # (k,), in rising order
    means: Tensor  # (k, D)
    noise: Tensor  # (k,), variance of each mean, summed over directions

    @classmethod
    def of(cls, observed: Observation, at: SiteKey) -> TypeMeans:
        """Over both folds; a first position is a sink in many decoders and says nothing about its token."""
        parts = [observed.cloud("representation", at, "activations", fold).sample("no-first") for fold in (0, 1)]
        columns = ([p.values for p in parts], [p.tokens for p in parts], [p.sequences for p in parts])
        found = by_type(*(torch.cat(column) for column in columns))
        chosen = followed(found.ids)
        return cls(*(column[chosen].cpu() for column in (found.ids, found.means, found.noise)))


def followed(ids_n: Tensor) -> Tensor:
    """Places of those with the smallest hashes, in rising order; the choice knows nothing of how frequent they are."""
    return as_key(mix(ids_n)).argsort()[:FOLLOWED].sort().values


@dataclass(slots=True, eq=False)
class TypeTrajectory:
    """The same of contextual means, of types that come and go: each has its own number of observations.

    Followed are the types with the smallest hashes of all that ever came. One that gives way to others never comes
    back, so those that are left have missed nothing.
    """

    observations: int
    ids: Tensor  # (n,), in rising order
    count: Tensor  # (n,)
    mean: Tensor  # (n, D), float32: rounding is far below the noise of a mean
    squares: Tensor  # (n,)
    noise: Tensor  # (n,), summed over observations

    @classmethod
    def empty(cls, width: int) -> TypeTrajectory:
        """Before the first observation."""
        none = torch.zeros(0, dtype=torch.int64, device="cpu")
        mean = torch.zeros(0, width, dtype=torch.float32, device="cpu")
        return cls(0, none, none, mean, none.double(), none.double())

    def add(self, found: TypeMeans) -> None:
        """One observation more."""
        self.observations += 1
        self._make_room(found.ids)
        new = torch.isin(found.ids, self.ids)
        at = torch.searchsorted(self.ids, found.ids[new])
        self.count[at] += 1
        count, before = self.count[at].double(), self.mean[at].double()
        off = found.means[new].double() - before
        self.mean[at] = (before + off / count[:, None]).float()
        self.squares[at] += off.square().sum(1) * (count - 1) / count
        self.noise[at] += found.noise[new].double()

    def _make_room(self, ids: Tensor) -> None:
        every = torch.cat([self.ids, ids]).unique()
        every = every[followed(every)]
        stays = torch.isin(self.ids, every)
        at = torch.searchsorted(every, self.ids[stays])

        def moved(column: Tensor) -> Tensor:
            return column.new_zeros(len(every), *column.shape[1:]).index_copy_(0, at, column[stays])

        self.count, self.mean = moved(self.count), moved(self.mean)
        self.squares, self.noise = moved(self.squares), moved(self.noise)
        self.ids = every

    def wandered(self) -> Wandered | None:
        """Where the types went that came often enough; None before there are enough observations.

        Means of few vectors differ between batches though nothing has moved, and more so for rare types: that noise is
        taken off, so a variance can be negative. The divisor is m − 1, not m as in a table, whose rows all have the
        same m: here m rises with frequency, and with it (m − 1)/m, which would look like frequent types moving more.
        """
        if self.observations < FEWEST:
            return None
        often = self.count >= FEWEST
        count, noise = self.count[often].double(), self.noise[often]
        norm = (self.mean[often].double().square().sum(1) - noise / count.square()).clamp_min(0).sqrt()
        return Wandered(self.ids[often], self.squares[often] / (count - 1) - noise / count, norm)

    def parts(self) -> tuple[Tensor, ...]:
        """As tensors."""
        observations = torch.tensor(self.observations, device="cpu")
        return observations, self.ids, self.count, self.mean, self.squares, self.noise

    @classmethod
    def of_parts(cls, observations: Tensor, *columns: Tensor) -> TypeTrajectory:
        """Read them back."""
        return cls(int(observations), *(column.cpu().clone() for column in columns))


class Trajectories:
    """Of every table, and of the contextual means of every layer."""

    def __init__(self) -> None:
        self.tables: dict[str, Trajectory] = {}
        self.contexts: dict[SiteKey, TypeTrajectory] = {}

    def add(self, readings: Mapping[str, TableReading], contexts: Mapping[SiteKey, TypeMeans] | None = None) -> None:
        """Take in one observation."""
        for name, reading in readings.items():
            if name in self.tables:
                self.tables[name].add(reading)
            else:
                self.tables[name] = Trajectory.start(reading)
        for at, found in (contexts or {}).items():
            self.contexts.setdefault(at, TypeTrajectory.empty(found.means.shape[1])).add(found)

    def state(self) -> Statistics:
        """As named tensors."""
        found: Statistics = {}
        for name, table in self.tables.items():
            found |= {Name("trajectory", 0, name, k, "sum"): part for k, part in enumerate(table.parts())}
        for at, types in self.contexts.items():
            for k, part in enumerate(types.parts()):
                found[Name("type trajectory", at.layer, "activations", k, "sum", at.name)] = part.clone()
        return found

    def restore(self, state: Statistics) -> None:
        """Go on from there."""
        grouped: dict[tuple[str, SiteKey, str], list[Tensor]] = {}  # in their order: rows keep theirs
        for name, part in state.items():
            assert isinstance(part, Tensor)
            grouped.setdefault((name.view, name.at, name.tensor), []).append(part)
        for (view, at, tensor), parts in grouped.items():
            if view == "trajectory":
                self.tables[tensor] = Trajectory.of_parts(*parts)
            else:
                self.contexts[at] = TypeTrajectory.of_parts(*parts)
