import inspect
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import KDTree

from anisoscope import Moments, gride, levina_bickel, neighbours, two_nn
from anisoscope.geometry import neighbours as search
from anisoscope.geometry.dimension import _gride_point, _slope_error
from anisoscope.geometry.duplicates import find_duplicates
from anisoscope.testing import gaussian, lattice, plane, rotation, sphere, with_duplicates
from reference import slow


def rows(n, d, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("n", "d", "k"), [(5, 1, 2), (200, 3, 7), (300, 40, 64), (2500, 5, 2)])
def test_neighbours_equal_brute_force(n, d, k):
    x = rows(n, d)
    np.testing.assert_allclose(neighbours(x, k).distances, slow.neighbour_distances(x, min(k, n - 1)), rtol=1e-12)


@pytest.mark.parametrize("block", [64, 128])
def test_blocks_meet_without_a_seam(block, monkeypatch):
    monkeypatch.setattr(search, "BLOCK_ROWS", block)
    x = rows(500, 6)
    found = neighbours(x, 3)
    np.testing.assert_allclose(found.distances, slow.neighbour_distances(x, 3), rtol=1e-12)
    again = torch.linalg.vector_norm(x[:, None] - x[found.indices], dim=2)
    torch.testing.assert_close(again, found.distances, rtol=1e-12, atol=0)


def test_tight_clusters_far_out_are_searched_again_in_float64(monkeypatch):
    """In float32 the expanded form cannot tell neighbours 10⁻⁴ apart at norm 1: the proof must fail."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(20, 1, 30, generator=generator, dtype=torch.float64)
    x = (centres + 1e-4 * torch.randn(20, 40, 30, generator=generator, dtype=torch.float64)).reshape(-1, 30)
    calls = []
    original = search._candidates_in_double
    monkeypatch.setattr(search, "_candidates_in_double", lambda *a: calls.append(len(a[2])) or original(*a))
    np.testing.assert_allclose(neighbours(x, 2).distances, slow.neighbour_distances(x, 2), rtol=1e-10)
    assert sum(calls) > 400
    calls.clear()
    neighbours(rows(800, 30), 2)
    assert sum(calls) < 80  # an ordinary cloud needs no second search


def test_a_wrong_proof_would_be_seen(monkeypatch):
    """The canary of the proof: without it the same cloud gives wrong neighbours."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(20, 1, 30, generator=generator, dtype=torch.float64)
    x = (centres + 1e-4 * torch.randn(20, 40, 30, generator=generator, dtype=torch.float64)).reshape(-1, 30)
    monkeypatch.setattr(search, "_error", lambda y: -1.0)
    assert not np.allclose(neighbours(x, 2).distances, slow.neighbour_distances(x, 2), rtol=1e-4)


@given(st.integers(0, 10_000))
@settings(max_examples=60)
def test_near_rows_are_linked_transitively_and_the_first_stays(seed):
    """Chains of steps around the tolerance, where who is linked to whom is a close thing."""
    generator = torch.Generator().manual_seed(seed)
    x = rows(12, 3, seed).repeat(4, 1)
    steps = 1e-6 * 3**0.5 * 0.7 * torch.randn(48, 3, generator=generator, dtype=torch.float64)
    x = (x + steps * (torch.rand(48, 1, generator=generator) < 0.7))[torch.randperm(48, generator=generator)]
    tolerance = 1e-6 * float((x - x.mean(0)).square().sum(1).mean().sqrt())
    groups = slow.linked_groups(x, tolerance)
    found = find_duplicates(x)
    assert found.keep.tolist() == sorted(set(groups))
    exact = len(x) - len({tuple(row.tolist()) for row in x})
    assert (found.exact, found.near) == (exact, len(x) - len(set(groups)) - exact)


@pytest.mark.parametrize("d", [1, 5, 100])
def test_big_groups_of_copies_are_found(d):
    x = rows(600, d).float()
    x[300:500] = x[3]
    x[500:] = -0.0
    x[550:] = 0.0
    found = find_duplicates(x)
    assert (found.exact, found.near) == (200 + 99, 0)
    assert len(found.keep) == 301


def test_bf16_rows_that_differ_by_rounding_are_one():
    x = sphere(500, dim=5, width=60).bfloat16()
    nudged = (x.float() * (1 + 2.0**-9)).bfloat16()
    found = find_duplicates(torch.cat([x, nudged]))
    assert len(found.keep) == 500


@given(st.integers(5, 60), st.integers(1, 4), st.sampled_from([0.0, 0.1, 0.5]), st.integers(0, 99))
def test_two_nn_and_levina_bickel_equal_slow_references(n, d, discard, seed):
    x = rows(n, d, seed)
    assert float(two_nn(x, discard=discard)) == pytest.approx(slow.two_nn(x, discard), rel=1e-9)
    k = min(5, n - 1)
    assert float(levina_bickel(x, k=k)) == pytest.approx(slow.levina_bickel(x, k), rel=1e-9)


@given(st.integers(0, 99))
@settings(max_examples=20)
def test_rotation_scale_and_order_change_nothing(seed):
    x = gaussian(150, [1.0, 1.0, 0.5, 0.1], mean=2.0, seed=seed)
    shuffled = x[torch.randperm(150, generator=torch.Generator().manual_seed(seed))]
    for other in (x @ rotation(4, seed=seed).T, 1e-8 * x, 1e6 * x, shuffled):
        for measure in (two_nn, levina_bickel, gride):
            assert float(measure(other)) == pytest.approx(float(measure(x)), rel=1e-9)


@pytest.mark.parametrize("d", [1, 2, 5])
def test_planted_dimensions(d):
    for x in (plane(3000, dim=d, width=40), sphere(3000, dim=d, width=40)):
        found = two_nn(x)
        assert found.low < d * 1.02
        assert found.high > d * 0.93  # edges and curvature bias a little
        assert float(levina_bickel(x)) == pytest.approx(d, rel=0.12)
        curve = gride(x)
        assert [point.order for point in curve.points] == [1, 2, 4, 8, 16, 32]
        assert all(point.low < float(point) < point.high for point in curve.points)
        assert np.all(np.diff([point.radius for point in curve.points]) > 0)
        assert float(curve) == float(curve.points[0]) == pytest.approx(float(two_nn(x, variant="mle")), rel=1e-3)


def test_gride_recovers_the_exponent_of_its_own_law():
    """Ratios drawn from the law itself: d·log μ is minus the log of a Beta(n, n) variable."""
    generator = np.random.default_rng(0)
    for order in (1, 2, 8):
        covered = 0
        for _ in range(200):
            log_mu = -np.log(generator.beta(order, order, size=300)) / 7.0
            covered += _gride_interval_holds(log_mu, order, 7.0)
        assert 0.91 <= covered / 200 <= 0.99


def _gride_interval_holds(log_mu, order, truth):
    distances = torch.ones(log_mu.size, 2 * order, dtype=torch.float64)
    distances[:, 2 * order - 1] = torch.from_numpy(np.exp(log_mu))
    point = _gride_point(_given(distances), order)
    return point.low < truth < point.high


def test_intervals_cover_under_their_model():
    generator = np.random.default_rng(0)
    held = {"fit": 0, "mle": 0}
    for _ in range(400):
        distances = torch.ones(250, 2, dtype=torch.float64)
        distances[:, 1] = torch.from_numpy(np.exp(generator.exponential(1 / 9.0, size=250)))
        found = _given(distances)
        for variant in held:
            estimate = two_nn(found, variant=variant)
            held[variant] += estimate.low < 9.0 < estimate.high
    assert all(0.92 <= count / 400 <= 0.98 for count in held.values()), held


def test_slope_error_is_that_of_exponential_order_statistics():
    generator = np.random.default_rng(0)
    n, keep = 200, 180
    y = -np.log1p(-np.arange(1, keep + 1) / n)
    draws = np.sort(generator.exponential(size=(4000, n)))[:, :keep]
    slopes = draws @ y / (draws**2).sum(1)
    assert _slope_error(y, n) == pytest.approx(np.log(slopes).std(), rel=0.06)


@pytest.mark.parametrize("dim", [1, 3])
def test_intervals_cover_on_real_clouds(dim):
    """Uniform points of a flat torus, where the law is exact but neighbours share neighbours."""
    held = {"fit": 0, "mle": 0, "levina_bickel": 0}
    for seed in range(200):
        points = np.random.default_rng(seed).random((500, dim))
        distances, indices = map(np.asarray, KDTree(points, boxsize=1.0).query(points, k=11))
        found = _given(distances[:, 1:], indices[:, 1:])
        estimates = {
            "fit": two_nn(found),
            "mle": two_nn(found, variant="mle"),
            "levina_bickel": levina_bickel(found, k=10),
        }
        for name, estimate in estimates.items():
            held[name] += estimate.low < dim < estimate.high
    assert all(0.90 <= count / 200 <= 0.99 for count in held.values()), held


def _given(distances, indices=None):
    """Neighbours made of given distances; unrelated points hold one another for neighbours if no indices are given."""
    n, k = distances.shape
    if indices is None:
        indices = np.random.default_rng(0).integers(0, n, size=(n, k))
    return search.Neighbours(torch.as_tensor(distances), torch.as_tensor(indices), torch.arange(n), 0, 0)


def test_forty_percent_duplicates_change_nothing():
    x = gaussian(1500, [1.0] * 10)
    kept = two_nn(x[:900])
    found = two_nn(with_duplicates(x, 0.4))
    assert (found.exact_duplicates, found.near_duplicates, found.duplicates) == (600, 0, 600)
    assert float(found) == float(kept)


def test_ten_percent_near_copies_at_1e7_change_nothing():
    x = gaussian(2000, [1.0] * 10)
    found = two_nn(with_duplicates(x, 0.1, noise=1e-7))
    assert (found.exact_duplicates, found.near_duplicates) == (0, 200)
    assert float(found) == float(two_nn(x[:1800]))
    naive = slow.two_nn(with_duplicates(x, 0.1, noise=1e-7))
    assert naive < 1  # what is avoided


def test_too_many_near_copies_give_no_number():
    x = gaussian(500, [1.0] * 6)
    for measure in (two_nn, levina_bickel, gride):
        found = measure(with_duplicates(x, 0.25, noise=1e-7))
        assert math.isnan(float(found))
        assert "near copies" in found.note
        assert found.near_duplicates == 125


def test_equal_points_and_lattices_give_no_number():
    flat = two_nn(torch.full((10, 3), 2.5))
    assert math.isnan(float(flat))
    assert flat.duplicates == 9
    assert "distinct" in flat.note
    x = lattice(6, dim=3)
    for found in (two_nn(x), levina_bickel(x, k=3), gride(x)):
        assert math.isnan(float(found))
        assert "equally far" in found.note
    assert math.isnan(float(gride(torch.tensor([[0.0], [1.0], [3.0]]))))


def test_bias_is_downward_and_grows_with_dimension():
    assert 26 < float(two_nn(gaussian(2000, [1.0] * 40))) < 33


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: two_nn(rows(9, 2), discard=1.0), "0 ≤ discard < 1, got 1.0"),
        (lambda: two_nn(rows(9, 2), discard=-0.1), "0 ≤ discard < 1"),
        (lambda: levina_bickel(rows(9, 2), k=1), "k must be at least 2"),
        (lambda: levina_bickel(rows(9, 2), k=9), "at most 8 for 9 distinct rows"),
        (lambda: levina_bickel(neighbours(rows(90, 2), 3)), "hold 20 of each point"),
        (lambda: neighbours(rows(9, 2), k=0), "at least 1"),
    ],
)
def test_wrong_use_is_named(act, message):
    with pytest.raises(ValueError, match=message):
        act()


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e19])
def test_scale_of_float32_rows_does_not_matter(scale):
    x = rows(300, 5).float()
    for measure in (two_nn, levina_bickel, gride):
        assert float(measure(x * scale)) == pytest.approx(float(measure(x)), rel=1e-3)


def test_odd_arrays_are_welcome():
    x = rows(60, 3).numpy()
    for other in (x[::-1], np.asfortranarray(x), x.astype(">f8")):
        assert float(two_nn(other)) == pytest.approx(float(two_nn(x)), rel=1e-12)


def test_guards_of_names():
    with pytest.raises(ValueError, match="variant must be 'fit' or 'mle'"):
        inspect.unwrap(two_nn)(rows(9, 2), variant="slope")
    with pytest.raises(ValueError, match="needs the rows of a cloud"):
        inspect.unwrap(neighbours)(Moments.of(rows(9, 2)))
    square = torch.tensor([[0.0, 0], [1, 0], [0, 1]])
    assert "equally far" in two_nn(square, discard=0.9).note
    apart = 10.0 * torch.arange(30.0)[:, None] ** 2 + torch.tensor([[1.0, 0]])  # one tie among many points
    assert "ratios kept" in two_nn(torch.cat([square, apart]), discard=0.97).note


@pytest.mark.parametrize("noise", [0.0, 1e-12])
def test_a_lattice_has_no_dimension_whatever_the_estimator(noise):
    side = torch.arange(12.0, dtype=torch.float64)
    x = torch.cartesian_prod(side, side, side)
    x = x + noise * torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for found in (two_nn(x), two_nn(x, variant="mle"), gride(x), levina_bickel(x)):
        assert math.isnan(float(found))
        assert "equally far" in found.note


def test_a_cloud_of_rounded_numbers_is_told_and_one_of_float32_is_not():
    x = torch.rand(2000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert "equally far" in gride((x * 60).round()).note
    assert 1.8 < float(two_nn(x.float())) < 2.2
