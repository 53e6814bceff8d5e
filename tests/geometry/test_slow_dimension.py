"""Intervals of dimensions, ties and the Gaussian control against loops over pairs of points."""

import math

import numpy as np
import pytest
import torch

from anisoscope import gride, levina_bickel, two_nn
from anisoscope.geometry.cloud_parts import Material
from anisoscope.geometry.measure_registry import methods
from anisoscope.testing import elliptical, lattice, plane
from reference import slow, slow_dimension


def some_rows(n, seed):
    return elliptical(n, 5, radii="lognormal", seed=seed)


@pytest.mark.parametrize("seed", [0, 1])
def test_two_nn_has_the_widened_gamma_interval(seed):
    x = some_rows(90, seed)
    found = two_nn(x, variant="mle")
    assert (found.value, found.low, found.high) == pytest.approx(slow_dimension.two_nn_interval(x.numpy()), rel=1e-6)


@pytest.mark.parametrize(("seed", "order"), [(0, 1), (0, 2), (1, 4), (2, 8)])
def test_gride_has_the_widened_interval_of_its_likelihood(seed, order):
    x = some_rows(90, seed)
    point = next(p for p in gride(x).points if p.order == order)
    expected = slow_dimension.gride_interval(x.numpy(), order)
    assert (point.value, point.low, point.high) == pytest.approx(expected, rel=1e-5)


def test_intervals_of_gride_hold_its_own_mean():
    """At scales where neighbourhoods overlap; plain likelihood intervals hold it in 0.6 to 0.85 of these clouds."""
    found = [gride(plane(150, dim=2, width=4, seed=seed)).points for seed in range(40)]
    for scale in (0, 2, 4):
        mean = np.mean([points[scale].value for points in found])
        assert sum(points[scale].low <= mean <= points[scale].high for points in found) >= 33


@pytest.mark.parametrize("steps", [3, 12, 40, 150, 100_000])
def test_ties_are_noticed_where_a_count_of_pairs_finds_them(steps):
    rng = np.random.default_rng(steps)
    x = np.unique(np.round(rng.random((150, 3)) * steps), axis=0)
    share, found = slow_dimension.tied(x), two_nn(torch.from_numpy(x))
    if share > 0.05:
        assert math.isnan(found.value)
        assert f"{share:.0%} of the points" in found.note or "equally far" in found.note
    else:
        assert found.note is None
        assert found.value == pytest.approx(slow.two_nn(x), rel=1e-9)


def test_some_of_a_lattice_is_still_one():
    x = lattice(8, dim=3)[torch.randperm(512, generator=torch.Generator().manual_seed(0))[:200]]
    share = slow_dimension.tied(x.numpy())
    assert share > 0.5
    for found in (two_nn(x), two_nn(x, variant="mle"), gride(x), levina_bickel(x)):
        assert f"{share:.0%}" in found.note


def test_the_floor_of_a_dimension_is_that_of_rows_turned_in_the_space_of_samples():
    """Rows mixed by explicit rotations of R^N have the law of the package's control: equal means over draws."""
    x = some_rows(60, 7)
    rng = np.random.default_rng(0)
    mixed = [slow_dimension.gaussian_of_equal_moments(x.numpy(), rng) for _ in range(80)]
    np.testing.assert_allclose(np.cov(mixed[0].T), np.cov(x.numpy().T), rtol=1e-9)
    names = {"two_nn": lambda y: slow.two_nn(y), "levina_bickel": lambda y: slow.levina_bickel(y, 20)}
    for method in methods():
        if method.name in names:
            floors = [
                float(next(iter(method.estimates(Material(sample=lambda: x, k=20, seed=seed), usual=True)))[1].floor)
                for seed in range(80)
            ]
            slow_floors = [names[method.name](y) for y in mixed]
            error = math.sqrt((np.var(floors) + np.var(slow_floors)) / 80)
            assert np.mean(floors) == pytest.approx(np.mean(slow_floors), abs=4 * error), method.name
