from pathlib import Path

import pytest

from report.planted import plant


@pytest.fixture(scope="session")
def planted(tmp_path_factory) -> Path:
    """A folder of runs: good, bad, seeds, two, half."""
    folder = tmp_path_factory.mktemp("runs")
    plant(folder / "good")
    plant(folder / "bad", supported=False)
    plant(folder / "seeds", seeds=(0, 1, 2))
    plant(folder / "two", seeds=(0, 1))
    plant(folder / "half", until=100, status=None)
    return folder
