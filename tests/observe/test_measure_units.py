"""Intervals over sequences of isotropy measures: against measures taken again, and on new batches."""

import numpy as np
import pytest
import torch

from anisoscope.evidence.inference import Spread
from anisoscope.geometry.material import Material, Spectrum
from anisoscope.geometry.registry import methods
from anisoscope.observe.measure_units import MeasureUnits
from anisoscope.stats.directions import UnitSum
from anisoscope.stats.moments import Moments

NAMES = ("top_share", "isoscore_star", "participation_ratio", "effective_rank", "average_cosine")


def sequences(n, length=20, width=12, *, seed=0):
    """Rows of sequences that have a direction and a size of their own."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.linspace(2, 0.5, width, dtype=torch.float64)
    own = torch.randn(n, 1, width, generator=generator, dtype=torch.float64) * scale
    size = torch.randn(n, 1, 1, generator=generator, dtype=torch.float64).mul(0.2).exp()
    rows = (own + torch.randn(n, length, width, generator=generator, dtype=torch.float64) * scale) * size + 0.5
    return rows.flatten(0, 1), torch.arange(n).repeat_interleave(length)


def asked():
    return [method for method in methods(training=True) if method.name in NAMES]


def measured(rows):
    material = Material(moments=Moments.of(rows, higher=False), directions=lambda: UnitSum.of(rows))
    return {method.name: next(iter(method.estimates(material, usual=True)))[1] for method in asked()}


def test_every_isotropy_measure_of_a_training_is_asked_here():
    known = {m.name for m in methods(training=True) if m.of_spectrum or m.needs == "directions"}
    assert known == set(NAMES)


@pytest.mark.parametrize("n", [12, 40])
def test_errors_are_those_of_measures_taken_again_without_each_group(n):
    rows, units = sequences(n, seed=3)
    found = MeasureUnits.of(Spectrum(Moments.of(rows, higher=False)), rows, units)
    group = units % 16 if n > 16 else units
    again = [measured(rows[group != g]) for g in range(int(group.max()) + 1)]
    whole = measured(rows)
    for method in asked():
        exact = Spread.of(torch.tensor([a[method.name].value for a in again], dtype=torch.float64)).error
        ratio = found.estimate(method, whole[method.name]).se / exact  # first order: not narrower by more than a tenth
        assert 0.9 < ratio < 1.6, (method.name, ratio)


def test_intervals_hold_the_mean_over_new_batches_and_rows_alone_would_not():
    """The mean over many batches of the same size lies inside nine times in ten; by rows it would be far less."""
    estimates = {name: [] for name in NAMES}
    naive = 0
    for seed in range(120):
        rows, units = sequences(32, seed=seed)
        by_unit = MeasureUnits.of(Spectrum(Moments.of(rows, higher=False)), rows, units)
        by_row = MeasureUnits.of(Spectrum(Moments.of(rows, higher=False)), rows, torch.arange(len(rows)))
        whole = measured(rows)
        for method in asked():
            estimates[method.name].append(by_unit.estimate(method, whole[method.name]))
            if method.name == "isoscore_star":
                e = by_row.estimate(method, whole[method.name])
                naive += e.high - e.low < 0.7 * (estimates[method.name][-1].high - estimates[method.name][-1].low)
    assert naive > 100
    for name, found in estimates.items():
        truth = np.mean([e.value for e in found])
        inside = np.mean([e.low <= truth <= e.high for e in found])
        assert inside >= 0.88, (name, inside)


def test_few_or_dominating_sequences_give_no_interval():
    rows, units = sequences(6)
    assert MeasureUnits.of(Spectrum(Moments.of(rows, higher=False)), rows, units) is None
    rows, units = sequences(20)
    rows[units == 3] *= 30
    assert MeasureUnits.of(Spectrum(Moments.of(rows, higher=False)), rows, units) is None
