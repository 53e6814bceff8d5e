"""The loss of every token that a model is asked for.

Letters: B sequences, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.errors import AnisoscopeError, broken

IGNORED = -100
TokenLoss = Callable[[Any, Mapping[str, Tensor]], Tensor]
_AGREEMENT = 0.01  # of the model's own loss, which may be computed in bf16


def asks_for_next(batch: Mapping[str, Tensor]) -> bool:
    """Whether labels repeat the input, so that the model shifts them and asks for the next token."""
    labels, ids = batch["labels"], batch["input_ids"]
    return labels.shape == ids.shape and bool(((labels == ids) | (labels == IGNORED)).all())


def asked(batch: Mapping[str, Tensor]) -> Tensor:
    """Places ``(B, T)`` of the tokens that are asked for.

    >>> ids = torch.tensor([[5, 6, 7]])
    >>> asked({"input_ids": ids, "labels": ids}).tolist()
    [[False, True, True]]
    """
    chosen = batch["labels"] != IGNORED
    if asks_for_next(batch):
        chosen = chosen.clone()
        chosen[:, 0] = False
    return chosen


def token_losses(output: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """Cross-entropy in nats ``(B, T)`` at the place of each token asked for, NaN elsewhere."""
    logits_BTV = getattr(output, "logits", None)
    if not isinstance(logits_BTV, Tensor) or logits_BTV.ndim != 3:
        raise broken(
            "a model whose loss is measured by token must return logits (B, T, V)",
            type(output).__name__,
            "pass loss_fn(output, batch), which returns losses (B, T) with NaN where nothing is asked",
        )
    labels = batch["labels"].to(logits_BTV.device)
    found = logits_BTV.new_full(labels.shape, torch.nan, dtype=torch.promote_types(logits_BTV.dtype, torch.float32))
    shift = asks_for_next(batch)
    given, wanted = (logits_BTV[:, :-1], labels[:, 1:]) if shift else (logits_BTV, labels)
    losses = nn.functional.cross_entropy(
        given.flatten(0, 1).to(found.dtype), wanted.flatten().long(), ignore_index=IGNORED, reduction="none"
    ).view(wanted.shape)
    losses = torch.where(wanted != IGNORED, losses, torch.nan)
    found[:, shift:] = losses
    return found


def require_own_loss(output: Any, losses_BT: Tensor) -> None:
    """Raise where the model's own loss is not the mean of these: it is then trained on something else."""
    own = getattr(output, "loss", None)
    if not isinstance(own, Tensor) or own.numel() != 1:
        return
    mean = float(losses_BT.nanmean())
    if abs(float(own) - mean) > _AGREEMENT * max(abs(mean), 0.1):
        raise AnisoscopeError(
            f"the model returns a loss of {float(own):.4g}, and its logits give {mean:.4g} a token: it is asked for "
            "something else than its labels; pass loss_fn(output, batch), which returns losses (B, T) with NaN where "
            "nothing is asked"
        )
