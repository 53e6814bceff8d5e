"""From runs to a file: read, arrange, write whole or not at all."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Sequence
from pathlib import Path

from anisoscope.errors import AnisoscopeError
from anisoscope.report.page import page
from anisoscope.report.reading import read
from anisoscope.report.view import view

LARGEST = 5_000_000
THINNED = (None, 48, 24, 12, 6)


def make_report(paths: Sequence[str], *, largest: int = LARGEST) -> str:
    """One HTML page about one or several runs, at most ``largest`` bytes: longer curves are thinned until it fits."""
    context = read(paths)
    for at_most in THINNED:
        made = page(view(context, at_most))
        if len(made.encode()) <= largest:
            return made
    raise AnisoscopeError(
        f"the report would be larger than {largest:,} bytes even with {THINNED[-1]} observations a curve; name fewer "
        "runs"
    )


def write_whole(path: Path, content: bytes) -> None:
    """Put a file there by a temporary name, so that a reader never sees half of one."""
    temporary = path.with_name(f".tmp-{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):  # where the folder is none, there is nothing to take away
            temporary.unlink(missing_ok=True)
        raise AnisoscopeError(f"cannot write {path}: {error.strerror or error}; nothing was overwritten") from error
