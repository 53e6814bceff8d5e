"""A pair of trainings that several files look at."""

import pytest

from anisoscope.study.pair.pair_study import pair
from study.jobs import Quiet, settings


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """An uninterrupted run."""
    where = tmp_path_factory.mktemp("whole")
    display = Quiet()
    run = pair(settings(where), display, out=where / "run")
    return where, run, display
