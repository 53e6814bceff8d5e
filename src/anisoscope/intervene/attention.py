"""A finished model with another attention: its mask taken away, put on, or attention switched off.

Letters: B sequences, T positions.

The mask that each block is given is replaced; what is padding stays unseen. Whether the model obeys is tried: tokens
are changed, and the logits at the other end must answer, or not, as the attention says.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.capture.calls import is_tokens
from anisoscope.capture.sites import Sites, unwrapped
from anisoscope.errors import AnisoscopeError

NAME = "attention_mask"
_TRIED = 8  # tokens
_HEARD = {"causal": (False, True), "bidirectional": (True, True), "none": (False, False)}
"""Whether the first token hears of those after it, and the last one of those before it."""


@contextlib.contextmanager
def attention_changed(model: nn.Module, sites: Sites, attention: str) -> Iterator[None]:
    """The model with ``causal`` or ``bidirectional`` attention, or ``none``, inside; ``usual`` changes nothing.

    Raises where the model does not obey.
    """
    if attention == "usual":
        yield
        return
    with _Masks(unwrapped(model), attention) as masks:
        for block in {site.module: None for site in sites.blocks}:
            masks.attach(block)
        _require_obeyed(model, attention)
        yield


@dataclass(slots=True, eq=False)
class _Masks:
    """Hooks that give every block another mask."""

    root: nn.Module
    attention: str
    _seen: Tensor | None = None  # (B, T), which positions of the call under way are no padding
    _off: list[Any] = field(default_factory=list)

    def __enter__(self) -> _Masks:
        self._off.append(self.root.register_forward_pre_hook(self._begin, with_kwargs=True))
        return self

    def __exit__(self, *error: object) -> None:
        while self._off:
            self._off.pop().remove()

    def attach(self, block: nn.Module) -> None:
        """Put the mask on one block."""
        names = list(inspect.signature(block.forward).parameters)
        if NAME not in names:
            raise AnisoscopeError(
                f"{type(block).__name__} takes no {NAME}: the attention of {type(self.root).__name__} cannot be changed"
            )
        place = names.index(NAME)

        def given(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            hidden = args[0] if args else kwargs["hidden_states"]
            _require_mask_alone(args[place] if len(args) > place else kwargs.get(NAME), module)
            mask = self._mask(hidden)
            if len(args) > place:
                return (*args[:place], mask, *args[place + 1 :]), kwargs
            return args, kwargs | {NAME: mask}

        self._off.append(block.register_forward_pre_hook(given, with_kwargs=True))

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tokens, mask = kwargs.get("input_ids", args[0] if args else None), kwargs.get(NAME)
        if not isinstance(tokens, Tensor) or not is_tokens(tokens):
            raise AnisoscopeError("the attention of a model can be changed where it is given token ids")
        self._seen = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask.bool()

    def _mask(self, hidden: Tensor) -> Tensor:
        """What is added to the scores, ``(B, 1, T, T)``: every token sees itself, so that no row is empty."""
        assert self._seen is not None, "the call of the whole model came first"
        seen_BT = self._seen.to(hidden.device)
        length = seen_BT.shape[1]
        sees_BTT = seen_BT[:, None, :].expand(-1, length, -1)
        if self.attention == "causal":
            sees_BTT = sees_BTT.tril()
        elif self.attention == "none":
            sees_BTT = torch.zeros_like(sees_BTT)
        sees_BTT = sees_BTT | torch.eye(length, dtype=torch.bool, device=hidden.device)
        added = torch.zeros(sees_BTT.shape, dtype=hidden.dtype, device=hidden.device)
        return added.masked_fill(~sees_BTT, torch.finfo(hidden.dtype).min)[:, None]


def _require_mask_alone(given: Any, block: nn.Module) -> None:
    """Raise for a mask with numbers in it that say where a token stands (ALiBi): without them it is another model."""
    if isinstance(given, Tensor) and given.is_floating_point():
        seen = given > torch.finfo(given.dtype).min / 2
        if bool((seen & (given != 0)).any()):
            raise AnisoscopeError(f"the mask of {type(block).__name__} holds positions too; it cannot be changed alone")


def _require_obeyed(model: nn.Module, attention: str) -> None:
    """Change all tokens but one and see whether its logits answer."""
    root = unwrapped(model)
    device = next(root.parameters()).device
    generator = torch.Generator().manual_seed(0)
    size = int(getattr(getattr(root, "config", None), "vocab_size", 0) or 0)
    if size < 2 * _TRIED:
        raise AnisoscopeError(f"{type(root).__name__} does not say how many token ids it knows")
    ids = torch.randperm(size, generator=generator)[: 3 * _TRIED].reshape(3, _TRIED)
    after, before = ids[0].clone(), ids[0].clone()
    after[1:], before[:-1] = ids[1, 1:], ids[2, :-1]
    training = root.training
    root.eval()
    try:
        with torch.no_grad():
            tokens = torch.stack([ids[0], after, before]).to(device)
            output = root(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits.float()
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise AnisoscopeError(f"the attention of {type(root).__name__} cannot be changed: {why}") from error
    finally:
        root.train(training)
    near = 1e-5 * float(output.abs().max())
    heard = (
        bool((output[0, 0] - output[1, 0]).abs().max() > near),
        bool((output[0, -1] - output[2, -1]).abs().max() > near),
    )
    if heard != _HEARD[attention]:
        raise AnisoscopeError(
            f"{type(root).__name__} does not obey {attention} attention: it mixes tokens in another way as well, or"
            " builds the mask inside its blocks"
        )
