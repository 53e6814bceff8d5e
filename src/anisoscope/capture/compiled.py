"""Taps and ``torch.compile``.

A compiled module runs a graph that was traced with the hooks of its first call; hooks that come later never fire inside
it. Three ways out, all here:

* A block that is compiled on its own is watched from outside (``around``): what goes in and what comes out.
* Taps that were installed **before** compilation (``install_taps``) are part of the graph from the start. They do
  nothing until someone listens, and listening changes no graph: exact.
* A model compiled as a whole without such taps runs an observed step eagerly (``eagerly``): right, but not rounded as
  the graph would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from anisoscope.capture.sites import Sites, find_sites, unwrapped

Before = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]
After = Callable[[nn.Module, tuple[Any, ...], Any], None]


class Relay:
    """A permanent pair of hooks that hands on to whoever listens, outside of any graph."""

    def __init__(self, module: nn.Module) -> None:
        self.before: Before | None = None
        self.after: After | None = None
        entering: Any = torch.compiler.disable(self._entering)
        left: Any = torch.compiler.disable(self._left)
        module.register_forward_pre_hook(entering, with_kwargs=True)
        module.register_forward_hook(left)

    def _entering(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.before is not None:
            self.before(module, args, kwargs)

    def _left(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self.after is not None:
            self.after(module, args, output)


_relays: WeakKeyDictionary[nn.Module, Relay] = WeakKeyDictionary()


def install_taps(model: nn.Module, sites: Sites | None = None) -> None:
    """Put taps into a model that is going to be compiled; call it **before** ``torch.compile``.

    They break the graph at every block (and MLP map), as compiling the blocks one by one would. A scope then finds them
    and uses them; training with and without it runs the same graphs.

    Example::

        install_taps(model)
        model = torch.compile(model)
        scope = Scope(model, steps=2000)
    """
    sites = sites or find_sites(model)
    modules = [unwrapped(model), *(site.module for site in (*sites.blocks, *sites.weights))]
    if sites.embedding is not None:
        modules += [sites.embedding.module, *sites.lookups]
    modules += [router.module for router in sites.routers]
    modules += [] if sites.inputs is None else [sites.inputs]
    for module in modules:
        if module not in _relays:
            _relays[module] = Relay(module)


def has_taps(module: nn.Module) -> bool:
    """Whether taps were installed before compilation."""
    return module in _relays


def is_compiled(module: nn.Module) -> bool:
    """Whether calls of the module run a compiled graph: wrapped by ``torch.compile``, or compiled in place."""
    return isinstance(getattr(module, "_orig_mod", None), nn.Module) or (
        getattr(module, "_compiled_call_impl", None) is not None
    )


@contextmanager
def eagerly() -> Iterator[None]:
    """Run what is compiled without its graphs, for one observed step."""
    with torch.compiler.set_stance("force_eager"):
        yield


def around(module: nn.Module, before: Before | None, after: After | None) -> Callable[[], None]:
    """Watch calls of a module, however it is run; returns what takes the watch off again."""
    if module in _relays:
        relay = _relays[module]
        relay.before, relay.after = before, after
        return lambda: _silence(relay)
    compiled = getattr(module, "_compiled_call_impl", None)
    if compiled is not None:
        return _around_compiled(module, compiled, before, after)
    handles: list[RemovableHandle] = []
    if before is not None:
        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
    if after is not None:
        handles.append(module.register_forward_hook(after))
    return lambda: _remove(handles)


def _remove(handles: list[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()


def _silence(relay: Relay) -> None:
    relay.before = relay.after = None


def _around_compiled(
    module: nn.Module, compiled: Callable[..., Any], before: Before | None, after: After | None
) -> Callable[[], None]:
    """A module compiled in place has its hooks inside the graph, so the call itself is wrapped."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before(module, args, kwargs)
        output = compiled(*args, **kwargs)
        if after is not None:
            after(module, args, output)
        return output

    def off() -> None:
        module._compiled_call_impl = compiled

    module._compiled_call_impl = call
    return off
