"""What all proxies that are judged on one gradient cloud have in common, computed once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from torch import Tensor

T = TypeVar("T")


class Shared:
    """Results that depend on the cloud and not on the proxy, by what they are and the tensors they are made of.

    A scope judges several proxies on each cloud: methods, ranks, rolling and anchored. Tensors are told apart by
    identity, so whoever wants to share must pass the same object.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Hashable, ...], tuple[Sequence[Tensor], Any]] = {}

    def once(self, what: Hashable, tensors: Sequence[Tensor], make: Callable[[], T]) -> T:
        """``make()``, or what it returned before for the same tensors."""
        key = (what, *(id(tensor) for tensor in tensors))
        if key not in self._known:
            self._known[key] = tensors, make()  # held on to, so that no other tensor takes their identity
        return self._known[key][1]

    def clear(self) -> None:
        """Let go of everything; what is asked for again is made again."""
        self._known.clear()
