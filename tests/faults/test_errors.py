"""Whatever the operating system answers to a file operation of a command: one line, no traceback, nothing lost."""

import contextlib
import errno
import io

import numpy as np
import pytest

from anisoscope import open_run
from anisoscope.cli import main
from anisoscope.store.run import create_run
from faults.conftest import ALL
from faults.shim import failing

ERRORS = (errno.ENOSPC, errno.EACCES, errno.EIO, errno.ENAMETOOLONG)
COMMANDS = {
    "rows": ["rows", "{run}", "--out", "{out}/rows.csv"],
    "parquet": ["rows", "{run}", "--out", "{out}/rows.parquet"],
    "report": ["report", "{run}"],
    "figures": ["figures", "{run}", "--out", "{out}"],
    "verify": ["verify-run", "{run}"],
    "theory": ["theory", "--quick", "--draws", "50", "--replicates", "4", "--points", "200", "--out", "{out}/theory"],
}
FEW = 6  # operations of a command tried in `make test`


def planted(path):
    with create_run(path, steps=4) as run:
        for step in range(3):
            run.write("a", [{"step": step, "measure": "loss", "variant": "train", "value": 1.0, "role": "decoder"}])
        run.write_tensors("x", {"x": np.eye(2)})
        run.close("finished")
    return path


def said(arguments):
    """Exit status and what went to standard error."""
    err = io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
        try:
            main(arguments)
        except SystemExit as ended:
            return ended.code, err.getvalue()
    return 0, err.getvalue()


@pytest.mark.parametrize("name", [name for name in COMMANDS if ALL or name != "theory"])
def test_an_error_at_any_operation_is_one_line_and_loses_nothing(tmp_path, counted, name):
    run = planted(tmp_path / "all" / "run")
    before, cases = open_run(run).table(), 0

    def arguments(number):
        out = tmp_path / "all" / f"out-{number}"
        out.mkdir(parents=True)
        return [part.format(run=run, out=out) for part in COMMANDS[name]]

    asked = arguments("first")
    with failing(-1, 0, tmp_path / "all") as seen:
        assert said(asked)[0] == 0
    numbers = range(len(seen)) if ALL else range(0, len(seen), max(1, len(seen) // FEW))
    for number in numbers:
        for error in ERRORS if ALL else (ERRORS[number % len(ERRORS)],):
            asked = arguments(f"{number}-{error}")
            with failing(number, error, tmp_path / "all"):
                code, err = said(asked)
            assert code in (0, 1), (name, seen[number], err)
            assert code == 0 or (err.startswith("error: ") and err.count("\n") == 1), (name, seen[number], err)
            assert "Traceback" not in err
            assert open_run(run).table().equals(before)
            assert open_run(run).faults() == ([], [])
            cases += 1
    counted("an error of the operating system at any write of six commands is one line and loses nothing", cases)
