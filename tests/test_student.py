"""Student's quantiles against scipy's."""

import math

import pytest
from scipy import stats

from anisoscope.student_t_quantile import quantile


@pytest.mark.parametrize("df", [1, 1.5, 2, 3, 7.3, 30, 200, 1e4, 1e6, math.inf])
@pytest.mark.parametrize("level", [0.025, 0.5, 0.6, 0.8, 0.95, 0.975, 0.995, 1 - 0.025 / 31, 0.9999])
def test_quantiles_are_those_of_scipy(df, level):
    assert quantile(level, df) == pytest.approx(stats.t.ppf(level, df), rel=1e-8, abs=1e-12)


def test_there_is_no_quantile_without_degrees_of_freedom():
    assert all(math.isnan(quantile(0.975, df)) for df in (0.0, -1.0, math.nan))
