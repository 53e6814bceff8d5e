"""A fixed held-out probe: one extra forward pass at an observation, for the intrinsic dimension of every layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.capture.calls import Batch
from anisoscope.capture.compiled import eagerly
from anisoscope.capture.sites import SiteKey, Sites, unwrapped
from anisoscope.capture.taps import Listener, Taps
from anisoscope.errors import broken
from anisoscope.stats.reservoir import Reservoir

FEWEST = 4096
ROWS = 8192
_AT_ONCE = 8

ProbeInput = Tensor | Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]]


@dataclass(slots=True, eq=False)
class _Kept(Listener):
    """Keeps a sample of tokens of each layer."""

    seed: int
    sites: dict[SiteKey, Reservoir] = field(default_factory=dict)

    def activation(self, at: SiteKey, x_BTD: Tensor, batch: Batch) -> None:
        """Keep some rows."""
        if batch.encoder:  # of an encoder-decoder, the layers of the decoder
            return
        tokens = batch.tokens
        assert tokens is not None, "a probe consists of token ids"
        device = x_BTD.device  # layers may be on several
        mask = None if batch.mask is None else batch.mask.to(device)
        part = Reservoir.of_sequences(x_BTD, tokens.to(device), mask=mask, rows=ROWS, seed=self.seed, whole=False)
        self.sites[at] = self.sites[at].merge(part) if at in self.sites else part


class Probe:
    """Token ids ``(n, T)``, or batches as the model takes them (``input_ids`` and what else it needs, no labels)."""

    def __init__(self, given: ProbeInput, *, seed: int) -> None:
        self._seed = seed
        if isinstance(given, Tensor):
            given = {"input_ids": given}
        batches = [given] if isinstance(given, Mapping) else list(given)
        self._batches = [part for batch in batches for part in _split(dict(batch))]
        tokens = sum(_size(batch) for batch in self._batches)
        if tokens < FEWEST:
            raise broken(f"a probe must have at least {FEWEST} tokens", tokens, "pass more held-out sequences")

    def run(self, model: nn.Module, sites: Sites) -> dict[SiteKey, Reservoir]:
        """The sample of every place; the model, its modes and all random states are as before afterwards."""
        kept, root = _Kept(self._seed), unwrapped(model)
        device = next(root.parameters()).device
        devices = [device] if device.type == "cuda" else []
        taps = Taps(model, sites, kept, evaluations=True)
        with torch.random.fork_rng(devices=devices), torch.no_grad(), eagerly(), _evaluating(root), taps:
            for batch in self._batches:
                root(**{name: tensor.to(device) for name, tensor in batch.items()})
            taps.require_no_error()
        return kept.sites


def _split(batch: dict[str, Any]) -> Iterator[dict[str, Tensor]]:
    ids = batch.get("input_ids")
    if not isinstance(ids, Tensor) or ids.ndim != 2:
        raise broken("a probe must hold input_ids of shape (n, T)", type(ids).__name__, "pass a tensor of token ids")
    batch.pop("labels", None)
    for start in range(0, ids.shape[0], _AT_ONCE):
        yield {name: tensor[start : start + _AT_ONCE] for name, tensor in batch.items()}


def _size(batch: dict[str, Tensor]) -> int:
    return int(batch["attention_mask"].sum()) if "attention_mask" in batch else batch["input_ids"].numel()


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Every module in evaluation mode, and back as it was: some may have been frozen on purpose."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
