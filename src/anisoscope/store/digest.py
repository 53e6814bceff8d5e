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
        array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        null = _is_null(array)
        found.update(np.packbits(null).tobytes())
        if pa.types.is_string(field.type):
            lengths, letters = _letters(array, null)
            found.update(lengths.tobytes())
            found.update(letters)
        elif pa.types.is_floating(field.type):
            found.update(np.where(null, 0.0, _numbers(array)).astype("<f8").tobytes())
        elif pa.types.is_integer(field.type):
            found.update(np.where(null, 0, _numbers(array)).astype("<i8").tobytes())
        else:
            found.update(repr(column.to_pylist()).encode())
    return found.hexdigest()


# Values are read from Arrow's buffers: its own conversions of nulls and scalars import pandas, which takes longer than
# all that is done here, and swallows Ctrl-C meanwhile.


def _is_null(array: pa.Array) -> np.ndarray:
    bits = array.buffers()[0]
    if isinstance(array, pa.NullArray) or bits is None:
        return np.full(len(array), isinstance(array, pa.NullArray))
    valid = np.unpackbits(np.frombuffer(bits, "u1"), bitorder="little")[array.offset : array.offset + len(array)]
    return valid == 0


def _numbers(array: pa.Array) -> np.ndarray:
    """All numbers of an array; where one is null, any."""
    values = array.buffers()[1]
    kind = np.dtype(array.type.to_pandas_dtype())
    if values is None:
        return np.zeros(len(array), kind)
    return np.frombuffer(values, kind)[array.offset : array.offset + len(array)]


def _letters(array: pa.Array, null: np.ndarray) -> tuple[np.ndarray, bytes | memoryview]:
    """Lengths of all texts in bytes, and their bytes one after the other; null is empty."""
    _, offsets, letters = array.buffers()
    if offsets is None or letters is None:
        return np.zeros(len(array), "<i8"), b""
    ends = np.frombuffer(offsets, "<i4")[array.offset : array.offset + len(array) + 1].astype("<i8")
    lengths, held = np.diff(ends), memoryview(letters)
    if not lengths[null].any():
        return lengths, held[ends[0] : ends[-1]]
    kept = b"".join(held[low:high] for low, high in zip(ends[:-1][~null], ends[1:][~null], strict=True))
    return np.where(null, 0, lengths), kept
