"""How often each type comes in the training, as far as the scope knows. Letters: V vocabulary."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from anisoscope.capture.sites import Sites
from anisoscope.errors import broken
from anisoscope.observe.embedding import counts_seen, vocabulary_of
from anisoscope.observe.state import ScopeState
from anisoscope.observe.statistics import Name, Statistics
from anisoscope.stats.as_tensor import as_tensor

_SO_FAR = Name("tally", 0, "seen", 0, "sum")


@dataclass(slots=True, eq=False)
class Tally:
    """Counts that were given, or added up over observed steps."""

    wanted: bool
    given: Tensor | None = None
    counts: Tensor | None = None

    @classmethod
    def of(cls, asked: bool | Tensor | np.ndarray, sites: Sites, views: tuple[str, ...]) -> Tally:
        """From what a scope is asked for; raises if it cannot be had."""
        if isinstance(asked, bool):
            if asked and (sites.embedding is None or "embedding" not in views):
                raise broken(
                    "frequency=True counts tokens in the embedding view",
                    "a scope without it",
                    "add the view, or pass counts",
                )
            return cls(asked)
        counts = as_tensor(asked)
        if sites.embedding is None:
            raise broken("frequency needs an embedding", "a model without one", "leave frequency out")
        size = vocabulary_of(sites.embedding.module)
        if counts.shape != (size,):
            raise broken(f"frequency must be one count for each of the {size} types", tuple(counts.shape), "pad with 0")
        if counts.is_complex() or bool((counts < 0).any()) or not bool((counts > 0).any()):
            raise broken("counts must be 0 or more, and some must be above", "others", "pass how often each type comes")
        return cls(True, counts.detach().clone())

    def plus(self, statistics: Statistics) -> Tensor | None:
        """Counts with those of one more observation; None where nobody asked."""
        if not self.wanted or self.given is not None:
            return self.given
        seen = counts_seen(statistics)
        if seen is not None:
            self.counts = seen.clone() if self.counts is None else self.counts.to(seen.device) + seen
        return self.counts

    def added_to(self, memory: ScopeState) -> ScopeState:
        """A memory that knows the counts."""
        if self.counts is None:
            return memory
        return replace(memory, occasions=memory.occasions | {"tally": {_SO_FAR: self.counts}})

    def taken_from(self, memory: ScopeState) -> ScopeState:
        """Take the counts back."""
        counts = memory.occasions.get("tally", {}).get(_SO_FAR)
        if isinstance(counts, Tensor):
            self.counts = counts
        return replace(memory, occasions={name: part for name, part in memory.occasions.items() if name != "tally"})
