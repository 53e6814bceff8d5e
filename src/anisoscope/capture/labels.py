"""Which argument of a model's forward holds the labels, and the same call with others in their place."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn

USUAL = ("labels", "targets", "target")
IGNORED = -100


def label_argument(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], name: str | None
) -> str | int | None:
    """The keyword of the labels in this call, or their place among the arguments; None if the call has none.

    >>> import torch
    >>> class GPT(nn.Module):
    ...     def forward(self, idx, targets=None): ...
    >>> label_argument(GPT(), (torch.zeros(1), torch.zeros(1)), {}, None)
    1
    """
    names = USUAL if name is None else (name,)
    found = next((each for each in names if isinstance(kwargs.get(each), Tensor)), None)
    if found is not None or len(args) < 2:
        return found
    try:
        places = list(inspect.signature(model.forward).parameters)
    except (TypeError, ValueError):  # compiled or scripted: no signature to be had
        return None
    taken = [places.index(each) for each in names if each in places]
    return next((place for place in taken if place < len(args) and isinstance(args[place], Tensor)), None)


def labels_in(args: tuple[Any, ...], kwargs: dict[str, Any], argument: str | int | None) -> Tensor | None:
    """The labels as the caller gave them."""
    if argument is None:
        return None
    return args[argument] if isinstance(argument, int) else kwargs[argument]


def with_labels(
    args: tuple[Any, ...], kwargs: dict[str, Any], argument: str | int | None, labels: Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with other labels; as they are where there is no place for them."""
    if argument is None:
        return args, dict(kwargs)
    if isinstance(argument, int):
        return (*args[:argument], labels, *args[argument + 1 :]), dict(kwargs)
    return args, kwargs | {argument: labels}
