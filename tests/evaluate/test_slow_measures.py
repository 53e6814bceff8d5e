"""Intervals of isotropy measures against a slow jackknife: every measure, by units and by groups of them."""

import pytest
import torch

from anisoscope.evaluate.measure_intervals import GROUPS, MeasureUnits
from anisoscope.geometry.cloud_parts import Material, Spectrum
from anisoscope.geometry.measure_registry import methods
from anisoscope.stats.moments import Moments
from anisoscope.stats.unit_directions import UnitSum
from reference import slow_jackknife, slow_measures


def rows_of_units(units, seed, width=6, length=5):
    """Skewed rows on an offset; each unit is shifted and stretched, and some have fewer rows."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(units, length, width, generator=generator, dtype=torch.float64).log()
    x = x * torch.linspace(0.5, 3, width) + torch.randn(units, 1, width, generator=generator, dtype=torch.float64)
    rows, unit = x.flatten(0, 1), torch.arange(units).repeat_interleave(length)
    keep = torch.rand(len(rows), generator=generator) < 0.8
    return rows[keep], unit[keep]


@pytest.mark.parametrize("units", [14, 37])
def test_every_measure_has_the_interval_of_a_slow_jackknife(units):
    rows, unit = rows_of_units(units, seed=units)
    moments = Moments.of(rows, higher=False)
    found = MeasureUnits.of(Spectrum(moments), rows, unit)
    lost = slow_measures.without_groups(rows.numpy(), (unit % GROUPS if units > GROUPS else unit).numpy())
    material = Material(moments=moments, directions=lambda: UnitSum.of(rows))
    seen = set()
    for method in methods(training=True):
        if method.name not in lost:
            continue
        whole = next(iter(method.estimates(material, usual=True)))[1]
        estimate = found.estimate(method, whole)
        error, df = slow_jackknife.error_and_df(lost[method.name])
        assert (estimate.se, estimate.df) == pytest.approx((error, df), rel=1e-6), method.name
        expected = slow_jackknife.ends(whole.value, error, df)
        assert (estimate.low, estimate.high) == pytest.approx(expected, rel=1e-6), method.name
        seen.add(method.name)
    assert seen == set(lost)


def test_leaving_nothing_out_gives_the_measure_itself():
    rows, _ = rows_of_units(9, seed=1)
    material = Material(moments=Moments.of(rows, higher=False), directions=lambda: UnitSum.of(rows))
    nobody = torch.zeros(len(rows), dtype=torch.bool).numpy()
    slow = slow_measures.of_variances(slow_measures.variances_without(rows.numpy(), nobody))
    slow["average_cosine"] = slow_measures.average_cosine(rows.numpy(), nobody)
    for method in methods(training=True):
        if method.name in slow:
            value = next(iter(method.estimates(material, usual=True)))[1].value
            assert value == pytest.approx(slow[method.name], rel=1e-6), method.name
