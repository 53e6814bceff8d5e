"""The report of a run, made by a process of its own: what trains needs none of what draws."""

from __future__ import annotations

import subprocess
from pathlib import Path

from anisoscope.own_process import command_of, environment_of

_PATIENCE = 900.0  # seconds


def report_of(run: str) -> Path | str:
    """Make the report of a run beside its rows; returns where it is, or why there is none."""
    page = Path(run) / "report.html"
    if "://" in run:
        return f"{run} is not a local folder; make it with: anisoscope report {run}"
    command = command_of("anisoscope.cli", "report", run, "--out", str(page))
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            stdin=subprocess.DEVNULL,
            env=environment_of(),
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if done.returncode or not page.exists():
        return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return page
