"""From what passed the taps to an observation: the passes under other labels, the probe, tables of embeddings.

Live and offline observations are made here, so they are the same value made by the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from anisoscope.capture.sites import SiteKey, Sites
from anisoscope.capture.taps import Taps
from anisoscope.observe.collector import RESERVOIR_ROWS, Collector
from anisoscope.observe.embedding import lost_embedding, read_tables, table_of, vocabulary_of
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
