"""How a study ends: its run is closed and unlocked whatever happened, and the first failure is the one that is told."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from anisoscope.errors import AnisoscopeError
from anisoscope.store.run import Run


@dataclass(slots=True)
class Ending:
    """The status that a run is closed with, unless something fails."""

    status: str = "interrupted"


@contextlib.contextmanager
def closing(run: Run, *, page: bool = False) -> Iterator[Ending]:
    """Close the run at the end: ``failed`` with the reason if an error passes through, else with the status set.

    With ``page`` its page is there from the first rows on, also those that jobs in other processes write.
    """
    if page:
        run.keep_page(last=False, rows_per_chunk=True)
    ending, began, before = Ending(), time.monotonic(), _seconds(run)

    def spent() -> float:
        return round(before + time.monotonic() - began, 1)

    try:
        yield ending
    except BaseException as error:
        is_failure = isinstance(error, Exception)  # an interrupt is none
        with contextlib.suppress(AnisoscopeError, OSError):  # this would hide what happened first
            run.update(seconds=spent(), reason=_reason(error) if is_failure else None)
        with contextlib.suppress(AnisoscopeError, OSError):
            run.close("failed" if is_failure else "interrupted")
        raise
    try:
        run.update(seconds=spent(), reason=None)
        run.close(ending.status)
    finally:
        run.release()


def _seconds(run: Run) -> float:
    said = run.manifest.get("seconds")
    return float(said) if isinstance(said, int | float) else 0.0


def _reason(error: BaseException) -> str:
    first = str(error).strip().splitlines()[:1]
    return first[0] if first and isinstance(error, AnisoscopeError) else ": ".join((type(error).__name__, *first))
