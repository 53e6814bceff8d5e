"""Processes of our own: they import what this one does, and nothing of the working directory in its place."""

from __future__ import annotations

import os
import sys


def command_of(module: str, *arguments: str) -> list[str]:
    """What starts a module of ours; without ``-P`` a file of the working directory named like one would be run.

    >>> command_of("anisoscope.cli", "doctor")[1:]
    ['-P', '-m', 'anisoscope.cli', 'doctor']
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def environment_of(**changed: str) -> dict[str, str]:
    """The environment that it starts in: modules are found where this process finds them."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)} | changed
