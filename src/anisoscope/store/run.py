"""A run: a directory with a manifest, rows in Parquet parts, and tensors in safetensors."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from anisoscope.errors import AnisoscopeError, broken
from anisoscope.store.disk import make_folder
from anisoscope.store.files import Folder
from anisoscope.store.home import without_home
from anisoscope.store.lock import Lock
from anisoscope.store.parquet_page import PageProcess
from anisoscope.store.parquet_parts import ENDING, compact, expand, part_name, read_parts, write_part
from anisoscope.store.recorded import (
    DIGESTED,
    FILES,
    MANIFEST,
    Fault,
    faults_of,
    files_in,
    hashes_of,
    manifest_from_bytes,
    manifest_to_bytes,
    parts_at_fault,
    require_recorded,
    stray_parts,
)
from anisoscope.store.schema import COLUMNS, SCHEMA, SCHEMA_VERSION, as_table
from anisoscope.store.version_1 import from_version_1

_GIVEN = ("config", "plan", FILES)


class Run:
    """What was measured, and how: read by anyone, written by one process (or by several, each with parts of its own).

    ``damaged`` names parts that a disk, a copy that broke off or another program changed, and ``strays`` Parquet files
    that are no parts of this run; both are left out of the rows.

    >>> run = create_run("memory://example", config={"rank": 8})
    >>> run.write("decoder-0", [{"step": 0, "measure": "energy", "value": 0.25}])
    >>> open_run("memory://example").table().num_rows
    1
    """

    def __init__(
        self, folder: Folder, manifest: dict[str, Any], lock: Lock | None = None, *, begun: bool = False
    ) -> None:
        self._folder, self._lock = folder, lock
        self.manifest = manifest
        self.damaged: list[str] = []
        self.strays: list[str] = []
        self._begun = begun  # whether there is a manifest
        self._page: PageProcess | None = None

    @property
    def path(self) -> str:
        """Where the run is."""
        return self._folder.url

    @property
    def name(self) -> str:
        """The name that its rows carry."""
        return str(self.manifest.get("name", ""))

    @property
    def schema_version(self) -> int:
        """The version of the schema that its parts were written in."""
        return int(self.manifest.get("schema_version", SCHEMA_VERSION))

    def require_current(self) -> None:
        """Raise for a run that can be read but not gone on with, because an older anisoscope began it."""
        if self.schema_version != SCHEMA_VERSION:
            raise AnisoscopeError(
                f"{self.path} was begun under schema {self.schema_version}, and this anisoscope writes "
                f"{SCHEMA_VERSION}: it can be read and reported, but not resumed; begin a new run"
            )

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.manifest.get("status") == "finished"

    def write(self, writer: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add the rows of one observation; written again (after a resume) they take the place of the first.

        ``writer`` names whoever writes, so that several may: parts of different writers never meet.
        """
        table = as_table({"run": self.name} | dict(row) for row in rows)
        if not table.num_rows:
            return
        steps = set(table["step"].to_pylist())
        if len(steps) > 1 or not _is_plain(writer):
            raise broken(
                "a part must hold the rows of one step, by a writer with a plain name",
                f"{len(steps)} steps by {writer!r}",
                "write each observation on its own",
            )
        self._require_in_place()
        step = steps.pop()
        write_part(self._folder, part_name(writer, step), table)
        if self._page is not None and step is not None:  # what is known before training makes no page
            self._page.begin()

    def keep_page(self, *, last: bool = True, rows_per_chunk: bool = False) -> None:
        """Keep ``report.html`` up to date from the first observation on, by another process; for local runs.

        With ``last`` the page of the closed run is written too; that of a run which is stopped or fails always is.
        ``rows_per_chunk`` does not wait for rows that this process writes: others may write them.
        """
        if self._folder.local:
            self._page = PageProcess(self._folder.path(""), last=last)
            if rows_per_chunk:
                self._page.begin()

    def sink(self, writer: str, **constant: Any) -> RunSink:
        """Something with ``write(rows)`` that adds constant columns (``model``, ``role``, ``seed``) to every row."""
        return RunSink(self, writer, constant)

    def table(self) -> pa.Table:
        """All rows as an Arrow table, in the order of writers and steps."""
        found = read_parts(self._folder, digested=self._digested)
        files = files_in(self.manifest)
        self.damaged, self.strays = found.damaged, found.strays
        if files is not None:
            changed = {fault.name for fault in faults_of(self._folder, files, only=ENDING)}
            self.strays = sorted({*found.strays, *stray_parts(self._folder, files)})
            self.damaged = sorted(({*found.damaged, *changed}) - set(self.strays))
        parts = []
        for name, part in found.tables.items():
            if name in self.damaged or name in self.strays:
                continue
            try:
                parts.append(_completed(part, self.schema_version))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                self.damaged.append(name)
        return pa.concat_tables(parts) if parts else SCHEMA.empty_table()

    def whole_table(self) -> pa.Table:
        """All rows, for whatever is computed from them: a part that cannot be read is an error, and not left out."""
        found = self.table()
        if self.damaged:
            more = f" (and {len(self.damaged) - 1} more)" if len(self.damaged) > 1 else ""
            raise AnisoscopeError(
                f"cannot read {self.damaged[0]}{more} in {self.path}; try again, and see: anisoscope verify-run "
                f"{self.path}"
            )
        return found

    def require_whole(self, *, rows_only: bool = False) -> None:
        """Raise if a file (or, with ``rows_only``, a part) is not what it was when the run was closed."""
        require_recorded(self._folder, files_in(self.manifest) or {}, only=ENDING if rows_only else "")

    @property
    def _digested(self) -> bool:
        return bool(self.manifest.get(DIGESTED))

    @property
    def recorded(self) -> dict[str, str] | None:
        """SHA-256 by file, as kept when the run was closed; None for one that was not."""
        return files_in(self.manifest)

    def part_names(self) -> list[str]:
        """Files that may hold rows."""
        return self._folder.names(ENDING)

    def faults(self) -> tuple[list[Fault], list[str]]:
        """Files that are not what they were, and Parquet files that are none of the run's; reads all of them."""
        files = files_in(self.manifest)
        if files is None:
            return parts_at_fault(self._folder, digested=self._digested), read_parts(self._folder).strays
        return faults_of(self._folder, files), stray_parts(self._folder, files)

    def rows(self) -> Any:
        """All rows as a pandas data frame; null and NaN are two things there too (Arrow types)."""
        import pandas as pd

        return self.table().to_pandas(types_mapper=pd.ArrowDtype, use_threads=False)

    def update(self, **fields: Any) -> None:
        """Change the manifest."""
        self._require_in_place()
        # Settings and plans stay as they were given: a resume needs the paths in them.
        self.manifest = self.manifest | {k: v if k in _GIVEN else without_home(v) for k, v in fields.items()}
        self._folder.write(MANIFEST, manifest_to_bytes(self.manifest))
        self._begun = True

    def write_tensors(self, name: str, tensors: Mapping[str, np.ndarray], **metadata: str) -> None:
        """Keep arrays (subspaces) as ``name.safetensors``."""
        from safetensors.numpy import save

        self._require_in_place()
        self._folder.write(f"{name}.safetensors", save(dict(tensors), metadata or None))

    def tensors(self, name: str) -> dict[str, np.ndarray]:
        """Arrays that were kept."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            return load(self._folder.read(f"{name}.safetensors"))
        except FileNotFoundError as error:
            raise broken("tensors must have been kept under this name", name, f"there are {self._kept()}") from error
        except SafetensorError as error:
            raise AnisoscopeError(f"{name}.safetensors in {self.path} is damaged: {error}") from error

    def write_file(self, name: str, content: bytes) -> None:
        """Put any other file into the run, whole or not at all."""
        self._require_in_place()
        self._folder.write(name, content)

    def read_file(self, name: str) -> bytes:
        """Read one back."""
        try:
            return self._folder.read(name)
        except FileNotFoundError as error:
            raise AnisoscopeError(f"{self.path} has no file {name}; it was removed") from error

    def has_file(self, name: str) -> bool:
        """Whether there is such a file."""
        return self._folder.exists(name)

    def remove_file(self, name: str) -> None:
        """Take a file away, if it is there."""
        self._folder.remove(name)

    def _require_in_place(self) -> None:
        """Raise if the folder is gone, or another is in its place: what was written before is not there."""
        if not self._begun or not self._folder.local:
            return
        try:
            found = json.loads(self._folder.read(MANIFEST))
        except (OSError, ValueError):
            found = {}
        if not found or any(found.get(name) != self.manifest.get(name) for name in ("created", "id")):
            raise AnisoscopeError(f"{self.path} was removed or replaced while it was written; nothing is written to it")

    def _kept(self) -> str:
        return ", ".join(name.removesuffix(".safetensors") for name in self._folder.names(".safetensors")) or "none"

    def close(self, status: str | None = None) -> None:
        """Let others write; ``status`` goes into the manifest. Parts of a finished run become one a model and seed."""
        if self._page is not None:
            self._page.stop()  # before parts become one
        try:
            is_mine = self._lock is not None or status is not None
            finished = (status or self.manifest.get("status")) == "finished"
            if is_mine and finished and self.schema_version == SCHEMA_VERSION:
                with contextlib.suppress(AnisoscopeError):  # a full disk: the parts are as good
                    compact(self._folder, digested=self._digested)
            if is_mine and (status is not None or self._begun):
                ended = {} if status is None else {"status": status, "ended": _now()}
                self.update(**ended, **{FILES: self._hashes()})
        finally:
            self.release()
            if self._page is not None:
                self._page.finish(is_whole=self.finished)

    def _hashes(self) -> dict[str, str] | None:
        try:
            return hashes_of(self._folder)
        except OSError:  # a file that cannot be read must not keep the status from being written
            return None

    def release(self) -> None:
        """Let others write, and leave all else as it is."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self._lock is not None:
            self.close(None if kind is None else "interrupted")


R = TypeVar("R", bound=Run)


class RunSink:
    """Takes the rows of a scope into a run."""

    def __init__(self, run: Run, writer: str, constant: dict[str, Any]) -> None:
        unknown = set(constant) - set(COLUMNS)
        if unknown:
            raise broken("constant columns must be of the schema", sorted(unknown), f"known are {', '.join(COLUMNS)}")
        self._run, self._writer, self._constant = run, writer, constant

    def write(self, rows: list[dict[str, Any]]) -> None:
        """Add the rows of one observation."""
        self._run.write(self._writer, [self._constant | row for row in rows])

    def read(self) -> list[dict[str, Any]]:
        """The rows that this sink has written, read back."""
        own = {"run": self._run.name} | self._constant
        return [row for row in self._run.whole_table().to_pylist() if all(row[name] == own[name] for name in own)]

    def keep(
        self, what: str, timing: str | None, step: int, tensors: Mapping[str, np.ndarray], *, every: bool = False
    ) -> None:
        """Keep arrays as ``WHAT-WRITER[-TIMING][-STEP]``; without ``every`` a later step replaces the last."""
        parts = [what, self._writer, timing, f"{step:09d}" if every else None]
        self._run.write_tensors("-".join(part for part in parts if part), tensors, step=str(step))


def create_run(path: str | os.PathLike[str], *, config: Mapping[str, Any] | None = None, **about: Any) -> Run:
    """Begin a run in a folder that holds none."""
    folder = Folder(path)
    if folder.exists(MANIFEST):
        raise AnisoscopeError(
            f"{folder} holds a run already; nothing was overwritten. Choose another folder or resume it"
        )
    lock = _locked(folder)
    name = str(folder.url).rstrip("/").rsplit("/", 1)[-1]
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "name": name,
        "created": _now(),
        "id": uuid.uuid4().hex,
        "status": "running",
        DIGESTED: True,
        "config": dict(config or {}),
    }
    run = Run(folder, manifest, lock)
    try:
        run.update(**about)
    except AnisoscopeError:
        run.close()
        raise
    return run


def open_run(path: str | os.PathLike[str], *, write: bool = False, of: type[R] = Run) -> R:
    """Open a run to read it, or with ``write`` to go on with it; ``of`` a class that can do more."""
    folder = Folder(path)
    if not folder.exists(MANIFEST):
        near = "; there is no such folder" if not folder.exists() else ""
        raise AnisoscopeError(f"{folder} is no run: it has no {MANIFEST}{near}")
    manifest = manifest_from_bytes(folder.read(MANIFEST), str(folder))
    run = of(folder, manifest, _locked(folder) if write else None, begun=True)
    if write:
        try:
            run.require_whole()
            digested = bool(manifest.get(DIGESTED))
            damaged = parts_at_fault(folder, digested=digested)
            if damaged:
                raise AnisoscopeError(f"{damaged[0].name} in {folder} is damaged; restore it, or begin a new run")
            if FILES in manifest:  # from here on files change
                run.update(**{FILES: None})
            expand(folder, digested=digested)
        except BaseException:
            run.release()
            raise
    return run


def _locked(folder: Folder) -> Lock | None:
    """The lock of a local run; object stores have none, there writers must have different names."""
    if not folder.local:
        return None
    local = Path(folder.path(""))
    try:
        make_folder(local)
    except OSError as error:
        raise AnisoscopeError(f"cannot make {local}: {error.strerror or error}") from error
    lock = Lock(local)
    lock.acquire()
    return lock


def _completed(part: pa.Table, version: int) -> pa.Table:
    """A part in the columns of today; what it lacks is null."""
    if version == 1 and not set(part.column_names) & {"subset", "tensor"}:  # a resumed run has parts of both
        part = from_version_1(part)
    for field in SCHEMA:
        if field.name not in part.column_names:
            part = part.append_column(field, pa.nulls(part.num_rows, field.type))
    return part.select(SCHEMA.names).cast(SCHEMA)


def _is_plain(name: str) -> bool:
    return bool(name) and all(c.isalnum() or c in "-_." for c in name)


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
