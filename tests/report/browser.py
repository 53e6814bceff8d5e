"""A Chromium for the tests: one that is there, else Debian's, else playwright's own, else a loud skip."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")


@functools.cache
def chromium() -> str | None:
    """The path of a Chromium; ``None`` for the one that playwright brings."""
    found = on_path()
    if found:
        return found
    apt = shutil.which("apt-get")
    if apt and os.geteuid() == 0:
        # Other workers of the same test run may be at it: wait for the lock. No network must not take minutes.
        patient = [
            "-qq",
            "-o",
            "DPkg::Lock::Timeout=300",
            "-o",
            "Acquire::Retries=1",
            "-o",
            "Acquire::http::Timeout=20",
        ]
        _tried([apt, "update", *patient])
        _tried([apt, "install", "-y", "--no-install-recommends", *patient, "chromium"])
        found = on_path()
        if found:
            return found
    if _tried([sys.executable, "-m", "playwright", "install", "chromium"]):
        return None
    said = (
        "NO CHROMIUM: the report was not looked at in a browser. Install the package chromium and run the tests again."
    )
    print(f"\n{'!' * 20} {said}", file=sys.__stderr__, flush=True)
    pytest.skip(said, allow_module_level=True)


def on_path() -> str | None:
    """A Chromium that a shell would find."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def _tried(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=300).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
