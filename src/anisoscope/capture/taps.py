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

from anisoscope.capture.calls import Batch, Call, as_batch
from anisoscope.capture.compiled import around
from anisoscope.capture.sites import SiteKey, Sites, unwrapped
from anisoscope.errors import AnisoscopeError, broken


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

    def looked_up(self, tokens: Tensor, gradient: Tensor, batch: Batch) -> None:
        """Ids that entered the embedding, and the gradient of the vectors that came out."""

    def table(self, gradient_VD: Tensor) -> None:
        """The whole gradient of an embedding that is tied to the output, both sides in one sum."""


@dataclass(slots=True, eq=False)
class _Line:
    """What hooks on tensors hold on to; cut on detaching, so that a graph which lives on keeps nothing of ours."""

    listener: Listener | None
    heard: set[tuple[str, SiteKey]]
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
    remember: bool = False  # keep the calls, so that they can be made again
    evaluations: bool = False  # hand on calls without autograd too
    documents: Tensor | None = None  # of all sequences that pass, in their order over the calls
    labels: str | None = None  # the argument that holds them, where it is not a usual one
    heard: set[tuple[str, SiteKey]] = field(default_factory=set)
    frozen: set[tuple[str, SiteKey]] = field(default_factory=set)  # below all that is trained: there is no gradient
    calls: list[Call] = field(default_factory=list)
    first_hidden: Tensor | None = None  # the earliest tapped tensor with a gradient, of the latest call
    _forwards: int = 0
    _sequences: int = 0  # how many have passed
    _batch: Batch | None = None
    _off: list[Callable[[], None]] = field(default_factory=list)
    _names: dict[nn.Module, str] = field(default_factory=dict)
    _pending: dict[nn.Module, list[tuple[SiteKey, Batch]]] = field(default_factory=dict)
    _turns: dict[nn.Module, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    _line: _Line | None = None

    def __enter__(self) -> Taps:
        """Attach."""
        self._line, self._forwards, self._sequences = _Line(self.listener, self.heard), 0, 0
        root = unwrapped(self.model)
        self._off.append(around(root, self._begin, None))
        self._names = {site.module: site.name for site in (*self.sites.blocks, *self.sites.weights)}
        for module in {site.module: None for site in self.sites.blocks}:
            self._off.append(around(module, self._entering, self._left))
        layouts = {site.layer: _layout(site.module) for site in self.sites.blocks}
        self._turns = {site.module: layouts[site.layer] for site in self.sites.weights}
        for module in self._turns:
            self._off.append(around(module, None, self._mapped))
        if self.sites.embedding is not None:
            self._off.append(around(self.sites.embedding.module, None, self._looked_up))
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
        self._batch = self.first_hidden = None

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
        silent = [
            f"no {kind} at {site.name}"
            for kind, sites in (("activation", self.sites.blocks), ("gradient", self.sites.blocks))
            for site in sites
            if self._wanted(site.layer) and (kind, site.key) not in self.heard | excused
        ]
        silent += [
            f"no input and error signal at {site.name}"
            for site in self.sites.weights
            if self._wanted(site.layer) and ("pair", site.key) not in self.heard | excused
        ]
        if silent:
            more = f" and {len(silent) - 4} more" if len(silent) > 4 else ""
            raise AnisoscopeError(
                f"taps never fired: {', '.join(silent[:4])}{more}; was backward called inside the step, is the model "
                "the one that was given to the scope, and was no module replaced since?"
            )

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
        self.first_hidden = None
        self._forwards += 1
        if self.remember and self._batch.trained:
            self.calls.append(Call.now(self._batch, args, kwargs, next(module.parameters()).device))

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
        tokens, batch = args[0], self._current()
        if not isinstance(output, Tensor) or not output.requires_grad or not batch.trained:
            return
        if self.first_hidden is None:
            self.first_hidden = output

        def arrived(gradient: Tensor) -> None:
            line.say(gradient.device.type, lambda listener: listener.looked_up(tokens, gradient.detach(), batch))

        output.register_hook(arrived)

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
        batch = self._current()
        if in_backward() or not self._counts(batch) or batch.blocks_called > 0:
            return
        hidden = args[0] if args else kwargs.get("hidden_states")
        if isinstance(hidden, Tensor):
            self._see(SiteKey(0), hidden, batch, _layout(module))

    def _left(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        hidden = _first_tensor(output)
        if hidden is None:
            return
        if in_backward():
            again = self._recomputed(module)
            if again is not None:
                self._listen(again[0], hidden, again[1], _layout(module))
            return
        batch = self._current()
        if not self._counts(batch):
            return
        batch.blocks_called += 1
        at = SiteKey(batch.blocks_called, self._names[module])
        self._see(at, hidden, batch, _layout(module))
        self._expect_again(module, at, batch)

    def _mapped(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        x, y = (args[0] if args else None), _first_tensor(output)
        if not isinstance(x, Tensor) or y is None:
            return
        if in_backward():
            again = self._recomputed(module)
            if again is None:
                return
            at, batch = again
        else:
            batch = self._current()
            if not batch.trained:
                return
            at = SiteKey(batch.blocks_called + 1, self._names[module])  # its block is under way
            self._expect_again(module, at, batch)
        if torch.is_grad_enabled() and not y.requires_grad:
            self.frozen.add(("pair", at))
        if not y.requires_grad or not self._wanted(at.layer):
            return
        turn, line = self._turns[module], self._line
        assert line is not None, "hooks exist only while attached"
        x = turn(_unflattened(x.detach(), batch))

        def arrived(delta: Tensor) -> None:
            line.tell("pair", at, x, turn(_unflattened(delta.detach(), batch)), batch=batch)

        y.register_hook(arrived)

    def _see(self, at: SiteKey, hidden: Tensor, batch: Batch, turn: Callable[[Tensor], Tensor]) -> None:
        if not self._wanted(at.layer):
            return
        assert self._line is not None, "hooks exist only while attached"
        self._line.tell("activation", at, turn(hidden.detach()), batch=batch)
        self._listen(at, hidden, batch, turn)

    def _listen(self, at: SiteKey, hidden: Tensor, batch: Batch, turn: Callable[[Tensor], Tensor]) -> None:
        line = self._line
        if torch.is_grad_enabled() and not hidden.requires_grad:
            self.frozen.add(("gradient", at))
        if not hidden.requires_grad or line is None or not self._wanted(at.layer):
            return
        if self.first_hidden is None:
            self.first_hidden = hidden

        def arrived(gradient: Tensor) -> None:
            line.tell("gradient", at, turn(gradient.detach()), batch=batch)

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

    def _current(self) -> Batch:
        if self._batch is None:  # a block called without its model
            self._batch = Batch(self._forwards, None, None, None, trained=torch.is_grad_enabled())
            self._forwards += 1
        return self._batch


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


def _unflattened(x: Tensor, batch: Batch) -> Tensor:
    """``(B, T, ·)`` also from a block that flattens its tokens before the MLP."""
    if x.ndim == 2 and batch.tokens is not None and x.shape[0] == batch.tokens.numel():
        return x.reshape(*batch.tokens.shape, x.shape[1])
    return x


def _layout(block: nn.Module) -> Callable[[Tensor], Tensor]:
    """How to bring what a block handles to ``(B, T, D)``: some have positions first."""
    attention = getattr(block, "self_attn", None)
    if isinstance(attention, nn.MultiheadAttention) and not attention.batch_first:
        return lambda hidden: hidden.transpose(0, 1)
    return lambda hidden: hidden
