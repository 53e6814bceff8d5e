"""Time left at the pace so far, in closed form, and how a time is written."""

import math

import pytest

from anisoscope.jobs.time_left import clock, time_left


def test_the_pace_is_that_of_whole_jobs_and_parts_together():
    assert time_left(10, 2, [0.5, 0.5], 30.0) == pytest.approx(30.0 / 3 * 7)
    assert time_left(2, 2, [], 30.0) == 0.0


def test_before_a_tenth_of_a_job_nobody_knows():
    assert time_left(3, 0, [0.09], 60.0) is None
    assert time_left(3, 0, [0.1], 60.0) == pytest.approx(60.0 / 0.1 * 2.9)


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0, "0:00"), (59.6, "1:00"), (3599.6, "1:00:00"), (90061, "25:01:01"), (None, "?"), (math.nan, "?")],
)
def test_a_time_is_minutes_and_seconds_with_hours_where_there_are_any(seconds, written):
    assert clock(seconds) == written
