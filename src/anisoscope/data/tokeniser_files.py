"""Tokenisers that exist already: a ``tokenizer.json``, a directory that holds one, or a name on the hub."""

from __future__ import annotations

import json
from pathlib import Path

from anisoscope.data.tokenisers import Tokeniser, finished, library
from anisoscope.errors import AnisoscopeError, DamagedFileError, broken

_ROLES = {"pad": "pad_token", "mask": "mask_token", "end": "eos_token", "unknown": "unk_token"}
_CONFIGURATIONS = ("tokenizer_config.json", "special_tokens_map.json")


def load_tokeniser(name: str) -> Tokeniser:
    """Load a ``tokenizer.json``, a directory with one, or a tokeniser of the hub; add pad and mask where they lack."""
    path = Path(name).expanduser()
    file = path / "tokenizer.json" if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        raise broken("a directory of a tokeniser must hold a tokenizer.json", path, "save a fast tokeniser there")
    if file.is_file():
        try:
            backend = library().Tokenizer.from_file(str(file))
        except Exception as error:
            raise DamagedFileError(f"{file} is not a valid tokenizer.json: {error}; is the file complete?") from error
        return finished(backend, {"kind": "loaded", "path": str(file)}, roles=_roles_beside(file))
    if path.suffix == ".json" or name.startswith((".", "/", "~")):
        raise broken("the file of a tokeniser must exist", name, "check the path")
    return _from_hub(name)


def _from_hub(name: str) -> Tokeniser:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise AnisoscopeError(
            f'{name} is not a file, and a tokeniser from the hub needs transformers: pip install "anisoscope[models]"'
        ) from error
    try:
        found = AutoTokenizer.from_pretrained(name)
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise AnisoscopeError(
            f"the tokeniser {name} cannot be loaded: {reason}; check the name and the network, or give the path of its"
            " tokenizer.json"
        ) from error
    backend = getattr(found, "backend_tokenizer", None)
    if backend is None:
        raise broken("a tokeniser must be a fast one, with a tokenizer.json", name, "choose another")
    # A copy: the tokens added here are none of transformers' business.
    backend = library().Tokenizer.from_str(backend.to_str())
    roles = {role: token for role, key in _ROLES.items() if (token := getattr(found, key, None))}
    return finished(backend, {"kind": "loaded", "name": name}, roles=roles)


def _roles_beside(file: Path) -> dict[str, str]:
    """Read which token plays which part from the files that transformers saves beside a ``tokenizer.json``."""
    roles: dict[str, str] = {}
    for name in _CONFIGURATIONS:
        try:
            told = json.loads((file.parent / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise DamagedFileError(f"{file.parent / name} cannot be read: {error}; remove it or repair it") from error
        for role, key in _ROLES.items():
            token = told.get(key)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                roles.setdefault(role, token)
    return roles
