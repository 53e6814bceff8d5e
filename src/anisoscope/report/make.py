"""From runs to a file: read, arrange, write whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from anisoscope.errors import AnisoscopeError
from anisoscope.report.page import page
from anisoscope.report.reading import Choice, read
from anisoscope.report.view import view
from anisoscope.store.files import Folder

LARGEST = 5_000_000
THINNED = (None, 48, 24, 12, 6)


def make_report(
    paths: Sequence[str],
    *,
    largest: int = LARGEST,
    allow_damaged: bool = False,
    wanted: Choice | None = None,
    live: bool = False,
) -> str:
    """One HTML page about one or several runs, at most ``largest`` bytes: longer curves are thinned until it fits.

    A part that was changed since its run was closed is an error, or with ``allow_damaged`` left out and named.
    ``wanted`` says which proxy and timing the page begins with. A ``live`` page of a run that is still going
    reads itself anew every few seconds.
    """
    context = read(paths, allow_damaged=allow_damaged, wanted=wanted)
    is_running = any(source.status == "running" for source in context.sources)
    fronts = None
    for at_most in THINNED:
        report = view(context, at_most, fronts)
        fronts = report.fronts or None
        made = page(replace(report, live=live and is_running))
        if len(made.encode()) <= largest:
            return made
    raise AnisoscopeError(
        f"the report would be larger than {largest:,} bytes even with {THINNED[-1]} observations a curve; name fewer "
        "runs"
    )


def write_whole(path: Path, content: bytes) -> None:
    """Put a file there, whole or not at all; a device or a pipe stays what it is and takes the content."""
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_bytes(content)
        return
    Folder(path.parent).write(path.name, content)
