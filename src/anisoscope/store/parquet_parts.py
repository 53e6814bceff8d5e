"""Parts of a run: one Parquet file an observation while it is written, one a model and seed once it is finished.

A file that holds several parts lists them, with their numbers of rows, in its metadata. It is written whole before the
parts go, and while both are there the parts that it lists are not read: a crash in between changes no row.

A part holds its own name and a digest of its rows. One that is not what it says, a copy under another name, a file with
columns that are not ours: none of them gives rows.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from anisoscope.store.digest import digest_of
from anisoscope.store.files import Folder
from anisoscope.store.schema import SCHEMA
from anisoscope.store.version_1 import COLUMNS as OLD_COLUMNS

PREFIX, ENDING = "rows-", ".parquet"
_LISTED, _NAMED, _DIGEST = b"anisoscope.parts", b"anisoscope.name", b"anisoscope.digest"
_STEP_DIGITS = 9
_PART = re.compile(rf"{PREFIX}(.+?)-(?:\d{{{_STEP_DIGITS}}}|-\d{{{_STEP_DIGITS - 1}}}){re.escape(ENDING)}")


def part_name(writer: str, step: int | None) -> str:
    """The file of one observation.

    >>> part_name("decoder-0", 7)
    'rows-decoder-0-000000007.parquet'
    """
    return f"{PREFIX}{writer}-{-1 if step is None else step:0{_STEP_DIGITS}d}{ENDING}"


@dataclass(slots=True)
class Parts:
    """What was found in a run's folder."""

    tables: dict[str, pa.Table] = field(default_factory=dict)  # in the order of writers and steps
    damaged: list[str] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)  # whole, and no part of this run


def write_part(folder: Folder, name: str, table: pa.Table) -> None:
    """Put a part there, whole, with its name, the digest of its rows and a checksum of every page."""
    said = (table.schema.metadata or {}) | {_NAMED: name.encode(), _DIGEST: digest_of(table).encode()}
    content = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(said), content, compression="zstd", write_page_checksum=True)
    folder.write(name, content.getvalue())


def read_parts(folder: Folder, names: Sequence[str] | None = None, *, digested: bool = False) -> Parts:
    """Tables by file, and what else lies there under names like theirs; ``digested`` if all parts hold a digest."""
    found = Parts()
    for name in folder.names(ENDING) if names is None else names:
        try:
            table = _read_alone(folder.read(name))
            listed, digest = _listed(table), digest_of(table).encode()
            said = table.schema.metadata or {}
        except (pa.ArrowException, OSError, ValueError):
            found.damaged.append(name)
            continue
        if not name.startswith(PREFIX) or said.get(_NAMED, name.encode()) != name.encode():
            found.strays.append(name)  # of another program, or a second copy
        elif _NAMED not in said and not listed and _writer(name) is None:
            found.strays.append(name)  # parts of an older release do not hold their names
        elif not _is_ours(table) or (said.get(_DIGEST) != digest and (digested or _DIGEST in said)):
            found.damaged.append(name)
        else:
            found.tables[name] = table
    listed = {part for table in found.tables.values() for part in _listed(table)}
    found.tables = {name: table for name, table in found.tables.items() if name not in listed}
    return found


def compact(folder: Folder, *, digested: bool = False) -> None:
    """Put the parts of each model and seed into one file; parts that are damaged or not ours stay as they are."""
    found = read_parts(folder, digested=digested).tables
    groups: dict[str, dict[str, pa.Table]] = {}
    for name, table in found.items():
        if not _listed(table) and _writer(name) is not None:
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


def expand(folder: Folder, *, digested: bool = False) -> None:
    """The same parts again, one a file, to go on writing; nothing where there is nothing to expand."""
    others = [name for name in folder.names(ENDING) if _writer(name) is None]
    for name, table in read_parts(folder, others, digested=digested).tables.items():
        start = 0
        for part, rows in _listed(table).items():
            write_part(folder, part, table.slice(start, rows).replace_schema_metadata(None))
            start += rows
        if start:
            folder.remove(name)


def _is_ours(table: pa.Table) -> bool:
    """Whether all columns are of the schema; those that it lacks are null."""
    known = {field.name: field.type for field in SCHEMA} | OLD_COLUMNS
    return all(known.get(field.name) == field.type for field in table.schema)


def _listed(table: pa.Table) -> dict[str, int]:
    """The parts that a file holds; ``ValueError`` if its list is not one of ours."""
    listed = json.loads((table.schema.metadata or {}).get(_LISTED, b"{}"))
    if not isinstance(listed, dict) or not all(_writer(name) and isinstance(n, int) for name, n in listed.items()):
        raise ValueError("no list of parts")
    if listed and (min(listed.values()) < 0 or sum(listed.values()) != table.num_rows):
        raise ValueError("a list of other rows")
    return listed


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
    file = pq.ParquetFile(pa.BufferReader(content), pre_buffer=False, page_checksum_verification=True)
    return file.read(use_threads=False)
