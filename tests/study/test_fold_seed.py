"""Folds of batches that are known beforehand."""

import torch

from anisoscope.evidence.inference import FEWEST_UNITS
from anisoscope.stats.hashing import second_fold
from anisoscope.study.fold_seed import fold_seed


def batches(count, sequences, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 1000, (count, sequences, 12), generator=generator)
    return [{"input_ids": one, "attention_mask": torch.ones_like(one)} for one in ids]


def sizes(given, seed):
    found = [int(second_fold(b["input_ids"], b["attention_mask"].bool(), seed=seed).sum()) for b in given]
    return [min(size, len(b["input_ids"]) - size) for size, b in zip(found, given, strict=True)]


def test_the_coin_is_fair_and_spoils_a_batch_of_16_as_often_as_binomials_say():
    given = batches(4000, 16)
    spoiled = sum(size < FEWEST_UNITS for size in sizes(given, 0))
    expected = 4000 * 2 * (1 + 16 + 120 + 560) / 2**16  # 85
    assert abs(spoiled - expected) < 4 * expected**0.5


def test_no_batch_is_spoiled_under_the_seed_that_is_chosen():
    changed = 0
    for trial in range(20):
        given = batches(12, 16, seed=trial)
        chosen = fold_seed(given, seed=3)
        changed += chosen != 3
        assert min(sizes(given, chosen)) >= FEWEST_UNITS
        if chosen != 3:
            assert min(sizes(given, 3)) < FEWEST_UNITS  # the first was taken where it would do
    assert 0 < changed < 20


def test_batches_too_small_for_any_seed_get_the_best():
    given = batches(3, 6)
    chosen = fold_seed(given, seed=0)
    assert min(sizes(given, chosen)) == 3 >= min(sizes(given, 0))
