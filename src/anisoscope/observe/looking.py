"""An observation of a model that is not being trained: given text passes forward and backward, and nothing is kept.

Letters: B sequences, T positions.

The same taps and the same statistics as in training, so that a checkpoint shows what the scope saw when it was made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor, nn

from anisoscope.capture.sites import Sites
from anisoscope.capture.taps import Taps
from anisoscope.errors import AnisoscopeError
from anisoscope.observe.choosing import Choice
from anisoscope.observe.embedding import by_type, read_tables, table_of, vocabulary_of
from anisoscope.observe.gathering import IGNORED, Gathering
from anisoscope.observe.probing import Probe
from anisoscope.observe.statistics import Observed, Statistics, merged
from anisoscope.observe.tables import TableReading
from anisoscope.observe.targets import NULLS as TARGETS
from anisoscope.observe.targets import pass_again
from anisoscope.stats.reservoir import Reservoir

ModelInput = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What passes over one part of a text left behind; parts of one text add up."""

    statistics: Statistics
    others: dict[str, Statistics] = field(default_factory=dict)  # under other labels, by null
    missing: dict[str, str] = field(default_factory=dict)  # nulls that could not be had, and why
    probe: dict[int, Reservoir] = field(default_factory=dict)
    table: Tensor | None = None  # (V, D), the embedding itself
    frequency: Tensor | None = None  # (V,), how often each type comes in the text
    tables: dict[str, TableReading] = field(default_factory=dict)

    def plus(self, other: Seen) -> Seen:
        """Both parts."""
        nulls = self.others.keys() & other.others.keys()
        return Seen(
            merged(self.statistics, other.statistics),
            {null: merged(self.others[null], other.others[null]) for null in TARGETS if null in nulls},
            self.missing | other.missing,
            self.probe or other.probe,
            other.table if self.table is None else self.table,
            other.frequency if self.frequency is None else self.frequency,
            self.tables or other.tables,
        )

    def observed(self, step: int, *, rows: int = 8192, seed: int = 0, device: str | None = None) -> Observed:
        """Ready to be judged: tables of the embedding become clouds of types.

        All that is judged together must lie on one ``device``; None leaves it where it is.
        """

        def typed(statistics: Statistics) -> Statistics:
            return statistics if self.table is None else by_type(statistics, self.table, rows=rows, seed=seed)

        others = {null: typed(statistics) for null, statistics in self.others.items()}
        counted = {"frequency": self.frequency, "tables": self.tables}
        found = Observed(step, typed(self.statistics), others, self.missing, self.probe, **counted)
        return found if device is None else found.copied(lambda tensor: tensor.to(device))


def look(
    model: nn.Module,
    choice: Choice,
    batches: Sequence[ModelInput],
    *,
    step: int,
    shares: Sequence[float] | None = None,
    rows: int = 8192,
    seed: int = 0,
    targets: bool = False,
    probe: Probe | None = None,
    frequency: Tensor | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> Seen:
    """Pass over ``batches``, which are chunks of one text with labels, weighed as one batch.

    ``shares`` says what each chunk counts for where the text has other parts elsewhere (``shares_of`` all of it). Of
    the parameters only the embedding gets a gradient, and only for the length of a chunk; the model is as before
    afterwards. ``frequency`` are counts by type, to see how it goes with them. ``progress`` is told the share that is
    done.
    """
    shares = shares_of(batches) if shares is None else shares
    passes = len(batches) * (1 + (len(TARGETS) if targets else 0)) + (1 if probe is not None else 0)
    done = 0

    def passed(count: int = 1) -> None:
        nonlocal done
        done += count
        progress(done / passes)

    sites, embedding = choice.sites, choice.sites.embedding if "embedding" in choice.views else None
    size = 0 if embedding is None else vocabulary_of(embedding.module)
    answers = frequency is not None
    found = Gathering(choice.views, rows=rows, seed=seed, vocabulary=size, answers=answers)
    with _only_embedding(model, sites), Taps(model, sites, found, remember=targets) as taps:
        for batch, share in zip(batches, shares, strict=True):
            (_loss(model, batch) * share).backward()
            model.zero_grad(set_to_none=True)
            taps.require_no_error()
            passed()
        taps.require_heard()
    found.end_step()
    others, missing = {}, {}
    for null in TARGETS if targets else ():
        again = Gathering(choice.views, rows=rows, seed=seed, vocabulary=size, again=True)
        try:
            with _only_embedding(model, sites):
                options = {"loss_fn": None, "seed": seed * 7919 + step, "shares": shares}
                pass_again(model, sites, taps.calls, again, null=null, **options)
            others[null] = again.statistics
        except AnisoscopeError as error:
            missing[null] = str(error)
        passed(len(batches))
    kept = {} if probe is None else probe.run(model, sites)
    if probe is not None:
        passed()
    table = None if embedding is None else table_of(embedding.module)
    tables = {} if frequency is None else read_tables(sites, frequency, rows=rows, seed=seed)
    return Seen(found.statistics, others, missing, kept, table, frequency, tables)


def shares_of(batches: Sequence[ModelInput]) -> list[float]:
    """What each chunk's mean loss counts for: its share of all labels, the first position never being asked for."""
    if len(batches) == 1:
        return [1.0]
    counts = [_asked(batch) for batch in batches]
    return [count / max(sum(counts), 1) for count in counts]


def _loss(model: nn.Module, batch: ModelInput) -> Tensor:
    device = next(model.parameters()).device
    output = model(**{name: tensor.to(device) for name, tensor in batch.items()})
    loss = getattr(output, "loss", None)
    if not isinstance(loss, Tensor):
        raise AnisoscopeError("the model returns no loss for its labels")
    return loss


def _asked(batch: ModelInput) -> int:
    labels, ids = batch["labels"], batch["input_ids"]
    causal = bool(((labels == ids) | (labels == IGNORED)).all())  # labels repeat the input and are shifted inside
    return int(((labels[:, 1:] if causal else labels) != IGNORED).sum())


@contextmanager
def _only_embedding(model: nn.Module, sites: Sites) -> Iterator[None]:
    """Gradients of weights are not wanted: hidden states have theirs as long as the embedding has one."""
    keep = None if sites.embedding is None else getattr(sites.embedding.module, "weight", None)
    if keep is None or not keep.requires_grad:
        yield
        return
    frozen = [p for p in model.parameters() if p.requires_grad and p is not keep]
    for parameter in frozen:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)
