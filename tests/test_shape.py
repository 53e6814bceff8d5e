"""The one bell rule: what it names, what it refuses, and how often it is wrong on noise."""

import math

import numpy as np
import pytest

from anisoscope.bell_rule import independent, name_shape


def word(values, error):
    return name_shape(values, independent([error] * len(values))).word


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 5, 1.2], "bell"),
        ([5, 1, 5.2], "valley"),
        ([1, 2, 3, 4], "rising"),
        ([4, 3, 2, 1], "falling"),
        ([1, 1.01, 1.0], "flat"),
        ([1, 9, 8.9], "rising"),
        ([10.0, 10.3, 10.0], "flat"),  # certain, and too small to matter
    ],
)
def test_shapes_by_name(values, expected):
    assert word(values, 0.01) == expected


def test_what_is_not_told_apart_is_not_flat():
    assert word([1, 5, 9], 10.0) == "cannot tell"
    assert word([1, math.nan, 2], 0.1) == "cannot tell"
    assert word([1, math.inf, 2], 0.1) == "cannot tell"


def test_without_errors_nothing_is_said():
    assert name_shape([1, 5, 1], lambda i, j: None).word == "cannot tell"
    assert name_shape([1, 5], lambda i, j: (0.1, math.inf)) is None


@pytest.mark.parametrize("layers", [3, 6, 12, 32])
@pytest.mark.parametrize("shared", [0.0, 0.9])
def test_noise_is_called_a_bell_or_a_valley_in_at_most_one_of_twenty(layers, shared):
    rng = np.random.default_rng(layers)
    named = 0
    for _ in range(1500):
        common = rng.standard_normal()
        z = math.sqrt(shared) * common + math.sqrt(1 - shared) * rng.standard_normal(layers)
        named += word((z - 3).tolist(), math.sqrt(1 - shared)) in ("bell", "valley")
    assert named <= (0.05 + 3 * math.sqrt(0.05 * 0.95 / 1500)) * 1500


def test_a_clear_bell_is_found_nearly_always():
    rng = np.random.default_rng(0)
    truth = np.exp(-((np.arange(12) - 6) ** 2) / 8) * 6
    found = [word((truth + rng.standard_normal(12)).tolist(), 1.0) for _ in range(200)]
    assert found.count("bell") > 180
