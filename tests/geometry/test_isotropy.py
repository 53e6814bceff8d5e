import inspect
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import anisoscope
from anisoscope import (
    Directions,
    Moments,
    average_cosine,
    effective_rank,
    isoscore,
    isoscore_of_covariance,
    isoscore_star,
    local_isotropy,
    participation_ratio,
    partition_ratio,
    top_share,
)
from anisoscope.geometry.noise import noise_effective_rank, noise_participation, noise_top_share
from anisoscope.stats.unit_directions import UnitSum
from anisoscope.testing import cone, gaussian, rotation
from reference import slow

SPECTRAL = [
    top_share,
    lambda x: top_share(x, power=1),
    effective_rank,
    lambda x: effective_rank(x, power=2),
    isoscore,
    lambda x: isoscore(x, corrected=True),
    isoscore_star,
    participation_ratio,
    lambda x: participation_ratio(x, corrected=True),
]
shapes = st.tuples(st.integers(8, 40), st.integers(2, 6), st.integers(0, 99))


def cloud(shape):
    n, d, seed = shape
    return gaussian(n, [2.0**-i for i in range(d)], mean=1.0, seed=seed)


@given(shapes, st.integers(0, 99))
def test_rotation_scale_and_order_change_nothing(shape, seed):
    x = cloud(shape)
    turned = x @ rotation(x.shape[1], seed=seed).T
    shuffled = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))]
    for measure in SPECTRAL:
        expected = float(measure(x))
        for other in (turned, shuffled, 1e-6 * x, 1e5 * x):
            assert float(measure(other)) == pytest.approx(expected, rel=1e-8, abs=1e-10)
    for measure in (average_cosine, partition_ratio):
        for other in (turned, shuffled):
            assert float(measure(other)) == pytest.approx(float(measure(x)), rel=1e-8, abs=1e-10)


@given(shapes)
def test_rows_arrays_and_moments_agree(shape):
    x = cloud(shape)
    for measure in SPECTRAL:
        expected = float(measure(x))
        for other in (x.numpy(), Moments.of(x), Moments.of(x[:3]).merge(Moments.of(x[3:]))):
            assert float(measure(other)) == pytest.approx(expected, rel=1e-9)


@given(shapes)
def test_equal_to_slow_references(shape):
    x = cloud(shape)
    assert float(isoscore(x)) == pytest.approx(slow.isoscore(x), rel=1e-9)
    assert float(average_cosine(x)) == pytest.approx(slow.average_cosine(x), rel=1e-9)
    assert float(partition_ratio(x)) == pytest.approx(slow.partition_ratio(x), rel=1e-9)


def test_correction_is_the_u_statistic():
    x = gaussian(9, [4.0, 1.0, 0.5], mean=3.0)
    square_of_trace, trace_of_square = slow.corrected_traces(x)
    assert float(participation_ratio(x, corrected=True)) == pytest.approx(square_of_trace / trace_of_square, rel=1e-10)


def test_correction_removes_the_bias_for_heavy_tails_too():
    generator = np.random.default_rng(0)
    plain, corrected = [], []
    for _ in range(200):
        x = generator.standard_t(5, size=(64, 64))
        plain.append(float(isoscore(x)))
        corrected.append(float(isoscore(x, corrected=True)))
    assert np.mean(plain) < 0.5
    assert abs(np.mean(corrected) - 1) < 4 * np.std(corrected) / math.sqrt(200) + 0.02


def test_top_share_of_known_singular_values():
    x = torch.diag(torch.tensor([10.0, 2.0, 1.0]))
    assert float(top_share(x, power=1, centre=False)) == pytest.approx(10 / 13)
    assert float(top_share(x, power=2, centre=False)) == pytest.approx(100 / 105)


def low_rank(n, width, *, rank=5, offset=0.0, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(n, rank)) @ rng.normal(size=(rank, width)) + offset)


@pytest.mark.parametrize(("n", "width", "offset"), [(3000, 64, 0.0), (600, 768, 5.0), (40, 300, 0.0)])
@pytest.mark.parametrize("power", [1, 2])
def test_the_effective_rank_of_a_low_rank_cloud_is_exact_in_float32(n, width, offset, power):
    """Products in float32 read 5.27 where 4.99 is true; products in float64 alone are still off by 1e-5."""
    x = low_rank(n, width, offset=offset)
    truth = slow.effective_rank(x, power=power)
    halves = [Moments.of(part.float()) for part in x.split(n // 2)]
    for other in (x.float(), Moments.of(x.float()), halves[0].merge(halves[1]), x, Moments.of(x)):
        assert float(effective_rank(other, power=power)) == pytest.approx(truth, rel=1e-7)


@pytest.mark.parametrize("scale", [2.0**-100, 2.0**-30, 2.0**60])
def test_the_effective_rank_of_float32_moments_is_free_of_scale(scale):
    x = low_rank(400, 100).float()
    assert float(effective_rank(Moments.of(x * scale))) == pytest.approx(float(effective_rank(x)), rel=1e-12)


def test_small_singular_values_that_are_no_rounding_count():
    """A tail of 200 directions at 1e-5 of the first, far above rounding of the sums, as a full SVD sees it."""
    x = gaussian(1000, [1.0] * 4 + [1e-10] * 200, seed=2)
    truth = slow.effective_rank(x)
    assert truth > slow.effective_rank(gaussian(1000, [1.0] * 4, seed=2)) + 0.01
    assert float(effective_rank(Moments.of(x))) == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize(("n", "d"), [(2000, 50), (300, 300), (60, 400)])
def test_noise_floors_are_what_noise_scores(n, d):
    clouds = [np.random.default_rng(seed).normal(size=(n, d)) for seed in range(6)]
    for power in (1, 2):
        shares = [float(top_share(x, power=power)) for x in clouds]
        assert noise_top_share(n, d, power) == pytest.approx(np.mean(shares), rel=0.05)
        ranks = [float(effective_rank(x, power=power)) for x in clouds]
        assert noise_effective_rank(n, d, power) == pytest.approx(np.mean(ranks), rel=0.02)
    assert noise_participation(n, d) == pytest.approx(
        np.mean([float(participation_ratio(x)) for x in clouds]), rel=0.02
    )
    assert top_share(clouds[0]).floor == noise_top_share(n, d)
    if n >= d:
        assert noise_top_share(n, d) == pytest.approx((1 + math.sqrt(d / n)) ** 2 / d, rel=1e-6)


def test_average_cosine_of_a_cone_and_its_interval():
    x = cone(4000, width=50, half_angle=0.4)
    found = average_cosine(x)
    assert found.low < math.cos(0.4) ** 2 < found.high
    assert float(average_cosine(Directions.of(x[:1]).merge(Directions.of(x[1:])))) == pytest.approx(float(found))
    truth = float(average_cosine(np.random.default_rng(10**6).normal(loc=0.5, size=(10**6, 5))))
    covered = 0
    for seed in range(300):
        one = average_cosine(np.random.default_rng(seed).normal(loc=0.5, size=(40, 5)))
        covered += one.low < truth < one.high
    assert 0.90 <= covered / 300 <= 0.98


def test_zero_rows_have_no_cosine_and_are_counted():
    x = cone(50, width=4)
    with_zeros = torch.cat([x, torch.zeros(7, 4, dtype=x.dtype)])
    found = average_cosine(with_zeros)
    assert (found.zero_rows, found.n) == (7, 50)
    assert float(found) == pytest.approx(float(average_cosine(x)))
    assert math.isnan(float(average_cosine(torch.zeros(5, 3))))


def test_isoscore_star_default_is_free_of_scale_and_identity_is_not():
    x = gaussian(500, [9.0, 1.0, 1.0, 1.0])
    default = [float(isoscore_star(scale * x)) for scale in (0.01, 1, 100)]
    assert max(default) - min(default) < 1e-12
    identity = [float(isoscore_star(scale * x, reference="identity")) for scale in (0.01, 1, 100)]
    assert identity[0] > 0.99 > identity[1] > identity[2]
    assert float(isoscore_star(x, zeta=0)) == pytest.approx(float(isoscore(x)))
    covariance = Moments.of(x).covariance
    assert float(isoscore_star(x, reference=covariance)) == pytest.approx(float(isoscore(x)))


def test_isoscore_of_a_covariance_can_be_a_loss():
    c = torch.diag(torch.tensor([3.0, 1.0, 1.0], dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(isoscore_of_covariance, (c,))


def test_partition_ratio_survives_large_clouds_by_logarithms():
    x = gaussian(100, [1.0, 1.0])
    assert 0 < float(partition_ratio(x)) < 1
    huge = partition_ratio(1e4 * x)
    assert float(huge) == 0
    assert "logarithm" in huge.note


def test_local_isotropy_sees_balls_inside_a_line_of_balls():
    centres = torch.arange(16.0)[:, None] * torch.tensor([100.0, 0.0, 0.0])
    x = (centres[:, None] + torch.randn(16, 50, 3, generator=torch.Generator().manual_seed(0))).reshape(-1, 3)
    found = local_isotropy(x)
    assert found.whole < 0.01
    assert float(found) == pytest.approx(1, abs=0.15)
    assert (found.clusters, found.clusters_left_out, found.n) == (16, 0, 800)
    lonely = torch.cat([x, torch.tensor([[1e6, 1e6, 1e6]])])
    left = local_isotropy(lonely, clusters=17)
    assert (left.clusters_left_out, left.rows_left_out) == (1, 1)


def test_one_column_has_no_isotropy_but_all_else():
    x = torch.randn(50, 1, generator=torch.Generator().manual_seed(0))
    for measure in (isoscore, isoscore_star, local_isotropy, lambda x: isoscore(x, corrected=True)):
        assert math.isnan(float(measure(x)))
        assert "D = 1" in measure(x).note
    assert float(top_share(x)) == pytest.approx(1)
    assert float(effective_rank(x)) == pytest.approx(1)
    assert float(participation_ratio(x)) == pytest.approx(1)
    assert -1 <= float(average_cosine(x)) <= 1
    assert 0 < float(partition_ratio(x)) <= 1


def test_equal_points_have_no_spread():
    x = torch.full((40, 3), 2.5)
    for measure in (top_share, effective_rank, participation_ratio, isoscore, isoscore_star, local_isotropy):
        found = measure(x)
        assert math.isnan(float(found))
        assert "equal" in found.note
    assert float(average_cosine(x)) == pytest.approx(1)


MEASURES = [
    "top_share",
    "average_cosine",
    "isoscore",
    "isoscore_star",
    "partition_ratio",
    "effective_rank",
    "participation_ratio",
    "local_isotropy",
    "two_nn",
    "levina_bickel",
    "gride",
]
X = np.random.default_rng(0).normal(size=(40, 3))
BAD = {
    "nan": (np.where(np.arange(40)[:, None] == 7, np.nan, X), "finite, got 1 rows with NaN or Inf .first: row 7"),
    "inf": (np.where(np.arange(40)[:, None] == 7, np.inf, X), "finite"),
    "two points": (X[:2], "at least 3 rows, got 2"),
    "integers": (np.ones((40, 3), dtype=int), "floating-point dtype, got int64"),
    "torch integers": (torch.ones(40, 3, dtype=torch.int32), "floating-point dtype, got torch.int32"),
    "complex": (X + 1j, "floating-point dtype, got complex128"),
    "torch complex": (torch.ones(40, 3, dtype=torch.complex64), "floating-point dtype"),
    "one row of numbers": (X[:, 0], r"shape \(N, D\)"),
    "no columns": (X[:, :0], r"D ≥ 1"),
}


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize(("x", "message"), BAD.values(), ids=BAD)
def test_every_measure_names_what_is_wrong_with_a_cloud(name, x, message):
    with pytest.raises(ValueError, match=message):
        getattr(anisoscope, name)(x)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: top_share(X, power=0), "power must be positive"),
        (lambda: effective_rank(X, power=-1), "power must be positive"),
        (lambda: isoscore_star(X, zeta=1.5), "zeta must lie in 0…1"),
        (lambda: isoscore_star(X, reference=torch.eye(2)), r"shape \(3, 3\)"),
        (lambda: local_isotropy(X, clusters=41), "clusters must lie in 1…40"),
        (lambda: isoscore(Moments.of(torch.tensor(X), higher=False), corrected=True), "third and fourth sums"),
        (lambda: isoscore(Moments.empty(3)), "at least 3 rows"),
        (lambda: isoscore(Moments.of(torch.full((4, 2), torch.nan))), "finite"),
        (lambda: isoscore(X[:3], corrected=True), "at least 4 rows"),
    ],
)
def test_wrong_options_are_named(act, message):
    with pytest.raises(ValueError, match=message):
        act()


@pytest.mark.parametrize("scale", [1e-25, 1e-12, 1e15])
def test_scale_of_float32_rows_does_not_matter(scale):
    x = torch.randn(200, 5, generator=torch.Generator().manual_seed(0)) * torch.tensor([3.0, 1, 1, 1, 1])
    for measure in SPECTRAL:
        assert float(measure(x * scale)) == pytest.approx(float(measure(x)), rel=1e-5)


def test_few_distinct_rows_and_named_guards():
    few = local_isotropy(torch.eye(3).repeat(100, 1))
    assert math.isnan(float(few))
    assert "distinct" in few.note
    with pytest.raises(ValueError, match="reference must be 'trace'"):
        inspect.unwrap(isoscore_star)(X, reference="foo")
    assert float(isoscore_star(X, reference=np.eye(3))) == pytest.approx(float(isoscore_star(X, reference="identity")))
    assert float(isoscore(Moments.of(X))) == pytest.approx(float(isoscore(X)))


def test_unknown_public_name():
    with pytest.raises(AttributeError, match="no attribute 'isotropy_of_everything'"):
        anisoscope.isotropy_of_everything  # noqa: B018
    assert all(getattr(anisoscope, name) is not None for name in dir(anisoscope))


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_no_scale_of_float32_changes_a_measure_that_is_free_of_scale(scale):
    x = (gaussian(600, [4.0] * 3 + [0.2] * 9, mean=0.7, seed=3)).float()
    scaled = x * scale
    assert float(average_cosine(UnitSum.of(scaled))) == pytest.approx(float(average_cosine(x.double())), abs=1e-6)
    assert float(local_isotropy(scaled)) == pytest.approx(float(local_isotropy(x)), rel=1e-4)
    assert float(top_share(scaled)) == pytest.approx(float(top_share(x)), rel=1e-6)


@pytest.mark.parametrize(("n", "d"), [(10, 2), (12, 5), (6, 20), (2000, 4)])
def test_the_floor_of_the_top_share_is_right_for_few_rows_or_columns(n, d):
    rng = np.random.default_rng(1)
    for power in (1, 2):
        shares = []
        for _ in range(1500):
            s = np.linalg.svd((z := rng.standard_normal((n, d))) - z.mean(0), compute_uv=False) ** power
            shares.append(s[0] / s.sum())
        assert noise_top_share(n, d, power) == pytest.approx(np.mean(shares), rel=0.03)


@pytest.mark.parametrize(("n", "d"), [(3, 500), (5, 20), (12, 5), (30, 30), (100, 10)])
def test_the_floors_of_few_rows_lose_the_direction_that_centring_takes(n, d):
    rng = np.random.default_rng(2)
    clouds = [rng.standard_normal((n, d)) for _ in range(800)]
    for power in (1, 2):
        ranks = [slow.effective_rank(x, power=power) for x in clouds]
        assert effective_rank(clouds[0], power=power).floor == pytest.approx(np.mean(ranks), rel=0.02)
    shares = [(s := np.linalg.svd(x, compute_uv=False) ** 2)[0] / s.sum() for x in clouds]
    assert top_share(clouds[0], centre=False).floor == pytest.approx(np.mean(shares), rel=0.03)


@pytest.mark.parametrize("n", [3, 4, 7])
def test_the_average_cosine_of_few_rows_is_the_mean_over_pairs(n):
    x = gaussian(n, [1.0] * 6, mean=0.3, seed=n)
    truth = slow.average_cosine(x)
    for found in (average_cosine(x), average_cosine(Directions.of(x)), average_cosine(UnitSum.of(x))):
        assert float(found) == pytest.approx(truth, abs=1e-6)
        assert found.floor == 0
    assert float(average_cosine(x.float())) == pytest.approx(truth, abs=1e-6)


def test_local_isotropy_of_clusters_with_fewer_rows_than_columns_is_that_of_their_covariances():
    parts = [gaussian(30, [1.0 / k for k in range(1, 51)], seed=seed) + 100 * seed for seed in range(3)]
    scores = [float(isoscore(part, corrected=True)) for part in parts]
    assert float(local_isotropy(torch.cat(parts), clusters=3)) == pytest.approx(np.mean(scores), rel=1e-9)
    flat = torch.cat([parts[0], torch.ones(20, 50, dtype=torch.float64)])
    assert local_isotropy(flat, clusters=2).rows_left_out == 20


def test_local_isotropy_is_the_corrected_score_of_each_cluster_by_size():
    sizes, far = (9, 11), 1e3
    parts = [gaussian(n, [3.0, 1.0, 0.5], mean=far * i, seed=i) for i, n in enumerate(sizes)]
    scores = []
    for part in parts:
        square_of_trace, trace_of_square = slow.corrected_traces(part)
        scores.append((square_of_trace / trace_of_square - 1) / 2)
    found = local_isotropy(torch.cat(parts), clusters=2)
    assert float(found) == pytest.approx(np.average(scores, weights=sizes), rel=1e-8)
    assert (found.clusters, found.n) == (2, sum(sizes))
    few = local_isotropy(gaussian(7, [1.0] * 3), clusters=1)
    assert math.isnan(float(few))
    assert (few.clusters_left_out, few.rows_left_out) == (1, 7)
