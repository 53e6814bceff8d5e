"""Tangency against point-by-point tangents and an elliptical law in plain coordinates."""

import math

import numpy as np
import pytest
import torch

from anisoscope.geometry.controls import Elliptical, elliptical_like
from anisoscope.geometry.tangency import _seeds, tangency
from anisoscope.testing import elliptical, parallel_sheets
from reference import slow_tangency as slow


def test_the_share_is_that_of_a_full_decomposition_at_every_point():
    x, proxy = parallel_sheets(160, width=9, sheets=2, seed=4)
    points = list(range(0, 160, 9))
    found = tangency(x, proxy, dim=2, points=points, draws=3).share
    expected = slow.share(x.numpy(), points, proxy.numpy(), 2, found.neighbours)
    assert found.value == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("n", "width", "radii"), [(170, 5, "t3"), (200, 6, "lognormal"), (60, 12, "t4")])
def test_centre_shape_and_radii_are_those_of_the_fixed_point(n, width, radii):
    """More rows than 16 a direction, where each has its own variance, and fewer, where most are drawn together."""
    x = elliptical(n, width, radii=radii, seed=n) + 5
    found, (centre, radius, shape, _) = Elliptical.of(x), slow.elliptical(x.numpy())
    np.testing.assert_allclose(found.centre, centre, rtol=1e-6)
    ratio = found.radius.numpy() / radius  # radii have no unit
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-6)
    own = (found.frame * found.spread).numpy()
    np.testing.assert_allclose(own @ own.T / np.trace(own @ own.T), shape / np.trace(shape), atol=1e-8)


def test_draws_have_the_law_of_rows_drawn_in_plain_coordinates():
    """Radii are those given, and coordinates of both kinds of draws have one spread and one kurtosis."""
    x = elliptical(90, 4, radii="t4", seed=1) - 2
    law, rng = slow.elliptical(x.numpy()), np.random.default_rng(0)
    ours = np.stack([elliptical_like(x, seed=seed).numpy() for seed in range(150)])
    theirs = np.stack([slow.draw(law, rng) for _ in range(150)])
    np.testing.assert_allclose(ours.mean((0, 1)), theirs.mean((0, 1)), atol=0.1 * float(x.std()))
    first, second = ((part - law[0]) @ np.linalg.inv(np.linalg.cholesky(law[3])).T for part in (ours, theirs))
    np.testing.assert_allclose((first**2).sum(2), (second**2).sum(2), rtol=1e-4)
    for power in (2, 4):
        np.testing.assert_allclose((first**power).mean((0, 1)), (second**power).mean((0, 1)), rtol=0.15)


def test_control_and_p_are_those_of_slow_draws():
    """The test's own draws give its p; draws made the other way give the same mean share."""
    x = elliptical(120, 6, radii="t3", seed=5)
    proxy, points = torch.eye(6, 2, dtype=torch.float64), list(range(0, 120, 8))
    found = tangency(x, proxy, dim=2, points=points, draws=9, seed=3)
    k, basis = found.share.neighbours, proxy.numpy()
    law = Elliptical.of(x)
    own = [slow.share(law.draw(seed).numpy(), points, basis, 2, k) for seed in _seeds(3, 9)]
    p, low, high = slow.p_and_interval(found.share.value, np.array(own))
    assert found.control.value == pytest.approx(np.mean(own), abs=0.01)  # six steps of iteration, not a full SVD
    assert found.p == pytest.approx(p, abs=0.1)
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.03)
    rng, slow_law = np.random.default_rng(2), slow.elliptical(x.numpy())
    theirs = [slow.share(slow.draw(slow_law, rng), points, basis, 2, k) for _ in range(30)]
    error = math.sqrt(np.var(own, ddof=1) / 9 + np.var(theirs, ddof=1) / 30)
    assert found.control.value == pytest.approx(np.mean(theirs), abs=4 * error)
