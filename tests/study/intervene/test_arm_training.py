"""Arms of a plan: masks and objectives on one architecture, and token laws that are measured."""

import numpy as np
import pytest
import torch

from anisoscope.data import zipf
from anisoscope.data.corpora import Corpus
from anisoscope.data.tokens import prepare
from anisoscope.intervene.frequency_weights import drawn_exponent, frequency_weights, masking_rates
from anisoscope.models.twins import IGNORED, ModelShape, build
from anisoscope.study.dataset import TrainingDataset, collated
from anisoscope.study.intervene.arm_data import ArmDataset, sequence_chances, words_exponent
from anisoscope.study.intervene.arm_measures import held_out_rows
from anisoscope.vocabulary import bin_subset

SHAPE = ModelShape(layers=2, width=16, heads=2, vocabulary=60, length=12)
IDS = torch.randint(1, 60, (3, 12), generator=torch.Generator().manual_seed(0))


def reach(attention, objective, role="decoder"):
    """Which positions each logit depends on, found by changing one token at a time."""
    model = build("twin", role, SHAPE, seed=0, attention=attention, objective=objective).eval()
    with torch.no_grad():
        before = model(input_ids=IDS[:1]).logits[0]
        found = torch.zeros(12, 12, dtype=torch.bool)
        for place in range(12):
            changed = IDS[:1].clone()
            changed[0, place] = (changed[0, place] + 7) % 60
            moved = (model(input_ids=changed).logits[0] - before).abs().amax(1)
            found[:, place] = moved > 0
    return found


def test_every_mask_of_attention_sees_what_it_says():
    ones = torch.ones(12, 12, dtype=torch.bool)
    half = torch.zeros_like(ones)
    half[:, :6] = True
    assert torch.equal(reach("causal", "masked-token"), ones.tril())
    assert torch.equal(reach("bidirectional", "masked-token", "encoder"), ones)
    assert torch.equal(reach("prefix", "next-token"), ones.tril() | half)
    assert torch.equal(reach("none", "next-token"), torch.eye(12, dtype=torch.bool))


def test_no_cell_is_asked_for_a_token_that_it_sees():
    """With the answer in view the loss would depend on the label's own input through attention."""
    for attention in ("causal", "prefix", "none"):
        seen = reach(attention, "next-token")
        model = build("twin", "decoder", SHAPE, seed=0, attention=attention)
        logits = torch.zeros(1, 12, 60)
        places = torch.arange(12)[None]
        _, labels = model.asked(logits, places, model.prefix(torch.ones(1, 12, dtype=torch.long)))
        asked = labels[0][labels[0] != IGNORED].tolist()
        assert asked == list(range(6 if attention == "prefix" else 1, 12))
        assert not any(seen[place - 1, place] for place in asked)


def test_a_prefix_is_half_of_the_tokens_without_padding():
    model = build("twin", "decoder", SHAPE, seed=0, attention="prefix")
    mask = torch.tensor([[1] * 12, [1] * 5 + [0] * 7])
    assert model.prefix(mask).sum(1).tolist() == [6, 2]


def test_cells_begin_with_the_weights_of_their_control_and_are_kept_with_the_model(tmp_path):
    control = build("twin", "decoder", SHAPE, seed=3)
    cell = build("twin", "decoder", SHAPE, seed=3, attention="none", objective="masked-token")
    assert all(torch.equal(a, b) for a, b in zip(control.parameters(), cell.parameters(), strict=True))
    cell.save_pretrained(tmp_path)
    again = type(cell).from_pretrained(tmp_path)
    assert (again.attention, again.shifted) == ("none", False)
    with pytest.raises(ValueError, match="can be chosen for twins"):
        build("neox-bert", "decoder", SHAPE, seed=0, attention="prefix")


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.5])
def test_the_synthetic_language_realises_its_exponent_within_005(exponent):
    texts, _ = zipf.load(str(exponent), documents=12, seed=0)
    assert zipf.exponent_of(texts) == pytest.approx(exponent, abs=0.05)


@pytest.fixture(scope="module")
def data():
    texts, about = zipf.load("1", documents=40, seed=0)
    return prepare(Corpus("zipf:1", texts, about=about), length=32, vocabulary=600)


def test_words_of_what_was_trained_on_have_the_exponent(data):
    lessons = ArmDataset(data, "decoder", samples=600, seed=0, mask_rate=0.15)
    assert words_exponent(data, lessons.came(), seed=0) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("alpha", [0.25, 0.5])
def test_masked_tokens_and_weighted_labels_realise_the_exponent_within_005(data, alpha):
    counts = torch.from_numpy(data.counts())
    lessons = ArmDataset(data, "encoder", samples=1500, seed=0, mask_rate=0.15)
    lessons.rates = masking_rates(counts, alpha, rate=0.15).values.numpy()
    labels = torch.cat([lessons[k]["labels"] for k in range(1500)])
    made = torch.bincount(labels[labels != IGNORED], minlength=len(counts)).numpy()
    assert drawn_exponent(data.counts(), made) == pytest.approx(1 - alpha, abs=0.05)
    weighed = lessons.counts() * frequency_weights(counts, alpha).values.numpy()
    assert drawn_exponent(data.counts(), weighed) == pytest.approx(1 - alpha, abs=0.05)


def test_documents_are_drawn_by_their_chances_and_flatten_the_law_as_far_as_they_can():
    rng = np.random.default_rng(0)
    common = [" ".join(rng.choice(["the", "and", "of"], 60)) for _ in range(30)]
    rare = [" ".join(rng.choice([f"word{k}" for k in range(40)], 60)) for _ in range(6)]
    data = prepare(Corpus("two kinds", common + rare), length=16, vocabulary=400)
    counts, drawn = data.counts(), []
    for alpha in (0.0, 1.0):
        lessons = ArmDataset(data, "decoder", samples=2000, seed=1, mask_rate=0.15)
        lessons.chances = sequence_chances(data, alpha)
        places = np.bincount([lessons.place(k) for k in range(2000)], minlength=len(data.train.ids)) / 2000
        assert np.abs(places - lessons.chances / lessons.chances.sum()).max() < 0.02
        drawn.append(drawn_exponent(counts, lessons.counts()))
    assert drawn[0] == pytest.approx(1.0, abs=0.1)
    assert drawn[1] < drawn[0] - 0.1


def test_held_out_loss_is_that_of_the_model_and_parts_by_frequency(data):
    for role, attention in (("decoder", None), ("encoder", None), ("decoder", "prefix")):
        shape = ModelShape(2, 16, 2, data.vocabulary, 32, data.pad_id)
        model = build("twin", role, shape, seed=0, attention=attention)
        lessons = TrainingDataset(data, role, samples=8, seed=0, mask_rate=0.15, held=True)
        batch = collated([lessons[k] for k in range(8)])
        rows = held_out_rows(model, data, iter([batch]), {"step": 0})
        whole = next(r for r in rows if r["measure"] == "loss")
        with torch.no_grad():
            assert whole["value"] == pytest.approx(float(model.eval()(**batch).loss), rel=1e-5)
        bins = [r for r in rows if r["measure"] == "bin_loss"]
        assert {r["subset"] for r in bins} <= {bin_subset("target", "tokens", k) for k in range(1, 6)}
        assert len(bins) >= 4
        assert sum(r["n"] for r in bins) <= whole["n"]
        counted = sum(r["n"] * r["value"] for r in bins) / sum(r["n"] for r in bins)
        assert counted == pytest.approx(whole["value"], rel=0.05)
