"""Runs that the command line names: opened and read, and what is wrong with them said in a line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from anisoscope.cli.output import say
from anisoscope.errors import AnisoscopeError, BrokenRuleError

if TYPE_CHECKING:
    from anisoscope.store.run import Run


def opened(path: str) -> Run:
    """A run to read; a folder of runs is no run, but those in it are named."""
    from anisoscope.store.run import open_run

    with clearly(path):
        try:
            return open_run(path)
        except AnisoscopeError as error:
            inside = sorted(str(found.parent) for found in Path(path).glob("*/manifest.json"))
            if not inside or (Path(path) / "manifest.json").exists():
                raise
            raise AnisoscopeError(f"{error}; there are runs in it: {', '.join(inside[:5])}") from error


def warn_of_damage(run: Run) -> None:
    """Name the parts that were left out, on standard error."""
    if run.damaged:
        parts = ", ".join(run.damaged)
        say(f"warning: {run.path}: {len(run.damaged)} damaged part(s) left out: {parts}")
    if run.strays:
        names = ", ".join(run.strays)
        say(f"warning: {run.path}: {len(run.strays)} file(s) that are not part of the run left out: {names}")


@contextmanager
def clearly(path: str) -> Iterator[None]:
    """Faults of file systems and foreign files as errors that name the run."""
    import pyarrow as pa

    try:
        yield
    except (AnisoscopeError, BrokenRuleError, BrokenPipeError):
        raise
    except ImportError as error:
        raise AnisoscopeError(f"cannot reach {path}: {error}") from error
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise AnisoscopeError(f"cannot read {path}: {reason}") from error
