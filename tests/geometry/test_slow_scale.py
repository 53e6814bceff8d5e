"""Measures of float32 rows at the ends of their range, against slow ones in float64 on the very same numbers."""

import itertools

import numpy as np
import pytest
import torch

from anisoscope import average_cosine, effective_rank, isoscore, local_isotropy, top_share
from anisoscope.stats.moments import Moments
from anisoscope.stats.unit_directions import UnitSum
from anisoscope.testing import elliptical
from reference import slow


@pytest.mark.parametrize("scale", [1e-25, 1e-18, 1e20, 1e30])
def test_float32_extremes_change_nothing(scale):
    x = ((elliptical(40, 7, radii="t4", seed=3) + 0.4) * scale).float()
    exact = x.double().numpy()
    assert float(average_cosine(x)) == pytest.approx(slow.average_cosine(exact), abs=1e-6)
    assert float(average_cosine(UnitSum.of(x))) == pytest.approx(slow.average_cosine(exact), abs=1e-6)
    assert float(isoscore(x)) == pytest.approx(slow.isoscore(exact), rel=1e-5)
    for given in (x, Moments.of(x, higher=False)):
        assert float(effective_rank(given)) == pytest.approx(slow.effective_rank(exact), rel=1e-5)
        for options in ({}, {"power": 1}, {"centre": False}):
            assert float(top_share(given, **options)) == pytest.approx(slow.top_share(exact, **options), rel=1e-5)


@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_local_isotropy_is_that_of_quadruples_at_any_scale(scale):
    parts = [elliptical(size, 3, radii="lognormal", seed=k) + 200 * k for k, size in enumerate((9, 10, 12))]
    x = (torch.cat(parts) * scale).float()
    bounds, scores = np.cumsum([0, 9, 10, 12]), []
    for start, end in itertools.pairwise(bounds):
        square_of_trace, trace_of_square = slow.corrected_traces(x[start:end].double().numpy() / scale)
        scores.append((square_of_trace / trace_of_square - 1) / 2 * (end - start))
    found = local_isotropy(x, clusters=3)
    assert found.clusters == 3
    assert found.value == pytest.approx(sum(scores) / 31, rel=1e-3)
