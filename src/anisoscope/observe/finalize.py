"""From what passed the taps to an observation that can be judged.

The passes under other labels, the probe and the tables of embeddings join it; sums by type become clouds of types; and
the update of the embedding, which is there only after the optimiser has stepped, is waited for. Live and offline
observations are made here, so they are the same value made by the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from anisoscope.capture.sites import SiteKey, Sites
from anisoscope.capture.taps import Taps
from anisoscope.observe.collector import RESERVOIR_ROWS, Collector
from anisoscope.observe.embedding import (
    UpdateWatch,
    by_type,
    clouds,
    lost_embedding,
    read_tables,
    table_of,
    types_seen,
    vocabulary_of,
)
from anisoscope.observe.label_passes import LossFn, pass_again
from anisoscope.observe.probe import Probe
from anisoscope.observe.statistics import Observation, SkippedSteps, Statistics, together
from anisoscope.stats.reduce import RankGroup

FROZEN = "no gradient reaches it: it is below all that is trained"


@dataclass(frozen=True, slots=True, eq=False)
class Assembly:
    """What an observation is asked for beyond the statistics of its passes."""

    views: tuple[str, ...]
    label_nulls: tuple[str, ...] = ()
    loss_fn: LossFn | None = None
    probe: Probe | None = None
    rows: int = RESERVOIR_ROWS
    seed: int = 0
    rank_group: RankGroup | None = None  # other ranks of the training, if there are any

    def make(
        self,
        model: nn.Module,
        sites: Sites,
        taps: Taps,
        statistics: Statistics,
        *,
        step: int,
        between: SkippedSteps | None = None,
        frequency: Tensor | None = None,
        shares: Sequence[float] | None = None,
        refused: str | None = None,
        passed: Callable[[int], None] = lambda passes: None,
    ) -> Observation:
        """The observation of a step, not yet finalized; ``refused`` says why labels cannot be changed here.

        ``shares`` is what each forward call counts for in the loss of all; ``passed`` is told of passes that are done.
        """
        others: dict[str, Statistics] = {}
        missing: dict[str | SiteKey, str] = {**dict.fromkeys(taps.below_training(), FROZEN), **taps.missing()}
        for null in self.label_nulls:
            found = self._under_other_labels(model, taps, null, step, shares, refused)
            if isinstance(found, str):
                missing[null] = found
            else:
                others[null] = found
            passed(len(taps.calls))
        probed = {} if self.probe is None else self.probe.run(model, sites)
        if self.probe is not None:
            passed(1)
        embedding = sites.embedding if "embedding" in self.views else None
        if embedding is not None and (why := lost_embedding(statistics, embedding)) is not None:
            missing["gradients"] = why
        tables = {} if frequency is None else read_tables(sites, frequency, rows=self.rows, seed=self.seed)
        return Observation(
            step,
            statistics,
            others,
            missing,
            probed,
            between=between or SkippedSteps(),
            frequency=frequency,
            tables=tables,
            embedding=None if embedding is None else table_of(embedding.module),
            embedding_site="" if embedding is None else embedding.name,
        )

    def _under_other_labels(
        self, model: nn.Module, taps: Taps, null: str, step: int, shares: Sequence[float] | None, refused: str | None
    ) -> Statistics | str:
        """Statistics of the same calls with other labels, or why there are none; all ranks agree on which."""
        embedding = taps.sites.embedding
        size = 0 if embedding is None else vocabulary_of(embedding.module)
        again = Collector(self.views, rows=self.rows, seed=self.seed, vocabulary=size, again=True)
        why = refused
        if why is None:
            options = {"loss_fn": self.loss_fn, "seed": self.seed * 7919 + step, "shares": shares}
            options["layers"] = taps.layers
            try:
                pass_again(model, taps.sites, taps.calls, again, null=null, **options)
            except Exception as error:
                why = str(error)
        if self.rank_group is None:
            return again.statistics if why is None else why
        reasons = [said for said in self.rank_group.all_gather(why) if said is not None]
        return reasons[0] if reasons else together(again.statistics, self.rank_group)


def finalize(observation: Observation, *, rows: int, seed: int, device: str | None = None) -> Observation:
    """Turn the embedding's gradient by type into clouds; the table itself goes.

    All that is judged together must lie on one ``device``; None leaves it where it is.
    """
    table, site = observation.embedding, observation.embedding_site

    def typed(statistics: Statistics) -> Statistics:
        return statistics if table is None else by_type(statistics, table, site, rows=rows, seed=seed)

    others = {null: typed(statistics) for null, statistics in observation.others.items()}
    found = replace(observation, statistics=typed(observation.statistics), others=others, embedding=None)
    return found if device is None else found.copied(lambda tensor: tensor.to(device))


def with_change(
    observation: Observation, ids: Tensor, before_VD: Tensor, after_VD: Tensor, *, rows: int, seed: int
) -> Observation:
    """The observation with what its embedding became at the next checkpoint, for the types that the text held.

    Proxies are fitted on the table before the change, as those of an update are: fitted on the later one they would
    hold part of the change by themselves.
    """
    at = ids.cpu()
    moved = after_VD.cpu()[at].double() - before_VD.cpu()[at].double()
    device = next((s.device for s in observation.statistics.values() if isinstance(s, Tensor)), ids.device)
    found = clouds(
        at.to(device), {"change": moved.float().to(device)}, observation.embedding_site, rows=rows, seed=seed
    )
    return replace(observation, statistics=observation.statistics | found)


@dataclass(slots=True, eq=False)
class UpdateWait:
    """Holds an observation until the optimiser has stepped."""

    rows: int
    seed: int
    _waiting: tuple[Observation, UpdateWatch] | None = field(default=None, init=False)

    def hold(self, observation: Observation, embedding: nn.Module) -> None:
        """Wait for the next step of the optimiser; ``observation`` is not finalized yet."""
        watch = UpdateWatch(embedding, types_seen(observation.statistics))
        self._waiting = finalize(observation, rows=self.rows, seed=self.seed), watch

    def release(self) -> Observation | None:
        """The observation that waited, if one did, with the update if the optimiser has stepped."""
        if self._waiting is None:
            return None
        (observation, watch), self._waiting = self._waiting, None
        watch.stop()
        statistics, missing = observation.statistics, dict(observation.missing)
        if watch.update is not None and watch.raw is not None:
            moved = {"update": watch.update, "update-raw": watch.raw}
            site = observation.embedding_site
            statistics = statistics | clouds(watch.ids, moved, site, rows=self.rows, seed=self.seed)
        if watch.note is not None and "gradients" not in missing:  # a view that is lost has no update either
            missing["update"] = watch.note
        return replace(observation, statistics=statistics, missing=missing)
