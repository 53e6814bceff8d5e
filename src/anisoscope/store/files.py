"""Files of a run, local or behind an fsspec URL: whole or not at all."""

from __future__ import annotations

import hashlib
import os
import stat
import uuid
from pathlib import Path, PurePosixPath
from typing import Any

import fsspec

from anisoscope.errors import AnisoscopeError
from anisoscope.store.disk import make_folder, to_disk

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
        try:
            return self._fs.exists(self.path(name) if name else self._root)
        except ValueError as error:  # of an address that cannot be taken apart
            raise AnisoscopeError(f"{self.url} is not the address of a run: {error}") from error

    def names(self, ending: str = "") -> list[str]:
        """Names of finished files, sorted."""
        if not self.exists():
            return []
        found = (
            PurePosixPath(each["name"]).name
            for each in self._fs.ls(self._root, detail=True, refresh=True)
            if each["type"] == "file"
        )
        return sorted(name for name in found if name.endswith(ending) and not name.startswith(TEMPORARY))

    def tree(self) -> list[str]:
        """Paths of all finished files, those in folders too, relative to this one."""
        if self.local:
            root = Path(self._root)
            paths = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
            found = [path.relative_to(root).as_posix() for path in paths]
        else:
            inside = self._fs.find(self._root, refresh=True)
            found = [path.removeprefix(self._root).lstrip("/") for path in inside]
        return sorted(name for name in found if not PurePosixPath(name).name.startswith(TEMPORARY))

    def read(self, name: str) -> bytes:
        """All of a file."""
        self._require_regular(name)
        with self._fs.open(self.path(name), "rb") as file:
            return file.read()

    def digest(self, name: str) -> str:
        """The SHA-256 of a file, read a piece at a time."""
        self._require_regular(name)
        found = hashlib.sha256()
        with self._fs.open(self.path(name), "rb") as file:
            while piece := file.read(1 << 20):
                found.update(piece)
        return found.hexdigest()

    def write(self, name: str, content: bytes) -> None:
        """Put a file there, whole; nothing is left of one that could not be written."""
        temporary = self.path(f"{TEMPORARY}{uuid.uuid4().hex}-{name}")
        try:
            self._require_regular(name)
            if self.local:
                make_folder(self._root)
            else:
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
            to_disk(Path(target).parent)  # the file was forced to the disk before it had its name; now the name
        else:
            self._fs.mv(source, target)

    def _require_regular(self, name: str) -> None:
        """Raise for a pipe or a device: reading it might never end, and a file would be put in its place."""
        if not self.local:
            return
        try:
            mode = os.stat(self.path(name)).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise AnisoscopeError(f"{name} in {self.url} is not a regular file; remove it, or choose another name")

    def _forget(self, path: str) -> None:
        try:
            if self._fs.exists(path):
                self._fs.rm_file(path)
        except OSError:  # the disk that could not be written may not let go either
            pass
