"""Clouds to compare with: what they keep of the cloud given, what they break, and that they are right at small N."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from anisoscope import levina_bickel, neighbours, two_nn
from anisoscope.geometry.cloud_parts import Material
from anisoscope.geometry.controls import Elliptical, elliptical_like, gaussian_like
from anisoscope.geometry.measure_registry import methods, register_measure, unregister_measure
from anisoscope.geometry.neighbours import neighbours_of_first
from anisoscope.geometry.results import Estimate
from anisoscope.study.measure.measure_study import measure_cloud
from anisoscope.testing import gaussian, lattice, sphere, with_duplicates

SHAPES = [(400, 5), (40, 30), (12, 40), (3, 2), (4, 9)]


def skewed(n, width, seed=0):
    """Nothing of a Gaussian: exponential coordinates of unequal size, mixed."""
    rng = np.random.default_rng(seed)
    x = rng.exponential(size=(n, width)) * np.linspace(3, 0.2, width)
    return torch.from_numpy(x @ np.linalg.qr(rng.normal(size=(width, width)))[0] + 7)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_gaussian_control_has_exactly_the_mean_and_the_covariance(shape):
    x = skewed(*shape)
    found = gaussian_like(x)
    assert found.shape == x.shape
    torch.testing.assert_close(found.mean(0), x.mean(0), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.T.cov(), x.T.cov(), rtol=0, atol=1e-9 * float(x.T.cov().norm()))
    assert float((found - x).abs().max()) > 0.1
    assert torch.equal(found, gaussian_like(x))
    assert not torch.equal(found, gaussian_like(x, seed=1))


def test_it_is_gaussian():
    x = skewed(4000, 5)
    whitened = (gaussian_like(x) - x.mean(0)) @ torch.linalg.inv(torch.linalg.cholesky(x.T.cov())).T
    for column in whitened.T:
        assert stats.kstest(column.numpy(), "norm").pvalue > 1e-3
    assert stats.kstest(whitened.square().sum(1).numpy(), stats.chi2(5).cdf).pvalue > 1e-3
    assert stats.kstest((skewed(4000, 5) - x.mean(0))[:, 0].numpy() / float(x[:, 0].std()), "norm").pvalue < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("like", [gaussian_like, elliptical_like])
def test_dtype_is_kept_and_low_rank_stays_low_rank(like, dtype):
    x = torch.zeros(200, 20, dtype=dtype)
    x[:, :3] = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = like(x)
    assert found.dtype == dtype
    assert float(found[:, 3:].abs().max()) <= 1e-6
    assert float(found[:, :3].std()) == pytest.approx(float(x[:, :3].float().std()), rel=0.05)
    flat = like(torch.full((5, 2), 3.0))
    assert torch.equal(flat, torch.full((5, 2), 3.0))


@pytest.mark.parametrize("scale", [1e-200, 1e-20, 1e150])
@pytest.mark.parametrize("like", [gaussian_like, elliptical_like])
def test_scale_changes_nothing(like, scale):
    x = skewed(60, 4)
    found, expected = like(x * scale) / scale, like(x)
    assert bool(torch.isfinite(found).all())
    torch.testing.assert_close(found.T.cov(), expected.T.cov(), rtol=0, atol=1e-6)
    torch.testing.assert_close(found.mean(0), expected.mean(0), rtol=0, atol=1e-6)


def test_a_cloud_drawn_from_the_same_seed_is_not_its_own_control():
    x = torch.randn(500, 3, generator=torch.Generator().manual_seed(0))
    assert float((gaussian_like(x, seed=0) - x).abs().max()) > 0.5


def student(n, width, degrees, seed):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, width)) * np.arange(1, width + 1) ** -0.5
    return torch.from_numpy(z / np.sqrt(rng.chisquare(degrees, (n, 1)) / degrees))


@pytest.mark.parametrize(("n", "width"), [(2000, 5), (500, 100), (120, 200)])
def test_radii_are_those_that_the_rows_were_made_with(n, width):
    """Rows scaled one by one by known factors of 1 to 100: each radius follows, whatever the others are."""
    rng = np.random.default_rng(3)
    z = rng.normal(size=(n, width))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    factors = np.exp(rng.uniform(0, math.log(100), n))
    law = Elliptical.of(torch.from_numpy(factors[:, None] * z))
    error = np.log(law.radius.numpy() / factors)
    assert np.std(error) < 0.15
    assert np.corrcoef(np.log(law.radius.numpy()), np.log(factors))[0, 1] > 0.98


def test_a_row_made_larger_moves_its_own_radius_alone():
    x = student(300, 6, 5, seed=0)
    far = x.clone()
    far[0] = Elliptical.of(x).centre + 1e4 * (x[0] - Elliptical.of(x).centre)
    before, after = Elliptical.of(x).radius, Elliptical.of(far).radius
    before, after = (r / r[1:].median() for r in (before, after))
    assert float(after[0] / before[0]) == pytest.approx(1e4, rel=0.05)
    torch.testing.assert_close(after[1:], before[1:], rtol=0.02, atol=0)


@pytest.mark.parametrize(("n", "width"), [(1500, 8), (300, 100)])
def test_an_elliptical_control_keeps_covariance_and_radial_law(n, width):
    ratios, kurtosis = [], []
    clouds = [student(n, width, 5, seed) for seed in range(12)]
    for seed, x in enumerate(clouds):
        found = elliptical_like(x, seed=seed)
        ratios.append(found.T.cov().diagonal() / x.T.cov().diagonal())
        norms = [(y - y.mean(0)).square().sum(1) for y in (found, x)]
        kurtosis.append([float(r.square().mean() / r.mean() ** 2) for r in norms])
    assert float(torch.stack(ratios).mean()) == pytest.approx(1, abs=0.05)
    kept, given = np.mean(kurtosis, 0)
    assert kept == pytest.approx(given, rel=0.15)
    x = clouds[-1]
    norms = (y := gaussian_like(x) - x.mean(0)).square().sum(1)
    assert y.shape == x.shape
    assert given > 1.3 * float(norms.square().mean() / norms.mean() ** 2)  # a Gaussian loses the tail


def test_an_elliptical_control_has_no_other_structure():
    """Two clouds far apart, of one covariance each: the control has no gap between them."""
    x = gaussian(600, [1.0] * 4)
    x[:300, 0] += 12
    middle = float(x[:, 0].mean())
    assert int(((x[:, 0] - middle).abs() < 2).sum()) == 0
    assert int(((elliptical_like(x)[:, 0] - middle).abs() < 2).sum()) > 50


def dimensions(x, **options):
    material = Material(sample=lambda: x, k=64, **options)
    return {
        (method.name, variant): estimate
        for method in methods()
        if method.needs == "neighbours"
        for variant, estimate in method.estimates(material)
    }


def test_every_dimension_has_the_same_estimate_on_the_gaussian_control_beside_it():
    x = skewed(300, 6)
    control = neighbours(gaussian_like(x, seed=5), 64)
    found = dimensions(x, seed=5)
    assert found["two_nn", "fit"].floor == float(two_nn(control))
    assert found["two_nn", "mle"].floor == float(two_nn(control, variant="mle"))
    assert found["levina_bickel", "k=20"].floor == float(levina_bickel(control))
    assert {variant for name, variant in found if name == "gride"} == {f"n={2**i}" for i in range(6)}
    assert all(one.floor > 0 for one in found.values())
    assert found["two_nn", "fit"].value == float(two_nn(x))


def test_the_control_tells_bias_from_structure():
    """Dimension 40 reads 28, and so does its control; a 2-sphere reads 2, and its control, a Gaussian in R³, 3."""
    full = dimensions(gaussian(1200, [1.0] * 40))
    curved = dimensions(sphere(1200, dim=2, width=10))
    for key in (("two_nn", "fit"), ("levina_bickel", "k=20"), ("gride", "n=1")):
        assert full[key].value < 33
        assert full[key].value == pytest.approx(full[key].floor, rel=0.12)
        assert curved[key].value < 0.85 * curved[key].floor
        assert curved[key].floor == pytest.approx(3, rel=0.12)


def test_gaussian_clouds_differ_from_their_controls_by_the_sampling_error_alone():
    """Also where N is not much larger than D: a control drawn from the covariance would be too uneven there."""
    gaps = []
    for seed in range(40):
        x = gaussian(120, np.linspace(3, 0.1, 40).tolist(), seed=seed)
        found = dimensions(x, seed=seed)["levina_bickel", "k=20"]
        gaps.append(math.log(found.value / found.floor))
    assert abs(np.mean(gaps)) < 3 * np.std(gaps, ddof=1) / math.sqrt(len(gaps))
    assert abs(np.mean(gaps)) < 0.02


def test_the_control_has_as_many_rows_as_there_are_distinct_ones():
    x = with_duplicates(gaussian(400, [1.0] * 5), 0.5)
    material = Material(sample=lambda: x, k=2)
    assert material.neighbours.n == material.gaussian_neighbours.n == 200
    found = dimensions(x)["two_nn", "fit"]
    assert found.floor == float(two_nn(gaussian_like(x[:200])))


def test_rows_in_half_precision_have_a_control_that_is_not_rounded_to_it():
    x = gaussian(3000, [1.0, 1.0]).bfloat16()
    for (name, _), found in dimensions(x).items():
        if not math.isnan(found.value):
            assert found.floor == pytest.approx(2, rel=0.25), name
    control = Material(sample=lambda: x, k=20).gaussian_neighbours
    assert bool((control.distances > 0).all())


@pytest.mark.parametrize(
    "x", [lattice(6, dim=3), torch.full((10, 3), 2.5), with_duplicates(skewed(200, 4), 0.3, noise=1e-8)]
)
def test_where_there_is_no_dimension_there_is_no_control(x):
    for found in dimensions(x).values():
        assert math.isnan(found.value)
        assert found.floor is None


def test_a_measure_from_outside_keeps_its_own_floor():
    seen = []

    @register_measure("nearest", needs="neighbours", k=3)
    def nearest(found):
        seen.append(found)
        return Estimate(value=float(found.distances[:, 0].mean()), n=found.n, floor=0.25)

    try:
        measured = measure_cloud([skewed(100, 3)])
    finally:
        unregister_measure("nearest")
    (one,) = [r for r in measured.table if r.measure == "nearest"]
    assert one.floor == 0.25
    assert len(seen) == 1
    assert all(r.floor > 0 for r in measured.table if r.measure in ("two_nn", "levina_bickel", "gride"))


def test_some_points_of_a_control_have_their_neighbours_among_all_of_its_rows():
    """Of 1 500 rows the first 1 024 are judged: exact distances, and the dimension of all but for sampling."""
    x = gaussian(1500, np.linspace(2, 0.2, 30).tolist())
    every, some = neighbours(x, 12), neighbours_of_first(x, 1024, 12)
    np.testing.assert_allclose(some.distances, every.distances[:1024], rtol=1e-12)
    assert float(two_nn(some)) == pytest.approx(float(two_nn(every)), rel=0.06)
    assert some.n == 1024
    assert bool((some.indices < 1024).all())
    inside = every.indices[:1024] < 1024
    assert torch.equal(some.indices[inside], every.indices[:1024][inside])
