"""The listener of an observed step: absorbs what passes the taps, on the device, and waits for nothing.

Letters: B sequences, T positions, D width, F outputs of a linear map, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from anisoscope.capture.calls import IGNORED, Batch
from anisoscope.capture.maps import Router
from anisoscope.capture.sites import SiteKey
from anisoscope.capture.taps import Listener
from anisoscope.observe.statistics import Name, Statistics, merged
from anisoscope.stats.batched import Batched
from anisoscope.stats.counts import TokenCounts
from anisoscope.stats.hashing import second_fold, sequence_keys, unit_keys
from anisoscope.stats.reservoir import Selection
from anisoscope.stats.running import Running, moments_of_few
from anisoscope.stats.side_stream import SideStream
from anisoscope.vocabulary import ENCODER

SKETCH = 32
RESERVOIR_ROWS = 8192
_RECENT = 8


@dataclass(frozen=True, slots=True, eq=False)
class CallFolds:
    """What all clouds of one forward call share: who is in which fold, and which sequences are kept."""

    mask: Tensor  # (B, T)
    rest: Tensor  # (B, T), without first positions
    first: Tensor  # (B,) where each sequence begins
    members: Tensor  # (2, B), the sequences of each fold
    first_members: Tensor  # (2, B), those that are not all padding
    every: Tensor  # (B,) 0, 1, …
    labelled: Tensor  # (B, T)
    kept: tuple[Selection, Selection] | None


@dataclass(slots=True, eq=False)
class CallContext:
    """A forward call whose clouds pass; its context is worked out when it is first asked for.

    An accumulated step asks at its end: at its beginning these many small kernels cost 1 % of a step on an H200, more
    than all else together.
    """

    stride: int  # every stride-th sequence is absorbed
    make: Callable[[], CallFolds]
    _made: CallFolds | None = None

    @property
    def context(self) -> CallFolds:
        """Who is in which fold."""
        if self._made is None:
            self._made = self.make()
        return self._made


@dataclass(slots=True, eq=False)
class Collector(Listener):
    """Statistics in the making, over one step or a window of steps.

    ``rows`` is the room of a sample (0: none is kept), ``vocabulary`` the size of the embedding (0: not watched),
    ``most_tokens`` how many tokens of a forward call are absorbed at most (whole sequences; 0: all), and then with all
    sites of a call at once. In a window (``guard``) batches that overflow add nothing; in a single step they show. A
    second pass over the same text (``again``) has the same activations, so only its gradients are gathered. With
    ``answers`` the tokens that positions were asked for are kept beside the sample.
    """

    views: tuple[str, ...]
    rows: int = RESERVOIR_ROWS
    seed: int = 0
    vocabulary: int = 0
    most_tokens: int = 0
    guard: bool = False
    again: bool = False
    answers: bool = False
    _sums: Statistics = field(default_factory=dict)
    _running: dict[Name, Running] = field(default_factory=dict)
    _firsts: dict[Name, list[tuple[Tensor, Tensor]]] = field(default_factory=dict)
    _batched: dict[tuple[frozenset[int] | None, bool], Batched] = field(default_factory=dict)
    _layers: frozenset[int] | None = None
    _pending: tuple[CallContext, Batched] | None = None  # the call whose clouds wait, and where
    _aside: SideStream = field(default_factory=SideStream)
    _passing: dict[tuple[int, bool, torch.device], CallContext] = field(
        default_factory=dict
    )  # layers may be on several
    _counted: set[int] = field(default_factory=set)
    _sketches: dict[tuple[int, torch.device], Tensor] = field(default_factory=dict)

    def next_step(
        self,
        views: tuple[str, ...],
        *,
        rows: int,
        vocabulary: int,
        most_tokens: int,
        layers: frozenset[int] | None = None,
    ) -> None:
        """Go on with another step of the window, in which ``layers`` pass."""
        self.views, self.rows, self.vocabulary, self.most_tokens = views, rows, vocabulary, most_tokens
        self._passing, self._counted = {}, set()
        self._layers = layers

    def end_step(self) -> None:
        """All of the step has passed."""
        if self._pending is not None:
            (call, batched), self._pending = self._pending, None
            context = call.context
            batched.absorb(context.rest, context.first, context.first_members)

    @property
    def statistics(self) -> Statistics:
        """What has been gathered so far."""
        found = dict(self._sums)
        for name, running in self._running.items():
            found |= {name._replace(fold=fold): moments for fold, moments in enumerate(running.moments())}
        found = merged(found, _few(self._firsts))
        for batched in self._batched.values():
            for key, parts in batched.moments().items():
                assert isinstance(key, Name)
                for part, folds in parts.items():
                    window: Statistics = {key._replace(part=part, fold=fold): each for fold, each in enumerate(folds)}
                    found = merged(found, window)
        return found

    def activation(self, at: SiteKey, x_BTD: Tensor, batch: Batch) -> None:
        """Absorb activations."""
        self._call(x_BTD, batch)  # tokens and sequences are counted whatever the views
        view = _view("representation", batch)
        if view in self.views and not self.again:
            self._absorb(view, at, "activations", x_BTD, batch)

    def gradient(self, at: SiteKey, g_BTD: Tensor, batch: Batch) -> None:
        """Absorb gradients."""
        view = _view("representation", batch)
        if view in self.views:
            self._absorb(view, at, "gradients", g_BTD, batch)

    def pair(self, at: SiteKey, x_BTD: Tensor, delta_BTF: Tensor, batch: Batch) -> None:
        """Absorb inputs and error signals of a linear map: the gradient of each fold, and δ sketched.

        The sketch has one more column, which says whether the position was labelled.
        """
        view = _view("weight", batch)
        if view not in self.views:
            return
        call = self._call(x_BTD, batch) if self.again else self._absorb(view, at, "inputs", x_BTD, batch)
        context = call.context
        self._aside.join()
        x_BTD, delta_BTF = x_BTD[:: call.stride], delta_BTF[:: call.stride]
        if batch.mask is not None:  # what padding holds need not be finite
            delta_BTF = torch.where(context.mask[..., None], delta_BTF, 0)
        for fold, mask_BT in enumerate(context.mask & context.members[..., None]):
            masked = torch.where(mask_BT[..., None], x_BTD, 0)  # there are mostly fewer inputs than outputs
            product = _product(delta_BTF, masked, batch.sixteen_bit)
            if self.guard:
                product = torch.where(torch.isfinite(product.sum()), product, 0.0)
            self._add({Name(view, at.layer, "gradients", fold, "sum", at.name): product})
        if context.kept is not None:
            sketched = (delta_BTF @ self._sketch(delta_BTF).to(delta_BTF.dtype)).float()
            marked = torch.cat([sketched, context.labelled[..., None].to(sketched.dtype)], -1)
            for fold, selection in enumerate(context.kept):
                self._add({Name(view, at.layer, "deltas", fold, "kept", at.name): selection.take(marked)})
                if self.again:  # which error signal belongs to which input must be known there too
                    self._add({Name(view, at.layer, "inputs", fold, "kept", at.name): selection.take(x_BTD)})

    def routed(self, router: Router, experts: Tensor, batch: Batch) -> None:
        """Count the tokens that went to each expert of a layer; padding goes nowhere."""
        if self.again:
            return
        chosen = experts.reshape(-1, experts.shape[-1]).long()
        weights = torch.ones_like(chosen, dtype=torch.float32)
        if chosen.shape[1] == router.experts:  # a mark for each expert
            weights = (chosen != 0).float()
            chosen = torch.arange(router.experts, device=chosen.device).expand_as(chosen)
        mask = batch.mask if batch.mask is not None else None
        if mask is not None and mask.numel() == chosen.shape[0]:
            weights = weights * mask.to(chosen.device).reshape(-1, 1).bool()
        sound = (chosen >= 0) & (chosen < router.experts)  # some send what they drop to an expert that is not there
        load = weights.new_zeros(router.experts).index_add_(
            0, chosen.clamp(0, router.experts - 1).flatten(), (weights * sound).flatten()
        )
        self._add({Name("router", router.layer, router.view, 0, "sum", router.name): load.double()})

    def looked_up(self, tokens: Tensor, gradient: Tensor, batch: Batch) -> None:
        """Add up the gradient of the embedding's input side, type by type."""
        if "embedding" not in self.views or gradient.shape[:-1] != tokens.shape:
            return
        tokens = tokens.to(gradient.device)  # they may have been given on another than the table's
        rows, ids = gradient.reshape(-1, gradient.shape[-1]).float(), tokens.reshape(-1).long()
        table = rows.new_zeros(self.vocabulary, rows.shape[1]).index_add_(0, ids, rows)
        given = batch.mask is not None and batch.mask.shape == tokens.shape
        mask = batch.mask.to(tokens.device).bool() if given and batch.mask is not None else None
        seen = TokenCounts.of(tokens, vocabulary=self.vocabulary, mask=mask).counts
        self._add({Name("embedding", 0, "table", 0, "sum"): table, Name("embedding", 0, "seen", 0, "sum"): seen})
        whole = gradient.ndim == 3 and batch.tokens is not None and gradient.shape[:2] == batch.tokens.shape
        kept = self._call(gradient, batch).context.kept if whole else None
        for fold, selection in enumerate(kept or ()):
            self._add({Name("embedding", 0, "looked-up", fold, "kept"): selection.take(gradient)})

    def table(self, gradient_VD: Tensor) -> None:
        """Add up the whole gradient of a tied embedding."""
        if "embedding" in self.views:
            self._add({Name("embedding", 0, "table-tied", 0, "sum"): gradient_VD.float().clone()})

    def _absorb(self, view: str, at: SiteKey, tensor: str, x_BTD: Tensor, batch: Batch) -> CallContext:
        call = self._call(x_BTD, batch)
        x_BTD = x_BTD[:: call.stride]
        name = Name(view, at.layer, tensor, -1, "rest", at.name)
        short = batch.sixteen_bit
        if self.most_tokens:
            if self._pending is None or self._pending[0] is not call:
                self.end_step()
                batched = self._batched.setdefault((self._layers, batch.encoder), Batched(2, self._aside))
                self._pending = call, batched
            self._pending[1].put(name, x_BTD, short=short)
            return call
        context = call.context
        if name not in self._running:
            self._running[name] = Running.start(x_BTD, context.rest, parts=2, sixteen_bit=short)
        self._running[name].add(x_BTD, context.rest, context.members, fixed=self.guard)
        first_BD = x_BTD[context.every, context.first]
        members = context.first_members & torch.isfinite(first_BD).all(1) if self.guard else context.first_members
        self._firsts.setdefault(name._replace(part="first"), []).append((first_BD, members))
        if context.kept is not None:
            for fold, selection in enumerate(context.kept):
                kept = selection.take(x_BTD)
                if short and x_BTD.is_cuda:  # half the memory, and no coarser than it was computed
                    kept = replace(kept, values=kept.values.bfloat16())
                self._add({name._replace(fold=fold, part="kept"): kept})
        return call

    def _add(self, part: Statistics) -> None:
        self._sums = merged(self._sums, part)

    def _call(self, x_BTD: Tensor, batch: Batch) -> CallContext:
        key = batch.number, batch.encoder, x_BTD.device
        if key not in self._passing:
            while len(self._passing) >= _RECENT:  # many micro-batches must not pile up; an old one is made again
                self._passing.pop(next(iter(self._passing)))
                self._sums, self._firsts = merged(self._sums, _few(self._firsts)), {}
            self._passing[key] = self._begun(x_BTD, batch)
            if not batch.encoder:
                self._counted.add(batch.number)
        return self._passing[key]

    def _begun(self, x_BTD: Tensor, batch: Batch) -> CallContext:
        shape, device = x_BTD.shape[:2], x_BTD.device
        tokens = None if batch.tokens is None else batch.tokens.to(device)
        if tokens is None or tokens.shape != shape:  # nothing to tell sequences apart by but their place
            tokens = torch.arange(shape[0] * shape[1], device=device).reshape(shape) + (batch.number << 32)
        given = batch.mask is not None and batch.mask.shape == shape
        every = torch.ones_like(tokens, dtype=torch.bool)
        mask = batch.mask.to(device).bool() if given and batch.mask is not None else every
        documents = batch.documents if batch.documents is not None and len(batch.documents) == shape[0] else None
        documents = None if documents is None else documents.to(device)
        if documents is None and batch.source is not None:
            documents = _sources(*batch.source).to(device)
        is_new = batch.number not in self._counted and not batch.encoder
        if is_new:
            self._add({Name("tokens", 0, "all", 0, "sum"): mask.sum()})
        if self.most_tokens:
            stride = -(-mask.numel() // self.most_tokens)
            # A loader may write the next batch into the same memory before we read it, so a copy.
            parts = (tokens, mask, documents) if documents is not None else (tokens, mask)
            return CallContext(stride, partial(self._shared_aside, *(part[::stride].clone() for part in parts)))
        labelled = batch.labels is not None and batch.labels.shape == shape
        labels = batch.labels.to(device) if labelled and batch.labels is not None else None
        context = self._shared(tokens, mask, labels, documents)
        for fold, selection in enumerate((context.kept or ()) if is_new else ()):
            self._add({Name("tokens", 0, "all", fold, "kept"): selection.take(tokens[..., None])})
            if self.answers and labels is not None:
                asked = _asked_for(tokens, labels)[..., None]
                self._add({Name("tokens", 0, "targets", fold, "kept"): selection.take(asked)})
        return CallContext(1, lambda: context)

    def _shared_aside(self, tokens: Tensor, mask: Tensor, documents: Tensor | None = None) -> CallFolds:
        with self._aside.reading(*(part for part in (tokens, mask, documents) if part is not None)):
            return self._shared(tokens, mask, None, documents)

    def _shared(self, tokens: Tensor, mask: Tensor, labels: Tensor | None, documents: Tensor | None) -> CallFolds:
        second_B = second_fold(tokens, mask, seed=self.seed, documents_B=documents)
        members = torch.stack([~second_B, second_B])
        first_B = mask.int().argmax(1)
        later = torch.arange(mask.shape[1], device=mask.device)[None] != first_B[:, None]
        kept = None
        if self.rows:
            units = None if documents is None else unit_keys(tokens, mask, documents, seed=self.seed)
            options = {"rows": self.rows, "seed": self.seed, "units_B": units}
            first, second = (Selection.of(tokens, fold, **options) for fold in mask & members[..., None])
            kept = first, second
        return CallFolds(
            mask,
            mask & later,
            first_B,
            members,
            members & mask.any(1),
            torch.arange(mask.shape[0], device=mask.device),
            torch.ones_like(mask) if labels is None else labels != IGNORED,
            kept,
        )

    def _sketch(self, delta_BTF: Tensor) -> Tensor:
        width, device = delta_BTF.shape[-1], delta_BTF.device
        if (width, device) not in self._sketches:
            generator = torch.Generator().manual_seed(self.seed)
            draw = torch.randn(width, SKETCH, generator=generator, dtype=torch.float32, device="cpu") / SKETCH**0.5
            self._sketches[width, device] = draw.to(device, non_blocking=True)
        return self._sketches[width, device]


def _view(kind: str, batch: Batch) -> str:
    return f"{ENCODER}{kind}" if batch.encoder else kind


def _sources(tokens_BS: Tensor, mask_BS: Tensor | None) -> Tensor:
    """What tells the pairs of an encoder-decoder apart: their source sequences, in both of its stacks."""
    return sequence_keys(tokens_BS, None if mask_BS is None else mask_BS.to(tokens_BS.device).bool(), seed=0)


def _asked_for(tokens_BT: Tensor, labels_BT: Tensor) -> Tensor:
    """The token that each position was asked for, −100 for none.

    Labels that repeat the input are those of a decoder, which shifts them itself: position t is asked for token t + 1.
    """
    repeats = ((labels_BT == tokens_BT) | (labels_BT == IGNORED)).all()
    shifted = torch.cat([labels_BT[:, 1:], torch.full_like(labels_BT[:, :1], IGNORED)], 1)
    return torch.where(repeats, shifted, labels_BT)


def _few(firsts: dict[Name, list[tuple[Tensor, Tensor]]]) -> Statistics:
    """Moments of first positions, those of clouds of one shape together."""
    groups: dict[tuple[int, ...], list[tuple[Name, Tensor, Tensor]]] = {}
    for name, parts in firsts.items():
        rows = torch.cat([x.to(torch.promote_types(x.dtype, torch.float32)) for x, _ in parts])
        shape = (rows.shape[1], *(id(members) for _, members in parts))
        groups.setdefault(shape, []).append((name, rows, torch.cat([members for _, members in parts], 1)))
    found: Statistics = {}
    for group in groups.values():
        folds = moments_of_few(torch.stack([rows for _, rows, _ in group]), group[0][2])
        for (name, *_), both in zip(group, folds, strict=True):
            found |= {name._replace(fold=fold): moments for fold, moments in enumerate(both)}
    return found


def _product(delta_BTF: Tensor, x_BTD: Tensor, sixteen_bit: bool) -> Tensor:
    """``δᵀx`` over all positions of a micro-batch.

    On a GPU under autocast it is the product that the model itself makes: of 16-bit numbers, added up in float32.
    """
    delta, x = delta_BTF.flatten(0, 1), x_BTD.flatten(0, 1)
    if delta.is_cuda and delta.dtype in (torch.bfloat16, torch.float16) and (sixteen_bit or x.dtype == delta.dtype):
        return torch.mm(delta.T, x.to(delta.dtype), out_dtype=torch.float32)
    work = torch.promote_types(torch.promote_types(delta.dtype, x.dtype), torch.float32)
    return (delta.to(work).T @ x.to(work)).double()
