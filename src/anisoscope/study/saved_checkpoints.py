"""Checkpoints of a training under way: whole or not at all, known by their step and never by a clock.

A checkpoint is whole if it has a list of its files, written last, and every file is there with the checksum listed.
Whatever a kill or a disk leaves behind is not loaded; the one before it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from anisoscope.store.disk import to_disk, tree_to_disk

LIST = "complete.json"
_NAME = re.compile(r"checkpoint-(\d+)")
_GOING = "removed-"
_KEPT = 2
_ABOVE = 3  # checkpoints/WRITER in the folder of the run


def seal(checkpoint: Path) -> None:
    """Say that a checkpoint is whole: force its files to the disk, then list them with their checksums."""
    files = {str(path.relative_to(checkpoint)): path for path in sorted(checkpoint.rglob("*")) if path.is_file()}
    files.pop(LIST, None)
    tree_to_disk(checkpoint)
    content = json.dumps({name: _checksum(path) for name, path in files.items()}, indent=1)
    temporary = checkpoint / f".{LIST}"
    temporary.write_text(content, encoding="utf-8")
    to_disk(temporary)
    os.replace(temporary, checkpoint / LIST)
    to_disk(checkpoint)
    for above in list(checkpoint.parents)[:_ABOVE]:  # Trainer made them, and forced nothing to the disk
        to_disk(above)


def is_whole(checkpoint: Path) -> bool:
    """Whether every file that was listed is there as it was."""
    try:
        listed = json.loads((checkpoint / LIST).read_text(encoding="utf-8"))
        return bool(listed) and all(_checksum(checkpoint / name) == digest for name, digest in listed.items())
    except (OSError, ValueError, AttributeError):
        return False


def whole_checkpoints(folder: Path) -> Iterator[Path]:
    """Checkpoints that training can resume from, the newest first; each is read whole to be checked."""
    return (path for path in reversed(_all(folder)) if is_whole(path))


def discard_older(folder: Path, than: Path) -> None:
    """Keep a checkpoint and as many before it as are worth having; whatever else is older goes, torn ones too."""
    before = [path for path in _all(folder) if step_of(path) < step_of(than)]
    kept = [path for path in reversed(before) if (path / LIST).exists()][: _KEPT - 1]
    for path in before:
        if path not in kept:
            discard(path)
    discard_going(folder)


def discard_newer(folder: Path, than: Path | None) -> None:
    """What came after the checkpoint that was loaded is torn, or of a training that will be made again."""
    for path in _all(folder):
        if than is None or step_of(path) > step_of(than):
            discard(path)
    discard_going(folder)


def discard(path: Path) -> None:
    """Take a folder away: out of sight first, so that a kill in between leaves nothing that looks like one."""
    if path.exists():
        going = path.with_name(f"{_GOING}{path.name}-{os.getpid()}")
        shutil.rmtree(going, ignore_errors=True)
        path.rename(going)
        shutil.rmtree(going, ignore_errors=True)


def discard_going(folder: Path) -> None:
    """Finish what was being taken away when the process was killed."""
    for path in folder.glob(f"{_GOING}*"):
        shutil.rmtree(path, ignore_errors=True)


def step_of(checkpoint: Path) -> int:
    """The step after which a checkpoint was made.

    >>> step_of(Path("checkpoints/decoder-0/checkpoint-250"))
    250
    """
    match = _NAME.fullmatch(checkpoint.name)
    assert match is not None, "named as Trainer names checkpoints"
    return int(match[1])


def _all(folder: Path) -> list[Path]:
    """All checkpoints, whole or not, by step."""
    found = [path for path in folder.glob("checkpoint-*") if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=step_of)


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()
