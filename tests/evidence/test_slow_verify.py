"""`verify` on one rank and one method, against proxies and angles made by hand from two halves."""

import math

import numpy as np
import pytest
import torch

from anisoscope import Subspace, curvature, verify
from anisoscope.evidence.local_checks import Half, curvature_along
from anisoscope.evidence.referee_checks import _two_halves
from anisoscope.testing import rotation
from reference import slow, slow_curvature, slow_energy, slow_jackknife, slow_rotations, slow_verify
from reference.slow_evidence import isoscore_star

RANK, SEQUENCES, LENGTH, WIDTH = 2, 18, 8, 12


@pytest.fixture(scope="module")
def made():
    """A surface of two dimensions with noise, and gradients that lean towards it; sequences are shifted."""
    generator = torch.Generator().manual_seed(2)
    u = torch.rand(SEQUENCES, LENGTH, 2, generator=generator, dtype=torch.float64) * 2 - 1
    u = u + 0.3 * torch.randn(SEQUENCES, 1, 2, generator=generator, dtype=torch.float64)
    x = torch.zeros(SEQUENCES, LENGTH, WIDTH, dtype=torch.float64)
    x[..., :2], x[..., 2] = 2 * u, 0.4 * u.square().sum(2)
    x += 0.05 * torch.randn(x.shape, generator=generator, dtype=torch.float64)
    g = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    g[..., :2] *= 1.6
    table = verify(x, g, ranks=[RANK], methods=["pca"], resamples=99)
    side = _two_halves(x, None, 0)[1]
    return x, g, side, table


def row(table, check, method="pca"):
    return next(r for r in table.select(check) if r.method == method)


def proxies(x, side):
    return [slow_verify.pca(x[side == k].flatten(0, 1).numpy(), RANK) for k in (0, 1)]


def test_energy_and_anisotropy_meet_the_half_that_was_not_fitted(made):
    x, g, side, table = made
    bases = proxies(x, side)[::-1]
    folds = [list(g[side == k].numpy()) for k in (0, 1)]
    found = row(table, "proxy")
    chance = math.log(RANK / (WIDTH - RANK))
    low, high = slow_jackknife.interval(folds, lambda kept: slow_energy.odds_of_rows(kept, bases) - chance)
    assert math.log(found.value) == pytest.approx(slow_energy.odds_of_rows(folds, bases) - chance, rel=1e-6)
    assert (math.log(found.low), math.log(found.high)) == pytest.approx((low, high), rel=1e-6)
    clouds = [np.concatenate(fold) for fold in folds]
    covariances = [np.cov(cloud, rowvar=False, bias=True) for cloud in clouds]
    before = np.mean([isoscore_star(c, np.trace(c) / WIDTH * np.eye(WIDTH), 0.2) for c in covariances])
    captured = slow_rotations.mean_gain(clouds, bases) / (1 - before)
    assert row(table, "anisotropy").value == pytest.approx(captured, rel=1e-6)


def test_normals_are_those_of_the_other_half(made):
    x, _, side, table = made
    halves, counts = [], []
    for k in (0, 1):
        units = torch.arange(SEQUENCES)[side == k].repeat_interleave(LENGTH)
        half = Half.of(x[side == k].flatten(0, 1), units, 0)
        dim = max(1, round(slow.two_nn(half.rows.numpy())))
        assert half.dim == dim
        counts.append(max(4 * dim, 2 * dim + 2 * RANK))
        halves.append((half.rows.numpy(), half.points.tolist(), half.blocks.tolist()))
    value, low, high = slow_verify.normal_angle(proxies(x, side), halves, RANK, counts)
    found = row(table, "normal")
    assert (found.value, found.low, found.high) == pytest.approx((value, low, high), rel=1e-6)
    assert found.n == 64


def test_curvature_along_a_proxy_is_that_of_fits_at_single_points():
    """Bent along the first direction alone; each proxy meets the other half, at fixed neighbours."""
    halves, expected = [], []
    for seed in (1, 2):
        generator = torch.Generator().manual_seed(seed)
        u = torch.rand(260, 2, generator=generator, dtype=torch.float64) * 2 - 1
        x = torch.cat([u, u[:, :1].square() + 0.2 * u[:, 1:].square()], 1) @ rotation(6, seed=3)[:, :3].T
        halves.append((x, torch.nonzero(u.abs().amax(1) < 0.3)[:10, 0]))
    proxies = [rotation(6, seed=3)[:, k : k + 1].contiguous() for k in (0, 1)]
    for proxy, (x, points) in zip(proxies, halves[::-1], strict=True):
        found = curvature(x, dim=2, neighbours=30, points=points, along=proxy)
        squares = np.mean(
            [slow_curvature.second_form_squares(x, int(p), 30, dim=2, along=proxy.numpy()) for p in points],
            0,
        )
        assert found.rms.value == pytest.approx(math.sqrt(squares[0]), rel=2e-3)
        assert found.ratio.value == pytest.approx(math.sqrt(squares[2] / squares[0]), rel=5e-3)
        expected.append(found.ratio.value)
    assert expected[0] > 1 > expected[1]
    both = [Half(x, torch.zeros(len(x)), points, torch.zeros(0), 2, None, None) for x, points in halves]
    joint = curvature_along([Subspace(proxy) for proxy in proxies], both)
    chosen = [
        curvature(x, dim=2, points=points, along=proxy).ratio.value
        for proxy, (x, points) in zip(proxies, halves[::-1], strict=True)
    ]
    assert joint.value == pytest.approx(np.mean(chosen), rel=1e-9)


def test_fits_on_the_two_halves_are_compared_with_each_other(made):
    x, _, side, table = made
    assert row(table, "refit").value == pytest.approx(slow_verify.angles(*proxies(x, side)).mean(), rel=1e-6)
