"""Intervals over sequences of isotropy measures: against measures taken again, and on new batches."""

import numpy as np
import pytest
import torch

from anisoscope.evaluate.measure_intervals import MeasureUnits
from anisoscope.evidence.inference import Spread
from anisoscope.geometry.cloud_parts import Material, Spectrum
from anisoscope.geometry.measure_registry import methods
from anisoscope.stats.moments import Moments
from anisoscope.stats.unit_directions import UnitSum

NAMES = (
    "top_share", "isoscore_star", "participation_ratio", "effective_rank", "rankme", "spectral_decay", "average_cosine",
)  # fmt: skip


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
    return {
        (method.name, variant): estimate
        for method in asked()
        for variant, estimate in method.estimates(material, usual=True)
    }


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
    of = {method.name: method for method in asked()}
    for (name, variant), estimate in whole.items():
        if name == "spectral_decay":  # undefined for so few columns; below
            continue
        exact = Spread.of(torch.tensor([a[name, variant].value for a in again], dtype=torch.float64)).error
        ratio = found.estimate(of[name], estimate, variant).se / exact  # first order: hardly narrower
        assert 0.87 < ratio < 1.6, (name, variant, ratio)
    assert {variant for name, variant in whole if name == "top_share"} >= {"power=1, centred", "power=1, uncentred"}


def test_the_error_of_a_decay_is_about_that_of_a_decay_fitted_again():
    rows, units = sequences(80, width=66, seed=3)
    found = MeasureUnits.of(Spectrum(Moments.of(rows, higher=False)), rows, units)
    (decay,) = (method for method in asked() if method.name == "spectral_decay")
    again = [measured(rows[units % 16 != g])["spectral_decay", "ranks 11 to half"].value for g in range(16)]
    whole = measured(rows)["spectral_decay", "ranks 11 to half"]
    exact = Spread.of(torch.tensor(again, dtype=torch.float64)).error
    assert 0.85 < found.estimate(decay, whole).se / exact < 1.6


def test_intervals_hold_the_mean_over_new_batches_and_rows_alone_would_not():
    """The mean over many batches of the same size lies inside nine times in ten; by rows it would be far less."""
    estimates = {}
    naive = 0
    for seed in range(120):
        rows, units = sequences(32, seed=seed)
        by_unit = MeasureUnits.of(Spectrum(Moments.of(rows, higher=False)), rows, units)
        by_row = MeasureUnits.of(Spectrum(Moments.of(rows, higher=False)), rows, torch.arange(len(rows)))
        whole = measured(rows)
        of = {method.name: method for method in asked()}
        for (name, variant), estimate in whole.items():
            ours = by_unit.estimate(of[name], estimate, variant)
            estimates.setdefault((name, variant), []).append(ours)
            if name == "isoscore_star":
                e = by_row.estimate(of[name], estimate)
                naive += e.high - e.low < 0.7 * (ours.high - ours.low)
    assert naive > 100
    for name, found in estimates.items():
        if name[0] == "spectral_decay":
            continue
        truth = np.mean([e.value for e in found])
        inside = np.mean([e.low <= truth <= e.high for e in found])
        assert inside >= 0.88, (name, inside)


def test_few_or_dominating_sequences_give_no_interval():
    rows, units = sequences(6)
    assert MeasureUnits.of(Spectrum(Moments.of(rows, higher=False)), rows, units) is None
    rows, units = sequences(20)
    rows[units == 3] *= 30
    assert MeasureUnits.of(Spectrum(Moments.of(rows, higher=False)), rows, units) is None
