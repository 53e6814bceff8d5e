"""Errors of files under a training: torch and safetensors tell them in types and words of their own."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from anisoscope.errors import AnisoscopeError

_OF_TORCH = re.compile(r"inline_container|PytorchStream(?:Reader|Writer)|iostream error|zip archive")
_SAID = re.compile(r"(?:strerror|I/O error): ([^(]+?)(?: \(os error|$)", re.MULTILINE)


@contextlib.contextmanager
def failing_files(folder: Path) -> Iterator[None]:
    """Tell in one line that a file of a run could not be read or written, whoever noticed it."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        why = reason(error)
        if why is None:
            raise
        raise AnisoscopeError(
            f"cannot read or write in {folder}: {why}; check free space and permissions, then resume with --resume"
        ) from error


def reason(error: Exception) -> str | None:
    """What the operating system said; None for an error that is not about files.

    >>> reason(RuntimeError("[enforce fail at inline_container.cc:7] . open failed with strerror: Input/output error"))
    'Input/output error'
    >>> reason(RuntimeError("shapes do not match")) is None
    True
    """
    if isinstance(error, OSError):
        return error.strerror or str(error)
    text = str(error)
    if not isinstance(error, SafetensorError) and not _OF_TORCH.search(text):
        return None
    said = _SAID.search(text)
    return said[1].strip() if said else (text.strip().splitlines() or ["a file is not what it should be"])[0]
