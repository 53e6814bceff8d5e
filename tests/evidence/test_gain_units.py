"""The isotropy gain by unit: against covariances formed again without each unit, and its interval on new batches."""

import numpy as np
import pytest
import torch
from tests.reference import slow_evidence as slow

from anisoscope import Subspace, cross_fit, cross_fit_weight
from anisoscope.evidence.gain_units import gains_of_rows, gains_of_weight
from anisoscope.evidence.units import BilinearUnits
from anisoscope.testing import rotation


def frame(width, rank, seed=0):
    draw = torch.randn(width, rank, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.linalg.qr(draw).Q


def covariance(x):
    return np.cov(x, rowvar=False, bias=True)


@pytest.mark.parametrize("offset", [0.0, 5.0])
def test_gains_without_a_unit_are_those_of_the_rows_that_stay(offset):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(90, 7, generator=generator, dtype=torch.float64) * torch.linspace(3, 1, 7) + offset
    groups = torch.randint(0, 6, (90,), generator=generator)
    q = frame(7, 2)
    found = gains_of_rows(x, groups, q)
    assert float(found.gain) == pytest.approx(slow.isotropy_gain(covariance(x.numpy()), q.numpy(), 0.2), rel=1e-9)
    for place, unit in enumerate(torch.unique(groups)):
        rest = covariance(x[groups != unit].numpy())
        assert float(found.gain_without[place]) == pytest.approx(slow.isotropy_gain(rest, q.numpy(), 0.2), rel=1e-8)


def test_the_gradient_of_a_weight_is_formed_again_without_each_sequence():
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(8, 10, 6, generator=generator, dtype=torch.float64)
    d = torch.randn(8, 10, 5, generator=generator, dtype=torch.float64)
    q = frame(6, 2)
    units = BilinearUnits(torch.arange(8), x, d, q, torch.arange(8))
    found = gains_of_weight(units, 5)
    for left in range(8):
        rest = [k for k in range(8) if k != left]
        g = torch.einsum("nte,ntd->ed", d[rest], x[rest]).numpy()
        assert float(found.gain_without[left]) == pytest.approx(
            slow.isotropy_gain(covariance(g), q.numpy(), 0.2), rel=1e-8
        )


def test_a_sketch_of_the_error_signals_gives_no_smaller_error():
    """32 random directions in place of 256 outputs add noise to each leave-one-out: wider, never narrower."""
    ratios = []
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        scale = torch.linspace(3, 0.5, 24, dtype=torch.float64)
        x = torch.randn(24, 16, 24, generator=generator, dtype=torch.float64) * scale
        common = torch.randn(256, 24, generator=generator, dtype=torch.float64) / 12
        noise = torch.randn(24, 16, 256, generator=generator, dtype=torch.float64)
        d = x @ common.T + noise
        q = frame(24, 6, seed)
        sketch = torch.randn(256, 32, generator=generator, dtype=torch.float64) / 32**0.5
        place = torch.arange(24)
        exact = gains_of_weight(BilinearUnits(place, x, d, q, place), 256).gain_without
        rough = gains_of_weight(BilinearUnits(place, x, d @ sketch, q, place), 256).gain_without
        ratios.append(float(rough.std() / exact.std()))
    assert 1.0 < np.mean(ratios) < 2.5, ratios


def test_the_interval_of_the_gain_holds_the_mean_over_new_batches():
    """The proxy stays, sequences are drawn anew: the mean of many batches lies inside nine times in ten."""
    turn = rotation(16, seed=3)
    proxy = Subspace(turn.T[:, :4].contiguous())

    def batch(seed):
        generator = torch.Generator().manual_seed(seed)
        strength = torch.randn(24, 1, 1, generator=generator, dtype=torch.float64).mul(0.4).exp()
        lift = torch.ones(16, dtype=torch.float64)
        lift[:4] = 2.0
        return torch.randn(24, 8, 16, generator=generator, dtype=torch.float64) * strength * lift @ turn

    found = [
        cross_fit(batch(seed), batch(seed), method=lambda rows: proxy, resamples=19, nulls=(), isotropy=True)
        for seed in range(150)
    ]
    for name in ("isotropy_gain_estimate", "captured_estimate"):
        estimates = [getattr(f, name) for f in found]
        truth = np.mean([e.value for e in estimates])
        issued = [e for e in estimates if e.low is not None]
        assert len(issued) > 130  # the others rest on fewer than 8 effective sequences
        inside = np.mean([e.low <= truth <= e.high for e in issued])
        assert inside >= 0.90, (name, inside)


def test_both_views_give_intervals_and_chance():
    generator = torch.Generator().manual_seed(0)
    x, g = torch.randn(2, 24, 12, 10, generator=generator, dtype=torch.float64)
    for found in (cross_fit(x, g, rank=3), cross_fit_weight(x, g, rank=3, nulls=("haar",))):
        e, captured = found.isotropy_gain_estimate, found.captured_estimate
        assert e.low < found.isotropy_gain < e.high
        assert e.floor == found.isotropy_gain_chance
        assert captured.value == pytest.approx(found.captured)
        assert captured.low < captured.value < captured.high


@pytest.mark.parametrize("mean", [3.0, 30.0])
def test_a_common_mean_does_not_drown_the_gains_of_wide_clouds(mean):
    """Wide clouds are multiplied in float32: what all rows share must be gone before."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(320, 300, generator=generator, dtype=torch.float64)
    groups, q = torch.arange(16).repeat_interleave(20), frame(300, 20)
    plain, moved = (gains_of_rows(rows, groups, q).gain_without for rows in (x, x + mean))
    assert float(moved.std()) == pytest.approx(float(plain.std()), rel=0.02)
