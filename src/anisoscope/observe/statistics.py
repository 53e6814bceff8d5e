"""Statistics of one observation: named values that merge, and nothing else.

Letters: B sequences, T positions, D width, F outputs of a linear map, V vocabulary.

Statistics are a flat dictionary. That is what makes it easy to add micro-batches, steps and ranks, to move them to the
host, and to judge them later and elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anisoscope.capture.sites import SiteKey
from anisoscope.errors import broken
from anisoscope.observe.embedding_tables import TableReading
from anisoscope.observe.observation_cost import Cost
from anisoscope.stats.moments import STATE_DTYPE, Moments
from anisoscope.stats.reduce import RankGroup, all_reduce
from anisoscope.stats.reservoir import NO_KEY, Reservoir, Sample


class Name(NamedTuple):
    """What a statistic is of. ``part``: ``first`` and ``rest`` positions (moments), ``kept`` (sample), ``sum``."""

    view: str
    layer: int
    tensor: str
    fold: int
    part: str
    site: str = ""

    @property
    def at(self) -> SiteKey:
        """The place in the network."""
        return SiteKey(self.layer, self.site)


Statistic = Moments | Reservoir | Tensor
Statistics = dict[Name, Statistic]


@dataclass(frozen=True, slots=True, eq=False)
class Cloud:
    """One cloud in one fold: moments of all its rows and of those that are not first in their sequence; a sample."""

    moments: Moments
    rest: Moments
    kept: Reservoir | None

    def of(self, selection: str) -> Moments:
        """The moments of a subset of tokens."""
        return self.rest if selection == "no-first" else self.moments

    def sample(self, selection: str = "all") -> Sample:
        """The rows kept of those tokens."""
        assert self.kept is not None, "nothing was kept of this cloud"
        kept = self.kept.sample()
        if selection != "no-first":
            return kept
        later = kept.positions > 0
        columns = (kept.values, kept.tokens, kept.sequences, kept.positions, kept.keys)
        return Sample(*(column[later] for column in columns))


class SkippedSteps(NamedTuple):
    """What was not observed since the last time: how many steps, and how many tokens where the caller said so."""

    steps: int = 0
    tokens: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """All that is known of one step, of a window of steps, or of a finished model: ready to be judged anywhere.

    It begins with what passed the taps; parts of one text, on other machines, ``merge`` into one. ``finalize`` then
    turns the gradient of the embedding, a sum by type, into clouds of types.
    """

    step: int
    statistics: Statistics
    others: dict[str, Statistics] = field(default_factory=dict)  # the same step under other labels, by null
    missing: dict[str | SiteKey, str] = field(default_factory=dict)  # nulls, tensors, places not to be had, and why
    probe: dict[SiteKey, Reservoir] = field(default_factory=dict)
    tokens: int | None = None  # trained on up to and with this step
    between: SkippedSteps = field(default_factory=SkippedSteps)
    frequency: Tensor | None = None  # (V,), how often each type comes in the training
    tables: dict[str, TableReading] = field(default_factory=dict)  # of embeddings, where frequency is asked for
    embedding: Tensor | None = None  # (V, D), until clouds of types are made
    embedding_site: str = ""
    cost: Cost = field(default_factory=Cost)
    families: dict[str, int] = field(default_factory=dict)  # sites by view, where this is a part of an observation

    def merge(self, other: Observation) -> Observation:
        """Both parts of one observation, before they are finalized."""
        nulls = [null for null in self.others if null in other.others]
        return replace(
            self,
            statistics=merged(self.statistics, other.statistics),
            others={null: merged(self.others[null], other.others[null]) for null in nulls},
            missing=self.missing | other.missing,
            probe=self.probe or other.probe,
            frequency=other.frequency if self.frequency is None else self.frequency,
            tables=self.tables or other.tables,
            embedding=other.embedding if self.embedding is None else self.embedding,
            embedding_site=self.embedding_site or other.embedding_site,
        )

    @property
    def on_cuda(self) -> bool:
        """Whether the statistics are still on a GPU."""
        return any(_state(statistic).is_cuda for statistic in self.statistics.values())

    def tensors(self) -> list[Tensor]:
        """All that the statistics are made of."""
        every = [s for part in (self.statistics, *self.others.values()) for s in part.values()]
        counted = [tensor for tensor in (self.frequency, self.embedding) if tensor is not None]
        counted += [tensor for reading in self.tables.values() for tensor in reading.tensors()]
        return counted + [tensor for s in (*every, *self.probe.values()) for tensor in _tensors(s)]

    @property
    def bytes(self) -> int:
        """How much memory the statistics take."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors())

    @property
    def own_tokens(self) -> int:
        """Tokens in what was observed."""
        return tokens_of(self.statistics)

    def units(self, fold: int) -> int:
        """How many sequences, or documents where they are known, were kept of a fold."""
        kept = self.statistics.get(Name("tokens", 0, "all", fold, "kept"))
        return int(torch.unique(kept.sample().sequences).numel()) if isinstance(kept, Reservoir) else 0

    def sites(self, view: str, tensor: str) -> list[SiteKey]:
        """Places that have such a cloud in both folds, from the first layer on."""
        folds: dict[SiteKey, set[int]] = {}
        for name in self.statistics:
            if name.view == view and name.tensor == tensor:
                folds.setdefault(name.at, set()).add(name.fold)
        return sorted(at for at, found in folds.items() if found == {0, 1})

    def cloud(self, view: str, at: SiteKey, tensor: str, fold: int, *, under: str | None = None) -> Cloud:
        """One cloud, of the real labels or of those of a null."""
        source = self.statistics if under is None else self.others[under]
        name = Name(view, at.layer, tensor, fold, "", at.name)
        rest, kept = source[name._replace(part="rest")], source.get(name._replace(part="kept"))
        assert isinstance(rest, Moments)
        assert kept is None or isinstance(kept, Reservoir)
        first = source.get(name._replace(part="first"))
        whole = first.merge(rest) if isinstance(first, Moments) else rest
        return Cloud(whole, rest, kept)

    def kept(self, view: str, at: SiteKey, tensor: str, fold: int, *, under: str | None = None) -> Sample:
        """The sample of something that has no moments."""
        source = self.statistics if under is None else self.others[under]
        kept = source[Name(view, at.layer, tensor, fold, "kept", at.name)]
        assert isinstance(kept, Reservoir)
        return kept.sample()

    def sum(self, view: str, at: SiteKey, tensor: str, fold: int, *, under: str | None = None) -> Tensor:
        """A plain sum."""
        source = self.statistics if under is None else self.others[under]
        total = source[Name(view, at.layer, tensor, fold, "sum", at.name)]
        assert isinstance(total, Tensor)
        return total

    def to(self, device: torch.device) -> Observation:
        """The same on another device."""
        return self.copied(lambda tensor: tensor.to(device))

    def copied(self, copy: Callable[[Tensor], Tensor]) -> Observation:
        """The same with every tensor copied, for instance to the host."""
        return replace(
            self,
            statistics=copied_statistics(self.statistics, copy),
            others={null: copied_statistics(statistics, copy) for null, statistics in self.others.items()},
            probe={at: _copied_one(kept, copy) for at, kept in self.probe.items()},
            frequency=None if self.frequency is None else copy(self.frequency),
            embedding=None if self.embedding is None else copy(self.embedding),
            tables={name: TableReading(*map(copy, reading.tensors())) for name, reading in self.tables.items()},
        )


def tokens_of(statistics: Statistics) -> int:
    """Tokens that were seen."""
    count = statistics.get(Name("tokens", 0, "all", 0, "sum"))
    return int(count) if isinstance(count, Tensor) else 0


def merged(first: Statistics, second: Statistics) -> Statistics:
    """Both together; a name that only one side has keeps its value."""
    return first | {name: _merge(first[name], s) if name in first else s for name, s in second.items()}


def require_finite(statistics: Statistics) -> None:
    """Raise for NaN or Inf: an overflow of the loss scale, or a loss that is lost."""
    seen = [
        s.mean.sum() + s.scatter.sum() if isinstance(s, Moments) else s.sum().double()
        for s in statistics.values()
        if not isinstance(s, Reservoir)
    ]
    if seen and not bool(torch.isfinite(torch.stack(seen)).all()):
        raise broken("gradients must be finite", "NaN or Inf", "skip this observation; is the loss scale too high?")


def together(statistics: Statistics, rank_group: RankGroup) -> Statistics:
    """The statistics of all ranks; every rank must call."""
    if rank_group.is_single:
        return statistics
    told = rank_group.all_gather({name: _shape(statistic) for name, statistic in statistics.items()})
    everywhere = {name: shape for shapes in told for name, shape in shapes.items()}
    device = next((_state(statistic).device for statistic in statistics.values()), None)
    result: Statistics = {}
    for name in sorted(everywhere):
        own: Any = statistics.get(name)
        result[name] = all_reduce(_empty(everywhere[name], device) if own is None else own)
    return result


def _merge(a: Statistic, b: Statistic) -> Statistic:
    if isinstance(a, Tensor):
        assert isinstance(b, Tensor)
        return a + b
    if isinstance(a, Moments):
        assert isinstance(b, Moments)
        return a.merge(b)
    assert isinstance(b, Reservoir)
    return a.merge(b)


def copied_statistics(statistics: Statistics, copy: Callable[[Tensor], Tensor]) -> Statistics:
    """The same with every tensor copied."""
    return {name: _copied_one(statistic, copy) for name, statistic in statistics.items()}


def _copied_one(statistic: Any, copy: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(statistic, Tensor):
        return copy(statistic)
    state = {name: tensor if name == "settings" else copy(tensor) for name, tensor in statistic.state().items()}
    return type(statistic).from_state(state)


def size_of(statistic: Statistic) -> int:
    """Bytes that it takes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in _tensors(statistic))


def _tensors(statistic: Statistic) -> list[Tensor]:
    return [statistic] if isinstance(statistic, Tensor) else list(statistic.state().values())


def _state(statistic: Statistic) -> Tensor:
    if isinstance(statistic, Tensor):
        return statistic
    return statistic.mean if isinstance(statistic, Moments) else statistic.keys


def _shape(statistic: Statistic) -> tuple[str, tuple[int, ...], torch.dtype, int, int]:
    if isinstance(statistic, Reservoir):
        return "kept", tuple(statistic.values.shape[1:]), statistic.values.dtype, statistic.rows, statistic.seed
    if isinstance(statistic, Moments):
        return "moments", (statistic.width,), STATE_DTYPE, 0, 0
    return "sum", tuple(statistic.shape), statistic.dtype, 0, 0


def _empty(shape: tuple[str, tuple[int, ...], torch.dtype, int, int], device: torch.device | None) -> Any:
    """What a rank that saw nothing of a cloud contributes."""
    kind, size, dtype, rows, seed = shape
    if kind == "sum":
        return torch.zeros(size, dtype=dtype, device=device)
    if kind == "moments":
        return Moments.empty(size[0], higher=False, device=device)
    none = torch.zeros(0, dtype=torch.int64, device=device)
    values = torch.zeros(0, *size, dtype=dtype, device=device)
    cutoff = torch.full((), NO_KEY, dtype=torch.int64, device=device)
    return Reservoir(rows, seed, True, none, none.double(), none, none, none, values, cutoff=cutoff)
