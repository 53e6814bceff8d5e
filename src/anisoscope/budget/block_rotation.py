"""Blocks observed in turn, where the statistics of all of them would not fit into the memory that is allowed.

An observation then takes as many consecutive steps as there are rounds. Each step watches some of the layers; its
statistics go to the host before the next step begins, and the last step completes the observation.
"""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from anisoscope.budget.footprint import embedding_bytes, layer_bytes
from anisoscope.capture.sites import Sites
from anisoscope.errors import AnisoscopeError, broken
from anisoscope.machine_capacity import format_bytes, parse_bytes
from anisoscope.observe.observation_cost import Cost
from anisoscope.observe.state import ScopeState
from anisoscope.observe.statistics import Observation, SkippedSteps

_OCCASION = "round"  # under which a restart finds what earlier steps of an observation gathered
_LAYOUT = f"{_OCCASION} layout"
_OTHER = (
    "the state is of an observation of which some layers were watched, and memory= divides them otherwise now; "
    "give the memory= that the training began with"
)


@dataclass(frozen=True, slots=True)
class Rounds:
    """The layers that each step of an observation watches, and the bytes that the largest round may take."""

    layers: tuple[frozenset[int], ...]
    bytes: int
    memory: int

    @classmethod
    def of(cls, memory: str | int, sites: Sites, views: Sequence[str], *, rows: int, label_nulls: int) -> Rounds:
        """As few rounds as fit, each of consecutive layers; the embedding is watched in the last one.

        Raises if a layer, or the embedding beside it, does not fit by itself.
        """
        allowed = parse_bytes(memory)
        sizes = layer_bytes(sites, views, rows=rows, label_nulls=label_nulls)
        table = embedding_bytes(sites, views, rows=rows, label_nulls=label_nulls)
        layers = sorted(sizes)
        largest = max(*sizes.values(), sizes[layers[-1]] + table)
        if largest > allowed:
            at = "the last block and the embedding" if largest == sizes[layers[-1]] + table else "the largest block"
            needed = f"at least {math.ceil(largest / 2**20)} MiB ({at}, {rows} rows kept of a fold)"
            fewer = "lower reservoir_rows or watch fewer views"
            raise broken("memory must hold the statistics of one block", repr(memory), f"allow {needed}; or {fewer}")
        groups: list[list[int]] = [[]]
        taken, most = table, 0
        for layer in reversed(layers):
            if groups[-1] and taken + sizes[layer] > allowed:
                groups.append([])
                taken = 0
            groups[-1].append(layer)
            taken += sizes[layer]
            most = max(most, taken)
        return cls(tuple(frozenset(group) for group in reversed(groups)), most, allowed)

    @property
    def note(self) -> str:
        """What a user is told before training starts."""
        counts = [len(group) for group in self.layers]
        held = f"the statistics of an observation take at most {format_bytes(self.bytes)} on the training's device"
        if len(counts) == 1:
            return f"memory={format_bytes(self.memory)}: all layers are watched at once; {held}"
        few = f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else str(counts[0])
        return (
            f"memory={format_bytes(self.memory)}: {sum(counts)} layers are watched in turn, {few} at a time; "
            f"an observation takes {len(counts)} consecutive steps; {held}"
        )


class Turns:
    """The observation that is under way, round by round."""

    def __init__(self, rounds: Rounds) -> None:
        self.rounds = rounds
        self.start = 0
        self.done = 0  # rounds of the observation under way that have been watched
        self._gathered: Observation | None = None

    @property
    def under_way(self) -> bool:
        """Whether an observation has begun and is not complete."""
        return self.done > 0

    @property
    def is_last(self) -> bool:
        """Whether the next step completes the observation."""
        return self.done == len(self.rounds.layers) - 1

    @property
    def incomplete(self) -> str:
        """Why the observation under way did not come about, where the training ended before it was complete."""
        rounds = len(self.rounds.layers)
        return f"the training ended after {self.done} of the {rounds} steps that this observation takes"

    @property
    def layers(self) -> frozenset[int]:
        """Layers to watch in the next step."""
        return self.rounds.layers[self.done]

    def observed_step(self, step: int) -> int:
        """The step that the observation counts as: the first of its rounds."""
        if not self.under_way:
            self.start = step
        return self.start

    def keep(self, part: Observation | None) -> None:
        """Keep what a step gathered, on the host; a rank without rows passes None and keeps count."""
        self.done += 1
        if part is not None:
            part = part.copied(lambda tensor: tensor.to("cpu"))
            self._gathered = part if self._gathered is None else _joined(self._gathered, part)

    def complete(self, last: Observation) -> Observation:
        """The whole observation, its last round ready to be judged."""
        gathered = self._gathered
        self.drop()
        return last if gathered is None else _joined(gathered, last.copied(lambda tensor: tensor.to("cpu")))

    def drop(self) -> None:
        """Forget the observation under way."""
        self.done, self._gathered = 0, None

    def require_each_block_once(self, called: int, blocks: int) -> None:
        """Raise where blocks are called several times: how many layers there are was not known beforehand."""
        if called > blocks:
            raise AnisoscopeError(
                f"memory= plans for blocks that are called once; {called} calls of {blocks} blocks were seen; "
                "leave memory= out for a model that shares blocks"
            )

    @property
    def _layout(self) -> int:
        """Which layers are watched together, as a number."""
        return zlib.crc32(repr([sorted(layers) for layers in self.rounds.layers]).encode())

    def added_to(self, memory: ScopeState) -> ScopeState:
        """A memory that knows the rounds so far."""
        if not self.under_way:
            return memory
        parts = self._gathered
        occasions = {} if parts is None else {_OCCASION: parts.statistics}
        if parts is not None:
            occasions |= {f"{_OCCASION} under {null}": found for null, found in parts.others.items()}
        between = SkippedSteps() if parts is None else parts.between
        unknown = -1 if between.tokens is None else between.tokens
        steps = {_OCCASION: self.start, f"{_OCCASION} after steps": between.steps, f"{_OCCASION} after tokens": unknown}
        steps[_LAYOUT] = self._layout
        return replace(memory, steps=memory.steps | steps, occasions=memory.occasions | occasions)

    def taken_from(self, memory: ScopeState) -> ScopeState:
        """Take the rounds so far back."""
        if _OCCASION not in memory.steps:
            return memory
        if memory.steps.get(_LAYOUT, self._layout) != self._layout:
            raise AnisoscopeError(_OTHER)
        self.start = memory.steps[_OCCASION]
        self.done = memory.step - self.start
        prefix = f"{_OCCASION} under "
        own = {name: found for name, found in memory.occasions.items() if name.startswith(_OCCASION)}
        others = {name.removeprefix(prefix): found for name, found in own.items() if name.startswith(prefix)}
        after = memory.steps[f"{_OCCASION} after tokens"]
        between = SkippedSteps(memory.steps[f"{_OCCASION} after steps"], None if after < 0 else after)
        if own:  # a rank without rows kept none
            self._gathered = Observation(self.start, own.get(_OCCASION, {}), others, between=between)
        return replace(
            memory,
            steps={what: step for what, step in memory.steps.items() if not what.startswith(_OCCASION)},
            occasions={what: found for what, found in memory.occasions.items() if what not in own},
        )


def require_no_rounds(memory: ScopeState) -> None:
    """Raise for a state from the middle of an observation of blocks in turn, where all are watched at once."""
    if _OCCASION in memory.steps:
        raise AnisoscopeError(_OTHER)


def plan_rounds(
    memory: str | int | None,
    sites: Sites,
    views: Sequence[str],
    *,
    rows: int,
    label_nulls: int,
    evaluate: str,
    always: bool,
) -> Turns | None:
    """Which layers are watched at a time, and say so; None where nothing bounds them."""
    if memory is None:
        return None
    if evaluate == "device":
        raise broken("memory= keeps statistics on the host", "evaluate='device'", "use 'host' or 'auto'")
    if always:
        raise broken("memory= must go with steps that are observed one by one", "schedule='always'", "use 'log'")
    rounds = Rounds.of(memory, sites, views, rows=rows, label_nulls=label_nulls)
    logger = logging.getLogger("anisoscope")
    (logger.warning if len(rounds.layers) > 1 else logger.info)(rounds.note)
    return Turns(rounds)


def _joined(first: Observation, second: Observation) -> Observation:
    return replace(first.merge(second), cost=Cost(watched=first.cost.watched + second.cost.watched))
