"""Token counts that merge. Letters: V vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.errors import broken


@dataclass(frozen=True, slots=True, eq=False)
class TokenCounts:
    """How often each token id was really seen.

    >>> import torch
    >>> a = TokenCounts.of(torch.tensor([[0, 2, 2]]), vocabulary=4)
    >>> b = TokenCounts.of(torch.tensor([3, 1]), vocabulary=4, mask=torch.tensor([True, False]))
    >>> a.merge(b).counts.tolist()
    [1, 0, 2, 1]
    """

    counts: Tensor

    @classmethod
    def empty(cls, vocabulary: int, *, device: torch.device | str | None = None) -> TokenCounts:
        """Nothing seen yet."""
        if vocabulary < 1:
            raise broken("vocabulary must be at least 1", vocabulary, "pass the number of token ids")
        return cls(torch.zeros(vocabulary, dtype=torch.int64, device=device))

    @classmethod
    def of(cls, tokens: Tensor, *, vocabulary: int, mask: Tensor | None = None) -> TokenCounts:
        """Counts of the ids in ``tokens`` (any shape) where ``mask`` is true."""
        if tokens.is_floating_point() or tokens.is_complex():
            raise broken("token ids must be integers", tokens.dtype, "pass input_ids")
        if mask is not None and mask.shape != tokens.shape:
            raise broken(
                f"mask must have the shape of the tokens {tuple(tokens.shape)}",
                tuple(mask.shape),
                "pass the attention mask of the same batch",
            )
        seen_N = torch.ones_like(tokens, dtype=torch.int64) if mask is None else mask.to(torch.int64)
        ids_N = torch.where(seen_N > 0, tokens.to(torch.int64), 0).reshape(-1)
        if ids_N.device.type == "cpu" and ids_N.numel() and (ids_N.min() < 0 or ids_N.max() >= vocabulary):
            raise broken(
                f"token ids must lie in 0…{vocabulary - 1}",
                f"{int(ids_N.min())}…{int(ids_N.max())}",
                "mask ignored positions or give the real vocabulary size",
            )
        return cls(cls.empty(vocabulary, device=ids_N.device).counts.scatter_add_(0, ids_N, seen_N.reshape(-1)))

    def merge(self, other: TokenCounts) -> TokenCounts:
        """Counts of both streams together."""
        if self.counts.shape != other.counts.shape:
            raise broken(
                f"merged counts must share the vocabulary of {self.counts.numel()}",
                other.counts.numel(),
                "count with one tokeniser",
            )
        return TokenCounts(self.counts + other.counts)

    @property
    def total(self) -> Tensor:
        """Tokens seen."""
        return self.counts.sum()

    def state(self) -> dict[str, Tensor]:
        """Plain tensors, for safetensors or a checkpoint."""
        return {"counts": self.counts}

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> TokenCounts:
        """The counts that ``state()`` described."""
        return cls(state["counts"])
