"""Text files as a corpus: a file is a document, and a large file is several."""

from __future__ import annotations

import difflib
import glob
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from anisoscope.errors import AnisoscopeError, DamagedFileError, broken

LARGE_BYTES = 1_000_000
PIECE_CHARACTERS = 64_000
_SHOWN = 20
_BLANK_LINES = re.compile(r"\n[ \t]*(?:\n[ \t]*)+(?=\S|\Z)")


def looks_like_files(name: str) -> bool:
    """Tell a path or a glob from a word.

    >>> [looks_like_files(name) for name in ("kjw", "notes.txt", "~/books", "*", "a.txt,b.txt")]
    [False, True, True, True, True]
    """
    return any(sign in name for sign in "/\\*?[.~,") or (bool(name) and Path(name).exists())


def load(name: str) -> tuple[list[str], dict[str, Any]]:
    """Read the files of a path, a glob (``**`` goes down folders), a directory, or several of them with commas."""
    paths = list(files(name))
    texts: list[str] = []
    split = 0
    size = 0
    for path in paths:
        raw = _read(path)
        pieces = pieces_of(decoded(raw, path)) if len(raw) > LARGE_BYTES else [decoded(raw, path)]
        split += len(pieces) > 1
        size += len(raw)
        texts += pieces
    about = {
        "files": len(paths),
        "names": [str(path) for path in paths[:_SHOWN]],
        "bytes": size,
        "files_split": split,
        "document": f"a file; files over {LARGE_BYTES} bytes in pieces of about {PIECE_CHARACTERS} characters",
    }
    return texts, about


def files(name: str) -> Iterator[Path]:
    """Find the files of a name, sorted, each once; hidden ones only where they are named."""
    seen: set[Path] = set()
    for pattern in [name] if Path(name).exists() else name.split(","):
        found = sorted(_matches(Path(pattern.strip()).expanduser()))
        if not found:
            raise broken("the text files of a corpus must exist", repr(pattern), _step(Path(pattern)))
        for path in found:
            resolved = path.resolve()
            if resolved not in seen:
                seen.add(resolved)
                yield path


def decoded(raw: bytes, path: Path) -> str:
    """Read UTF-8, with lines that end as here; other bytes are an error that names the place."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DamagedFileError(
            f"{path} is not UTF-8 text: byte 0x{raw[error.start]:02x} at offset {error.start}; convert it, or leave it"
            " out with a glob such as 'folder/**/*.txt'"
        ) from error
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def pieces_of(text: str) -> list[str]:
    r"""Cut a long text at blank lines, or at line ends if it has none, into pieces of about 64 000 characters.

    >>> [len(piece) for piece in pieces_of("\n\n".join(["x" * 40_000] * 5))]
    [80002, 80002, 40000]
    """
    cuts = [match.end() for match in _BLANK_LINES.finditer(text)]
    if not cuts:
        cuts = [match.end() for match in re.finditer("\n", text)]
    pieces = []
    start = 0
    for cut in cuts:
        if cut - start >= PIECE_CHARACTERS:
            pieces.append(text[start:cut].rstrip("\n"))
            start = cut
    return [*pieces, text[start:]] if text[start:].strip() else pieces


def _matches(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if path.is_dir():
        return [
            below
            for below in path.rglob("*")
            if below.is_file() and not any(part.startswith(".") for part in below.relative_to(path).parts)
        ]
    return [Path(found) for found in glob.glob(str(path), recursive=True) if Path(found).is_file()]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise AnisoscopeError(f"{path} cannot be read: {error.strerror or error}; check its permissions") from error


def _step(path: Path) -> str:
    if any(sign in str(path) for sign in "*?["):
        return "check the glob, and quote it so that the shell leaves it alone"
    if path.expanduser().exists():
        return "it exists, but is neither a text file nor a folder of them"
    try:
        beside = [other.name for other in path.expanduser().parent.iterdir()]
    except OSError:
        return f"there is no folder {path.parent}"
    close = difflib.get_close_matches(path.name, beside, n=1)
    return f"did you mean {path.with_name(close[0])}?" if close else "check the path"
