"""The bell by its rule: planted shapes are named, and noise is called flat as often as the interval promises."""

import numpy as np
import pytest

from anisoscope.study.profile.profile_shape import shape_of

LAYERS = 9
BELL = np.sin(np.linspace(0, np.pi, LAYERS)) * 4 + 1
RISE = np.linspace(1, 5, LAYERS)


def batches(profile, noise, count=4, seed=0):
    return profile + noise * np.random.default_rng(seed).standard_normal((count, len(profile)))


@pytest.mark.parametrize(
    ("profile", "word"),
    [(BELL, "bell"), (-BELL, "valley"), (RISE, "rising"), (RISE[::-1], "falling"), (np.ones(LAYERS), "flat")],
)
def test_planted_shapes_are_named(profile, word):
    found = shape_of(batches(profile, 0.02))
    assert found.word == word
    if word in ("bell", "valley"):
        assert found.peak == 4
        assert found.low < found.prominence < found.high
        assert found.prominence == pytest.approx(4 if word == "bell" else -4, abs=0.1)


def test_the_range_of_the_peak_is_over_batches():
    values = np.array([[0.0, 5.0, 4.9, 0.0], [0.0, 4.9, 5.2, 0.0], [0.0, 5.0, 4.8, 0.0]])
    found = shape_of(values, [3, 5, 7, 9])
    assert found.peak in (5, 7)
    assert found.layers == (5, 7)


def test_noise_is_rarely_a_bell():
    # A peak over nine layers is the largest of nine, so the mean prominence of noise is above 0: size decides as well.
    words = [shape_of(batches(np.full(LAYERS, 10.0), 0.1, seed=seed)).word for seed in range(300)]
    assert not {"bell", "valley"} & set(words)
    assert words.count("flat") > 290


def test_a_single_batch_decides_nothing():
    assert shape_of(batches(BELL, 0.0, count=1)).word == "cannot tell"


def test_layers_without_a_number_are_left_out():
    values = batches(BELL, 0.01)
    values[1, 0] = np.nan
    found = shape_of(values)
    assert found.word == "bell"
    assert found.peak == 4
    assert shape_of(values[:, :2]) is None
