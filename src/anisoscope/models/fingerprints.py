"""What the weights of a checkpoint are, tensor by tensor, read from its files without making a model.

Of each tensor: dtype, shape, a hash of its bytes, and a sketch: up to 4 096 of its numbers, at places that its name and
size fix, by which two checkpoints are compared where they are not equal. Nothing is unpickled: ``.bin`` files are read
only if asked, and then with ``weights_only=True``.
"""

from __future__ import annotations

import hashlib
import json
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
    return files


def _in_folder(path: Path) -> list[Path]:
    for whole, index in zip(_WHOLE, _INDEXES, strict=True):
        if (path / index).exists():
            try:
                names = json.loads((path / index).read_text(encoding="utf-8"))["weight_map"].values()
            except (ValueError, KeyError, AttributeError) as error:
                raise DamagedFileError(f"{path / index} is damaged: {error}") from error
            return [path / name for name in sorted(set(names))]
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
            raise DamagedFileError(f"{path} is no complete safetensors file; download it again")
        try:
            header = json.loads(stream.read(length))
            entries = [(k, v["dtype"], tuple(v["shape"]), v["data_offsets"]) for k, v in header.items() if k[0] != "_"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
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
