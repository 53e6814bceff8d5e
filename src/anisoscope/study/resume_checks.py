"""What a study that goes on must find as it was: the text, and every byte of a model that decides a number."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anisoscope.errors import AnisoscopeError
from anisoscope.models.fingerprints import fingerprint, weight_files
from anisoscope.study.resume_state import recorded

_TOKENISER = ("tokenizer*.json", "special_tokens_map.json", "vocab.*", "merges.txt", "*.model")


def model_digest(path: str | Path, *, allow_pickle: bool = False) -> str:
    """One hash of a model's configuration, weights, tokeniser and own code; a ``.gguf`` file is all of them."""
    path, whole = Path(path), hashlib.sha256()
    for file in _deciding(path, allow_pickle):
        with file.open("rb") as stream:
            whole.update(f"{file.name}\0{hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()


def config_digest(path: str | Path) -> str | None:
    """A hash of the configuration in a checkpoint's folder; a file of weights has none."""
    file = Path(path) / "config.json"
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None


def require_same_checkpoint(manifest: Mapping[str, Any], label: str, path: str, *, allow_pickle: bool = False) -> None:
    """Raise if a checkpoint on this disk has changed since the history was hashed."""
    hashes, what = recorded(manifest, "hashes"), f"the checkpoint {path}"
    if label in hashes:
        _require(hashes[label], fingerprint(path, allow_pickle=allow_pickle).digest, what, manifest)
    if f"config-{label}" in hashes:
        _require(hashes[f"config-{label}"], config_digest(path), what, manifest)


def require_same_text(manifest: Mapping[str, Any], key: str, now: str, text: str) -> None:
    """Raise if the hash of a text that was just read is not the one that the run began with."""
    _require(recorded(manifest, "hashes", key), now, f"the text {text}", manifest)


def require_same_corpus(manifest: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Raise if the documents of a text are not those that the run began with, whatever the tokeniser."""
    then, now = recorded(manifest, "corpus", "corpus", "sha256"), about["corpus"]["sha256"]
    _require(then, now, f"the text {about['corpus']['name']}", manifest)


def require_same_model(manifest: Mapping[str, Any], key: str, path: Path, *, allow_pickle: bool = False) -> None:
    """Raise if a model's files are not those that the run began with."""
    then = recorded(manifest, "hashes").get(key)
    if then is not None:  # an older release kept none
        _require(then, model_digest(path, allow_pickle=allow_pickle), f"the model in {path}", manifest)


def _require(then: Any, now: str | None, what: str, manifest: Mapping[str, Any]) -> None:
    if then != now:
        raise AnisoscopeError(
            f"{what} has changed since {manifest.get('name', 'the run')} began; restore it, or begin a new run"
        )


def _deciding(path: Path, allow_pickle: bool) -> list[Path]:
    if path.is_file():
        return [path]
    has_weights = any(path.glob("*.safetensors*")) or any(path.glob("*.bin"))
    weights = weight_files(path, allow_pickle=allow_pickle) if has_weights else []
    others = {found for pattern in ("*.py", *_TOKENISER) for found in path.glob(pattern) if found.is_file()}
    return [path / "config.json", *weights, *sorted(others)]
