"""A file system that can be stopped between any two operations, or made to fail at any of them.

Python tells an audit hook of every file operation before it happens. What is there then is what a kill at that instant
would leave; an error raised there is what the operating system might have answered.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

_OPERATIONS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.link", "os.symlink")
_watch: Callable[[str, str], None] | None = None
_busy = threading.local()


def _heard(event: str, args: tuple) -> None:
    if _watch is None or event not in _OPERATIONS or getattr(_busy, "now", False):
        return
    if event == "open" and not _is_for_writing(args):
        return
    path = args[0]
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    if isinstance(path, str | Path):
        _busy.now = True
        try:
            _watch(event, os.fspath(path))
        finally:
            _busy.now = False


def _is_for_writing(args: tuple) -> bool:
    mode, flags = args[1], args[2]
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return bool(flags & (os.O_WRONLY | os.O_RDWR))


sys.addaudithook(_heard)


@contextlib.contextmanager
def watching(act: Callable[[str, str], None]) -> Iterator[None]:
    """Call ``act(operation, path)`` before every operation that changes a file."""
    global _watch
    _watch = act
    try:
        yield
    finally:
        _watch = None


@contextlib.contextmanager
def every_state(folder: Path, into: Path) -> Iterator[list[Path]]:
    """Copies of a folder before each operation in it, and as it is in the end; equal ones once."""
    states: list[Path] = []
    known: set[str] = set()
    lock = threading.Lock()

    def copy(operation: str = "", path: str = "") -> None:
        if path and not os.path.abspath(path).startswith(str(folder)):
            return
        with lock:
            if not folder.exists():
                return
            made = into / str(len(states)) / folder.name
            _copied(folder, made)
            digest = _digest(made)
            if digest in known:
                shutil.rmtree(made.parent)
            else:
                known.add(digest)
                states.append(made)

    with watching(copy):
        yield states
    copy()


def _copied(source: Path, target: Path) -> None:
    """A copy, although another thread may be at work there."""
    with contextlib.suppress(shutil.Error, FileNotFoundError):
        shutil.copytree(source, target, dirs_exist_ok=True)


def _digest(folder: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        found.update(f"{path.relative_to(folder)}\0".encode())
        if path.is_file():
            found.update(path.read_bytes())
    return found.hexdigest()


@contextlib.contextmanager
def failing(number: int, error: int, folder: Path) -> Iterator[list[str]]:
    """The operation of this number under a folder fails; yields the operations that were seen."""
    seen: list[str] = []

    def act(operation: str, path: str) -> None:
        if not os.path.abspath(path).startswith(str(folder)):
            return
        seen.append(f"{operation} {path}")
        if len(seen) == number + 1:
            raise OSError(error, os.strerror(error), path)

    with watching(act):
        yield seen
