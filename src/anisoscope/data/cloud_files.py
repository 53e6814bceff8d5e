"""Clouds in files, read in chunks of rows: ``.npy .npz .safetensors .parquet .csv``. Nothing is ever unpickled.

Letters: N rows, D width.
"""

from __future__ import annotations

import difflib
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.errors import AnisoscopeError, BrokenRuleError, DamagedFileError, broken
from anisoscope.machine_capacity import require_memory

CHUNK_BYTES = 64 << 20
SUFFIXES = (".npy", ".npz", ".safetensors", ".parquet", ".csv")


@dataclass(frozen=True, slots=True)
class CloudFile:
    """A cloud in a file: its shape where the file tells it, and its rows, a chunk at a time."""

    name: str
    rows: int | None
    chunks: Callable[[], Iterator[Tensor]]
    left_out: tuple[str, ...] = ()


def open_cloud(path: Path, *, key: str | None = None, columns: tuple[str, ...] | None = None) -> CloudFile:
    """Open a file of points without reading them yet.

    ``key`` names the array inside an ``.npz`` or ``.safetensors`` file, ``columns`` the columns of a table.
    """
    if not path.exists():
        raise broken("a file to measure must exist", path, "check the path")
    if path.is_dir():
        raise broken("a file to measure must not be a directory", path, "name the files in it")
    if not path.is_file():  # reading a pipe or a device might never end
        raise broken("a file to measure must be a regular file", path, "save it to one")
    suffix = path.suffix.lower()
    if suffix not in _OPENERS:
        raise broken(f"a file to measure must end in one of {' '.join(SUFFIXES)}", path.name, "convert it")
    if columns and suffix not in (".parquet", ".csv"):
        raise broken("--columns goes with .parquet and .csv files", path.name, "leave it out")
    if key and suffix not in (".npz", ".safetensors"):
        raise broken("--key goes with .npz and .safetensors files", path.name, "leave it out")
    try:
        cloud = _OPENERS[suffix](path, key or columns)
    except (BrokenRuleError, AnisoscopeError):
        raise
    except Exception as error:
        raise _unreadable(path, error) from error
    return CloudFile(cloud.name, cloud.rows, lambda: _guarded(path, cloud.chunks), cloud.left_out)


def _guarded(path: Path, chunks: Callable[[], Iterator[Tensor]]) -> Iterator[Tensor]:
    try:
        yield from chunks()
    except (BrokenRuleError, AnisoscopeError):
        raise
    except Exception as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> DamagedFileError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return DamagedFileError(
        f"{path} cannot be read as {path.suffix}: {reason}; is the file complete and of that format?"
    )


def _step(width: int, itemsize: int) -> int:
    return max(1, CHUNK_BYTES // (width * itemsize))


def _checked_shape(path: Path, shape: tuple[int, ...], dtype: Any) -> None:
    if len(shape) != 2 or shape[1] == 0:
        raise broken(
            f"the array in {path.name} must have the shape (N, D), D ≥ 1", f"shape {tuple(shape)}", "reshape it"
        )
    require_memory(shape[1] * 64, f"a row of {path.name}, with {shape[1]:,} columns,", "measure fewer of them")
    kind = np.dtype(dtype).kind if not isinstance(dtype, torch.dtype) else ("f" if dtype.is_floating_point else "x")
    if kind != "f" or dtype.itemsize < 2:
        raise broken(f"the array in {path.name} must be of a real floating-point dtype", dtype, "save it as float32")


def _open_npy(path: Path, _: Any) -> CloudFile:
    with path.open("rb") as stream:
        shape, _, dtype = _npy_header(path, stream)
    _checked_shape(path, shape, dtype)
    array = np.load(path, mmap_mode="r", allow_pickle=False)

    def chunks() -> Iterator[Tensor]:
        step = _step(shape[1], dtype.itemsize)
        for start in range(0, shape[0], step):
            yield _tensor(np.array(array[start : start + step]))

    return CloudFile(path.name, shape[0], chunks)


def _open_npz(path: Path, key: str | None) -> CloudFile:
    if not zipfile.is_zipfile(path):
        raise DamagedFileError(f"{path} cannot be read as .npz: it is not a zip archive; is the file complete?")
    with zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        key = _chosen(path, key, names)
        with archive.open(f"{key}.npy") as stream:
            shape, fortran, dtype = _npy_header(path, stream)
            held = archive.getinfo(f"{key}.npy").file_size - stream.tell()
    _checked_shape(path, shape, dtype)
    said = shape[0] * shape[1] * dtype.itemsize
    if said != held:
        raise DamagedFileError(f"{path} cannot be read as .npz: {key} says {said:,} bytes and holds {held:,}")
    if fortran:
        require_memory(4 * said, f"{key} in {path.name}, stored by columns,", "save it by rows")

    def chunks() -> Iterator[Tensor]:
        with zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as stream:
            _npy_header(path, stream)
            if fortran:  # columns come first in the stream, so rows exist only once all of it is read
                raw = _read_exactly(path, stream, shape[0] * shape[1] * dtype.itemsize)
                yield _tensor(np.frombuffer(raw, dtype).reshape(shape[::-1]).T.copy())
                return
            step = _step(shape[1], dtype.itemsize)
            for start in range(0, shape[0], step):
                rows = min(step, shape[0] - start)
                raw = _read_exactly(path, stream, rows * shape[1] * dtype.itemsize)
                yield _tensor(np.frombuffer(raw, dtype).reshape(rows, shape[1]).copy())

    return CloudFile(f"{path.name}:{key}", shape[0], chunks)


def _npy_header(path: Path, stream: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    if dtype.hasobject:
        raise broken(
            f"the array in {path.name} must hold numbers",
            "pickled objects, which are never loaded",
            "save it as float32",
        )
    return shape, fortran, dtype


def _read_exactly(path: Path, stream: Any, count: int) -> bytes:
    raw = stream.read(count)
    if len(raw) != count:
        raise DamagedFileError(f"{path} cannot be read as .npz: it ends too early; is the file complete?")
    return raw


def _open_safetensors(path: Path, key: str | None) -> CloudFile:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        name = _chosen(path, key, list(file.keys()))
        view = file.get_slice(name)
        shape, dtype = tuple(view.get_shape()), view[:0].dtype if view.get_shape() else torch.float32
    _checked_shape(path, shape, dtype)

    def chunks() -> Iterator[Tensor]:
        step = _step(shape[1], dtype.itemsize)
        with safe_open(path, framework="pt") as file:
            view = file.get_slice(name)
            for start in range(0, shape[0], step):
                yield view[start : start + step]

    return CloudFile(f"{path.name}:{name}", shape[0], chunks)


def _open_parquet(path: Path, columns: tuple[str, ...] | None) -> CloudFile:
    import pyarrow.parquet as parquet

    file = parquet.ParquetFile(path)
    names = _chosen_columns(path, columns, file.schema_arrow)
    rows = file.metadata.num_rows

    def chunks() -> Iterator[Tensor]:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=8192, columns=list(names)):
                yield _table_rows(path, batch.select(list(names)))

    return CloudFile(path.name, rows, chunks, _left_out(file.schema_arrow.names, names, columns))


def _open_csv(path: Path, columns: tuple[str, ...] | None) -> CloudFile:
    import pyarrow as arrow
    from pyarrow import csv

    # A first row of numbers is data; pyarrow would take it for names.
    with path.open(encoding="utf-8-sig", errors="replace") as stream:
        first = stream.readline().strip()
    bare = bool(first) and all(_is_number(field) for field in first.split(","))
    reading = csv.ReadOptions(autogenerate_column_names=bare)
    with csv.open_csv(path, read_options=reading) as reader:
        schema = reader.schema
    twice = [name for name, count in Counter(schema.names).items() if count > 1]
    if twice:
        raise broken(f"columns of {path.name} must have different names", f"{twice[0]} twice", "rename one of them")
    whole_numbers = [field.name for field in schema if arrow.types.is_integer(field.type)]
    if columns is None or any(name in whole_numbers for name in columns):
        # Text has no dtype: a column of "1, 2, 3" is as good as one of "1.0, 2.0, 3.0".
        schema = arrow.schema(
            [arrow.field(f.name, arrow.float64() if f.name in whole_numbers else f.type) for f in schema]
        )
    names = _chosen_columns(path, columns, schema)
    converting = csv.ConvertOptions(include_columns=list(names), column_types=dict.fromkeys(names, arrow.float64()))

    def chunks() -> Iterator[Tensor]:
        with csv.open_csv(path, read_options=reading, convert_options=converting) as reader:
            for batch in reader:
                yield _table_rows(path, batch)

    return CloudFile(path.name, None, chunks, _left_out(schema.names, names, columns))


def _left_out(names: list[str], chosen: tuple[str, ...], asked: tuple[str, ...] | None) -> tuple[str, ...]:
    """Columns that nobody chose to leave out."""
    return () if asked else tuple(name for name in names if name not in chosen)


def _is_number(field: str) -> bool:
    try:
        float(field.strip().strip('"'))
    except ValueError:
        return False
    return True


def _chosen_columns(path: Path, columns: tuple[str, ...] | None, schema: Any) -> tuple[str, ...]:
    """The columns asked for, else every column of real numbers; or one column whose entries are whole vectors."""
    import pyarrow as arrow

    def numeric(kind: Any) -> bool:
        return arrow.types.is_floating(kind)

    def vector(kind: Any) -> bool:
        lists = arrow.types.is_fixed_size_list, arrow.types.is_list, arrow.types.is_large_list
        return any(test(kind) for test in lists) and numeric(kind.value_type)

    if columns:
        for name in columns:
            if name not in schema.names:
                raise broken(
                    f"--columns of {path.name} must be among {_few(schema.names)}", name, _nearest(name, schema.names)
                )
            if not numeric(schema.field(name).type) and not vector(schema.field(name).type):
                raise broken(
                    f"column {name} of {path.name} must hold real numbers",
                    schema.field(name).type,
                    "choose other columns or save it as float",
                )
        names = columns
    else:
        names = tuple(field.name for field in schema if numeric(field.type))
        names = names or tuple(field.name for field in schema if vector(field.type))[:1]
    if not names:
        raise broken(f"{path.name} must have columns of real numbers", _few(schema.names), "save them as float")
    if len(names) > 1 and any(vector(schema.field(name).type) for name in names):
        raise broken("--columns takes one column of vectors, or several of numbers", ", ".join(names), "name one")
    return tuple(names)


def _table_rows(path: Path, batch: Any) -> Tensor:
    import pyarrow as arrow

    if any(column.null_count for column in batch.columns):
        raise broken(f"the columns of {path.name} must have no missing values", "empty cells", "drop those rows")
    if batch.num_columns == 1 and arrow.types.is_nested(batch.column(0).type):
        column = batch.column(0)
        flat = column.flatten().to_numpy(zero_copy_only=False)
        if batch.num_rows and not flat.size:
            raise broken(f"the vectors in {path.name} must hold numbers", "empty lists", "drop those rows")
        if flat.size % max(batch.num_rows, 1) or len(set(column.value_lengths().to_pylist())) > 1:
            raise broken(f"the vectors in {path.name} must have one length", "several lengths", "pad or split them")
        return _tensor(flat.reshape(batch.num_rows, -1).copy())
    return _tensor(np.stack([column.to_numpy(zero_copy_only=False) for column in batch.columns], axis=1))


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))


def _chosen(path: Path, key: str | None, names: list[str]) -> str:
    if not names:
        raise broken(f"{path.name} must hold an array", "none", "is it the right file?")
    if key is None and len(names) == 1:
        return names[0]
    if key is None:
        raise broken(
            f"{path.name} holds {len(names)} arrays, so --key must name one", "no --key", f"one of {_few(names)}"
        )
    if key not in names:
        raise broken(f"--key of {path.name} must be one of {_few(names)}", key, _nearest(key, names))
    return key


def _few(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f", … ({len(names)} in all)" if len(names) > 8 else "")


def _nearest(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
    return f"did you mean {close[0]}?" if close else "choose one of them"


_OPENERS: dict[str, Callable[[Path, Any], CloudFile]] = {
    ".npy": _open_npy,
    ".npz": _open_npz,
    ".safetensors": _open_safetensors,
    ".parquet": _open_parquet,
    ".csv": _open_csv,
}
