"""The referee's checks: fitted on one half and checked on the other, against planted truths and noise."""

import math

import numpy as np
import pytest
import torch
from tests.reference.slow_evidence import isoscore_star, isotropy_gain

from anisoscope import verify
from anisoscope.evidence.local_checks import Half, Normals, normal_angle
from anisoscope.evidence.referee_checks import VerifyRow, settling
from anisoscope.geometry.subspace import fit_subspace, register_proxy, unregister_proxy
from anisoscope.testing import rotation, sphere

CHECKS = {"proxy", "anisotropy", "normal", "refit", "curvature", "settling", "settling-anisotropy"}


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def recorder():
    """A method that notes the rows it was fitted on; its directions are the first axes."""
    seen = []

    @register_proxy("recorder")
    def fit(x, rank, generator):
        seen.append(x)
        return torch.eye(x.shape[1], dtype=torch.float64)[:, :rank]

    yield seen
    unregister_proxy("recorder")


def numbered(n, length, width):
    """A cloud whose first column is the number of the sequence."""
    x = normal(n, length, width)
    x[..., 0] = torch.arange(n).double()[:, None]
    return x


def halves_of(seen):
    return [{int(v) for v in rows[:, 0]} for rows in seen]


def test_all_checks_share_two_fits_on_two_halves(recorder):
    verify(numbered(12, 6, 16), normal(12, 6, 16, seed=1), ranks=[2], methods=("recorder",), resamples=19)
    first, second = halves_of(recorder)
    assert len(first) == len(second) == 6
    assert first | second == set(range(12))


def test_sequences_of_one_group_stay_together(recorder):
    x, groups = numbered(16, 6, 16), torch.arange(16) // 2
    verify(x, normal(16, 6, 16, seed=1), ranks=[2], methods=("recorder",), groups=groups, resamples=19)
    rows = torch.arange(16).repeat_interleave(6) // 2
    flat = x.flatten(0, 1)
    verify(flat, normal(96, 16, seed=1), ranks=[2], methods=("recorder",), groups=rows, resamples=19)
    for first, second in (halves_of(recorder[:2]), halves_of(recorder[2:])):
        assert not {s // 2 for s in first} & {s // 2 for s in second}
        assert first | second == set(range(16))


def test_the_share_of_anisotropy_is_that_of_explicit_matrices(recorder):
    g = normal(12, 9, 16, seed=1) * torch.linspace(3, 1, 16)
    table = verify(numbered(12, 9, 16), g, ranks=[3], methods=("recorder",), resamples=19)
    (row,) = (row for row in table.select("anisotropy") if row.method == "recorder")
    gains, befores = [], []
    for half in halves_of(recorder):
        c = np.cov(g[sorted(half)].flatten(0, 1).numpy().T)
        gains.append(isotropy_gain(c, np.eye(16)[:, :3], 0.2))
        befores.append(isoscore_star(c, np.trace(c) / 16 * np.eye(16), 0.2))
    assert row.value == pytest.approx(np.mean(gains) / (1 - np.mean(befores)))
    assert row.n == 12


def test_no_baseline_is_a_method_under_another_name():
    x, g = normal(12, 6, 16), normal(12, 6, 16, seed=1)

    def contestants(**options):
        return [row.method for row in verify(x, g, ranks=[2], resamples=19, **options).select("proxy")]

    assert contestants() == ["pca", "svd", "semi_nmf", "haar", "mean+haar"]
    assert contestants(methods=("svd",)) == ["svd", "haar", "top-variance", "mean+haar"]
    assert contestants(methods=("haar",)) == ["haar", "top-variance", "mean+haar"]


def test_a_planted_alignment_is_seen_by_energy_and_by_anisotropy():
    """Tokens and gradients are both large along the same four directions."""
    turn, size = rotation(24, seed=2), torch.ones(24, dtype=torch.float64)
    size[:4] = 3
    x, g = ((normal(16, 20, 24, seed=s) * size) @ turn.T for s in (3, 4))
    table = verify(x, g, ranks=[4], methods=("pca",))
    assert {row.check for row in table.rows} == CHECKS
    for check, least in (("proxy", 2.0), ("anisotropy", 0.5)):
        (row,) = (row for row in table.select(check) if row.method == "pca")
        assert row.value > max(least, row.chance)
        assert row.p <= 0.05
        (noise,) = (row for row in table.select(check) if row.method == "haar")
        assert noise.p > 0.05
    assert [row.value for check in ("settling", "settling-anisotropy") for row in table.select(check)] == [0, 0]


def test_noise_settles_on_random_directions():
    """By either quantity the rate of false claims is at most 2.5 % a cell; 6 of 40 is beyond 99.9 % of that."""
    cells = {(seed, 0): normal(12, 6, 16, seed=seed) for seed in range(40)}
    noise = {key: normal(12, 6, 16, seed=1000 + k) for k, key in enumerate(cells)}
    table = verify(cells, noise, ranks=[3], methods=("svd",), resamples=99)
    for check in ("settling", "settling-anisotropy"):
        (row,) = table.select(check)
        assert row.n == 40
        assert row.value > 1 - 6 / 40


def test_a_claim_needs_the_interval_too():
    """Two sequences of sixteen lie inside the proxy: unlikely for random directions, yet no matter of all sequences."""
    turn, size = rotation(32, seed=2), torch.ones(32, dtype=torch.float64)
    size[:4] = 5
    x = (normal(16, 12, 32, seed=3) * size) @ turn.T
    inside, outside = turn[:, :4], turn[:, 4:]
    g = normal(16, 12, 28, seed=4) @ outside.T
    g[:2] = math.sqrt(28 / 4) * normal(2, 12, 4, seed=5) @ inside.T
    g[8:10] = math.sqrt(28 / 4) * normal(2, 12, 4, seed=6) @ inside.T
    table = verify(x, g, ranks=[4], methods=("pca",))
    (row,) = (row for row in table.select("proxy") if row.method == "pca")
    assert row.value > 1
    assert row.p <= 0.05
    assert row.low < 1
    (settled,) = table.select("settling")
    assert settled.value == 1


def wilson(k, n):
    """Both ends in closed form."""
    z = 1.959963984540054**2
    middle, half = k / n + z / (2 * n), math.sqrt(z * (k / n * (1 - k / n) / n + z / (4 * n**2)))
    return (middle - half) / (1 + z / n), (middle + half) / (1 + z / n)


@pytest.mark.parametrize(("settled", "fewest", "most"), [(0, 0, 0), (3, 1, 1), (4, 1, 2), (5, 1, 2), (9, 3, 3)])
def test_layers_of_one_seed_are_not_independent(settled, fewest, most):
    """Of 9 answers of 3 seeds: the interval counts seeds, and a share between two counts reaches to both."""
    answers = [VerifyRow("proxy", "pca", 2, k % 3, k // 3, 1.0 if k < settled else 3.0, None, None, 0.01, 1.0, 8)
               for k in range(9)]  # fmt: skip
    (row,) = settling(answers, ["pca"])
    assert (row.value, row.n) == (settled / 9, 9)
    assert row.low == pytest.approx(wilson(fewest, 3)[0], abs=1e-12)
    assert row.high == pytest.approx(wilson(most, 3)[1], abs=1e-12)
    assert "number of seeds, 3" in row.note


def of_noise(seed, n=8, length=16, width=16):
    halves = [normal(n * length, width, seed=2 * seed + k) for k in (0, 1)]
    units = torch.arange(n).repeat_interleave(length)
    proxies = [fit_subspace(half, method="pca", rank=2) for half in halves]
    return proxies, [Normals.of(Half.of(half, units, seed), 2) for half in halves]


def test_noise_is_no_more_tangent_than_chance():
    """Rows that the proxy was fitted on are: their narrow directions avoid the wide ones that it has found."""
    crossed, same, missed, told = [], [], 0, 0
    for seed in range(60):
        proxies, normals = of_noise(seed)
        found, own = normal_angle(proxies, normals, seed), normal_angle(proxies[::-1], normals, seed)
        if math.isnan(found.value):
            continue
        told += 1
        crossed.append(found.value - found.floor)
        same.append(own.value - own.floor)
        missed += not found.low <= found.floor <= found.high
    assert told > 30
    error = np.std(crossed) / math.sqrt(told)
    assert abs(np.mean(crossed)) < 4 * error
    assert np.mean(same) > 4 * error
    assert missed <= 7  # 99 % of binomial(60, 0.05); measured 0.005


def test_the_interval_knows_that_tokens_of_a_sequence_are_alike():
    """Each sequence lies in a plane of its own, so its sixteen tokens have one normal and are one piece of evidence."""
    width, n, deviations, halves = 12, 12, [], []
    proxies = [fit_subspace(normal(50, width, seed=s), method="pca", rank=2) for s in (1, 2)]
    for seed in range(30):
        normals = []
        for k in (0, 1):
            planes = torch.linalg.qr(normal(n, width, 3, seed=100 * seed + k)).Q
            rows = (
                normal(n, 1, width, seed=100 * seed + 20 + k) + normal(n, 16, 3, seed=100 * seed + 40 + k) @ planes.mT
            )
            rows = (rows + 0.05 * normal(n, 16, width, seed=100 * seed + 60 + k)).flatten(0, 1)
            normals.append(Normals.of(Half.of(rows, torch.arange(n).repeat_interleave(16), seed), 2))
        found = normal_angle(proxies, normals, seed)
        deviations.append(found.value)
        halves.append((found.low, found.high))
    truth = np.mean(deviations)
    assert sum(low <= truth <= high for low, high in halves) >= 27


def test_tangent_proxies_are_far_from_the_normals():
    """On a plane with little noise off it they are orthogonal; three sequences a half allow no interval."""
    plane = rotation(12, seed=5)[:, :3]

    def angle(n):
        x = normal(n, 40, 3, seed=6) @ plane.T + 0.01 * normal(n, 40, 12, seed=7)
        return verify(x, normal(n, 40, 12, seed=8), ranks=[3], methods=("pca",), resamples=19).select("normal")[0]

    many, few = angle(12), angle(6)
    assert many.value > 88
    assert many.low > many.chance + 10
    assert many.chance == pytest.approx(few.chance, abs=5)
    assert few.value > 88
    assert few.low is None


def test_refits_agree_where_directions_are_clear_and_not_in_noise():
    size = torch.ones(16, dtype=torch.float64)
    size[:2] = 6
    strong = verify(normal(16, 20, 16) * size, normal(16, 20, 16, seed=1), ranks=[2], methods=("pca",), resamples=19)
    noise = verify(normal(16, 20, 16), normal(16, 20, 16, seed=1), ranks=[2], methods=("pca",), resamples=19)
    assert strong.select("refit")[0].value < 10
    assert noise.select("refit")[0].value > 40
    assert strong.select("refit")[0].chance == pytest.approx(noise.select("refit")[0].chance)


def test_curvature_is_of_both_halves():
    """A cylinder does not bend along its axis, which is its widest direction here."""
    turn, height = torch.rand(2, 2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = torch.stack([(2 * math.pi * turn).cos(), (2 * math.pi * turn).sin(), 6 * height], 1).reshape(40, 50, 3)
    x = torch.cat([x, torch.zeros(40, 50, 5, dtype=torch.float64)], 2)
    (row,) = verify(x, normal(40, 50, 8), ranks=[1], methods=("pca",), resamples=19).select("curvature")
    assert row.n == 64
    assert row.value < 0.2
    ball = verify(sphere(240, dim=5, width=8).reshape(12, 20, 8), normal(12, 20, 8), ranks=[1], resamples=19)
    assert all(row.value is None and "cannot tell" in row.note for row in ball.select("curvature"))


def test_equal_rows_have_no_tangents():
    x = normal(2, 1, 16).repeat(8, 6, 1)
    table = verify(x, normal(16, 6, 16, seed=1), ranks=[1], methods=("haar",), resamples=19)
    for check in ("normal", "curvature"):
        assert table.select(check)[0].value is None
        assert "no intrinsic dimension" in table.select(check)[0].note


def test_silent_gradients_say_so_in_every_check_of_gradients():
    table = verify(normal(12, 4, 16), torch.zeros(12, 4, 16), ranks=[2], methods=("pca",))
    for check in ("proxy", "anisotropy"):
        assert "must have energy" in table.select(check)[0].note
    assert not table.select("settling") + table.select("settling-anisotropy")


def test_rows_need_groups_of_their_own():
    with pytest.raises(ValueError, match="rows must come with groups"):
        verify(normal(40, 16), normal(40, 16), ranks=[2])
    with pytest.raises(ValueError, match="one id for each of 40"):
        verify(normal(40, 16), normal(40, 16), ranks=[2], groups=torch.arange(39))
