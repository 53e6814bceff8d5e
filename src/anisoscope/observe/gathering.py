"""The listener of an observed step: absorbs what passes the taps, on the device, and waits for nothing.

Letters: B sequences, T positions, D width, F outputs of a linear map, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from anisoscope.capture.calls import Batch
from anisoscope.capture.taps import Listener
from anisoscope.observe.statistics import Name, Statistics, merged
from anisoscope.stats.counts import TokenCounts
from anisoscope.stats.hashing import as_key, mix, sequence_keys
from anisoscope.stats.moments import Moments
from anisoscope.stats.reservoir import Selection

SKETCH = 32
IGNORED = -100


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """What all clouds of one forward call share: who is in which fold, and which sequences are kept."""

    stride: int  # every stride-th sequence is absorbed
    folds: tuple[Tensor, Tensor]  # masks (B, T)
    rest: tuple[Tensor, Tensor]  # the same without first positions
    first: Tensor  # (B,)
    first_in: tuple[Tensor, Tensor]  # (B,)
    labelled: Tensor  # (B, T)
    kept: tuple[Selection, Selection] | None


@dataclass(slots=True, eq=False)
class Gathering(Listener):
    """Statistics in the making.

    ``rows`` is the room of a sample (0: none is kept), ``vocabulary`` the size of the embedding (0: not watched),
    ``most_tokens`` how many tokens of a forward call are absorbed at most (whole sequences; 0: all).
    """

    views: tuple[str, ...]
    rows: int = 8192
    seed: int = 0
    vocabulary: int = 0
    most_tokens: int = 0
    statistics: Statistics = field(default_factory=dict)
    _contexts: dict[int, Context] = field(default_factory=dict)
    _sketches: dict[int, Tensor] = field(default_factory=dict)

    def activation(self, layer: int, x_BTD: Tensor, batch: Batch) -> None:
        """Absorb activations."""
        self._context(x_BTD, batch)  # tokens and sequences are counted whatever the views
        if "representation" in self.views:
            self._absorb("representation", layer, "activations", x_BTD, batch)

    def gradient(self, layer: int, g_BTD: Tensor, batch: Batch) -> None:
        """Absorb gradients."""
        if "representation" in self.views:
            self._absorb("representation", layer, "gradients", g_BTD, batch)

    def pair(self, layer: int, x_BTD: Tensor, delta_BTF: Tensor, batch: Batch) -> None:
        """Absorb inputs and error signals of a linear map: the gradient of each fold, and δ sketched.

        The sketch has one more column, which says whether the position was labelled.
        """
        if "weight" not in self.views:
            return
        context = self._absorb("weight", layer, "inputs", x_BTD, batch)
        x_BTD, delta_BTF = x_BTD[:: context.stride], delta_BTF[:: context.stride]
        for fold, mask_BT in enumerate(context.folds):
            product = _product(torch.where(mask_BT[..., None], delta_BTF, 0), x_BTD)
            self._add({Name("weight", layer, "gradients", fold, "sum"): product})
            if context.kept is not None:
                sketched = delta_BTF.float() @ self._sketch(delta_BTF)
                marked = torch.cat([sketched, context.labelled[..., None].to(sketched.dtype)], -1)
                self._add({Name("weight", layer, "deltas", fold, "kept"): context.kept[fold].take(marked)})

    def looked_up(self, tokens: Tensor, gradient: Tensor, batch: Batch) -> None:
        """Add up the gradient of the embedding's input side, type by type."""
        if "embedding" not in self.views or gradient.shape[:-1] != tokens.shape:
            return
        rows, ids = gradient.reshape(-1, gradient.shape[-1]).float(), tokens.reshape(-1).long()
        table = rows.new_zeros(self.vocabulary, rows.shape[1]).index_add_(0, ids, rows)
        mask = batch.mask.bool() if batch.mask is not None and batch.mask.shape == tokens.shape else None
        seen = TokenCounts.of(tokens, vocabulary=self.vocabulary, mask=mask).counts
        self._add({Name("embedding", 0, "table", 0, "sum"): table, Name("embedding", 0, "seen", 0, "sum"): seen})

    def table(self, gradient_VD: Tensor) -> None:
        """Add up the whole gradient of a tied embedding."""
        if "embedding" in self.views:
            self._add({Name("embedding", 0, "table-tied", 0, "sum"): gradient_VD.float().clone()})

    def _absorb(self, view: str, layer: int, points: str, x_BTD: Tensor, batch: Batch) -> Context:
        context = self._context(x_BTD, batch)
        x_BTD = x_BTD[:: context.stride]
        first_BD = x_BTD[torch.arange(x_BTD.shape[0], device=x_BTD.device), context.first]
        for fold in (0, 1):
            name = Name(view, layer, points, fold, "")
            part: Statistics = {
                name._replace(part="rest"): Moments.of(x_BTD, mask=context.rest[fold], higher=False),
                name._replace(part="first"): Moments.of(first_BD, mask=context.first_in[fold], higher=False),
            }
            if context.kept is not None:
                part[name._replace(part="kept")] = context.kept[fold].take(x_BTD)
            self._add(part)
        return context

    def _add(self, part: Statistics) -> None:
        self.statistics = merged(self.statistics, part)

    def _context(self, x_BTD: Tensor, batch: Batch) -> Context:
        if batch.number not in self._contexts:
            self._contexts[batch.number] = self._made_context(x_BTD, batch)
        return self._contexts[batch.number]

    def _made_context(self, x_BTD: Tensor, batch: Batch) -> Context:
        shape = x_BTD.shape[:2]
        tokens = batch.tokens
        if tokens is None or tokens.shape != shape:  # nothing to tell sequences apart by but their place
            tokens = torch.arange(shape[0] * shape[1], device=x_BTD.device).reshape(shape) + (batch.number << 32)
        given = batch.mask is not None and batch.mask.shape == shape
        mask = batch.mask.bool() if given and batch.mask is not None else torch.ones_like(tokens, dtype=torch.bool)
        self._add({Name("tokens", 0, "all", 0, "sum"): mask.sum()})
        stride = -(-mask.numel() // self.most_tokens) if self.most_tokens else 1
        tokens, mask = tokens[::stride], mask[::stride]
        keys = sequence_keys(tokens, mask, seed=self.seed)
        side_B = as_key(mix(keys, seed=self.seed)) & 1
        folds = (mask & (side_B == 0)[:, None], mask & (side_B == 1)[:, None])
        first_B = mask.int().argmax(1)
        later = torch.arange(mask.shape[1], device=mask.device)[None] != first_B[:, None]
        any_B = mask.any(1)
        labels = batch.labels[::stride] if batch.labels is not None and batch.labels.shape == shape else None
        kept = None
        if self.rows:
            first, second = (Selection.of(tokens, fold, rows=self.rows, seed=self.seed) for fold in folds)
            kept = first, second
            for fold, selection in enumerate(kept):
                self._add({Name("tokens", 0, "all", fold, "kept"): selection.take(tokens[..., None])})
        return Context(
            stride,
            folds,
            (folds[0] & later, folds[1] & later),
            first_B,
            (any_B & (side_B == 0), any_B & (side_B == 1)),
            torch.ones_like(mask) if labels is None else labels != IGNORED,
            kept,
        )

    def _sketch(self, delta_BTF: Tensor) -> Tensor:
        width = delta_BTF.shape[-1]
        if width not in self._sketches:
            draw = torch.randn(width, SKETCH, generator=torch.Generator().manual_seed(self.seed)) / SKETCH**0.5
            self._sketches[width] = draw.to(delta_BTF.device, non_blocking=True)
        return self._sketches[width]


def _product(delta_BTF: Tensor, x_BTD: Tensor) -> Tensor:
    """``δᵀx`` over all positions, added up in float64 by micro-batch; 16-bit products are exact in float32."""
    delta, x = delta_BTF.flatten(0, 1), x_BTD.flatten(0, 1)
    if delta.dtype == torch.float64 or x.dtype == torch.float64:
        return delta.double().T @ x.double()
    if delta.is_cuda and delta.dtype == x.dtype and delta.dtype in (torch.bfloat16, torch.float16):
        return torch.mm(delta.T, x, out_dtype=torch.float32).double()
    return (delta.float().T @ x.float()).double()
