"""Changes of the residual stream at one block, for the length of a ``with`` block.

Letters: B sequences, T positions, D width.

A changed block ℓ leaves everything before it as it was. So the outputs of all blocks are recorded in one plain pass,
and a pass with a change replays them up to ℓ instead of computing them: half of the time, on average. A model may have
ways around its blocks that a replay cuts off; ``replays_exactly`` finds out, and then every pass is a whole one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.capture.compiled import eagerly, is_compiled
from anisoscope.capture.sites import Sites, unwrapped

Change = Callable[[Tensor], Tensor]  # of the residual stream (B, T, D)


@dataclass(slots=True, eq=False)
class Edits:
    """Hooks that can change what a block gives on; none of them does anything unless a change is set."""

    model: nn.Module
    sites: Sites
    _recorded: list[Any] | None = None  # outputs of the blocks of the latest recorded pass
    _recording: bool = False
    _layer: int = 0
    _change: Change | None = None
    _called: int = 0  # blocks of the pass under way
    _off: list[Callable[[], None]] = field(default_factory=list)

    def __enter__(self) -> Edits:
        """Attach."""
        root = unwrapped(self.model)
        self._off.append(root.register_forward_pre_hook(self._begin).remove)
        for module in {site.module: None for site in self.sites.blocks}:
            self._off.append(module.register_forward_pre_hook(self._entering, with_kwargs=True).remove)
            self._off.append(module.register_forward_hook(self._left).remove)
        return self

    def __exit__(self, *error: object) -> None:
        """Detach."""
        while self._off:
            self._off.pop()()
        self._recorded = None

    @property
    def layers(self) -> range:
        """Places that can be changed: 0 is what enters the first block."""
        return range(len(self.sites.blocks) + 1)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Keep what every block gives in this pass, to be replayed."""
        self._recorded, self._recording = [], True
        try:
            yield
        finally:
            self._recording = False

    @contextlib.contextmanager
    def changed(self, layer: int, change: Change, *, replay: bool) -> Iterator[None]:
        """Change the stream after block ``layer`` in the passes inside; ``replay`` what the blocks up to it gave."""
        self._layer, self._change = layer, change
        with self._replayed(layer) if replay else contextlib.nullcontext():
            try:
                yield
            finally:
                self._change = None

    @property
    def can_replay(self) -> bool:
        """Whether every block is called once, and its recorded output therefore its own."""
        blocks = [site.module for site in self.sites.blocks]
        return len(set(blocks)) == len(blocks) and self._recorded is not None and len(self._recorded) == len(blocks)

    @contextlib.contextmanager
    def _replayed(self, layer: int) -> Iterator[None]:
        assert self._recorded is not None, "a pass was recorded"
        modules = [site.module for site in self.sites.blocks[:layer]]
        before = [module.__dict__.get("forward") for module in modules]
        try:
            for module, output in zip(modules, self._recorded, strict=False):
                module.forward = _giving(output)
            yield
        finally:
            for module, own in zip(modules, before, strict=True):
                if own is None:
                    module.__dict__.pop("forward", None)
                else:
                    module.forward = own

    def _begin(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._called = 0

    def _entering(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._called > 0 or self._change is None or self._layer != 0:
            return None
        if args:
            return (self._apply(module, args[0]), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": self._apply(module, kwargs["hidden_states"])}

    def _left(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        self._called += 1
        if self._recording and self._recorded is not None:
            # A later block may add to its input in place.
            self._recorded.append(_with_first(output, torch.Tensor.clone))
        if self._change is None or self._called != self._layer:
            return None
        return _with_first(output, lambda hidden: self._apply(module, hidden))

    def _apply(self, block: nn.Module, hidden: Tensor) -> Tensor:
        assert self._change is not None, "asked only while a change is set"
        attention = getattr(block, "self_attn", None)
        if isinstance(attention, nn.MultiheadAttention) and not attention.batch_first:  # positions come first
            return self._change(hidden.transpose(0, 1)).transpose(0, 1)
        return self._change(hidden)


def _giving(output: Any) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        return output

    return forward


def _with_first(output: Any, act: Change) -> Any:
    """The output of a block with its hidden states, which come first, replaced; structures keep their kind."""
    if isinstance(output, Tensor):
        return act(output)
    if isinstance(output, dict):
        first = next(iter(output))
        changed = output.copy()
        changed[first] = _with_first(output[first], act)
        return changed
    if isinstance(output, tuple | list) and output:
        parts = [_with_first(output[0], act), *output[1:]]
        return type(output)(*parts) if hasattr(output, "_fields") else type(output)(parts)
    return output


@contextlib.contextmanager
def borrowed(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, run without compiled graphs; mode, buffers and random states are as before after.

    Nothing in it is a parameter update, so weights stay as they are.
    """
    root = unwrapped(model)
    modes = [(module, module.training) for module in root.modules()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in root.buffers()]
    cuda = {tensor.device.index for tensor in (*root.parameters(), *root.buffers()) if tensor.device.type == "cuda"}
    compiled = any(is_compiled(module) for module in (model, *root.modules()))
    with torch.random.fork_rng(devices=sorted(index or 0 for index in cuda)), torch.no_grad():
        try:
            root.eval()
            with eagerly() if compiled else contextlib.nullcontext():
                yield
        finally:
            for module, training in modes:
                module.training = training
            for buffer, before in buffers:
                buffer.copy_(before)
