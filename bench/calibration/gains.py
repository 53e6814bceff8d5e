"""Isotropy gain, captured share and the measures of a cloud, on new batches of sequences."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from anisoscope import Subspace, cross_fit
from anisoscope.evaluate.measure_intervals import MeasureUnits
from anisoscope.geometry.cloud_parts import Spectrum
from anisoscope.geometry.isotropy import isoscore_star
from anisoscope.geometry.measure_registry import methods
from anisoscope.geometry.results import Estimate
from anisoscope.stats.moments import Moments
from anisoscope.testing import cloud_of_law, rotation
from bench.calibration.cells import Row, coverage_row, generator, missed
from bench.calibration.section import Limit, Section


def rows(repetitions: int) -> Iterator[Row]:
    """Intervals against the mean over all batches."""
    proxy = Subspace(rotation(16, seed=3).T[:, :4].contiguous())
    for law in ("gaussian", "clustered", "t3", "lognormal"):
        for n in (16, 32):
            found = [estimates_of_batch(law, n, seed, proxy) for seed in range(repetitions)]
            for place, name in enumerate(("isotropy gain", "captured share", "IsoScore*, activations")):
                estimates = [one[place] for one in found]
                truth = float(np.mean([e.value for e in estimates]))
                yield coverage_row(f"{name}, `{law}`", n, [missed(e, truth) for e in estimates])


def estimates_of_batch(law: str, n: int, seed: int, proxy: Subspace) -> tuple[Estimate, Estimate, Estimate]:
    g = cloud_of_law(law, n, length=12, width=16, seed=seed)
    found = cross_fit(g, g, method=lambda rows: proxy, resamples=1, nulls=(), generator=generator(seed))
    moments = Moments.of(g.flatten(0, 1), higher=False)
    by_unit = MeasureUnits.of(Spectrum(moments), g.flatten(0, 1), torch.arange(n).repeat_interleave(12))
    method = next(method for method in methods(training=True) if method.name == "isoscore_star")
    score = isoscore_star(moments)
    assert found.isotropy_gain_estimate is not None
    assert found.captured_estimate is not None
    of_measure = score if by_unit is None else by_unit.estimate(method, score)
    return found.isotropy_gain_estimate, found.captured_estimate, of_measure


SECTIONS = (
    Section(
        "gains",
        "Isotropy gain, captured share, isotropy of a cloud",
        "Intervals over sequences against the mean over all batches, for a fixed proxy (`cloud_of_law`, "
        "{repetitions} repetitions).",
        ["statistic", "sequences", "issued", "covers", "issued and misses"],
        rows,
        0.25,
        (
            Limit(
                "IsoScore* of a cloud without a fourth moment (`t3`) has intervals that miss in about 0.12: batches "
                "with an outlier lie far below the others, and a batch without one cannot know.",
                "IsoScore*, activations, `t3`",
            ),
        ),
    ),
)
