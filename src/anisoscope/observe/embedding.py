"""The embedding view: rows of the table, their gradients and their real update, by type.

Letters: V vocabulary, n types seen, D width.

Both sides of a tied table are told apart: the input side is what comes back to the vectors looked up, the output side
is the rest of the whole gradient. The update is read around the optimiser's step itself, through the hook that
``torch.optim`` offers, so that it is the real one; decoupled weight decay, which moves every row along −E whether seen
or not, is taken out, and left in as ``update-raw``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from anisoscope.capture.sites import Site, Sites
from anisoscope.observe.embedding_tables import TableReading, read_table
from anisoscope.observe.statistics import Name, Statistics
from anisoscope.stats.hashing import as_key, mix
from anisoscope.stats.reservoir import Selection
from anisoscope.stats.running import Running

_TABLE = Name("embedding", 0, "table", 0, "sum")
_TIED = Name("embedding", 0, "table-tied", 0, "sum")
_SEEN = Name("embedding", 0, "seen", 0, "sum")


def table_of(embedding: nn.Module) -> Tensor:
    """The rows of an embedding as one plain tensor; a sharded one is put together, which every rank must call."""
    weight: Any = embedding.weight
    gather = getattr(weight, "full_tensor", None)
    return (gather() if gather is not None else weight).detach()


def vocabulary_of(embedding: nn.Module) -> int:
    """How many rows an embedding has."""
    weight: Any = embedding.weight
    return weight.shape[0]


def read_tables(sites: Sites, counts_V: Tensor, *, rows: int, seed: int) -> dict[str, TableReading]:
    """The input embedding, and the output embedding where it is a table of its own; every rank must call."""
    modules = {} if sites.embedding is None else {"input": sites.embedding.module}
    if sites.output is not None and not sites.tied:
        modules["output"] = sites.output
    tables = {name: table_of(module) for name, module in modules.items() if hasattr(module, "weight")}
    return {
        name: read_table(table, counts_V, rows=rows, seed=seed)
        for name, table in tables.items()
        if len(table) == len(counts_V)
    }


def counts_seen(statistics: Statistics) -> Tensor | None:
    """How often each type was looked up."""
    seen = statistics.get(_SEEN)
    return seen if isinstance(seen, Tensor) else None


def types_seen(statistics: Statistics) -> Tensor:
    """Ids of the types that were looked up."""
    seen = statistics.get(_SEEN)
    return torch.nonzero(seen)[:, 0] if isinstance(seen, Tensor) else torch.zeros(0, dtype=torch.int64, device="cpu")


def lost_embedding(statistics: Statistics, site: Site) -> str | None:
    """Why nothing can be said of an embedding at this observation, if no gradient came back to it."""
    if isinstance(statistics.get(_TABLE), Tensor):
        return None
    weight: Any = site.module.weight
    why = (
        "its output is detached, or the model was given something else in place of ids (inputs_embeds)"
        if weight.requires_grad
        else "it was frozen after the scope was made"
    )
    return f"no gradient came back to the embedding {site.name}, so its view is left out: {why}"


def by_type(statistics: Statistics, weight_VD: Tensor, site: str, *, rows: int, seed: int) -> Statistics:
    """The tables of an observation as clouds of types, in two folds by a hash of the id; the tables themselves go."""
    rest = {name: s for name, s in statistics.items() if name.view != "embedding" or name.part == "kept"}
    table, tied = statistics.get(_TABLE), statistics.get(_TIED)
    if not isinstance(table, Tensor):
        return rest
    ids = types_seen(statistics)
    points = {"activations": weight_VD[ids], "gradients": table[ids]}
    if isinstance(tied, Tensor):
        points["gradients-out"] = tied[ids] - points["gradients"]
    return rest | clouds(ids, points, site, rows=rows, seed=seed)


def type_folds(ids: Tensor, *, seed: int) -> Tensor:
    """The fold of each type, by a hash of its id."""
    return as_key(mix(ids, seed=seed)) & 1


def clouds(ids: Tensor, points: dict[str, Tensor], site: str, *, rows: int, seed: int) -> Statistics:
    """Moments and a sample of one row a type, in two folds."""
    side = type_folds(ids, seed=seed)
    members = torch.stack([side == 0, side == 1])
    every = torch.ones_like(ids, dtype=torch.bool)[:, None]
    kept = [Selection.of(ids[:, None], inside[:, None], rows=rows, seed=seed) for inside in members]
    found: Statistics = {}
    for name, x_nD in points.items():
        running = Running.start(x_nD[:, None], every, parts=2)
        running.add(x_nD[:, None], every, members)
        for fold, (moments, selection) in enumerate(zip(running.moments(), kept, strict=True)):
            found[Name("embedding", 0, name, fold, "rest", site)] = moments
            found[Name("embedding", 0, name, fold, "kept", site)] = selection.take(x_nD[:, None].float())
    return found


class UpdateWatch:
    """Keeps the rows of given types until the optimiser has stepped on their table, then knows how they moved.

    It may begin while the optimiser is already at work (a closure that runs the backward pass inside its step).
    """

    def __init__(self, embedding: nn.Module, ids: Tensor) -> None:
        self.note: str | None = "no optimiser step was seen after this observation: no update"
        self.update: Tensor | None = None
        self.raw: Tensor | None = None
        self.ids = ids
        self._embedding, self._seen = embedding, False
        self._before = table_of(embedding)[ids].clone()
        self._off: Callable[[], None] | None = register_optimizer_step_post_hook(self._stepped).remove

    def stop(self) -> None:
        """Wait no longer."""
        if self._off is not None:
            self._off()
            self._off = None

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Look once; whatever goes wrong is noted, and never reaches the optimiser.

        The hook stays: torch is going through all such hooks of the process, and one that goes meanwhile, when another
        scope has one too, would stop the training.
        """
        if self._seen:
            return
        try:
            group = self._group(optimizer)
            if group is not None:
                self._seen = True
                self._look(optimizer, group)
        except Exception as error:
            self._seen, self.note = True, f"the update could not be read: {type(error).__name__}: {error}"

    def _look(self, optimizer: Any, group: dict[str, Any]) -> None:
        before = self._before.double()
        moved = table_of(self._embedding)[self.ids].double() - before
        decay, self.note = _decoupled_decay(optimizer, group)
        self.raw, self.update = moved.float(), (moved + decay * before).float()

    def _group(self, optimizer: Any) -> dict[str, Any] | None:
        weight = self._embedding.weight
        for group in optimizer.param_groups:
            if any(parameter is weight for parameter in group["params"]):
                return group
        return None


def _decoupled_decay(optimizer: Any, group: dict[str, Any]) -> tuple[float, str | None]:
    """By how much a step shrinks every row whatever its gradient, and what could not be told."""
    decay = float(group.get("weight_decay") or 0.0)
    if not decay:
        return 0.0, None
    decoupled = group.get("decoupled_weight_decay")
    if decoupled is None:
        if not any(kind.__name__ in ("AdamW", "Lion", "SGDW", "LAMB") for kind in type(optimizer).__mro__):
            return 0.0, f"the weight decay of {type(optimizer).__name__} is taken as part of the gradient"
        decoupled = True
    return (float(group["lr"]) * decay, None) if decoupled else (0.0, None)
