"""Taps: hooks that hand on what passes a site and change nothing.

Letters: B sequences, T positions, D width, F outputs of a linear map.

Hooks are borrowed: they exist inside ``with taps:`` and are gone on any exception. They read detached tensors and
return nothing, so that outputs, gradients and the autograd graph stay as they are.

Gradient checkpointing runs a block a second time, inside the backward pass. Such a call is recognised by that: it
counts for nothing on the way forward. Where the first run was without autograd (reentrant checkpointing) the second
one is where the gradient can be seen, and it is taken there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from anisoscope.capture.sites import Sites, unwrapped
from anisoscope.errors import AnisoscopeError


@dataclass(slots=True, eq=False)
class Batch:
    """One forward call: its token ids and mask ``(B, T)`` where they are known, and its number in the step.

    A call without autograd (``trained`` false) is an evaluation in between and is not handed on.
    """

    number: int
    tokens: Tensor | None
    mask: Tensor | None
    labels: Tensor | None
    trained: bool = True
    blocks_called: int = 0


@runtime_checkable
class Listener(Protocol):
    """Who is told. Tensors are detached and belong to the model: copy what must outlive the call."""

    def activation(self, layer: int, x_BTD: Tensor, batch: Batch) -> None:
        """The residual stream after block ``layer``; layer 0 is what enters the first block."""

    def gradient(self, layer: int, g_BTD: Tensor, batch: Batch) -> None:
        """The gradient of the loss with respect to it."""

    def pair(self, layer: int, x_BTD: Tensor, delta_BTF: Tensor, batch: Batch) -> None:
        """Input of a linear map and gradient of its output."""


@dataclass(slots=True, eq=False)
class _Line:
    """What hooks on tensors hold on to; cut on detaching, so that a graph which lives on keeps nothing of ours."""

    listener: Listener | None
    heard: dict[str, int]

    def tell(self, kind: str, layer: int, *tensors: Tensor, batch: Batch) -> None:
        if self.listener is not None:
            self.heard[kind] = self.heard.get(kind, 0) + 1
            getattr(self.listener, kind)(layer, *tensors, batch)


@dataclass(slots=True, eq=False)
class Taps:
    """Hooks on the sites of a model, for the length of a ``with`` block.

    >>> import torch
    >>> from torch import nn
    >>> from anisoscope.capture.sites import find_sites
    >>> model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(2)))
    >>> class Print:
    ...     def activation(self, layer, x, batch): print("activation", layer, tuple(x.shape))
    ...     def gradient(self, layer, g, batch): print("gradient", layer, tuple(g.shape))
    ...     def pair(self, layer, x, delta, batch): pass
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
    heard: dict[str, int] = field(default_factory=dict)
    _forwards: int = 0
    _batch: Batch | None = None
    _handles: list[RemovableHandle] = field(default_factory=list)
    _pending: dict[nn.Module, list[tuple[int, Batch]]] = field(default_factory=dict)
    _turns: dict[nn.Module, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    _line: _Line | None = None

    def __enter__(self) -> Taps:
        """Attach."""
        self._line, self._forwards = _Line(self.listener, self.heard), 0
        self._handles.append(unwrapped(self.model).register_forward_pre_hook(self._begin, with_kwargs=True))
        for module in {site.module: None for site in self.sites.blocks}:
            self._handles.append(module.register_forward_pre_hook(self._entering, with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._left))
        layouts = {site.layer: _layout(site.module) for site in self.sites.blocks}
        self._turns = {site.module: layouts[site.layer] for site in self.sites.weights}
        for module in self._turns:
            self._handles.append(module.register_forward_hook(self._mapped))
        return self

    def __exit__(self, *error: object) -> None:
        """Detach; gradients that are still under way are no longer handed on."""
        if self._line is not None:
            self._line.listener = None
        while self._handles:
            self._handles.pop().remove()
        self._pending.clear()
        self._batch = None

    def require_heard(self) -> None:
        """Raise if a tap never fired: an empty plot would look like a result."""
        kinds = ("activation", "gradient", "pair") if self.sites.weights else ("activation", "gradient")
        silent = [kind for kind in kinds if not self.heard.get(kind)]
        if silent:
            raise AnisoscopeError(
                f"no {' and no '.join(silent)} passed the taps on {len(self.sites.blocks)} blocks; was backward called "
                "inside the step, and is the model the one that was given to the scope?"
            )

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if in_backward():
            return
        tokens = kwargs.get("input_ids", args[0] if args else None)
        tokens = tokens if _is_tokens(tokens) else None
        mask, labels = kwargs.get("attention_mask"), kwargs.get("labels")
        fits = isinstance(mask, Tensor) and tokens is not None and mask.shape == tokens.shape
        self._batch = Batch(
            self._forwards,
            tokens,
            mask if fits else None,
            labels if isinstance(labels, Tensor) else None,
            trained=torch.is_grad_enabled(),
        )
        self._forwards += 1

    def _entering(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        batch = self._current()
        if in_backward() or not batch.trained or batch.blocks_called > 0:
            return
        hidden = args[0] if args else kwargs.get("hidden_states")
        if isinstance(hidden, Tensor):
            self._see(0, hidden, batch, _layout(module))

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
        if not batch.trained:
            return
        batch.blocks_called += 1
        self._see(batch.blocks_called, hidden, batch, _layout(module))
        self._expect_again(module, batch.blocks_called, batch)

    def _mapped(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        x, y = (args[0] if args else None), _first_tensor(output)
        if not isinstance(x, Tensor) or y is None:
            return
        if in_backward():
            again = self._recomputed(module)
            if again is None:
                return
            layer, batch = again
        else:
            batch = self._current()
            if not batch.trained:
                return
            layer = batch.blocks_called + 1  # its block is under way
            self._expect_again(module, layer, batch)
        if not y.requires_grad:
            return
        turn, line = self._turns[module], self._line
        assert line is not None, "hooks exist only while attached"
        x = turn(_unflattened(x.detach(), batch))

        def arrived(delta: Tensor) -> None:
            line.tell("pair", layer, x, turn(_unflattened(delta.detach(), batch)), batch=batch)

        y.register_hook(arrived)

    def _see(self, layer: int, hidden: Tensor, batch: Batch, turn: Callable[[Tensor], Tensor]) -> None:
        assert self._line is not None, "hooks exist only while attached"
        self._line.tell("activation", layer, turn(hidden.detach()), batch=batch)
        self._listen(layer, hidden, batch, turn)

    def _listen(self, layer: int, hidden: Tensor, batch: Batch, turn: Callable[[Tensor], Tensor]) -> None:
        line = self._line
        if not hidden.requires_grad or line is None:
            return

        def arrived(gradient: Tensor) -> None:
            line.tell("gradient", layer, turn(gradient.detach()), batch=batch)

        hidden.register_hook(arrived)

    def _expect_again(self, module: nn.Module, layer: int, batch: Batch) -> None:
        """A call without autograd inside a forward pass with it will be made again in the backward pass."""
        if not torch.is_grad_enabled():
            self._pending.setdefault(module, []).append((layer, batch))

    def _recomputed(self, module: nn.Module) -> tuple[int, Batch] | None:
        """Which call a recomputation repeats: those of a shared block come back in reverse."""
        calls = self._pending.get(module)
        return calls.pop() if calls else None

    def _current(self) -> Batch:
        if self._batch is None:  # a block called without its model
            self._batch = Batch(self._forwards, None, None, None, trained=torch.is_grad_enabled())
            self._forwards += 1
        return self._batch


def in_backward() -> bool:
    """Whether autograd is running backward in this thread: a forward call then is a recomputation."""
    return torch._C._current_graph_task_id() != -1


def _is_tokens(x: Any) -> bool:
    return isinstance(x, Tensor) and x.ndim == 2 and not x.is_floating_point() and not x.is_complex()


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
