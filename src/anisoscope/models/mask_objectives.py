"""Which masks of attention and which objectives a twin can have, and which of them go together. Needs no torch."""

from __future__ import annotations

from anisoscope.errors import broken
from anisoscope.vocabulary import require

ATTENTIONS: dict[str, str] = {
    "causal": "a token sees those before it",
    "bidirectional": "a token sees all",
    "prefix": "all see the first half of the sequence, and the rest is causal",
    "none": "a token sees itself alone: attention is switched off",
}
OBJECTIVES: dict[str, str] = {"next-token": "the next token", "masked-token": "tokens that were masked"}
USUAL: dict[str, tuple[str, str]] = {
    "decoder": ("causal", "next-token"),
    "encoder": ("bidirectional", "masked-token"),
}
"""Attention and objective of the two roles."""


def require_cell(attention: str, objective: str) -> None:
    """Raise for a mask and an objective that do not go together.

    >>> require_cell("causal", "masked-token")
    """
    require("attention", attention, ATTENTIONS)
    require("objective", objective, OBJECTIVES)
    if (attention, objective) == ("bidirectional", "next-token"):
        raise broken(
            "a model that is asked for the next token must not see it: it would copy it and learn nothing else",
            "bidirectional attention with next-token",
            "use attention prefix: both sides of the first half of a sequence are seen, and the rest is asked for",
        )
    if (attention, objective) == ("prefix", "masked-token"):
        raise broken(
            "a prefix must go with the next token: masked tokens have no order",
            "prefix attention with masked-token",
            "use attention bidirectional or causal",
        )
