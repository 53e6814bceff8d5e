"""The default job as a newcomer runs it: what is promised of it holds (minutes; `make slow`)."""

import subprocess
import sys

import pytest

from anisoscope import open_run
from anisoscope.report.expected import EXPECTED
from anisoscope.report.reading import read


@pytest.mark.slow
def test_what_is_promised_of_the_default_run_holds(tmp_path):
    out = tmp_path / "run"
    subprocess.run([sys.executable, "-m", "anisoscope.cli", "pair", "--out", str(out)], check=True)
    assert open_run(out).finished
    assert (out / "report.html").stat().st_size < 5_000_000
    found = {(s.role, e.says): e.found(s) for s in read([str(out)]).subjects for e in EXPECTED}
    assert len(found) == 2 * len(EXPECTED)
    broken = {key: numbers for key, (holds, numbers) in found.items() if not holds}
    assert not broken
