"""Other token laws: what is asked for, what is realised, and that the scale of gradients stays."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anisoscope.intervene.frequency_weights import document_rates, frequency_weights, masking_rates, weighted_loss

ZIPF = torch.tensor([round(1e6 / rank) for rank in range(1, 501)])


@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5, 1.0, -0.25])
def test_the_realised_exponent_is_the_one_asked_for_where_nothing_is_clipped(alpha):
    law = frequency_weights(ZIPF, alpha, most=1e6)
    assert law.asked == 1 - alpha
    assert law.realised == pytest.approx(1 - alpha, abs=1e-9)
    assert law.at_limit == 0


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=40).filter(any), st.floats(-1, 2), st.floats(1, 20))
def test_weights_keep_the_mean_and_their_limit(counts, alpha, most):
    counts = torch.tensor(counts)
    law = frequency_weights(counts, alpha, most=most)
    seen = counts > 0
    assert float((law.values * counts).sum()) == pytest.approx(float(counts.sum()))
    assert float(law.values[seen].max()) <= most * (1 + 1e-9)
    order = counts[seen].argsort()
    steps = law.values[seen][order].diff()
    assert bool((steps * (-1 if alpha >= 0 else 1) >= -1e-9).all())


def test_a_limit_shows_in_what_is_realised():
    law = frequency_weights(ZIPF, 1.0, most=2.0)
    assert 0.1 < law.realised < 0.9
    assert law.at_limit > 0


def test_masking_rates_are_probabilities_with_the_rate_asked_for():
    law = masking_rates(ZIPF, 0.5, rate=0.15)
    assert float(law.values.max()) <= 1
    assert float((law.values * ZIPF).sum() / ZIPF.sum()) == pytest.approx(0.15)
    drawn = torch.rand(500, 200, generator=torch.Generator().manual_seed(0)) < law.values[:, None]
    assert float(drawn.float().mean(1)[-1]) > float(drawn.float().mean(1)[0])


def test_alpha_0_is_the_plain_loss():
    logits = torch.randn(2, 5, 500, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(500, (2, 5), generator=torch.Generator().manual_seed(1))
    labels[0, 0] = -100
    plain = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    assert float(weighted_loss(logits, labels, frequency_weights(ZIPF, 0.0).values)) == pytest.approx(float(plain))


def test_weighted_loss_weighs_each_label_by_its_type():
    logits = torch.zeros(1, 2, 3)
    weights = torch.tensor([1.0, 5.0, 0.0])
    assert float(weighted_loss(logits, torch.tensor([[0, 1]]), weights)) == pytest.approx(3 * math.log(3))
    assert float(weighted_loss(logits, torch.tensor([[2, -100]]), weights)) == 0.0


def test_documents_are_drawn_towards_a_flatter_law_that_is_measured():
    rng = np.random.default_rng(0)
    laws = [np.arange(1, 201) ** -exponent for exponent in (0.4, 1.4)]
    documents = [rng.choice(200, size=100, p=laws[k % 2] / laws[k % 2].sum()) for k in range(300)]
    counts = torch.from_numpy(np.bincount(np.concatenate(documents), minlength=200))
    plain, same = document_rates(documents, counts, 0.0)
    assert np.allclose(plain, 1 / 300)
    assert same == pytest.approx(1.0)
    rates, realised = document_rates(documents, counts, 1.0)
    drawn = np.bincount(np.concatenate([documents[k] for k in rng.choice(300, 20_000, p=rates)]), minlength=200)
    seen = counts.numpy() > 0
    fitted = np.polyfit(np.log(counts.numpy()[seen]), np.log(np.maximum(drawn[seen], 0.5)), 1)[0]
    assert realised < 0.97
    assert fitted == pytest.approx(realised, abs=0.02)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: frequency_weights(torch.zeros(3), 0.5), "some above 0"),
        (lambda: frequency_weights(ZIPF, float("nan")), "alpha must lie"),
        (lambda: frequency_weights(ZIPF, 0.5, most=0.5), "at least 1"),
        (lambda: masking_rates(ZIPF, 0.5, rate=1.0), "between 0 and 1"),
        (lambda: document_rates([np.array([], int)], ZIPF, 0.5), "must have a token"),
    ],
)
def test_wrong_use_is_told(act, message):
    with pytest.raises(ValueError, match=message):
        act()
