"""An observation of a model that is not being trained: given text passes forward and backward, and nothing is kept.

Letters: B sequences, T positions.

The same taps and the same statistics as in training, so that a checkpoint shows what the scope saw when it was made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from anisoscope.capture.sites import Sites
from anisoscope.capture.taps import Taps
from anisoscope.errors import AnisoscopeError
from anisoscope.observe.collector import IGNORED, RESERVOIR_ROWS, Collector
from anisoscope.observe.embedding import vocabulary_of
from anisoscope.observe.finalize import Assembly
from anisoscope.observe.probe import Probe
from anisoscope.observe.site_selection import SiteChoice
from anisoscope.observe.statistics import Observation
from anisoscope.vocabulary import LABEL_NULLS

ModelInput = Mapping[str, Tensor]


def observe_model(
    model: nn.Module,
    choice: SiteChoice,
    batches: Sequence[ModelInput],
    *,
    step: int,
    shares: Sequence[float] | None = None,
    rows: int = RESERVOIR_ROWS,
    seed: int = 0,
    targets: bool = False,
    probe: Probe | None = None,
    frequency: Tensor | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> Observation:
    """Pass over ``batches``, which are chunks of one text with labels, weighed as one batch.

    A batch may hold ``documents (B,)``, the document of each sequence: they are then the units of folds and intervals.
    ``shares`` says what each chunk counts for where the text has other parts elsewhere (``shares_of`` all of it). Of
    the parameters only the embedding gets a gradient, and only for the length of a chunk; the model is as before
    afterwards. ``frequency`` are counts by type, to see how it goes with them. ``progress`` is told the share that is
    done. What comes back is to be finalized, once all parts of the text are merged.
    """
    shares = shares_of(batches) if shares is None else shares
    label_nulls = LABEL_NULLS if targets else ()
    passes = len(batches) * (1 + len(label_nulls)) + (1 if probe is not None else 0)
    done = 0

    def passed(count: int = 1) -> None:
        nonlocal done
        done += count
        progress(done / passes)

    sites, embedding = choice.sites, choice.sites.embedding if "embedding" in choice.views else None
    size = 0 if embedding is None else vocabulary_of(embedding.module)
    found = Collector(choice.views, rows=rows, seed=seed, vocabulary=size, answers=frequency is not None)
    known = [batch["documents"] for batch in batches if "documents" in batch]
    documents = torch.cat(known) if known and len(known) == len(batches) else None
    tapped = Taps(model, sites, found, keep_calls=targets, documents=documents)
    with _only_embedding(model, sites), tapped as taps:
        for batch, share in zip(batches, shares, strict=True):
            (_loss(model, batch) * share).backward()
            model.zero_grad(set_to_none=True)
            taps.require_no_error()
            passed()
        taps.require_heard()
    found.end_step()
    assembly = Assembly(choice.views, label_nulls, probe=probe, rows=rows, seed=seed)
    with _only_embedding(model, sites):
        about = {"step": step, "frequency": frequency, "shares": shares}
        return assembly.make(model, sites, taps, found.statistics, **about, passed=passed)


def shares_of(batches: Sequence[ModelInput]) -> list[float]:
    """What each chunk's mean loss counts for: its share of all labels, the first position never being asked for."""
    if len(batches) == 1:
        return [1.0]
    counts = [_asked(batch) for batch in batches]
    return [count / max(sum(counts), 1) for count in counts]


def _loss(model: nn.Module, batch: ModelInput) -> Tensor:
    device = next(model.parameters()).device
    output = model(**{name: tensor.to(device) for name, tensor in batch.items() if name != "documents"})
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
