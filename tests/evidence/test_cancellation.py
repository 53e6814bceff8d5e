"""The constant of non-cancellation: closed forms, its noise, its interval, and the theorem that it makes true."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anisoscope.evidence.cancellation import gradient_ratio, non_cancellation
from anisoscope.testing import rotation


def moved(parts, shift):
    return parts + np.array([shift, 0])


def test_equal_opposite_and_orthogonal_parts_have_their_closed_forms():
    assert float(non_cancellation(np.ones((32, 4)))) == pytest.approx(1)
    assert float(non_cancellation(np.array([[1.0, 2.0], [-1.0, -2.0]]))) == 0
    assert float(non_cancellation(torch.eye(16))) == pytest.approx(1 / 4)


def test_the_floor_is_one_over_root_n_and_the_draws_agree_with_it():
    parts = np.where(np.random.default_rng(0).random((400, 1)) < 0.5, 1.0, -1.0)
    found = non_cancellation(parts)
    assert found.floor == pytest.approx(1 / 20)
    assert found.floor_high == pytest.approx(2.24 / 20, rel=0.15)  # the 97.5 % quantile of |N(0, 1)|


def test_tokens_of_a_sequence_are_one_unit():
    """Ten copies of a token are no more evidence than one."""
    one = np.random.default_rng(1).standard_normal((24, 3)) + 0.5
    alone = non_cancellation(one)
    copied = non_cancellation(np.repeat(one, 10, 0), np.repeat(np.arange(24), 10))
    for name in ("value", "low", "high", "floor", "floor_high", "population"):
        assert getattr(copied, name) == pytest.approx(getattr(alone, name))
    assert copied.units == 24
    assert copied.n == 240


def test_random_signs_are_hardly_ever_clear():
    clear = 0
    for seed in range(300):
        rng = np.random.default_rng((2, seed))
        parts = rng.standard_normal((24, 3)) * rng.exponential(size=(24, 1))
        clear += non_cancellation(parts, draws=199, seed=seed).clear
    assert clear <= 6  # nominally below 2.5 % of 300


@pytest.mark.parametrize("shift", [0.0, 0.3, 2.0])
def test_the_interval_covers_the_constant_of_the_population(shift):
    rng = np.random.default_rng(3)
    many = moved(rng.standard_normal((400_000, 2)), shift)
    truth = shift / np.linalg.norm(many, axis=1).mean()
    covered = 0
    for seed in range(200):
        found = non_cancellation(moved(np.random.default_rng((4, seed)).standard_normal((40, 2)), shift), draws=9)
        covered += found.low <= truth <= found.high
    assert covered >= 180


def test_a_population_that_does_not_cancel_is_clear():
    found = non_cancellation(moved(np.random.default_rng(5).standard_normal((64, 2)), 2))
    assert found.clear
    assert found.p < 0.01
    assert found.population == pytest.approx(found.value, rel=0.02)


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 4), st.floats(0, 3))
def test_the_ratio_never_exceeds_its_bound_and_is_its_factors(seed, tangent, normal, shift):
    rng = np.random.default_rng(seed)
    t, n = rng.standard_normal((12, tangent)) + shift, rng.standard_normal((12, normal)) * rng.exponential()
    found = gradient_ratio(t, n, draws=9)
    assert found.ratio <= found.bound * (1 + 1e-9)
    assert found.ratio == pytest.approx(found.per_token * found.normal.value / found.tangent.value)


def test_the_bound_is_reached_and_without_gamma_it_is_broken():
    """The counter-example: x = (u, u²), a gradient of x for every token."""
    u = np.array([[0.1], [0.1], [-0.1]])
    found = gradient_ratio(u, u**2)
    assert found.tangent.value == pytest.approx(1 / 3)
    assert found.ratio == pytest.approx(found.bound)
    assert found.ratio > found.steepest
    balanced = gradient_ratio(np.array([[0.1], [-0.1]]), np.array([[0.01], [0.01]]))
    assert balanced.ratio == balanced.bound == math.inf


def test_scale_and_rotation_change_nothing():
    x = torch.randn(20, 5, generator=torch.Generator().manual_seed(6), dtype=torch.float64) + 0.3
    plain, turned = non_cancellation(x), non_cancellation(7 * x @ rotation(5, seed=7))
    for name in ("value", "low", "high", "floor", "floor_high", "p"):
        assert getattr(turned, name) == pytest.approx(getattr(plain, name))


def test_what_is_undefined_says_why():
    assert non_cancellation(np.zeros((5, 2))).note == "all parts are 0"
    assert non_cancellation(np.array([[math.inf, 1.0], [0.0, 1.0]])).note == "a part is not finite"
    few = non_cancellation(np.ones((3, 2)))
    assert few.low is None
    assert not few.clear
    assert math.isnan(non_cancellation(np.ones((1, 2))).population)


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match="one a token"):
        non_cancellation(np.ones(5))
    with pytest.raises(ValueError, match="one a token"):
        non_cancellation(np.ones((0, 5)))
    with pytest.raises(ValueError, match="a unit for every token"):
        non_cancellation(np.ones((5, 2)), np.arange(4))
    with pytest.raises(ValueError, match="same tokens"):
        gradient_ratio(np.ones((5, 2)), np.ones((4, 2)))
