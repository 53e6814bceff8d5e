"""Parts of a run: one Parquet file an observation while it is written, one a model and seed once it is finished.

A file that holds several parts lists them, with their numbers of rows, in its metadata. It is written whole before the
parts go, and while both are there the parts that it lists are not read: a crash in between changes no row.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from anisoscope.store.files import Folder
from anisoscope.store.schema import SCHEMA

PREFIX, ENDING = "rows-", ".parquet"
_LISTED = b"anisoscope.parts"
_STEP_DIGITS = 9
_PART = re.compile(rf"{PREFIX}(.+?)-(?:\d{{{_STEP_DIGITS}}}|-\d{{{_STEP_DIGITS - 1}}}){re.escape(ENDING)}")


def part_name(writer: str, step: int | None) -> str:
    """The file of one observation.

    >>> part_name("decoder-0", 7)
    'rows-decoder-0-000000007.parquet'
    """
    return f"{PREFIX}{writer}-{-1 if step is None else step:0{_STEP_DIGITS}d}{ENDING}"


def write_part(folder: Folder, name: str, table: pa.Table) -> None:
    """Put a part there, whole."""
    content = io.BytesIO()
    pq.write_table(table, content, compression="zstd")
    folder.write(name, content.getvalue())


def read_parts(folder: Folder, names: Sequence[str] | None = None) -> tuple[dict[str, pa.Table], list[str]]:
    """Tables by file, in the order of writers and steps, and the names of files that are damaged."""
    found: dict[str, pa.Table] = {}
    damaged = []
    for name in folder.names(ENDING) if names is None else names:
        try:
            found[name] = _read_alone(folder.read(name))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError):
            damaged.append(name)
    listed = {part for table in found.values() for part in _listed(table)}
    return {name: table for name, table in found.items() if name not in listed}, damaged


def compact(folder: Folder) -> None:
    """Put the parts of each model and seed into one file; parts that are damaged or not ours stay as they are."""
    found, _ = read_parts(folder)
    groups: dict[str, dict[str, pa.Table]] = {}
    for name, table in found.items():
        if not _listed(table) and _writer(name) is not None and _is_ours(table):
            groups.setdefault(_head(_writer(name) or "", found), {})[name] = table
    for head, parts in groups.items():
        if len(parts) < 2:
            continue
        tables = [table.replace_schema_metadata(None) for table in parts.values()]
        whole = pa.concat_tables(tables, promote_options="default")  # parts of an older release lack columns
        listed = {name: table.num_rows for name, table in parts.items()}
        whole = whole.replace_schema_metadata({_LISTED: json.dumps(listed).encode()})
        write_part(folder, f"{PREFIX}{head}{ENDING}", whole)
        for name in parts:
            folder.remove(name)


def expand(folder: Folder) -> None:
    """The same parts again, one a file, to go on writing; nothing where there is nothing to expand."""
    others = [name for name in folder.names(ENDING) if _writer(name) is None]
    for name, table in read_parts(folder, others)[0].items():
        start = 0
        for part, rows in _listed(table).items():
            write_part(folder, part, table.slice(start, rows).replace_schema_metadata(None))
            start += rows
        if start:
            folder.remove(name)


def _is_ours(table: pa.Table) -> bool:
    """Whether all columns are of the schema; those that it lacks are null."""
    return all(field.name in SCHEMA.names and field.type == SCHEMA.field(field.name).type for field in table.schema)


def _listed(table: pa.Table) -> dict[str, int]:
    metadata = table.schema.metadata or {}
    return json.loads(metadata[_LISTED]) if _LISTED in metadata else {}


def _writer(name: str) -> str | None:
    """Who wrote a part; None for a file of another kind."""
    match = _PART.fullmatch(name)
    return match[1] if match else None


def _head(writer: str, names: dict[str, pa.Table]) -> str:
    """The shortest writer that this one's name begins with: ``decoder-0`` for ``decoder-0-loss-train``."""
    writers = {own for own in map(_writer, names) if own is not None}
    return min((own for own in writers if writer == own or writer.startswith(f"{own}-")), key=len)


def _read_alone(content: bytes) -> pa.Table:
    """A part, read in this thread: Arrow's pools may abort a process that ends while they start (apache/arrow #34314).

    ``use_threads=False`` spares only the pool for work; the one for input is spared by no buffering ahead.
    """
    return pq.ParquetFile(pa.BufferReader(content), pre_buffer=False).read(use_threads=False)
