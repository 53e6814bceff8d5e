"""The matrices of a model that read its residual stream. Letters: D width, F outputs.

A matrix reads the stream if what enters it is what entered its block, or what a module without matrices (a norm) made:
found in one pass, by which tensor it is, so that names and classes do not matter. The map out of attention reads heads,
the second map of an MLP its inner state: neither is found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from anisoscope.capture.sites import Sites, linear_shape, unwrapped
from anisoscope.errors import AnisoscopeError, broken
from anisoscope.intervene.edits import borrowed


@dataclass(frozen=True, slots=True, eq=False)
class StreamReader:
    """A linear map that reads the stream inside a block."""

    name: str
    layer: int
    module: nn.Module
    turned: bool  # whether its weight is (D, F) and not (F, D)

    @property
    def weight(self) -> Tensor:
        """The parameter."""
        found = self.module.weight
        assert isinstance(found, Tensor), "a linear map has a weight"
        return found

    def as_rows(self, matrix: Tensor) -> Tensor:
        """A matrix of the parameter's shape with the input space along its columns, ``(F, D)``."""
        return matrix.T if self.turned else matrix


def find_readers(model: nn.Module, sites: Sites, batch: Mapping[str, Tensor]) -> tuple[StreamReader, ...]:
    """Find them by a pass over one batch, which changes nothing in the model."""
    found: list[StreamReader] = []
    names = {module: name for name, module in unwrapped(model).named_modules()}
    for site in sites.blocks:
        found += _of_block(site.module, site.layer, names, model, batch)
    if not found:
        raise AnisoscopeError("no linear map that reads the residual stream was found; name them with maps=")
    return tuple(found)


def named_readers(model: nn.Module, sites: Sites, maps: Sequence[str]) -> tuple[StreamReader, ...]:
    """Those that were named; each must be a linear map inside a block."""
    names = dict(unwrapped(model).named_modules())
    blocks = {site.name: site.layer for site in sites.blocks}
    found = []
    for name in maps:
        shape = linear_shape(names[name]) if name in names else None
        layer = next((layer for block, layer in blocks.items() if name.startswith(f"{block}.")), None)
        if shape is None or layer is None:
            raise broken(
                "maps must name linear maps inside blocks", name, f"blocks are {', '.join(list(blocks)[:3])} …"
            )
        found.append(_reader(name, layer, names[name]))
    return tuple(found)


def _reader(name: str, layer: int, module: nn.Module) -> StreamReader:
    shape = linear_shape(module)
    assert shape is not None, "a linear map"
    assert isinstance(module.weight, Tensor), "a linear map has a weight"
    return StreamReader(name, layer, module, tuple(module.weight.shape) == shape and not isinstance(module, nn.Linear))


def _of_block(
    block: nn.Module, layer: int, names: Mapping[nn.Module, str], model: nn.Module, batch: Mapping[str, Tensor]
) -> list[StreamReader]:
    streams: list[Tensor] = []  # held, so that no storage is used again within the pass
    found: dict[nn.Module, None] = {}
    off: list[Callable[[], None]] = []

    def entered(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = args[0] if args else kwargs.get("hidden_states")
        if isinstance(hidden, Tensor):
            streams.append(hidden)

    def left(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Tensor):
            streams.append(output)

    def mapped(module: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor) and any(_same(args[0], stream) for stream in streams):
            found[module] = None

    off.append(block.register_forward_pre_hook(entered, with_kwargs=True).remove)
    for module in block.modules():
        if linear_shape(module) is not None:
            off.append(module.register_forward_pre_hook(mapped).remove)
        elif not any(module.children()) and _is_norm(module):
            off.append(module.register_forward_hook(left).remove)
    try:
        with borrowed(model):
            device = next(model.parameters()).device
            model(**{key: part.to(device) for key, part in batch.items() if key != "documents"})
    finally:
        for remove in off:
            remove()
    return [_reader(names[module], layer, module) for module in found]


def _is_norm(module: nn.Module) -> bool:
    """A leaf whose parameters are vectors, such as a norm."""
    parameters = list(module.parameters(recurse=False))
    return isinstance(module, nn.LayerNorm) or (bool(parameters) and all(p.ndim == 1 for p in parameters))


def _same(a: Tensor, b: Tensor) -> bool:
    return a is b or (a.data_ptr() == b.data_ptr() and a.numel() == b.numel() and a.shape[-1] == b.shape[-1])


def inputs_of(
    readers: Sequence[StreamReader], tell: Callable[[StreamReader, Tensor], None]
) -> list[Callable[[], None]]:
    """Hooks that hand on what enters each; returns what takes them off."""

    def hook(reader: StreamReader) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def entering(module: nn.Module, args: tuple[Any, ...]) -> None:
            if args and isinstance(args[0], Tensor):
                tell(reader, args[0].detach())

        return entering

    return [reader.module.register_forward_pre_hook(hook(reader)).remove for reader in readers]
