"""Correlations over types against types really left out, with ties, Zipf counts, and a third property held."""

import pytest
import torch

from anisoscope.evidence.correlation import FEWEST_FOR_TAILS, HEAVIEST, correlations
from anisoscope.testing import paired_properties
from reference import slow_correlation as slow


@pytest.mark.parametrize("n", [10, 33, 80])
@pytest.mark.parametrize("counts", [False, True])
def test_values_and_intervals_are_those_of_a_loop(n, counts):
    x, y = paired_properties(n, -0.6, counts=counts, seed=n)
    y = (4 * y).round()  # ties on both sides
    held = x.log1p() if counts else x.tanh()
    held = held + torch.randn(n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = correlations(x, y, held)
    columns = [one.tolist() for one in (x, y, held)]
    refused = n < FEWEST_FOR_TAILS or max(slow.kurtosis(column) for column in columns) > HEAVIEST
    for name, ranked, some in (
        ("spearman", True, columns[:2]),
        ("pearson", False, columns[:2]),
        ("spearman, norm held", True, columns),
        ("pearson, norm held", False, columns),
    ):
        value, low, high = slow.interval(some, ranked=ranked)
        estimate = found[name]
        assert estimate.value == pytest.approx(value, rel=1e-9), name
        if refused and not ranked:
            assert estimate.low is None
            assert "heavy" in estimate.note
        else:
            assert (estimate.low, estimate.high) == pytest.approx((low, high), rel=1e-6, abs=1e-9), name


def test_logarithms_of_counts_have_an_interval_where_raw_counts_have_none():
    x, y = paired_properties(60, 0.7, counts=True, seed=3)
    assert correlations(x, y)["pearson"].low is None
    logs = correlations(x.log(), y)
    value, low, high = slow.interval([x.log().tolist(), y.tolist()], ranked=False)
    found = logs["pearson"]
    assert (found.value, found.low, found.high) == pytest.approx((value, low, high), rel=1e-6)
    assert logs["spearman"].value == pytest.approx(correlations(x, y)["spearman"].value)
