"""What the weights of a checkpoint are, tensor by tensor, read from its files without making a model.

Of each tensor: dtype, shape, a hash of its bytes, and a sketch: up to 4 096 of its numbers, at places that its name and
size fix, by which two checkpoints are compared where they are not equal. Nothing is unpickled: ``.bin`` files are read
only if asked, and then with ``weights_only=True``.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anisoscope.errors import AnisoscopeError, DamagedFileError, broken

SKETCH = 4096
_CHUNK = 1 << 24
_LONGEST_HEADER = 100_000_000  # the format's own limit
_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U8": "|u1",
    "BOOL": "|u1",
}
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_WHOLE = ("model.safetensors", "pytorch_model.bin")


@dataclass(frozen=True, slots=True, eq=False)
class TensorPrint:
    """One tensor: equal digests are equal bytes; the sketch is of float32, empty where the dtype is not read."""

    dtype: str
    shape: tuple[int, ...]
    digest: str
    sketch: np.ndarray

    @property
    def constant(self) -> bool:
        """Whether all numbers looked at are the same, as those of a fresh norm or bias are."""
        return len(self.sketch) == 0 or bool((self.sketch == self.sketch[0]).all())


@dataclass(frozen=True, slots=True, eq=False)
class Fingerprint:
    """All tensors of a checkpoint by name."""

    tensors: dict[str, TensorPrint]

    @property
    def digest(self) -> str:
        """One hash for all: equal if names, shapes and bytes are."""
        whole = hashlib.sha256()
        for name in sorted(self.tensors):
            one = self.tensors[name]
            whole.update(f"{name}\0{one.dtype}\0{one.shape}\0{one.digest}\n".encode())
        return whole.hexdigest()


def fingerprint(
    path: str | Path, *, allow_pickle: bool = False, progress: Callable[[int], None] | None = None
) -> Fingerprint:
    """Read a checkpoint: a folder as transformers saves it, or one ``.safetensors`` or ``.gguf`` file.

    ``progress`` is told how many bytes were read since the last time.
    """
    told = progress or (lambda size: None)
    tensors: dict[str, TensorPrint] = {}
    for file in weight_files(Path(path), allow_pickle=allow_pickle):
        read = _READERS[file.suffix]
        for name, found in read(file, told):
            if name in tensors:
                raise DamagedFileError(
                    f"{path} has the tensor {name} in two files; is it a mixture of two checkpoints?"
                )
            tensors[name] = found
    return Fingerprint(tensors)


def weight_files(path: Path, *, allow_pickle: bool = False) -> list[Path]:
    """The files that hold the weights, all of which exist; safetensors before all else."""
    if not path.exists():
        raise broken("a checkpoint must exist", path, "check the path")
    if path.is_file():
        if path.suffix not in _READERS:
            raise broken("a file of weights must end in .safetensors or .gguf", path.name, "name the folder it is in")
        files = [path]
    else:
        files = _in_folder(path)
    pickled = [file for file in files if file.suffix == ".bin"]
    if pickled and not allow_pickle:
        raise AnisoscopeError(
            f"{path} has its weights in {pickled[0].name}, a pickle, which is not read: convert it to safetensors, or "
            "pass --allow-pickle (it is then read with weights_only=True)"
        )
    missing = [file.name for file in files if not file.exists()]
    if missing:
        raise DamagedFileError(f"{path} lacks {', '.join(missing)}, which its index names; download it again")
    for file in files:
        _require_own(file, path)
    return files


def _require_own(file: Path, path: Path) -> None:
    """Raise for a pipe or a device, which may never end, and for a file that a link leads to outside of the folder.

    A snapshot of the hub is links to the blobs of its own repository: those belong to it.
    """
    if not file.is_file():
        raise DamagedFileError(f"{file} is not a regular file; a checkpoint is made of files")
    if path.is_dir():
        folder, real = path.resolve(), file.resolve()
        blobs = folder.parent.parent / "blobs" if folder.parent.name == "snapshots" else folder
        if not (real.is_relative_to(folder) or real.is_relative_to(blobs)):
            raise DamagedFileError(f"{file} leads out of its folder, to {real}; put a copy there if it belongs to it")


def _in_folder(path: Path) -> list[Path]:
    for whole, index in zip(_WHOLE, _INDEXES, strict=True):
        if (path / index).exists():
            try:
                _require_own(path / index, path)
                names = set(json.loads((path / index).read_text(encoding="utf-8"))["weight_map"].values())
                outside = [name for name in names if Path(name).is_absolute() or ".." in Path(name).parts]
                unknown = [name for name in names if Path(name).suffix not in _READERS]
            except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
                raise DamagedFileError(f"{path / index} is damaged: {error}") from error
            if outside or unknown or not names:
                named = (outside or unknown or ["no file"])[0]
                raise DamagedFileError(f"{path / index} names {named}, which is not a file of weights in its folder")
            return [path / name for name in sorted(names)]
        if (path / whole).exists():
            return [path / whole]
    for suffix in (".safetensors", ".gguf"):
        loose = sorted(path.glob(f"*{suffix}"))
        if len(loose) == 1:
            return loose
    raise broken(
        f"a checkpoint must hold {' or '.join(_WHOLE)}, whole or with an index",
        ", ".join(sorted(file.name for file in path.iterdir())[:8]) or "an empty folder",
        "name the folder that transformers saved",
    )


def _read_safetensors(path: Path, told: Callable[[int], None]) -> Iterator[tuple[str, TensorPrint]]:
    size = path.stat().st_size
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(size - 8, _LONGEST_HEADER):
            raise DamagedFileError(f"{path} is not a complete safetensors file; download it again")
        try:
            header = json.loads(stream.read(length))
            entries = [_entry(k, v) for k, v in header.items() if k != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedFileError(f"{path} has a damaged header: {error}") from error
        begin = 8 + length
        wanted = begin + max((end for *_, (_, end) in entries), default=0)
        if wanted > size:
            raise DamagedFileError(f"{path} is cut off: {size:,} of {wanted:,} bytes; download it again")
        for name, dtype, shape, (start, end) in sorted(entries, key=lambda entry: entry[3][0]):
            digest = hashlib.sha256()
            stream.seek(begin + start)
            for at in range(start, end, _CHUNK):
                part = stream.read(min(_CHUNK, end - at))
                digest.update(part)
                told(len(part))
            raw = None
            if dtype in _DTYPES and end > start:
                raw = np.memmap(
                    path, _DTYPES[dtype], "r", begin + start, ((end - start) // np.dtype(_DTYPES[dtype]).itemsize,)
                )
            yield name, TensorPrint(dtype, shape, digest.hexdigest(), _sketch(name, raw, dtype))


def _entry(name: str, said: dict[str, Any]) -> tuple[str, str, tuple[int, ...], tuple[int, int]]:
    """One tensor of a header: name, dtype, shape, and where its bytes begin and end; ``ValueError`` if it is none."""
    dtype, shape, (start, end) = said["dtype"], tuple(said["shape"]), said["data_offsets"]
    whole = all(type(number) is int and number >= 0 for number in (*shape, start, end))
    if not whole or start > end or not isinstance(dtype, str):
        raise ValueError(f"{name} has no place in the file")
    if dtype in _DTYPES and math.prod(shape) * np.dtype(_DTYPES[dtype]).itemsize != end - start:
        raise ValueError(f"{name} says {dtype} {list(shape)} and holds {end - start} bytes")
    return name, dtype, shape, (start, end)


def _read_bin(path: Path, told: Callable[[int], None]) -> Iterator[tuple[str, TensorPrint]]:
    import torch

    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DamagedFileError(f"{path} cannot be read with weights_only=True: {reason}") from error
    for name, tensor in state.items():
        flat = tensor.detach().contiguous().reshape(-1)
        raw = flat.view(torch.uint8).numpy() if flat.numel() else np.zeros(0, np.uint8)
        told(raw.nbytes)
        short = str(tensor.dtype).removeprefix("torch.")
        dtype = {"float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16"}.get(short, short)
        numbers = raw.view(_DTYPES[dtype]) if dtype in _DTYPES else None
        yield (
            name,
            TensorPrint(
                dtype, tuple(tensor.shape), hashlib.sha256(raw.data).hexdigest(), _sketch(name, numbers, dtype)
            ),
        )


def _read_gguf(path: Path, told: Callable[[int], None]) -> Iterator[tuple[str, TensorPrint]]:
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise AnisoscopeError('a .gguf file needs gguf: pip install "anisoscope[models]"') from error
    try:
        tensors = GGUFReader(path).tensors
    except Exception as error:
        raise DamagedFileError(f"{path} cannot be read as .gguf: {error}; is the file complete?") from error
    for tensor in tensors:
        raw = np.ascontiguousarray(tensor.data).view(np.uint8).reshape(-1)
        told(raw.nbytes)
        dtype = tensor.tensor_type.name
        numbers = raw.view(_DTYPES[dtype]) if dtype in _DTYPES else None
        shape = tuple(int(side) for side in reversed(tensor.shape))  # the format counts from the innermost
        yield (
            tensor.name,
            TensorPrint(dtype, shape, hashlib.sha256(raw.data).hexdigest(), _sketch(tensor.name, numbers, dtype)),
        )


def _sketch(name: str, numbers: Any, dtype: str) -> np.ndarray:
    """Numbers at places that depend on the name and the size alone."""
    if numbers is None:
        return np.zeros(0, np.float32)
    places = np.arange(len(numbers))
    if len(numbers) > SKETCH:
        places = np.sort(np.random.default_rng(zlib.crc32(name.encode())).choice(len(numbers), SKETCH, replace=False))
    found = np.asarray(numbers[places])
    if dtype == "BF16":  # the upper half of a float32
        return (found.astype(np.uint32) << 16).view(np.float32)
    return found.astype(np.float32)


_READERS = {".safetensors": _read_safetensors, ".bin": _read_bin, ".gguf": _read_gguf}
