"""Where a model is on this disk: a folder that transformers saved, a ``.gguf`` file, or a revision of the hub.

Nothing is loaded here but the tokeniser's files.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from anisoscope.errors import AnisoscopeError, broken
from anisoscope.models import model_hub as hub
from anisoscope.models.catalogue import find
from anisoscope.models.fingerprints import weight_files

_ROLES = {"pad": "pad_token", "mask": "mask_token", "end": "eos_token", "unknown": "unk_token"}
# Older repositories, as OPT's, have one of these in place of a tokenizer.json: transformers converts them.
_OLDER_TOKENISERS = ("vocab.json", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model")


@dataclass(frozen=True, slots=True)
class Located:
    """A model on this disk: ``name`` as rows call it, and a folder, or the ``.gguf`` file itself."""

    name: str
    revision: str | None
    path: Path

    @property
    def is_gguf(self) -> bool:
        """Whether it is one ``.gguf`` file."""
        return self.path.suffix == ".gguf"

    @property
    def source(self) -> dict[str, Any]:
        """What transformers' ``from_pretrained`` is told, whichever of the two it is."""
        if self.is_gguf:
            return {"pretrained_model_name_or_path": str(self.path.parent), "gguf_file": self.path.name}
        return {"pretrained_model_name_or_path": str(self.path)}


@dataclass(frozen=True, slots=True, eq=False)
class TokeniserParts:
    """A fast tokeniser of the library ``tokenizers``, and which of its tokens pads, masks, ends and is unknown."""

    backend: Any  # tokenizers.Tokenizer
    roles: Mapping[str, str]
    about: Mapping[str, Any]


def locate(
    model: str, revision: str | None = None, *, allow_pickle: bool = False, cache: Path | None = None
) -> Located:
    """Find a model: a folder, a ``.gguf`` file, a name of the catalogue, or ``OWNER/NAME[@REVISION]`` on the hub."""
    path = Path(model).expanduser()
    if path.exists():
        if revision is not None:
            raise broken("a model on this disk has no revisions", f"{model} at {revision}", "name its own folder")
        return Located(_name(path), None, _checked(path, allow_pickle))
    if is_path(model):
        raise broken("a model on this disk must exist", model, "check the path")
    name, told = hub.parted(model)
    if None not in (revision, told) and revision != told:
        raise broken("a model has one revision", f"{told} and {revision}", "name it once")
    revision = revision or told
    entry = find(name)
    repository = entry.source(revision) if entry else name
    folder = hub.snapshot(repository, revision, allow_pickle=allow_pickle, cache=cache)
    if not allow_pickle and not any(folder.glob("*.safetensors")):
        raise AnisoscopeError(
            f"{repository} has no weights in safetensors; if it has them as .bin, a pickle, pass --allow-pickle (they "
            "are then fetched, and read with weights_only=True)"
        )
    return Located((entry.repository if entry else name).rpartition("/")[2], revision, _checked(folder, allow_pickle))


def converted_tokeniser(located: Located) -> TokeniserParts:
    """The tokeniser inside a ``.gguf`` file, or of an older form beside the weights; ``tokenizer.json`` aside."""
    if not located.is_gguf and not any((located.path / name).is_file() for name in _OLDER_TOKENISERS):
        raise AnisoscopeError(
            f"{located.path} holds no tokeniser (no tokenizer.json, {', '.join(_OLDER_TOKENISERS)}); pass"
            " --tokeniser with the path of one, or the name of a model that has it"
        )
    needs_gguf(located)
    try:
        kind, text, roles = _converted(tuple(sorted(located.source.items())), stamp_of(located.path))
    except Exception as error:
        raise AnisoscopeError(
            f"the tokeniser of {located.path} cannot be read: {reason(error)}; pass --tokeniser with another"
        ) from error
    if kind is None:
        raise AnisoscopeError(f"the tokeniser of {located.path} has no fast form; pass --tokeniser with another")
    # A copy: the tokens that are added to it later are none of transformers' business, nor of whoever asks next.
    return TokeniserParts(kind.from_str(text), dict(roles), {"kind": "converted", "path": str(located.path)})


@lru_cache(maxsize=4)
def _converted(source: tuple[tuple[str, str], ...], stamp: object) -> tuple[Any, str, tuple[tuple[str, str], ...]]:
    """Kind, JSON and roles of a tokeniser: to find it in a ``.gguf`` file takes seconds, and it is asked for again."""
    with quiet():
        found = library().AutoTokenizer.from_pretrained(**dict(source), local_files_only=True)
    backend = getattr(found, "backend_tokenizer", None)
    roles = tuple((role, str(token)) for role, key in _ROLES.items() if (token := getattr(found, key, None)))
    return (None, "", roles) if backend is None else (type(backend), backend.to_str(), roles)


def stamp_of(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Names, sizes and times of a file, or of those in a folder: what was read of them is kept while these stay."""
    files = [path] if path.is_file() else sorted(one for one in path.iterdir() if one.is_file())
    return tuple((str(one), (told := one.stat()).st_size, told.st_mtime_ns) for one in files)


def library() -> Any:
    """Import ``transformers``: late, because it takes seconds, and not every use of a model needs it."""
    try:
        import transformers
    except ImportError as error:
        raise AnisoscopeError('models need transformers: pip install "anisoscope[models]"') from error
    return transformers


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' bars, logs and warnings: what matters in them is told by errors and notes of our own."""
    logs = library().utils.logging
    from huggingface_hub import utils as hub_utils

    level, bar = logs.get_verbosity(), logs.is_progress_bar_enabled()
    hub_silent = hub_utils.are_progress_bars_disabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logs.set_verbosity(logs.CRITICAL)
        logs.disable_progress_bar()  # and with it the hub's own
        try:
            yield
        finally:
            logs.set_verbosity(level)
            if bar:
                logs.enable_progress_bar()
            if hub_silent != hub_utils.are_progress_bars_disabled():
                (hub_utils.disable_progress_bars if hub_silent else hub_utils.enable_progress_bars)()


def needs_gguf(located: Located) -> None:
    """Say what to install before transformers fails deep inside."""
    if located.is_gguf and importlib.util.find_spec("gguf") is None:
        raise AnisoscopeError('a .gguf file needs gguf: pip install "anisoscope[models]"')


def reason(error: BaseException) -> str:
    """The first line of an error of a library, which is the one that says what happened."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def is_path(model: str) -> bool:
    """Whether a name is that of a file or folder, there or not."""
    return model.startswith((".", "/", "~")) or model.endswith((".gguf", ".safetensors", ".bin", os.sep))


def _name(path: Path) -> str:
    path = Path(os.path.abspath(path))
    if path.is_file():
        return path.stem
    # Inside the hub's cache a folder's own name is a commit: the model's is two above.
    repository = path.parent.parent.name
    if path.parent.name == "snapshots" and repository.startswith("models--"):
        return repository.rpartition("--")[2]
    return path.name


def _checked(path: Path, allow_pickle: bool) -> Path:
    if path.is_file():
        if path.suffix != ".gguf":
            raise broken("a model in one file is a .gguf", path.name, "name the folder it is in")
        return path
    if not (path / "config.json").is_file():
        there = ", ".join(sorted(file.name for file in path.iterdir())[:8]) or "an empty folder"
        gguf = next(path.glob("*.gguf"), None)
        step = f"name the file {gguf}" if gguf else "name the folder that transformers saved"
        raise broken(f"a model's folder must hold a config.json; looked in {path}", there, step)
    if any(path.glob("*.safetensors*")) or any(path.glob("*.bin")):  # a configuration alone still has an untrained twin
        weight_files(path, allow_pickle=allow_pickle)
    return path
