import math

import pytest
import torch
from scipy import stats

from anisoscope import Subspace, fit_subspace, tangent_overlap
from anisoscope.geometry.tangents import _haar_law
from anisoscope.testing import gaussian, plane, rotation, sphere, with_duplicates


def random_basis(width, rank, seed):
    return rotation(width, seed=seed)[:, :rank]


def test_a_plane_lies_in_its_own_proxy_and_in_no_other():
    x = plane(400, dim=2, width=6)
    proxy = fit_subspace(x, method="pca", rank=2)
    inside = tangent_overlap(x, proxy, dim=2)
    assert float(inside) == pytest.approx(1)
    assert inside.floor == pytest.approx(1 / 3)
    assert inside.p == pytest.approx(0, abs=1e-9)
    assert float(tangent_overlap(x, proxy.complement(), dim=2)) == pytest.approx(0, abs=1e-9)


def test_the_tangents_of_a_sphere_fill_two_thirds_of_any_plane():
    """Averaged over a sphere in R³ tangents favour no direction: rank 2 of 3 holds 2/3 of them and of the normals."""
    x = sphere(4000, dim=2, width=3)
    found = tangent_overlap(x, random_basis(3, 2, 1), dim=2)
    assert found.low <= 2 / 3 <= found.high
    assert found.normal is not None
    assert found.normal.low <= 2 / 3 <= found.normal.high
    assert found.n == 1024


def test_a_proxy_of_tangents_holds_less_of_the_normal_part():
    x = plane(2000, dim=2, width=10)
    noise = 0.01 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    found = tangent_overlap(x + noise, fit_subspace(x, method="pca", rank=2), dim=2, neighbours=100)
    assert found.value > 0.99
    assert found.normal is not None
    assert found.normal.high < 0.1


def test_a_matrix_and_its_subspace_give_one_answer():
    x = gaussian(500, [3.0, 2.0, 1.0, 1.0, 1.0])
    basis = random_basis(5, 2, 3)
    spanned = basis @ torch.tensor([[2.0, 1.0], [0.0, 0.5]], dtype=torch.float64)
    assert float(tangent_overlap(x, spanned, dim=2)) == pytest.approx(float(tangent_overlap(x, Subspace(basis), dim=2)))


def test_one_shared_line_has_the_exact_beta_law():
    axis = torch.zeros(7, 7, dtype=torch.float64)
    axis[0, 0] = 1.0
    law = _haar_law(axis, 3)
    exact = stats.beta(3 / 2, 4 / 2)
    for q in (0.025, 0.5, 0.975):
        assert law.ppf(q) == pytest.approx(exact.ppf(q), rel=1e-9)


def test_random_proxies_are_flagged_as_often_as_they_should_be():
    x = sphere(300, dim=2, width=12) * torch.linspace(3, 0.5, 12, dtype=torch.float64)
    found = [tangent_overlap(x, random_basis(12, 4, seed), dim=2, points=range(60)) for seed in range(100)]
    flagged = sum(one.p < 0.05 for one in found)
    assert flagged <= stats.binom.ppf(0.999, 100, 0.05)
    assert sum(one.value for one in found) / 100 == pytest.approx(4 / 12, abs=0.06)
    assert any(one.p < 0.2 for one in found)  # the canary: p moves at all


def test_tangents_turn_with_the_cloud():
    x = gaussian(400, [4.0, 3.0, 0.1, 0.1, 0.1])
    basis, turn = random_basis(5, 2, 3), rotation(5, seed=8)
    a, b = tangent_overlap(x, basis, dim=2), tangent_overlap(7 * x @ turn.T + 1, turn @ basis, dim=2)
    assert a.value == pytest.approx(b.value, rel=1e-6)
    assert a.low == pytest.approx(b.low, rel=1e-6)


def test_the_whole_space_holds_everything_and_has_no_law():
    found = tangent_overlap(gaussian(100, [1.0] * 4), torch.eye(4), dim=2)
    assert float(found) == pytest.approx(1)
    assert found.p is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_line_has_no_second_tangent(dtype):
    line = (torch.linspace(0, 1, 300, dtype=torch.float64)[:, None] * rotation(5)[:1] + 1.0).to(dtype)
    with pytest.raises(ValueError, match="spread in dim = 2"):
        tangent_overlap(line, torch.eye(5)[:, :2], dim=2)
    assert float(tangent_overlap(line, rotation(5)[:1].T, dim=1)) == pytest.approx(1)


@pytest.mark.parametrize("width", [3, 10, 300])
def test_tangents_of_noise_are_noted(width):
    generator = torch.Generator().manual_seed(0)
    u = torch.rand(400, 2, generator=generator, dtype=torch.float64)
    noise = 1e-3 * torch.randn(400, width, generator=generator, dtype=torch.float64)
    surface = u @ rotation(width)[:2] + noise
    line = u[:, :1] @ rotation(width)[:1] + noise
    proxy = torch.eye(width)[:, :2]
    assert "along 1 of 2 tangent directions" in str(tangent_overlap(line, proxy, dim=2, points=range(100)).note)
    assert tangent_overlap(surface, proxy, dim=2, points=range(100)).note is None
    assert tangent_overlap(line, proxy, dim=1, points=range(100)).note is None


def test_wrong_use_is_told():
    x = sphere(100, dim=2, width=5)
    with pytest.raises(ValueError, match="dim must lie"):
        tangent_overlap(x, torch.eye(5), dim=5)
    with pytest.raises(ValueError, match="columns of a matrix"):
        tangent_overlap(x, torch.eye(4), dim=2)
    with pytest.raises(ValueError, match="independent"):
        tangent_overlap(x, torch.ones(5, 2), dim=2)
    with pytest.raises(ValueError, match="at most as many"):
        tangent_overlap(x, torch.randn(5, 7, generator=torch.Generator().manual_seed(0)), dim=2)
    with pytest.raises(ValueError, match="neighbours must lie in 4…99"):
        tangent_overlap(x, torch.eye(5), dim=2, neighbours=3)
    near = tangent_overlap(with_duplicates(x, 0.4, noise=1e-8), torch.eye(5)[:, :2], dim=2)
    assert math.isnan(near.value)
    assert "near copies" in str(near.note)
