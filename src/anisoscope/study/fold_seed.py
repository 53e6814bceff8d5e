"""What is independent in a study, and a seed for the folds of batches that are known beforehand.

Each document, or sequence, goes to one of two folds by a coin that it and the seed toss. Of 16 one fold has fewer than
4, too few for an interval, once in 47 batches: often enough to spoil some observation of a training. The batches of a
study are known before it begins, so a seed is chosen under which none is spoiled. Gradients are not known then, so the
choice cannot favour any result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from anisoscope.evidence.inference import FEWEST_SWAPPED, FEWEST_UNITS
from anisoscope.stats.hashing import second_fold, unit_keys

_TRIES = 200
_APART = 1 << 20  # seeds of other trainings lie between


def use_documents(documents: Sequence[Tensor | None], units: Literal["auto", "document", "sequence"]) -> bool:
    """Whether documents are the units of a study: if asked for, else where every batch has enough for every test.

    >>> use_documents([torch.arange(32) // 2], "auto"), use_documents([torch.zeros(32)], "auto")
    (True, False)
    """
    known = [ids for ids in documents if ids is not None]
    if units == "sequence" or len(known) < len(documents):
        return False
    return units == "document" or all(len(torch.unique(ids)) >= FEWEST_SWAPPED for ids in known)


def fold_seed(batches: Sequence[dict[str, Tensor]], *, seed: int) -> int:
    """``seed``, or the first of a row of others, under which both folds of every batch have units enough.

    Units are documents where a batch names them. Where no seed does (tiny batches), the one whose smallest fold is
    largest.
    """

    def smallest(candidate: int) -> int:
        found = FEWEST_UNITS
        for batch in batches:
            tokens, mask, documents = batch["input_ids"], batch["attention_mask"].bool(), batch.get("documents")
            second = second_fold(tokens, mask, seed=candidate, documents_B=documents)
            units = unit_keys(tokens, mask, documents, seed=candidate)
            some = mask.any(1)  # a sequence that is all padding is no unit
            found = min(found, *(len(torch.unique(units[side & some])) for side in (second, ~second)))
        return found

    best = seed, -1
    for number in range(_TRIES):
        candidate = seed + number * _APART
        size = smallest(candidate)
        if size >= FEWEST_UNITS:
            return candidate
        best = (candidate, size) if size > best[1] else best
    return best[0]
