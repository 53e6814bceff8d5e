"""The ``targets`` nulls: the same step again with other labels, one extra forward and backward each.

Gradients go to the tapped tensors alone, by ``torch.autograd.grad``: no ``.grad`` is touched, no hook of data
parallelism fires. Each call starts from the random state it had the first time, so dropout is the same and only labels
differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.capture.calls import Call
from anisoscope.capture.labels import labels_in, with_labels
from anisoscope.capture.sites import Sites, unwrapped
from anisoscope.capture.taps import Taps
from anisoscope.errors import AnisoscopeError
from anisoscope.observe.collector import Collector

LossFn = Callable[[Any, Tensor], Tensor]
_HALF_SCALE = 4096.0  # keeps float16 gradients from vanishing; shares do not depend on it


def pass_again(
    model: nn.Module,
    sites: Sites,
    calls: list[Call],
    listener: Collector,
    *,
    null: str,
    loss_fn: LossFn | None,
    seed: int,
    shares: Sequence[float] | None = None,
    layers: frozenset[int] | None = None,
) -> None:
    """Hand the gradients under other labels to ``listener``, or raise ``AnisoscopeError`` with the reason.

    ``shares`` is what each call's loss counts for in the loss of all, where the caller weighed them; ``layers`` are
    those to hand on, None is all.
    """
    root = unwrapped(model)
    if any(hasattr(parameter, "full_tensor") for parameter in root.parameters()):
        raise AnisoscopeError("parameters are sharded (FSDP2): an extra pass outside the training step is not possible")
    documents = [call.batch.documents for call in calls if call.batch.documents is not None]
    known = torch.cat(documents) if len(documents) == len(calls) and calls else None
    with Taps(model, sites, listener, layers=layers, documents=known) as taps:
        for number, call in enumerate(calls):
            labels = _labels(call, loss_fn)
            generator = torch.Generator().manual_seed((seed * 1_000_003 + number) % (1 << 62))
            other = other_labels(labels, call.batch.tokens, null, _output_ids(root, sites), generator)
            with call.again(root), torch.enable_grad():
                loss = _loss(root, call, other, loss_fn)
                hidden = taps.first_hidden
                if not hidden:
                    raise AnisoscopeError("no tapped tensor has a gradient")
                scale = _HALF_SCALE if call.autocast is torch.float16 else 1.0
                scale *= 1.0 if shares is None else shares[number]
                try:
                    torch.autograd.grad(loss * scale, list(hidden.values()), allow_unused=True)
                except RuntimeError as error:
                    raise AnisoscopeError(_reason(error)) from error
        taps.require_heard()


def other_labels(
    labels: Tensor, tokens: Tensor | None, null: str, output_ids: int, generator: torch.Generator
) -> Tensor:
    """Labels permuted among labelled positions, or drawn uniformly from the output ids.

    Where labels repeat the input (a causal model shifts them inside), the first position is never asked for and stays.

    >>> import torch
    >>> ids = torch.tensor([[5, 6, 7], [8, 9, 7]])
    >>> found = other_labels(ids, ids, "targets", 10, torch.Generator().manual_seed(0))
    >>> found[:, 0].tolist(), sorted(found[:, 1:].flatten().tolist())
    ([5, 8], [6, 7, 7, 9])
    """
    chosen = labels >= 0  # a negative label asks for nothing: −100, or what the model takes for it
    if tokens is not None and tokens.shape == labels.shape and bool(((labels == tokens) | ~chosen).all()):
        chosen = chosen.clone()
        chosen[:, 0] = False
    values = labels[chosen]
    if null == "targets":
        drawn = values[torch.randperm(len(values), generator=generator, device="cpu").to(values.device)]
    else:
        drawn = torch.randint(output_ids, (len(values),), generator=generator, device="cpu").to(values)
    return labels.masked_scatter(chosen, drawn)


def _labels(call: Call, loss_fn: LossFn | None) -> Tensor:
    given = labels_in(call.args, call.kwargs, call.batch.label_argument)
    if given is not None:
        return given
    if loss_fn is not None and call.batch.tokens is not None:
        return call.batch.tokens
    raise AnisoscopeError("no labels in the call of the model and no loss_fn")


def _loss(root: nn.Module, call: Call, labels: Tensor, loss_fn: LossFn | None) -> Tensor:
    args, kwargs = with_labels(call.args, call.kwargs, call.batch.label_argument, labels)
    if call.decoder and kwargs.get("decoder_input_ids") is None:  # which it would make of the other labels
        kwargs["decoder_input_ids"] = call.decoder[0]
    output = root(*args, **kwargs)
    if loss_fn is not None:
        return loss_fn(output, labels)
    loss = getattr(output, "loss", None)
    if loss is None and isinstance(output, dict):
        loss = output.get("loss")
    if loss is None and isinstance(output, tuple):  # the loss comes first, or after the logits
        numbers = (part for part in output if isinstance(part, Tensor) and part.numel() == 1 and part.requires_grad)
        loss = next(numbers, None)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise AnisoscopeError("the model returns no loss for its labels; pass loss_fn")
    return loss


def _output_ids(root: nn.Module, sites: Sites) -> int:
    for module in (sites.output, sites.embedding.module if sites.embedding else None):
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor):
            return weight.shape[0]
    raise AnisoscopeError("how many output ids there are is not known: no output and no embedding was found")


def _reason(error: RuntimeError) -> str:
    said = str(error)
    if "heckpoint" in said:
        return "reentrant gradient checkpointing does not allow an extra pass; use use_reentrant=False"
    return f"the extra pass failed: {said.splitlines()[0]}"
