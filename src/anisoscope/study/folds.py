"""A seed for the folds of a training whose batches are known beforehand.

Each sequence goes to one of two folds by a coin that its content and the seed toss. Of 16 sequences one fold has fewer
than 4, too few for an interval, once in 47 batches: often enough to spoil some observation of a training. The batches
of a study are known before it begins, so a seed is chosen under which none is spoiled. Gradients are not known then, so
the choice cannot favour any result.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from anisoscope.evidence.inference import FEWEST_UNITS
from anisoscope.stats.hashing import second_fold

_TRIES = 200
_APART = 1 << 20  # seeds of other trainings lie between


def fold_seed(batches: Sequence[dict[str, Tensor]], *, seed: int) -> int:
    """``seed``, or the first of a row of others, under which both folds of every batch have sequences enough.

    Where no seed does (tiny batches), the one whose smallest fold is largest.
    """

    def smallest(candidate: int) -> int:
        found = FEWEST_UNITS
        for batch in batches:
            second = int(second_fold(batch["input_ids"], batch["attention_mask"].bool(), seed=candidate).sum())
            found = min(found, second, len(batch["input_ids"]) - second)
        return found

    best = seed, -1
    for number in range(_TRIES):
        candidate = seed + number * _APART
        size = smallest(candidate)
        if size >= FEWEST_UNITS:
            return candidate
        best = (candidate, size) if size > best[1] else best
    return best[0]
