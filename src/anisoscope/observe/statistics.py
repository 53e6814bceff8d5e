"""Statistics of one observation, absorbed as tensors pass: two folds of sequences, nothing kept but sums and a sample.

Letters: B sequences, T positions, D width, F outputs of a linear map, E sketch columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from anisoscope.capture.taps import Batch
from anisoscope.stats.hashing import as_key, mix, sequence_keys
from anisoscope.stats.moments import Moments
from anisoscope.stats.reservoir import Reservoir

SKETCH = 32


@dataclass(slots=True, eq=False)
class Cloud:
    """Moments and a sample of whole sequences of one cloud in one fold."""

    moments: Moments | None = None
    kept: Reservoir | None = None

    def absorb(self, x_BTD: Tensor, tokens_BT: Tensor, mask_BT: Tensor, rows: int, seed: int) -> None:
        """Add a batch; only positions under the mask count."""
        part = Moments.of(x_BTD, mask=mask_BT, higher=False)
        self.moments = part if self.moments is None else self.moments.merge(part)
        room = max(rows, tokens_BT.shape[1])
        kept = Reservoir.of_sequences(x_BTD.float(), tokens_BT, mask=mask_BT, rows=room, seed=seed)
        self.kept = kept if self.kept is None else self.kept.merge(kept)


@dataclass(slots=True, eq=False)
class Representation:
    """Activations and gradients of the residual stream at one layer, by fold."""

    activations: tuple[Cloud, Cloud] = field(default_factory=lambda: (Cloud(), Cloud()))
    gradients: tuple[Cloud, Cloud] = field(default_factory=lambda: (Cloud(), Cloud()))


@dataclass(slots=True, eq=False)
class Weight:
    """Inputs of a linear map, its gradient ``G = Σ δxᵀ`` and a sketch of δ, by fold."""

    inputs: tuple[Cloud, Cloud] = field(default_factory=lambda: (Cloud(), Cloud()))
    deltas: tuple[Cloud, Cloud] = field(default_factory=lambda: (Cloud(), Cloud()))
    gradient: list[Tensor | None] = field(default_factory=lambda: [None, None])


@dataclass(slots=True, eq=False)
class Observation:
    """The listener of one observed step."""

    step: int
    rows: int
    seed: int
    views: tuple[str, ...]
    representation: dict[int, Representation] = field(default_factory=dict)
    weight: dict[int, Weight] = field(default_factory=dict)
    tokens: int = 0
    _seen: dict[int, tuple[Tensor, Tensor, tuple[Tensor, Tensor]]] = field(default_factory=dict)

    def activation(self, layer: int, x_BTD: Tensor, batch: Batch) -> None:
        """Absorb activations."""
        if "representation" in self.views:
            self._absorb(self.representation.setdefault(layer, Representation()).activations, x_BTD, batch)

    def gradient(self, layer: int, g_BTD: Tensor, batch: Batch) -> None:
        """Absorb gradients."""
        if "representation" in self.views:
            self._absorb(self.representation.setdefault(layer, Representation()).gradients, g_BTD, batch)

    def pair(self, layer: int, x_BTD: Tensor, delta_BTF: Tensor, batch: Batch) -> None:
        """Absorb inputs and error signals of a linear map."""
        if "weight" not in self.views:
            return
        site = self.weight.setdefault(layer, Weight())
        _, _, folds = self._context(x_BTD, batch)
        self._absorb(site.inputs, x_BTD, batch)
        self._absorb(site.deltas, delta_BTF.float() @ self._sketch(delta_BTF), batch)
        for fold, mask_BT in enumerate(folds):
            delta = delta_BTF.double() * mask_BT[..., None]
            part = delta.flatten(0, 1).T @ x_BTD.double().flatten(0, 1)
            before = site.gradient[fold]
            site.gradient[fold] = part if before is None else before + part

    def _absorb(self, clouds: tuple[Cloud, Cloud], x_BTD: Tensor, batch: Batch) -> None:
        tokens, _, folds = self._context(x_BTD, batch)
        for cloud, mask_BT in zip(clouds, folds, strict=True):
            cloud.absorb(x_BTD, tokens, mask_BT, self.rows, self.seed)

    def _context(self, x_BTD: Tensor, batch: Batch) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Token ids, mask, and the mask of each fold of this forward call."""
        if batch.number not in self._seen:
            shape = x_BTD.shape[:2]
            tokens = batch.tokens
            if tokens is None or tokens.shape != shape:  # nothing to tell sequences apart by but their place
                place = torch.arange(shape[0] * shape[1], device=x_BTD.device).reshape(shape)
                tokens = place + (self.step << 40) + (batch.number << 32)
            given = batch.mask is not None and batch.mask.shape == shape
            mask = batch.mask.bool() if given and batch.mask is not None else torch.ones_like(tokens, dtype=torch.bool)
            side = as_key(mix(sequence_keys(tokens, mask, seed=self.seed), seed=self.seed)) & 1
            self._seen[batch.number] = tokens, mask, (mask & (side == 0)[:, None], mask & (side == 1)[:, None])
            self.tokens += mask.numel()
        return self._seen[batch.number]

    def _sketch(self, delta_BTF: Tensor) -> Tensor:
        width = delta_BTF.shape[-1]
        draw = torch.randn(width, SKETCH, generator=torch.Generator().manual_seed(self.seed)) / SKETCH**0.5
        return draw.to(delta_BTF.device)
