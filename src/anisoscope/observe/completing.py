"""An observation made complete: what the hooks of a step gathered, with other labels, tables, the probe and the update.

The update of the embedding is there only after the optimiser has stepped, so an observation with one waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import nn

from anisoscope.capture.sites import Sites
from anisoscope.capture.taps import Taps
from anisoscope.observe.embedding import (
    UpdateWatch,
    by_type,
    clouds,
    read_tables,
    table_of,
    types_seen,
    vocabulary_of,
)
from anisoscope.observe.gathering import Gathering
from anisoscope.observe.probing import Probe
from anisoscope.observe.statistics import Between, Observed, Statistics, together
from anisoscope.observe.tally import Tally
from anisoscope.observe.targets import LossFn, pass_again
from anisoscope.stats.reduce import Company


@dataclass(slots=True, eq=False)
class Completing:
    """Knows all that an observation is made of beyond the statistics of its step; ``targets`` are nulls."""

    model: nn.Module
    sites: Sites
    views: tuple[str, ...]
    company: Company
    tally: Tally
    targets: tuple[str, ...]
    loss_fn: LossFn | None
    probe: Probe | None
    rows: int
    seed: int
    _awaiting: tuple[Observed, UpdateWatch] | None = field(default=None, init=False)

    def completed(
        self, step: int, taps: Taps, statistics: Statistics, between: Between, *, accumulated: bool
    ) -> Observed | None:
        """The observation of a step, or None where it waits for the optimiser and ``settled`` will have it."""
        others, missing = self._others(step, taps, accumulated)
        watch, options = None, {"rows": self.rows, "seed": self.seed}
        frequency = self.tally.plus(statistics)
        tables = {} if frequency is None else read_tables(self.sites, frequency, **options)
        if "embedding" in self.views and self.sites.embedding is not None:
            module, ids = self.sites.embedding.module, types_seen(statistics)
            weight = table_of(module)
            statistics = by_type(statistics, weight, **options)
            others = {null: by_type(found, weight, **options) for null, found in others.items()}
            watch = UpdateWatch(module, ids)
        probed = {} if self.probe is None else self.probe.run(self.model, self.sites)
        counted = {"frequency": frequency, "tables": tables}
        observed = Observed(step, statistics, others, missing, probed, between=between, **counted)
        if watch is None:
            return observed
        self._awaiting = observed, watch
        return None

    def settled(self) -> Observed | None:
        """The observation that waited for the optimiser to step, if one did."""
        if self._awaiting is None:
            return None
        (observed, watch), self._awaiting = self._awaiting, None
        watch.stop()
        statistics, missing = observed.statistics, dict(observed.missing)
        if watch.update is not None and watch.raw is not None:
            moved = {"update": watch.update, "update-raw": watch.raw}
            statistics = statistics | clouds(watch.ids, moved, rows=self.rows, seed=self.seed)
        if watch.note is not None:
            missing["update"] = watch.note
        return replace(observed, statistics=statistics, missing=missing)

    def let_go(self) -> None:
        """Forget the model."""
        self.model, self.probe = nn.Identity(), None
        self.sites = replace(self.sites, blocks=(), weights=(), embedding=None, output=None)

    def _others(self, step: int, taps: Taps, accumulated: bool) -> tuple[dict[str, Statistics], dict[str, str]]:
        """The step under other labels; where that is not possible, why. All ranks agree on which."""
        found: dict[str, Statistics] = {}
        missing: dict[str, str] = {}
        embedding = taps.sites.embedding
        size = 0 if embedding is None else vocabulary_of(embedding.module)
        for null in self.targets:
            again = Gathering(self.views, rows=self.rows, seed=self.seed, vocabulary=size, again=True)
            why = "labels are not tried again where steps are accumulated" if accumulated else None
            if why is None:
                options = {"loss_fn": self.loss_fn, "seed": self.seed * 7919 + step}
                try:
                    pass_again(self.model, taps.sites, taps.calls, again, null=null, **options)
                except Exception as error:
                    why = str(error)
            reasons = [said for said in self.company.told(why) if said is not None]
            if reasons:
                missing[null] = reasons[0]
            else:
                found[null] = together(again.statistics, self.company)
        return found, missing
