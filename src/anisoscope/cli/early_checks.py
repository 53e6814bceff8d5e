"""What can be wrong with names on a command line, found before torch is imported and a corpus is read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from anisoscope.errors import AnisoscopeError, broken

if TYPE_CHECKING:
    from anisoscope.store.run import Run


def require_new_run(out: str | None) -> None:
    """Raise if a run cannot be begun in this folder."""
    if out is None or "://" in out:
        return
    folder = Path(out).expanduser()
    if (folder / "manifest.json").exists():
        raise AnisoscopeError(
            f"{out} holds a run already; nothing was overwritten. Choose another folder, or resume it with --resume"
        )
    above = next((path for path in (folder, *folder.absolute().parents) if path.exists()), Path("/"))
    if not above.is_dir():
        raise broken("--out must be a folder", f"{above}, which is a file", "choose another name")
    if not os.access(above, os.W_OK | os.X_OK):
        raise AnisoscopeError(f"cannot write in {above}; choose another --out")


def require_run(path: str, kind: str) -> Run:
    """The run to go on with; raises if there is none of this kind."""
    from anisoscope.store.run import open_run

    run = open_run(path)
    found = run.manifest.get("kind")
    if found != kind:
        raise broken(f"--resume must name a run of {kind}", f"one of {found}, {path}", "name the right folder")
    return run


def require_corpus(name: str) -> None:
    """Raise for a text that is none; what is downloaded or read is found out later."""
    from anisoscope.data.corpora import require_name

    require_name(name)


def require_tokeniser(name: str | None) -> None:
    """Raise for a path without a tokeniser; a name of the hub is found out later."""
    if name is not None and _is_path(name) and not Path(name).expanduser().exists():
        raise broken("a tokeniser must exist", name, "name a tokenizer.json, or a folder with one")


def require_models(names: Sequence[str], *, allow_pickle: bool = False) -> None:
    """Raise for a model on this disk that is none; a name of the hub is found out later."""
    from anisoscope.models.located import locate

    for name in names:
        if _is_path(name) or Path(name).expanduser().exists():
            locate(name, allow_pickle=allow_pickle)
        elif "/" in name and name.count("/") > 1:  # no name of the hub has two
            raise broken("a model on this disk must exist", name, "check the path")


def require_paths(names: Sequence[str]) -> None:
    """Raise for a path that is not there; a name of the hub, or of the literature, is found out later."""
    for name in names:
        if _is_path(name) and not Path(name).expanduser().exists():
            raise broken("a model on this disk must exist", name, "check the path")


def require_checkpoints(names: Sequence[str], revisions: str | None) -> None:
    """Raise for folders that are not there, and for a model of the hub that is named without its revisions."""
    from anisoscope.models.catalogue import find

    for name in names:
        path = Path(name).expanduser()
        if path.exists() or any(sign in name for sign in "*?["):  # a glob is looked up with the rest of them
            continue
        entry = find(name.partition("@")[0])
        if _is_path(name) or ("/" not in name and entry is None and revisions is None):
            raise broken("a checkpoint must exist", name, "check the path")
        if revisions is None and (entry is None or not entry.revisions):
            raise broken(
                "a history on the hub must name its revisions",
                f"{name} without --revisions",
                "add --revisions auto (all whose name gives a step) or --revisions step0,step512; for a folder "
                "check the path",
            )


def _is_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.endswith((".gguf", ".json"))
