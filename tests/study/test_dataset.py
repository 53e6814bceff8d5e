"""What a step is trained on: a pure function of the seed and the number of the sample."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from anisoscope.data.tokenisers import train_characters
from anisoscope.data.tokens import Sequences, Tokenised
from anisoscope.stats.hashing import second_fold
from anisoscope.study.dataset import IGNORED, TrainingDataset, collated

V, PAD, MASK = 200, 0, 1


@pytest.fixture
def data():
    random = np.random.default_rng(0)
    lengths = random.integers(5, 21, 30).astype(np.int32)
    ids = random.integers(4, V, (30, 20)).astype(np.int32)
    ids[np.arange(20)[None] >= lengths[:, None]] = PAD
    part = Sequences(ids, lengths)
    tokeniser = train_characters(["abc"], characters=3)
    return Tokenised(part, part, V, PAD, MASK, (0, 1, 2, 3), tokeniser, "", {})


def made(data, role, **changed):
    return TrainingDataset(data, role, **({"samples": 90, "seed": 5, "mask_rate": 0.15} | changed))


def test_every_epoch_has_every_sequence_once_in_another_order(data):
    lessons = made(data, "decoder")
    epochs = [[lessons.place(i) for i in range(start, start + 30)] for start in (0, 30, 60)]
    assert all(sorted(epoch) == list(range(30)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert [made(data, "encoder").place(i) for i in range(30)] == epochs[0]  # twins see the same
    assert [made(data, "decoder", seed=6).place(i) for i in range(30)] != epochs[0]


def test_a_decoder_is_asked_for_every_token_and_for_no_padding(data):
    lessons = made(data, "decoder")
    for number in range(30):
        sample, place = lessons[number], lessons.place(number)
        length = int(data.train.lengths[place])
        assert sample["input_ids"].tolist() == data.train.ids[place].tolist()
        assert sample["labels"][:length].tolist() == data.train.ids[place, :length].tolist()
        assert set(sample["labels"][length:].tolist()) <= {IGNORED}
        assert sample["attention_mask"].tolist() == [1] * length + [0] * (20 - length)


def test_an_encoder_is_asked_for_a_share_of_the_tokens_most_of_them_masked(data):
    lessons = made(data, "encoder", samples=6000)
    asked = masked = same = other = seen = 0
    for number in range(3000):
        sample, place = lessons[number], lessons.place(number)
        chosen = sample["labels"].numpy() != IGNORED
        true = data.train.ids[place]
        now = sample["input_ids"].numpy()
        assert chosen.any()
        assert not chosen[int(data.train.lengths[place]) :].any()
        assert (sample["labels"].numpy()[chosen] == true[chosen]).all()
        assert (now[~chosen] == true[~chosen]).all()
        asked += chosen.sum()
        masked += (now[chosen] == MASK).sum()
        same += (now[chosen] == true[chosen]).sum()
        other += ((now[chosen] != true[chosen]) & (now[chosen] != MASK)).sum()
        seen += int(data.train.lengths[place])
    error = 4 * np.sqrt(0.15 * 0.85 / seen) + 0.004  # short sequences that would go without are asked for one
    assert asked / seen == pytest.approx(0.15, abs=error + 0.01)
    assert masked / asked == pytest.approx(0.8, abs=4 * np.sqrt(0.16 / asked) + 1 / V)
    assert same / asked == pytest.approx(0.1, abs=4 * np.sqrt(0.09 / asked) + 1 / V)
    assert other / asked == pytest.approx(0.1, abs=4 * np.sqrt(0.09 / asked) + 1 / V)


def test_masks_are_new_in_every_epoch_and_the_same_when_asked_again(data):
    lessons = made(data, "encoder")
    again = made(data, "encoder")
    assert all((lessons[i]["labels"] == again[i]["labels"]).all() for i in range(90))
    where = {lessons.place(i): i for i in range(30)}
    later = {lessons.place(i): i for i in range(30, 60)}
    assert any((lessons[where[p]]["labels"] != lessons[later[p]]["labels"]).any() for p in where)


def test_counts_are_those_of_the_tokens_trained_on(data):
    lessons = made(data, "encoder", samples=45)
    expected = np.zeros(V, dtype=int)
    for number in range(45):
        place = lessons.place(number)
        for token in data.train.ids[place, : data.train.lengths[place]]:
            expected[token] += 1
    assert (lessons.counts() == expected).all()
    assert lessons.tokens(0, 45) == expected.sum()
    assert lessons.tokens(10, 12) == sum(int(data.train.lengths[lessons.place(i)]) for i in (10, 11))


def test_samples_end_where_they_were_said_to(data):
    lessons = made(data, "decoder", samples=7)
    assert len(list(lessons)) == 7
    assert collated([lessons[0], lessons[1]])["input_ids"].shape == (2, 20)


@pytest.mark.parametrize("role", ["decoder", "encoder"])
def test_equal_text_of_two_documents_is_one_unit_of_one_fold(data, role):
    """Whatever is masked of it, and whatever the seed of the folds is."""
    part = data.train
    part.ids[17], part.lengths[17] = part.ids[4], part.lengths[4]
    given = replace(part, documents=np.arange(30, dtype=np.int32) // 2)
    lessons = made(replace(data, train=given), role, samples=30)
    documents = lessons.documents(0, 30)
    places = np.array([lessons.place(k) for k in range(30)])
    joined = documents[torch.from_numpy(np.isin(places, (4, 5, 16, 17)))]
    assert joined.tolist() == [2] * 4
    assert len(documents.unique()) == 14
    batch = collated([lessons[k] for k in range(30)])
    for seed in range(10):
        second = second_fold(batch["input_ids"], batch["attention_mask"].bool(), seed=seed, documents_B=documents)
        assert len(second[torch.from_numpy(np.isin(places, (4, 5, 16, 17)))].unique()) == 1
