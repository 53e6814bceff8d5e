"""One small forward pass of a model's shadow: which module is called by which, with what, and what depends on what.

Letters: B sequences, T positions, S source positions, D width.

The pass takes made-up token ids. What depends on what is read from the graph that autograd builds on the way.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.capture.shadow import Shadow, untouched
from anisoscope.errors import AnisoscopeError

SEQUENCES, POSITIONS, SOURCE_POSITIONS = 2, 11, 13
_LONGER = 64  # some models want as many positions as they have in a window
_IMAGE = 32


@dataclass(slots=True, eq=False)
class Called:
    """One call of a module: what went in and came out, and the calls made within it.

    ``taken`` and ``given`` are the shapes of the first float tensors in and out, ``start`` and ``end`` their nodes in
    the graph. ``indices`` are shapes of integer tensors that went in or came out, with where they are.
    """

    module: nn.Module
    parent: Called | None
    taken: torch.Size | None = None
    given: torch.Size | None = None
    start: Any = None
    end: Any = None
    ends: list[Any] = field(default_factory=list)
    reads_ids: bool = False
    indices: list[tuple[str, int | str, torch.Size]] = field(default_factory=list)
    inner: list[Called] = field(default_factory=list)

    def within(self) -> Iterator[Called]:
        """The call itself and all calls inside it, in their order."""
        yield self
        for call in self.inner:
            yield from call.within()


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """The calls of one forward pass, by the modules of the model itself, and the ids that it was given."""

    root: Called
    ids: torch.Size | None  # None where it was given an image or a sound
    source: torch.Size | None  # of an encoder-decoder, the ids that the encoder was given
    two_inputs: bool = False  # whether encoder and decoder were given something each


class TraceError(AnisoscopeError):
    """A model whose forward pass could not be made with made-up inputs."""


def trace(model: nn.Module) -> Trace:
    """Trace a model; raises ``TraceError`` with the reason where its shadow does not run."""
    reasons = []
    for inputs in _inputs(model):
        try:
            return _run(model, *inputs)
        except Exception as error:
            said = str(error).strip().splitlines()
            reasons.append(f"{type(error).__name__}: {said[0] if said else ''}"[:200])
    raise TraceError(reasons[0] if reasons else "its forward takes nothing that could be made up")


@dataclass(slots=True, eq=False)
class _Recorder:
    """Hooks on the modules of a shadow; its methods hold on to nothing once the pass is over."""

    shadow: Shadow
    stack: list[Called] = field(default_factory=list)
    roots: list[Called] = field(default_factory=list)

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module is called."""
        call = Called(self.shadow.original[module], self.stack[-1] if self.stack else None)
        (self.stack[-1].inner if self.stack else self.roots).append(call)
        self.stack.append(call)
        for where, tensor in _tensors(args, kwargs):
            if tensor.is_floating_point() and tensor.ndim > 1 and call.taken is None:
                call.taken, call.start = tensor.shape, tensor.grad_fn
            elif tensor.dtype in (torch.int64, torch.int32):
                call.indices.append(("in", where, tensor.shape))
        first = next((tensor for _, tensor in _tensors(args, kwargs)), None)
        call.reads_ids = first is not None and not first.is_floating_point() and first.ndim == 2

    def leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """A module returns."""
        call = self.stack.pop()
        if call.reads_ids and not call.inner:
            output = _with_start(output)
        found = [(where, tensor) for where, tensor in enumerate(leaves(output)) if isinstance(tensor, Tensor)]
        for where, tensor in found:
            if tensor.is_floating_point():
                call.ends.append(tensor.grad_fn)
                if call.given is None:
                    call.given, call.end = tensor.shape, tensor.grad_fn
            elif tensor.dtype in (torch.int64, torch.int32):
                call.indices.append(("out", where, tensor.shape))
        return output


def _run(model: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> Trace:
    shadow = Shadow(model)
    recorder = _Recorder(shadow)
    for module in dict.fromkeys(shadow.model.modules()):
        module.register_forward_pre_hook(recorder.enter, with_kwargs=True)
        module.register_forward_hook(recorder.leave, with_kwargs=True)
    with untouched():
        moved = tuple(_started(arg) for arg in args)
        shadow.model(*moved, **{name: _started(value) for name, value in kwargs.items()})
    given = next(v for v in (*args, *kwargs.values()) if isinstance(v, Tensor))
    ids = None if given.is_floating_point() else given.shape
    decoder = kwargs.get("decoder_input_ids")
    if isinstance(decoder, Tensor):
        return Trace(recorder.roots[0], decoder.shape, ids, two_inputs=True)
    return Trace(recorder.roots[0], ids, None)


def _with_start(output: Any) -> Any:
    """What was looked up with ids, as the beginning of the graph."""
    if isinstance(output, tuple) and output and not hasattr(output, "_fields"):
        return (_with_start(output[0]), *output[1:])
    if isinstance(output, Tensor) and output.is_floating_point() and not output.requires_grad:
        return output.requires_grad_().clone()
    return output


def _started(value: Any) -> Any:
    """A float input carries a node of the graph from the start."""
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.detach().requires_grad_().clone()
    return value


def _inputs(model: nn.Module) -> Iterator[tuple[tuple[Tensor, ...], dict[str, Any]]]:
    """What the model might take, likelier ones first."""
    try:
        parameters = inspect.signature(model.forward).parameters
    except (TypeError, ValueError):
        return
    names = list(parameters)
    config = getattr(model, "config", None)
    both = bool(getattr(config, "is_encoder_decoder", False)) or "decoder_input_ids" in names
    tables = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
    most = max(tables, default=64)
    cache = {"use_cache": False} if "use_cache" in names else {}
    for positions in (POSITIONS, _LONGER):
        ids = _ids(most, positions)
        if "input_ids" in names:
            given: dict[str, Any] = {"input_ids": ids}
            if both and "decoder_input_ids" in names:
                source = _ids(most, positions if positions == _LONGER else SOURCE_POSITIONS)
                given = {"input_ids": source, "decoder_input_ids": ids}
            yield (), given | cache
            continue
        sensed = _sensed(config, names)
        for name, made in sensed:
            yield (), {name: made} | ({"decoder_input_ids": ids} if "decoder_input_ids" in names else {}) | cache
        if tables and names and not sensed:
            yield (ids,), {}


def _sensed(config: Any, names: list[str]) -> list[tuple[str, Tensor]]:
    """Inputs of models that see or hear."""
    found = []
    if "pixel_values" in names:
        size = getattr(config, "image_size", _IMAGE)
        height, width = size if isinstance(size, list | tuple) else (size, size)
        channels = getattr(config, "num_channels", 3)
        found.append(("pixel_values", torch.ones(SEQUENCES, channels, height, width, device="cpu")))
    if "input_values" in names:
        found.append(("input_values", torch.ones(SEQUENCES, 4000, device="cpu")))
    if "input_features" in names:
        bins = getattr(config, "num_mel_bins", getattr(config, "feature_projection_input_dim", 80))
        found.append(("input_features", torch.ones(SEQUENCES, bins, 3000, device="cpu")))
    return found


def _ids(most: int, positions: int) -> Tensor:
    """Token ids that are all small and mostly different; the smallest are often special."""
    first = min(5, max(most - 1, 0))
    numbers = torch.arange(SEQUENCES * positions, device="cpu").reshape(SEQUENCES, positions)
    return first + numbers % max(most - first, 1)


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[int | str, Tensor]]:
    every = [*enumerate(args), *kwargs.items()]
    return [(where, value) for where, value in every if isinstance(value, Tensor)]


def leaves(output: Any) -> list[Any]:
    """An output's parts in order, nested ones in place."""
    if isinstance(output, dict):
        output = tuple(output.values())
    if isinstance(output, tuple | list):
        return [leaf for part in output for leaf in leaves(part)]
    return [output]
