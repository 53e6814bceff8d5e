"""Other token laws without another corpus: weights of the loss, rates of masking, and draws of documents.

Letters: V vocabulary, n documents. ``c`` is how often a type comes in the training corpus.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from anisoscope.errors import broken

IGNORED = -100
MOST = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class FrequencyLaw:
    """Numbers by type ``(V,)`` and the law of tokens that they make: ``c·w`` takes the place of ``c``.

    ``asked`` is the exponent of ``c`` that was asked for, ``1 − α``; ``realised`` the slope of ``log(c·w)`` on
    ``log c`` over the types seen; ``at_limit`` the share of tokens whose number is at its maximum.
    """

    values: Tensor
    asked: float
    realised: float
    at_limit: float


def frequency_weights(counts: Tensor, alpha: float, *, most: float = MOST) -> FrequencyLaw:
    """Loss weights ``w = min(k·c^(−α), most)`` with ``k`` such that ``Σ c·w = Σ c``: the mean weight of a token is 1.

    Types that were not seen get ``most`` (or 1 where α is 0). A positive α makes the law flatter.

    >>> law = frequency_weights(torch.tensor([8, 4, 2, 1]), 0.5)
    >>> round(law.realised, 3), float((law.values * torch.tensor([8, 4, 2, 1])).sum())
    (0.5, 15.0)
    """
    if not most >= 1:
        raise broken("the largest weight must be at least 1", most, f"use {MOST:g}")
    return _law(counts, alpha, mean=1.0, most=most)


def masking_rates(counts: Tensor, alpha: float, *, rate: float = 0.15) -> FrequencyLaw:
    """Probabilities ``min(k·c^(−α), 1)`` to ask for a token, by type, with ``Σ c·p = rate·Σ c``."""
    if not 0 < rate < 1:
        raise broken("the rate of masking must lie between 0 and 1", rate, "use 0.15")
    return _law(counts, alpha, mean=rate, most=1.0)


def weighted_loss(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Cross-entropy at labels, each weighed by its type, over the number of labels; shifted by the caller if need be.

    The mean weight over the corpus is 1, so the scale of gradients is kept; it is not normalised within the batch.
    """
    asked = labels != IGNORED
    losses = nn.functional.cross_entropy(
        logits.flatten(0, -2).float(), labels.flatten().long(), ignore_index=IGNORED, reduction="none"
    )
    scale = weights.to(losses)[labels.flatten().clamp_min(0)] * asked.flatten()
    return (losses * scale).sum() / asked.sum().clamp_min(1)


def document_rates(documents: Sequence[np.ndarray], counts: Tensor, alpha: float) -> tuple[np.ndarray, float]:
    """Chances to draw each document, ``∝`` the mean of ``c^(−α)`` over its tokens, and the exponent this realises.

    Documents are mixtures, so the law gets only somewhat flatter: use the exponent that is realised, not ``1 − α``.
    """
    known = _checked(counts, alpha)
    powers = np.where(known > 0, np.maximum(known, 1.0) ** -alpha, 0.0)
    rates = np.asarray([powers[ids].mean() if len(ids) else 0.0 for ids in documents])
    if rates.sum() <= 0:
        raise broken("some document must have a token that was counted", "none", "count the tokens of these documents")
    rates = rates / rates.sum()
    lengths = np.asarray([len(ids) for ids in documents], dtype=float)
    made = np.zeros(len(known))
    for share, ids in zip(rates, documents, strict=True):
        np.add.at(made, ids, share)
    return rates, slope(known, made / max(float(rates @ lengths), 1e-300))


def drawn_exponent(counts: np.ndarray, drawn: np.ndarray) -> float:
    """The β under which what was drawn, ``∝ count^β``, is likeliest: 1 is the law of the counts, 0 a flat one.

    Every token counts once, so that types that were drawn seldom or never do no harm, as they would to a slope of
    logarithms. Types without a count are left out; NaN where nothing is left or all counts are equal.

    >>> counts = np.array([8.0, 4.0, 2.0, 1.0])
    >>> round(drawn_exponent(counts, counts), 6), round(drawn_exponent(counts, counts**0.5), 6)
    (1.0, 0.5)
    """
    seen = counts > 0
    logs, made = np.log(counts[seen].astype(float)), drawn[seen].astype(float)
    if not len(logs) or made.sum() <= 0 or logs.max() == logs.min():
        return math.nan
    # The mean of log c under c^β rises with β: the likeliest β gives the mean that was drawn.
    target, low, high = float(made @ logs / made.sum()), -8.0, 8.0
    for _ in range(60):
        middle = (low + high) / 2
        law = np.exp(middle * (logs - logs.max()))
        low, high = (middle, high) if float(law @ logs / law.sum()) < target else (low, middle)
    return (low + high) / 2


def slope(counts: np.ndarray, made: np.ndarray) -> float:
    """The slope of ``log made`` on ``log count`` over the types that have both; NaN where all counts are equal."""
    both = (counts > 0) & (made > 0)
    x, y = np.log(counts[both]), np.log(made[both])
    x = x - x.mean()
    return float(x @ y / (x @ x)) if len(x) and float(x @ x) > 0 else math.nan


def _law(counts: Tensor, alpha: float, *, mean: float, most: float) -> FrequencyLaw:
    known = _checked(counts, alpha)
    seen = known > 0
    c, powers = known[seen], known[seen] ** -alpha
    total = mean * c.sum()
    low, high = 0.0, most / powers.min()  # at the upper end every number is at its maximum
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (c * np.minimum(middle * powers, most)).sum() < total else (low, middle)
    own = np.minimum(high * powers, most)
    values = np.full(len(known), most if alpha > 0 else mean)
    values[seen] = own * (total / (c * own).sum())
    at_limit = float(c[high * powers >= most].sum() / c.sum())
    return FrequencyLaw(torch.from_numpy(values), 1 - alpha, slope(known, known * values), at_limit)


def _checked(counts: Tensor, alpha: float) -> np.ndarray:
    known = np.asarray(counts.cpu() if isinstance(counts, Tensor) else counts, dtype=float)
    if known.ndim != 1 or not (known >= 0).all() or not known.any():
        raise broken("counts must be one number of at least 0 a type, some above 0", known.shape, "count the corpus")
    if not math.isfinite(alpha) or abs(alpha) > 5:
        raise broken("alpha must lie in −5…5", alpha, "0 changes nothing, 1 makes all types equally heavy")
    return known
