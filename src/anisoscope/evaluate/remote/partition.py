"""An observation taken apart by its places, to be judged by several judges at a time.

A place is a site in one of the views, or the probe's sample of a layer. Each belongs to one judge for the whole
training, which remembers what was there before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from anisoscope.capture.sites import SiteKey
from anisoscope.observe.state import ScopeState
from anisoscope.observe.statistics import Name, Observation, Statistics, size_of
from anisoscope.vocabulary import VIEWS

Spot = tuple[str, SiteKey]  # view, or the probe, and site
_PROBE = "probe"
_WORK = {"representation": 2.4, "weight": 1.1, "embedding": 2.5, _PROBE: 1.1}
"""CPU seconds that a place of each kind took among others (a decoder of 4 × 128, all of ``pair``'s options)."""
_TABLE = SiteKey(0, "")
# What is remembered of places under another name.
_FOLLOWED = {"type trajectory": "representation", "trajectory": "embedding"}


@dataclass(frozen=True, slots=True)
class Partition:
    """Which judge each place belongs to; the first has all that belongs to none."""

    owner: Mapping[Spot, int]
    count: int

    @classmethod
    def of(cls, statistics: Statistics, most: int) -> Partition:
        """Deal the places out to at most so many judges: what is most work first, each to the one that has least.

        There is a place for the probe of every layer, whether there is a probe or not: what is remembered of a training
        does not say, and must be dealt out alike.
        """
        sizes: dict[Spot, int] = {}
        for name, statistic in statistics.items():
            if name.view in VIEWS:
                sizes[_spot(name)] = sizes.get(_spot(name), 0) + size_of(statistic)
        largest: dict[str, int] = {}
        for (view, _), size in sizes.items():
            largest[view] = max(size, largest.get(view, 1))
        work = {spot: _WORK[VIEWS[spot[0]].kind] * size / largest[spot[0]] for spot, size in sizes.items()}
        work |= {(_PROBE, at): _WORK[_PROBE] for view, at in sizes if VIEWS[view].kind == "representation"}
        count = max(1, min(most, len(sizes)))
        load, owner = [0.0] * count, {}
        for spot in sorted(work, key=lambda spot: (-work[spot], spot)):
            least = load.index(min(load))
            owner[spot] = least
            load[least] += work[spot]
        return cls(owner, count)

    def of_observation(self, observed: Observation) -> list[Observation]:
        """Each judge's part of an observation."""
        families = {view.name: len(observed.sites(view.name, view.fitted_on)) for view in VIEWS.values()}
        return [
            replace(
                observed,
                statistics=self._own(observed.statistics, part),
                others={null: self._own(statistics, part) for null, statistics in observed.others.items()},
                missing=observed.missing if part == 0 else {},
                probe={at: kept for at, kept in observed.probe.items() if self._is((_PROBE, at), part)},
                tables=observed.tables if self._is(("embedding", _TABLE), part) else {},
                families=families,
            )
            for part in range(self.count)
        ]

    def of_memory(self, memory: ScopeState) -> list[ScopeState]:
        """Each judge's part of what is remembered."""
        return [
            replace(memory, occasions={what: self._own(found, part) for what, found in memory.occasions.items()})
            for part in range(self.count)
        ]

    def _own(self, statistics: Statistics, part: int) -> Statistics:
        return {name: s for name, s in statistics.items() if name.view == "tokens" or self._is(_spot(name), part)}

    def _is(self, spot: Spot, part: int) -> bool:
        return self.owner.get(spot, 0) == part


def memory_of(parts: Sequence[ScopeState]) -> ScopeState:
    """What all judges remember together."""
    occasions: dict[str, Statistics] = {}
    for memory in parts:
        for what, found in memory.occasions.items():
            occasions[what] = occasions.get(what, {}) | found
    ordered = {what: dict(sorted(found.items(), key=lambda item: item[0])) for what, found in occasions.items()}
    return replace(parts[0], frozen=any(memory.frozen for memory in parts), occasions=ordered)


def _spot(name: Name) -> Spot:
    view = _FOLLOWED.get(name.view, name.view)
    return view, _TABLE if view == "embedding" else name.at  # of a model's one table not all is kept under its name
