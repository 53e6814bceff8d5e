"""The test of tangency: seldom positive where there is no manifold, whatever the tails, and positive where there is."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from anisoscope import fit_subspace, tangent_overlap
from anisoscope.geometry.controls import gaussian_like
from anisoscope.geometry.tangency import tangency
from anisoscope.geometry.tangents import plain_share, spanned
from anisoscope.testing import gaussian, plane, rotation, sphere, with_duplicates
from geometry.manifolds import swiss_roll, turned

RADII = {
    "gaussian": lambda rng, n: np.ones(n),
    "t4": lambda rng, n: 1 / np.sqrt(rng.chisquare(4, n) / 4),
    "t3": lambda rng, n: 1 / np.sqrt(rng.chisquare(3, n) / 3),
    "lognormal": lambda rng, n: np.exp(0.7 * rng.normal(size=n)),
}


def elliptical(law, n, width, seed):
    """Rows of an elliptical law with a random anisotropic covariance, and a proxy fitted on other rows of the law."""
    rng = np.random.default_rng(seed)
    root = np.arange(1, width + 1)[:, None] ** -0.5 * np.linalg.qr(rng.normal(size=(width, width)))[0]
    x, other = (
        torch.from_numpy(RADII[law](rng, n)[:, None] * (rng.normal(size=(n, width)) @ root) + 3.0) for _ in range(2)
    )
    return x, fit_subspace(other, method="pca", rank=max(2, width // 4))


@pytest.mark.parametrize(("n", "width", "trials"), [(250, 8, 60), (120, 150, 24)])
@pytest.mark.parametrize("law", RADII)
def test_an_elliptical_cloud_is_seldom_called_tangent(law, n, width, trials):
    """5 % two-sided is the level. More rows than directions, and fewer."""
    found = []
    for seed in range(trials):
        x, proxy = elliptical(law, n, width, seed)
        found.append(tangency(x, proxy, dim=3, points=range(0, n, 8), draws=9, seed=seed))
    rejected = sum(one.p <= 0.05 for one in found)
    assert rejected <= stats.binom.ppf(0.999, trials, 0.05)
    z = [one.value / one.se for one in found]
    assert abs(np.mean(z)) < 4 * np.std(z, ddof=1) / math.sqrt(trials) + 0.1
    assert any(one.p < 0.3 for one in found)  # the canary: p moves at all


def test_heavy_tails_alone_exceed_a_gaussian_control():
    """What the radii are matched for: most t4 clouds lie above their Gaussian control, by its spread."""
    above = 0
    for seed in range(12):
        x, proxy = elliptical("t4", 600, 24, seed)
        options = {"dim": 5, "points": range(0, 600, 20)}
        plain = [float(tangent_overlap(gaussian_like(x, seed=k), proxy, **options)) for k in range(9)]
        above += float(tangent_overlap(x, proxy, **options)) > np.mean(plain) + 2 * np.std(plain, ddof=1)
    assert above >= 6


def parallel_sheets(seed, noise=0.02):
    """Six flat sheets along the same two directions, apart in five others; the proxy holds those two."""
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    along = 2 * torch.rand(500, 2, generator=generator, dtype=torch.float64)
    where = offsets[torch.randint(0, 6, (500,), generator=generator)]
    frame = rotation(16, seed=seed)[:, :7]
    x = torch.cat([along, where], 1) @ frame.T
    return x + noise * torch.randn(x.shape, generator=generator, dtype=torch.float64), frame[:, :2]


def rolled(seed):
    """A swiss roll with some noise: its axis lies in every tangent plane."""
    x = turned(swiss_roll(900, seed), 12, seed=seed, noise=0.02).x
    return x, rotation(12, seed=seed)[:, 1:2]


@pytest.mark.parametrize("make", [parallel_sheets, rolled])
def test_planted_tangents_are_found(make):
    for seed in range(5):
        x, proxy = make(seed)
        found = tangency(x, proxy, dim=2, points=range(0, len(x), 15), draws=9, seed=seed)
        assert found.p < 0.05
        assert found.low > 0
        assert found.value == pytest.approx(found.share.value - found.control.value)


def test_the_axis_of_a_roll_is_half_of_every_tangent_plane_and_a_third_of_its_control():
    x, proxy = rolled(1)
    found = tangency(x, proxy, dim=2, points=range(0, 900, 10))
    assert found.share.value == pytest.approx(0.5, abs=0.05)
    assert found.control.value == pytest.approx(1 / 3, abs=0.1)


def test_directions_across_the_sheets_are_less_tangent_than_in_a_control():
    x, proxy = parallel_sheets(0)
    across = torch.linalg.qr(torch.cat([proxy, torch.eye(16, dtype=torch.float64)], 1)).Q[:, 2:8]
    found = tangency(x, across, dim=2, points=range(0, 500, 10))
    assert found.p < 0.05
    assert found.high < 0


def test_what_is_elliptical_itself_is_not_told_from_its_control():
    """A plane and a sphere hold everything inside their span, and so do clouds of the same covariance and radii."""
    for x, rank in ((plane(300, dim=2, width=6), 2), (sphere(300, dim=2, width=6), 3)):
        found = tangency(x, fit_subspace(x, method="pca", rank=rank), dim=2, points=range(40))
        assert found.share.value == pytest.approx(1, abs=1e-6)
        assert found.p == pytest.approx(1)


def test_the_share_of_a_control_is_the_share_of_the_measure():
    x, proxy = elliptical("t4", 200, 12, 3)
    points = torch.arange(0, 200, 7)
    found = tangent_overlap(x, proxy, dim=3, points=points)
    plain = plain_share(x, points, spanned(proxy, x), dim=3, neighbours=found.neighbours)
    assert plain == pytest.approx(found.value, rel=1e-12)


def test_seed_scale_rotation_and_copies():
    x, proxy = elliptical("t4", 200, 6, 1)
    options = {"dim": 2, "points": range(0, 100, 5), "draws": 5}
    found = tangency(x, proxy, seed=4, **options)
    again = tangency(x, proxy, seed=4, **options)
    assert (found.value, found.p) == (again.value, again.p)
    assert tangency(x, proxy, seed=5, **options).control.value != found.control.value
    larger = tangency(2.0**40 * x, proxy, seed=4, **options)
    assert larger.value == pytest.approx(found.value, rel=1e-6, abs=1e-9)
    copied = tangency(torch.cat([x, x[:50]]), proxy, seed=4, **options)  # exact copies go before anything is drawn
    assert copied.value == pytest.approx(found.value, rel=1e-6, abs=1e-9)
    near = tangency(with_duplicates(x, 0.4, noise=1e-8), proxy, dim=2)
    assert math.isnan(near.value)
    assert "near copies" in near.note
    assert near.p is None
    with pytest.raises(ValueError, match="draws must be at least 3"):
        tangency(x, proxy, dim=2, draws=2)


def test_float32_rows_on_an_offset_are_judged_alike():
    x = gaussian(300, [4.0, 2.0, 1.0, 0.5, 0.2], mean=20.0)
    proxy, options = torch.eye(5)[:, :2], {"dim": 2, "points": range(0, 300, 10), "draws": 9}
    exact, short = tangency(x, proxy, **options), tangency(x.float(), proxy, **options)
    assert short.value == pytest.approx(exact.value, abs=1e-3)
    assert short.p == pytest.approx(exact.p, abs=0.02)
