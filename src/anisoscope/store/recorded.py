"""What a run held when it was closed: the SHA-256 of every file that readers or a resume use, kept in its manifest.

A manifest has a checksum of its own, so that a changed setting is seen as well as a changed row.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from anisoscope.errors import AnisoscopeError
from anisoscope.store.files import Folder
from anisoscope.store.parquet_parts import ENDING, read_parts
from anisoscope.store.schema import require_known

MANIFEST, FILES, CHECKSUM = "manifest.json", "files", "checksum"
DIGESTED = "digested_parts"
"""Said by a manifest whose parts all hold a digest of their rows; those of older releases do not."""
_OWN = (MANIFEST, "writer.lock")
_MADE = ("report.html", "figures")  # made from the rest, and made again at will
_SEALED = "checkpoints"  # every checkpoint has its own list (study/saved_checkpoints.py)


@dataclass(frozen=True, slots=True)
class Fault:
    """A file that is not what it was."""

    name: str
    problem: str


def hashes_of(folder: Folder) -> dict[str, str]:
    """The SHA-256 of every file of a run that is read again."""
    return {name: folder.digest(name) for name in folder.tree() if _is_recorded(name)}


def faults_of(folder: Folder, files: Mapping[str, str], *, only: str = "") -> list[Fault]:
    """Recorded files (those whose names end in ``only``) that are missing or changed."""
    found = []
    for name, recorded in files.items():
        if name.endswith(only):
            problem = _problem(folder, name, recorded)
            if problem is not None:
                found.append(Fault(name, problem))
    return found


def parts_at_fault(folder: Folder, *, digested: bool) -> list[Fault]:
    """Parts that are not what they say themselves, for a run that was not closed."""
    return [Fault(name, "is damaged") for name in read_parts(folder, digested=digested).damaged]


def require_recorded(folder: Folder, files: Mapping[str, str], *, only: str = "") -> None:
    """Raise for the first file that is not as it was when the run was closed."""
    faults = faults_of(folder, files, only=only)
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise AnisoscopeError(
            f"{faults[0].name} in {folder} {faults[0].problem} since the run was closed{more}; restore it from a copy, "
            f"and see: anisoscope verify-run {folder}"
        )


def files_in(manifest: Mapping[str, Any]) -> dict[str, str] | None:
    """The hashes that a manifest holds; None for a run that is under way, was killed, or is of an older release."""
    files = manifest.get(FILES)
    if not isinstance(files, dict):
        return None
    return {str(name): str(digest) for name, digest in files.items() if _is_inside(str(name))}


def stray_parts(folder: Folder, files: Mapping[str, str]) -> list[str]:
    """Files with the ending of parts that came after the run was closed."""
    return [name for name in folder.names(ENDING) if name not in files]


def manifest_to_bytes(manifest: Mapping[str, Any]) -> bytes:
    """A manifest as a file, with its checksum."""
    plain = json.loads(json.dumps({k: v for k, v in manifest.items() if k != CHECKSUM}, default=str))
    return json.dumps(plain | {CHECKSUM: _checksum(plain)}, indent=1).encode()


def manifest_from_bytes(content: bytes, where: str) -> dict[str, Any]:
    """A manifest that is an object and is what it was; those of older releases have no checksum."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise AnisoscopeError(f"the {MANIFEST} of {where} is damaged: {why}") from error
    if not isinstance(found, dict):
        raise AnisoscopeError(f"the {MANIFEST} of {where} is damaged: no object")
    require_known(found.get("schema_version"), where)  # first: a newer release may reckon the checksum otherwise
    said = found.pop(CHECKSUM, None)
    if said is not None and said != _checksum(found):
        raise AnisoscopeError(
            f"the {MANIFEST} of {where} is damaged: its checksum is of another one; restore it, or remove "
            f'"{CHECKSUM}" from it if you changed it yourself'
        )
    return found


def _checksum(plain: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _problem(folder: Folder, name: str, recorded: str) -> str | None:
    try:
        return None if folder.digest(name) == recorded else "was changed"
    except FileNotFoundError:
        return "was removed"
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"


def _is_recorded(name: str) -> bool:
    first = PurePosixPath(name).parts[0]
    hidden = any(part.startswith(".") for part in PurePosixPath(name).parts)
    return name not in _OWN and first not in (*_MADE, _SEALED) and not hidden


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts
