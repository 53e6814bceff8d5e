"""What a part holds, as one number: the names of its columns, their types and every value, null and NaN told apart.

Checksums of Parquet cover the pages of a file and not its footer, where the names of columns are. This covers rows as
they are read, so that whatever a disk or another program did to a part is seen.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa


def digest_of(table: pa.Table) -> str:
    """A hash of the rows and columns of a table, whatever chunks they lie in.

    >>> one, same, other = ([1, None], [1, None], [1, 0])
    >>> one, same, other = (digest_of(pa.table({"step": step})) for step in (one, same, other))
    >>> one == same, one == other
    (True, False)
    """
    found = hashlib.blake2b(f"{table.num_rows}".encode(), digest_size=16)
    for field, column in zip(table.schema, table.columns, strict=True):
        found.update(f"\0{field.name}\0{field.type}\0".encode())
        found.update(np.packbits(column.is_null().to_numpy()).tobytes())
        if pa.types.is_string(field.type):
            lengths, letters = _letters(column)
            found.update(lengths.tobytes())
            found.update(letters)
        elif pa.types.is_floating(field.type):
            found.update(column.fill_null(0.0).to_numpy().astype("<f8").tobytes())
        elif pa.types.is_integer(field.type):
            found.update(column.fill_null(0).to_numpy().astype("<i8").tobytes())
        else:
            found.update(repr(column.to_pylist()).encode())
    return found.hexdigest()


def _letters(column: pa.ChunkedArray) -> tuple[np.ndarray, memoryview]:
    """Lengths of all texts in bytes, and their bytes one after the other, as Arrow holds them; null is empty."""
    joined = column.cast(pa.large_binary()).fill_null(b"").combine_chunks()
    _, offsets, letters = joined.buffers()
    if offsets is None or letters is None:
        return np.zeros(len(joined), "<i8"), memoryview(b"")
    ends = np.frombuffer(offsets, "<i8")[joined.offset : joined.offset + len(joined) + 1]
    return np.diff(ends), memoryview(letters)[ends[0] : ends[-1]]
