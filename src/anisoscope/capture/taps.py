"""Taps: hooks that hand on what passes a site and change nothing.

Letters: B sequences, T positions, D width, F outputs of a linear map.

Hooks are borrowed: they exist inside ``with taps:`` and are gone on any exception. They read detached tensors and
return nothing, so that outputs, gradients and the autograd graph stay as they are.

Gradient checkpointing runs a block a second time, inside the backward pass. Such a call is recognised by that: it
counts for nothing on the way forward. Where the first run was without autograd (reentrant checkpointing) the second
one is where the gradient can be seen, and it is taken there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.capture.calls import Batch, Call, as_batch, is_tokens, of_both, with_decoder_tokens
from anisoscope.capture.compiled import around
from anisoscope.capture.maps import Router
from anisoscope.capture.sites import Site, SiteKey, Sites, unwrapped
from anisoscope.capture.trace import leaves
from anisoscope.errors import AnisoscopeError, broken
from anisoscope.vocabulary import ENCODER


class Listener:
    """Who is told, overriding what it wants to hear.

    Tensors are detached and belong to the model: copy what must outlive the call.
    """

    def activation(self, at: SiteKey, x_BTD: Tensor, batch: Batch) -> None:
        """The residual stream after the block ``at``; layer 0 is what enters the first block."""

    def gradient(self, at: SiteKey, g_BTD: Tensor, batch: Batch) -> None:
        """The gradient of the loss with respect to it."""

    def pair(self, at: SiteKey, x_BTD: Tensor, delta_BTF: Tensor, batch: Batch) -> None:
        """Input of a linear map and gradient of its output."""

    def routed(self, router: Router, experts: Tensor, batch: Batch) -> None:
        """Which experts each token went to: indices, the last dimension holding those of one token."""

    def looked_up(self, tokens: Tensor, gradient: Tensor, batch: Batch) -> None:
        """Ids that entered the embedding, and the gradient of the vectors that came out."""

    def table(self, gradient_VD: Tensor) -> None:
        """The whole gradient of an embedding that is tied to the output, both sides in one sum."""


@dataclass(slots=True, eq=False)
class _Line:
    """What hooks on tensors hold on to; cut on detaching, so that a graph which lives on keeps nothing of ours."""

    listener: Listener | None
    heard: set[tuple[str, SiteKey]]
    left_out: dict[SiteKey, str]
    refused: dict[str, str]  # blocks that are known not to hold one vector a token, and why
    error: Exception | None = None
    seconds: float = 0.0  # spent listening

    def tell(self, kind: str, at: SiteKey, *tensors: Tensor, batch: Batch) -> None:
        self.heard.add((kind, at))
        self.say(tensors[0].device.type, lambda listener: getattr(listener, kind)(at, *tensors, batch))

    def say(self, device_type: str, act: Callable[[Listener], None]) -> None:
        """Call the listener as if the user's autocast were not there; an error ends the line, never the training."""
        if self.listener is None:
            return
        began = time.perf_counter()
        try:
            with torch.no_grad(), torch.autocast(device_type, enabled=False):
                act(self.listener)
        except Exception as error:
            self.error, self.listener = error, None
        self.seconds += time.perf_counter() - began

    def turned(self, x: Tensor, batch: Batch, site: Site, at: SiteKey) -> Tensor | None:
        """As ``(B, T, ·)``; nothing where it does not hold one vector a token, and a word why."""
        if site.name in self.refused and site.view.endswith("representation"):
            self.left_out.setdefault(at, self.refused[site.name])
            return None
        expected = batch.shape if batch.tokens is None else batch.tokens.shape
        if x.ndim == 2 and expected is not None and x.shape[0] == expected.numel():
            x = x.reshape(*expected, x.shape[1])
        elif x.ndim == 3 and site.layout != "BTD":
            x = x.transpose(0, 1) if site.layout == "TBD" else x.transpose(1, 2)
        if x.ndim == 3 and expected is None:
            batch.shape = expected = x.shape[:2]
        if x.ndim == 3 and x.shape[:2] == expected:
            return x
        of = "the text has" if batch.tokens is not None else "the first block was given"
        self.left_out.setdefault(at, f"it has shape {tuple(x.shape)} where {of} {tuple(expected or ())} positions")
        return None


@dataclass(slots=True, eq=False)
class Taps:
    """Hooks on the sites of a model, for the length of a ``with`` block.

    >>> import torch
    >>> from torch import nn
    >>> from anisoscope.capture.sites import find_sites
    >>> model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(2)))
    >>> class Print(Listener):
    ...     def activation(self, at, x, batch): print("activation", at.layer, tuple(x.shape))
    ...     def gradient(self, at, g, batch): print("gradient", at.layer, tuple(g.shape))
    >>> with Taps(model, find_sites(model), Print()):
    ...     model(torch.randn(2, 3, 4)).sum().backward()
    activation 0 (2, 3, 4)
    activation 1 (2, 3, 4)
    activation 2 (2, 3, 4)
    gradient 2 (2, 3, 4)
    gradient 1 (2, 3, 4)
    """

    model: nn.Module
    sites: Sites
    listener: Listener
    layers: frozenset[int] | None = None  # which to hand on; None is all
    keep_calls: bool = False  # keep the calls, so that they can be made again
    evaluations: bool = False  # hand on calls without autograd too
    documents: Tensor | None = None  # of all sequences that pass, in their order over the calls
    labels: str | None = None  # the argument that holds them, where it is not a usual one
    heard: set[tuple[str, SiteKey]] = field(default_factory=set)
    frozen: set[tuple[str, SiteKey]] = field(default_factory=set)  # below all that is trained: there is no gradient
    calls: list[Call] = field(default_factory=list)
    first_hidden: dict[str, Tensor] = field(default_factory=dict)  # earliest with a gradient, of the latest call
    left_out: dict[SiteKey, str] = field(default_factory=dict)  # what passed and could not be watched, and why
    blocks_called: int = 0  # the highest layer in one forward pass; above that of the last block where some are shared
    _forwards: int = 0
    _sequences: int = 0  # how many have passed
    _batch: Batch | None = None
    _encoder: Batch | None = None  # of an encoder-decoder, the batch of the encoder
    _off: list[Callable[[], None]] = field(default_factory=list)
    _sites: dict[nn.Module, Site] = field(default_factory=dict)
    _called: set[nn.Module] = field(default_factory=set)
    _pending: dict[nn.Module, list[tuple[SiteKey, Batch]]] = field(default_factory=dict)
    _line: _Line | None = None

    def __enter__(self) -> Taps:
        """Attach."""
        self._line, self._forwards, self._sequences = (
            _Line(self.listener, self.heard, self.left_out, self.sites.left_out),
            0,
            0,
        )
        root = unwrapped(self.model)
        self._off.append(around(root, self._begin, None))
        self._sites = {site.module: site for site in (*self.sites.weights, *self.sites.blocks)}
        weights = {site.module: None for site in self.sites.weights}
        for module in {site.module: None for site in self.sites.blocks}:
            self._off.append(around(module, self._entering, self._left))
        for module in weights:
            self._off.append(around(module, None, self._mapped))
        for router in self.sites.routers:
            self._off.append(self._listen_to_router(router))
        if self.sites.inputs is not None and self.sites.inputs is not root:
            self._off.append(around(self.sites.inputs, self._decoder_begins, None))
        if self.sites.embedding is not None:
            for module in self.sites.lookups or (self.sites.embedding.module,):
                self._off.append(around(module, None, self._looked_up))
            if self.sites.tied:
                self._listen_to_table(self.sites.embedding.module)
        return self

    def __exit__(self, *error: object) -> None:
        """Detach; gradients that are still under way are no longer handed on."""
        if self._line is not None:
            self._line.listener = None
        while self._off:
            self._off.pop()()
        self._pending.clear()
        self._batch = self._encoder = None
        self.first_hidden = {}

    @property
    def seconds(self) -> float:
        """Time spent on what passed, in the thread of the training."""
        return 0.0 if self._line is None else self._line.seconds

    def require_heard(self) -> None:
        """Raise what the listener raised, or if a tap never fired: an empty plot would look like a result."""
        self.require_no_error()
        if self.documents is not None and self._sequences != len(self.documents):
            raise broken(
                f"documents must name one id for each of the {self._sequences} sequences of a step",
                len(self.documents),
                "join those of all micro-batches, in their order",
            )
        # Frozen layers are below those that are trained: where no gradient came at all, that is not the reason.
        excused = self.frozen if any(kind == "gradient" for kind, _ in self.heard) else set()
        heard = self.heard | excused
        heard |= {(kind, at) for kind in ("activation", "gradient", "pair") for at in self.missing()}
        silent = [
            f"no {kind} at {site.name}"
            for kind, sites in (("activation", self.sites.blocks), ("gradient", self.sites.blocks))
            for site in sites
            if self._wanted(site.layer) and (kind, site.key) not in heard
        ]
        silent += [
            f"no input and error signal at {site.name}"
            for site in self.sites.weights
            if self._wanted(site.layer) and ("pair", site.key) not in heard and not self._dropped(site.layer, site.view)
        ]
        if silent:
            more = f" and {len(silent) - 4} more" if len(silent) > 4 else ""
            raise AnisoscopeError(
                f"taps never fired: {', '.join(silent[:4])}{more}; was backward called inside the step, is the model "
                "the one that was given to the scope, and was no module replaced since?"
            )

    def missing(self) -> dict[SiteKey, str]:
        """Places of which there is nothing this time, and why: blocks that were dropped, shapes that do not fit."""
        dropped = {
            site.key: f"{site.name} was not called in this step"
            for site in self.sites.blocks
            if self._called and site.module not in self._called and self._wanted(site.layer)
        }
        return dropped | self.left_out

    def below_training(self) -> list[SiteKey]:
        """Places of the residual stream whose activations were seen, and to which no gradient comes back.

        None where every parameter is trained: what enters such a model below its parameters is data.
        """
        if all(parameter.requires_grad for parameter in self.model.parameters()):
            return []
        return sorted(at for kind, at in self.frozen if kind == "gradient" and (kind, at) not in self.heard)

    def _dropped(self, layer: int, view: str) -> bool:
        """Whether the block of a map was not called, though others were."""
        encoder = any(site.view == view and site.encoder for site in self.sites.weights)
        blocks = [site for site in self.sites.blocks if site.layer == layer and site.encoder == encoder]
        return bool(self._called) and all(site.module not in self._called for site in blocks)

    def require_no_error(self) -> None:
        """Raise what the listener raised."""
        if self._line is not None and self._line.error is not None:
            raise self._line.error

    def _wanted(self, layer: int) -> bool:
        return self.layers is None or layer in self.layers

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if in_backward():
            return
        self._batch = as_batch(self._forwards, module, args, kwargs, self.labels)
        if self._batch.trained:
            self._batch.documents = self._own_documents(self._batch)
        self.first_hidden, self._encoder = {}, None
        self._forwards += 1
        if self.keep_calls and self._batch.trained:
            self.calls.append(Call.now(self._batch, args, kwargs, next(module.parameters()).device))
        if self.sites.has_encoder:
            mask = kwargs.get("decoder_attention_mask")
            self._batch, self._encoder = of_both(self._batch)
            if is_tokens(kwargs.get("decoder_input_ids")):
                with_decoder_tokens(self._batch, kwargs["decoder_input_ids"], mask)

    def _decoder_begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What a decoder is given may have been made of the labels, inside the model."""
        tokens = kwargs.get("input_ids", args[0] if args else None)
        if in_backward() or self._batch is None or self._batch.tokens is not None:
            return
        if not isinstance(tokens, Tensor) or not is_tokens(tokens):
            return
        with_decoder_tokens(self._batch, tokens, kwargs.get("attention_mask"))
        if self.calls and self.calls[-1].batch.number == self._batch.number:
            self.calls[-1].decoder.append(tokens)

    def _own_documents(self, batch: Batch) -> Tensor | None:
        """The next ids of documents, one for each sequence of the call."""
        if self.documents is None or batch.tokens is None:
            return None
        first, self._sequences = self._sequences, self._sequences + batch.tokens.shape[0]
        return self.documents[first : self._sequences] if self._sequences <= len(self.documents) else None

    def _looked_up(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        line = self._line
        if in_backward() or line is None or not args or not isinstance(args[0], Tensor):
            return
        tokens, batch = args[0], self._current(encoder=self._is_source(args[0]))
        if not isinstance(output, Tensor) or not output.requires_grad or not batch.trained:
            return
        self.first_hidden.setdefault("encoder" if batch.encoder else "", output)

        def arrived(gradient: Tensor) -> None:
            line.say(gradient.device.type, lambda listener: listener.looked_up(tokens, gradient.detach(), batch))

        output.register_hook(arrived)

    def _is_source(self, tokens: Tensor) -> bool:
        """Whether ids are what the encoder of an encoder-decoder was given."""
        own = None if self._encoder is None else self._encoder.tokens
        return own is not None and tokens.shape == own.shape and tokens.data_ptr() == own.data_ptr()

    def _listen_to_router(self, router: Router) -> Callable[[], None]:
        """Read the indices of experts where the trace found them."""

        def tell(found: Any) -> None:
            line, batch = self._line, self._current(encoder=router.view.startswith(ENCODER))
            wanted = self._wanted(router.layer) and self._counts(batch) and not in_backward()
            if line is not None and isinstance(found, Tensor) and wanted:
                line.say(found.device.type, lambda listener: listener.routed(router, found.detach(), batch))

        def given(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if isinstance(router.where, str):
                tell(kwargs.get(router.where))
            elif router.where < len(args):
                tell(args[router.where])

        def gives(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            parts = leaves(output)
            if isinstance(router.where, int) and router.where < len(parts):
                tell(parts[router.where])

        return around(router.module, given, None) if router.side == "in" else around(router.module, None, gives)

    def _listen_to_table(self, embedding: nn.Module) -> None:
        weight, line = getattr(embedding, "weight", None), self._line
        if (
            type(weight) is not nn.Parameter or not weight.requires_grad or line is None
        ):  # a sharded one is no plain leaf
            return

        def arrived(gradient: Tensor) -> None:
            line.say(gradient.device.type, lambda listener: listener.table(gradient.detach()))

        self._off.append(weight.register_hook(arrived).remove)

    def _entering(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        site = self._sites[module]
        batch = self._current(encoder=site.encoder)
        if in_backward() or not self._counts(batch):
            return
        self._called.add(module)
        is_first = batch.layer == 0
        # A block that was dropped leaves its number unused; one that is called again goes on from the last.
        batch.layer, batch.under_way = max(site.layer, batch.layer + 1), True
        hidden = next((x for x in (*args, *kwargs.values()) if _is_hidden(x)), None)
        if is_first and hidden is not None:
            self._see(SiteKey(0, self.sites.entrance if site.encoder else ""), hidden, batch, site)

    def _left(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        hidden, site = _first_tensor(output), self._sites[module]
        if hidden is None:
            return
        if in_backward():
            again = self._recomputed(module)
            if again is not None:
                self._listen(again[0], hidden, again[1], site)
            return
        batch = self._current(encoder=site.encoder)
        if not self._counts(batch):
            return
        batch.under_way = False
        self.blocks_called = max(self.blocks_called, batch.layer)
        at = SiteKey(batch.layer, site.name)
        self._see(at, hidden, batch, site)
        self._expect_again(module, at, batch)

    def _mapped(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        x, y = (args[0] if args else None), _first_tensor(output)
        if not isinstance(x, Tensor) or y is None:
            return
        site = self._sites[module]
        if in_backward():
            again = self._recomputed(module)
            if again is None:
                return
            at, batch = again
        else:
            batch = self._current(encoder=site.encoder)
            if not batch.trained:
                return
            # Some blocks begin only after their maps: lists of attention, MLP and norms.
            at = SiteKey(batch.layer if batch.under_way else max(site.layer, batch.layer + 1), site.name)
            self._expect_again(module, at, batch)
        if torch.is_grad_enabled() and not y.requires_grad:
            self.frozen.add(("pair", at))
        if not y.requires_grad or not self._wanted(at.layer):
            return
        line = self._line
        assert line is not None, "hooks exist only while attached"
        seen = line.turned(x.detach(), batch, site, at)
        if seen is None:
            return

        def arrived(delta: Tensor) -> None:
            turned = line.turned(delta.detach(), batch, site, at)
            if turned is not None:
                line.tell("pair", at, seen, turned, batch=batch)

        y.register_hook(arrived)

    def _see(self, at: SiteKey, hidden: Tensor, batch: Batch, site: Site) -> None:
        assert self._line is not None, "hooks exist only while attached"
        seen = self._line.turned(hidden.detach(), batch, site, at) if self._wanted(at.layer) else None
        if seen is None:
            return
        self._line.tell("activation", at, seen, batch=batch)
        self._listen(at, hidden, batch, site)

    def _listen(self, at: SiteKey, hidden: Tensor, batch: Batch, site: Site) -> None:
        line = self._line
        if torch.is_grad_enabled() and not hidden.requires_grad:
            self.frozen.add(("gradient", at))
        if not hidden.requires_grad or line is None or not self._wanted(at.layer) or at in self.left_out:
            return
        self.first_hidden.setdefault("encoder" if batch.encoder else "", hidden)

        def arrived(gradient: Tensor) -> None:
            seen = line.turned(gradient.detach(), batch, site, at)
            if seen is not None:
                line.tell("gradient", at, seen, batch=batch)

        hidden.register_hook(arrived)

    def _expect_again(self, module: nn.Module, at: SiteKey, batch: Batch) -> None:
        """A call without autograd inside a forward pass with it will be made again in the backward pass."""
        if not torch.is_grad_enabled():
            self._pending.setdefault(module, []).append((at, batch))

    def _recomputed(self, module: nn.Module) -> tuple[SiteKey, Batch] | None:
        """Which call a recomputation repeats: those of a shared block come back in reverse."""
        calls = self._pending.get(module)
        return calls.pop() if calls else None

    def _counts(self, batch: Batch) -> bool:
        return batch.trained or self.evaluations

    def _current(self, *, encoder: bool = False) -> Batch:
        if self._batch is None:  # a block called without its model
            self._batch = Batch(self._forwards, None, None, None, trained=torch.is_grad_enabled())
            self._forwards += 1
        return self._encoder if encoder and self._encoder is not None else self._batch


def in_backward() -> bool:
    """Whether autograd is running backward in this thread: a forward call then is a recomputation."""
    return torch._C._current_graph_task_id() != -1


def _first_tensor(output: Any) -> Tensor | None:
    """The hidden states of a block that returns a tensor, a tuple, or a structure whose first field they are."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, tuple | list) and output:
        return _first_tensor(output[0])
    if isinstance(output, dict) and output:
        return _first_tensor(next(iter(output.values())))
    return None


def _is_hidden(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point() and x.ndim > 1
