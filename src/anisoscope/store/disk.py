"""Forces files and entries of folders to the disk, so that a power loss takes back nothing that was reported done."""

from __future__ import annotations

import os
from pathlib import Path


def to_disk(path: str | os.PathLike[str]) -> None:
    """Force a file, or the entries of a folder, to the disk."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # a folder, where folders cannot be opened
        if Path(path).is_dir():
            return
        raise
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def tree_to_disk(folder: Path) -> None:
    """Force every file of a folder to the disk, and every folder in it with its entry in the one above."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_file() or path.is_dir():
            to_disk(path)
    to_disk(folder)
    to_disk(folder.parent)


def make_folder(path: str | os.PathLike[str]) -> None:
    """Make a folder and those above it; each one's entry is on the disk before this returns."""
    path = Path(path)
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in missing:
        to_disk(each.parent)
