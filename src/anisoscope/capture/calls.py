"""One forward call of the model: what it was given, and enough to make it again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.capture.labels import IGNORED, label_argument, labels_in


@dataclass(slots=True, eq=False)
class Batch:
    """One forward call: its token ids and mask ``(B, T)`` where they are known, and its number in the step.

    A call without autograd (``trained`` false) is an evaluation in between and is not handed on. An encoder-decoder has
    two of one number: ``source`` then are the ids and the mask of what the encoder was given, by which sequences are
    told apart in both.
    """

    number: int
    tokens: Tensor | None
    mask: Tensor | None
    labels: Tensor | None
    documents: Tensor | None = None  # (B,), which document each sequence is of, where the caller says so
    trained: bool = True
    sixteen_bit: bool = False  # computed under autocast: what passes is no finer than that, whatever its dtype
    encoder: bool = False
    source: tuple[Tensor, Tensor | None] | None = None
    layer: int = 0  # of the last block that was entered
    under_way: bool = False  # whether it is still at work
    shape: torch.Size | None = None  # sequences and positions of what entered the first block
    label_argument: str | int | None = None  # where the labels stand in the call


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """Arguments of a forward call with the random states and the autocast it began with."""

    batch: Batch
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    random: Tensor
    random_cuda: Tensor | None
    device_type: str
    autocast: torch.dtype | None
    decoder: list[Tensor] = field(default_factory=list)  # ids that a model made for its decoder, from the labels

    @classmethod
    def now(cls, batch: Batch, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device) -> Call:
        """The call that is about to begin on ``device``."""
        kind = device.type
        on = torch.is_autocast_enabled(kind)
        return cls(
            batch,
            args,
            dict(kwargs),
            torch.get_rng_state(),
            torch.cuda.get_rng_state(device) if kind == "cuda" else None,
            kind,
            torch.get_autocast_dtype(kind) if on else None,
        )

    @contextmanager
    def again(self, model: nn.Module) -> Iterator[None]:
        """The state of the call restored for another pass; random states and buffers are as before afterwards."""
        devices = [torch.cuda.current_device()] if self.random_cuda is not None else []
        buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
        with torch.random.fork_rng(devices=devices):
            torch.set_rng_state(self.random)
            if self.random_cuda is not None:
                torch.cuda.set_rng_state(self.random_cuda)
            try:
                with torch.autocast(self.device_type, dtype=self.autocast, enabled=self.autocast is not None):
                    yield
            finally:
                with torch.no_grad():
                    for buffer, before in buffers:
                        buffer.copy_(before)


def of_both(batch: Batch) -> tuple[Batch, Batch]:
    """The batches of the decoder and the encoder, from what the call of an encoder-decoder says of its source."""
    source = None if batch.tokens is None else (batch.tokens, batch.mask)
    decoder = replace(batch, tokens=None, mask=None, source=source)
    return decoder, replace(batch, labels=None, encoder=True, source=source)


def with_decoder_tokens(batch: Batch, tokens: Tensor, mask: Any) -> None:
    """Tell the batch of a decoder its token ids; without a mask, positions that no label asks for are padding."""
    batch.tokens = tokens
    if isinstance(mask, Tensor) and mask.shape == tokens.shape:
        batch.mask = mask
    elif batch.labels is not None and batch.labels.shape == tokens.shape:
        batch.mask = batch.labels != IGNORED


def as_batch(
    number: int, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], labels: str | None = None
) -> Batch:
    """What a call of the model says about its tokens; ``labels`` names their argument where it is not a usual one.

    Positions that are not asked for have the label −100 here, whatever negative number the model takes for it.
    """
    tokens = kwargs.get("input_ids", args[0] if args else None)
    tokens = tokens if is_tokens(tokens) else None
    mask, argument = kwargs.get("attention_mask"), label_argument(model, args, kwargs, labels)
    asked = labels_in(args, kwargs, argument)
    fits = isinstance(mask, Tensor) and tokens is not None and mask.shape == tokens.shape
    return Batch(
        number,
        tokens,
        mask if fits else None,
        None if asked is None else asked.masked_fill(asked < 0, IGNORED),
        trained=torch.is_grad_enabled(),
        sixteen_bit=tokens is not None and torch.is_autocast_enabled(tokens.device.type),
        label_argument=argument,
    )


def is_tokens(x: Any) -> bool:
    """Whether something is a batch of token ids."""
    return isinstance(x, Tensor) and x.ndim == 2 and not x.is_floating_point() and not x.is_complex()
