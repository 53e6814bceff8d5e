"""An observation made ready to be judged: sums by type become clouds of types, and the update joins them.

The update of the embedding is there only after the optimiser has stepped, so an observation with one waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from anisoscope.observe.embedding import UpdateWatch, by_type, clouds, types_seen
from anisoscope.observe.statistics import Observation, Statistics


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
