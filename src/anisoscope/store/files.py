"""Files of a run, local or behind an fsspec URL: whole or not at all."""

from __future__ import annotations

import os
import uuid
from pathlib import PurePosixPath
from typing import Any

import fsspec

from anisoscope.errors import AnisoscopeError

TEMPORARY = ".tmp-"


class Folder:
    """A directory of a run; every write is a temporary file and a rename, so that a reader never sees half of one."""

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self.url = os.fspath(url)
        self._fs: Any
        self._fs, self._root = fsspec.core.url_to_fs(self.url)
        self.local = getattr(self._fs, "protocol", None) in ("file", ("file", "local"), "local")

    def __str__(self) -> str:
        return self.url

    def path(self, name: str) -> str:
        """Where a file of this folder is, as its file system knows it."""
        return str(PurePosixPath(self._root) / name)

    def exists(self, name: str = "") -> bool:
        """Whether there is such a file (or, without a name, the folder itself)."""
        return self._fs.exists(self.path(name) if name else self._root)

    def names(self, ending: str = "") -> list[str]:
        """Names of finished files, sorted."""
        if not self.exists():
            return []
        found = (PurePosixPath(path).name for path in self._fs.ls(self._root, detail=False, refresh=True))
        return sorted(name for name in found if name.endswith(ending) and not name.startswith(TEMPORARY))

    def read(self, name: str) -> bytes:
        """All of a file."""
        with self._fs.open(self.path(name), "rb") as file:
            return file.read()

    def write(self, name: str, content: bytes) -> None:
        """Put a file there, whole; nothing is left of one that could not be written."""
        temporary = self.path(f"{TEMPORARY}{uuid.uuid4().hex}-{name}")
        try:
            self._fs.makedirs(self._root, exist_ok=True)
            with self._fs.open(temporary, "wb") as file:
                file.write(content)
                if self.local:
                    file.flush()
                    os.fsync(file.fileno())
            self._rename(temporary, self.path(name))
        except OSError as error:
            self._forget(temporary)
            raise AnisoscopeError(
                f"cannot write {name} in {self.url}: {error.strerror or error}; nothing was overwritten"
            ) from error

    def remove(self, name: str) -> None:
        """Take a file away, if it is there."""
        self._forget(self.path(name))

    def _rename(self, source: str, target: str) -> None:
        if self.local:
            os.replace(source, target)
        else:
            self._fs.mv(source, target)

    def _forget(self, path: str) -> None:
        try:
            if self._fs.exists(path):
                self._fs.rm_file(path)
        except OSError:  # the disk that could not be written may not let go either
            pass
