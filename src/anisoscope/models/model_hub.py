"""Models on the Hugging Face hub and in its cache: which revisions there are, and their files on this disk."""

from __future__ import annotations

import difflib
import os
import re
import shutil
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from anisoscope.errors import AnisoscopeError, broken

TEXTS = ("*.json", "*.txt", "*.model", "*.jinja", "*.py")  # code is fetched, and run only if the user trusts it
WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
_NETWORK = ("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3")  # whose errors mean: nobody answers
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
PICKLES = ("*.bin", "*.bin.index.json")


def parted(name: str) -> tuple[str, str | None]:
    """The model and the revision of ``NAME[@REVISION]``.

    >>> parted("EleutherAI/pythia-160m@step512"), parted("gpt2")
    (('EleutherAI/pythia-160m', 'step512'), ('gpt2', None))
    """
    model, _, revision = name.partition("@")
    return model, revision or None


def placed(label: str | None) -> tuple[str | None, str | None]:
    """The revision and the subfolder of ``REVISION[:FOLDER]``; without a revision it is the usual one.

    >>> placed("step512"), placed("main:checkpoints/step-1000"), placed(":step-1000")
    (('step512', None), ('main', 'checkpoints/step-1000'), (None, 'step-1000'))
    """
    revision, _, folder = (label or "").partition(":")
    parts = folder.split("/") if folder else []
    if any(part in ("", ".", "..") for part in parts):
        raise broken("a checkpoint in a subfolder is named REVISION:FOLDER", label, "name the folder by its path")
    return revision or None, folder or None


def snapshot(name: str, revision: str | None = None, *, allow_pickle: bool = False, cache: Path | None = None) -> Path:
    """The folder of a revision, downloaded if it is not there; without a network what the cache has.

    Of ``REVISION:FOLDER`` only that folder is fetched, and its path is given.
    """
    hub = _library()
    wanted, (revision, folder) = revision, placed(revision)
    patterns = _patterns(folder, allow_pickle)
    try:
        options = {"allow_patterns": patterns, "cache_dir": cache}
        if folder is None:  # the hub's patterns cross slashes: checkpoints in folders are not the model's weights
            options["ignore_patterns"] = [f"*/{kind}" for kind in (*WEIGHTS, *PICKLES)]
        root = Path(hub.snapshot_download(name, revision=revision, **options))
        if folder is None or (root / folder).is_dir():
            return root if folder is None else root / folder
        there = subfolders(name, revision, cache=cache)
        near = difflib.get_close_matches(folder, there, n=3, cutoff=0.3) or there[:8]
        said = f"there are {', '.join(near)}" if near else "none of its folders holds weights"
        raise broken(f"a folder of {name} must hold the checkpoint", folder, said)
    except hub.errors.RevisionNotFoundError as error:
        raise _no_such_revision(name, revision, refs(name, cache=cache)) from error
    except hub.errors.GatedRepoError as error:
        raise AnisoscopeError(
            f"{name} is gated: accept its terms on the hub and log in with `hf auth login`"
        ) from error
    except hub.errors.RepositoryNotFoundError as error:
        raise broken("a model must exist on the hub or on this disk", name, "check the name; is it private?") from error
    except hub.errors.HFValidationError as error:
        raise broken("a model is named OWNER/NAME[@REVISION], or by its path", name, "check the name") from error
    except (hub.errors.LocalEntryNotFoundError, OSError) as error:
        there = cached(name, cache=cache)
        known = f"cached are {', '.join(there)}" if there else "nothing of it is cached"
        which = f"{name}@{wanted}" if wanted else name
        raise AnisoscopeError(f"{which} cannot be downloaded (no network?), and {known}") from error


def refs(name: str, *, cache: Path | None = None) -> list[str]:
    """Branches and tags of a model; without a network those in the cache."""
    hub = _library()
    try:
        found = hub.HfApi().list_repo_refs(name)
    except hub.errors.RepositoryNotFoundError as error:
        raise broken("a model must exist on the hub or on this disk", name, "check the name; is it private?") from error
    except (hub.errors.HfHubHTTPError, hub.errors.OfflineModeIsEnabled, OSError):
        return cached(name, cache=cache)
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _NETWORK:
            raise
        return cached(name, cache=cache)
    return [ref.name for ref in (*found.branches, *found.tags)]


def require_reachable(name: str, *, cache: Path | None = None) -> None:
    """Raise for a model that is neither in the cache nor answered for by the hub; nothing is fetched."""
    here = _snapshots(name, cache)
    if not refs(name, cache=cache) and not (here.is_dir() and any(here.iterdir())):
        raise AnisoscopeError(f"{name} cannot be reached (no network?), and nothing of it is cached")


def cached(name: str, *, cache: Path | None = None) -> list[str]:
    """Revisions of a model that the cache knows by name."""
    root = cache or Path(_library().constants.HF_HUB_CACHE)
    folder = root / f"models--{name.replace('/', '--')}" / "refs"
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def subfolders(name: str, revision: str | None = None, *, cache: Path | None = None) -> list[str]:
    """Folders of a revision that hold weights, as some models keep their checkpoints; without a network the cached."""
    hub = _library()
    try:
        files = hub.HfApi().list_repo_files(name, revision=revision)
    except (hub.errors.HfHubHTTPError, hub.errors.OfflineModeIsEnabled, OSError):
        files = _cached_files(name, revision, cache)
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _NETWORK:
            raise
        files = _cached_files(name, revision, cache)
    kinds = (*WEIGHTS, *PICKLES)
    weights = [PurePosixPath(file) for file in files if any(fnmatch(file.rpartition("/")[2], kind) for kind in kinds)]
    return sorted({str(file.parent) for file in weights} - {"."})


def is_here(name: str, revision: str, *, allow_pickle: bool = False, cache: Path | None = None) -> bool:
    """Whether a revision, or a folder of it, is on this disk already."""
    hub = _library()
    label, folder = placed(revision)
    options = {"allow_patterns": _patterns(folder, allow_pickle), "cache_dir": cache, "local_files_only": True}
    try:
        root = Path(hub.snapshot_download(name, revision=label, **options))
    except (hub.errors.LocalEntryNotFoundError, hub.errors.RevisionNotFoundError, OSError):
        return False
    return folder is None or (root / folder).is_dir()


def forget(name: str, revision: str, *, cache: Path | None = None) -> None:
    """Take a revision off this disk, or a folder of it; files that others share stay."""
    hub = _library()
    label, folder = placed(revision)
    if folder is not None:
        _forget_folder(name, label, folder, cache)
        return
    try:
        found = hub.scan_cache_dir(cache)
    except hub.errors.CacheNotFound:
        return
    commits = [
        one.commit_hash
        for repository in found.repos
        if repository.repo_id == name
        for one in repository.revisions
        if revision in one.refs or revision == one.commit_hash
    ]
    if commits:
        found.delete_revisions(*commits).execute()


def require_revisions(name: str, labels: Iterable[str], *, cache: Path | None = None) -> None:
    """Raise for a revision that is not among those of the model, with the nearest; a commit may have no name."""
    there = refs(name, cache=cache)
    for label in labels:
        revision, _ = placed(label)
        if there and revision is not None and revision not in there and not _COMMIT.fullmatch(revision):
            raise _no_such_revision(name, revision, there)


def _patterns(folder: str | None, allow_pickle: bool) -> list[str]:
    kinds = [*TEXTS, *WEIGHTS, *(PICKLES if allow_pickle else ())]
    return kinds if folder is None else [f"{folder}/{kind}" for kind in kinds]


def _snapshots(name: str, cache: Path | None) -> Path:
    root = cache or Path(_library().constants.HF_HUB_CACHE)
    return root / f"models--{name.replace('/', '--')}" / "snapshots"


def _cached_root(name: str, revision: str | None, cache: Path | None) -> Path | None:
    """The folder of a revision in the cache, if it has one."""
    snapshots, label = _snapshots(name, cache), revision or "main"
    ref = snapshots.parent / "refs" / label
    root = snapshots / (ref.read_text().strip() if ref.is_file() else label)
    return root if root.is_dir() else None


def _cached_files(name: str, revision: str | None, cache: Path | None) -> list[str]:
    root = _cached_root(name, revision, cache)
    return [] if root is None else [file.relative_to(root).as_posix() for file in root.rglob("*") if file.is_file()]


def _forget_folder(name: str, revision: str | None, folder: str, cache: Path | None) -> None:
    root, snapshots = _cached_root(name, revision, cache), _snapshots(name, cache)
    if root is None or not (root / folder).is_dir():
        return
    inside = [file for file in (root / folder).rglob("*") if file.is_symlink()]
    shared = {os.path.realpath(link) for link in snapshots.rglob("*") if link.is_symlink() and link not in inside}
    for link in inside:
        blob = Path(os.path.realpath(link))
        link.unlink()
        if str(blob) not in shared and blob.is_relative_to(os.path.realpath(snapshots.parent / "blobs")):
            blob.unlink(missing_ok=True)
    shutil.rmtree(root / folder)


def _no_such_revision(name: str, revision: str | None, there: list[str]) -> Exception:
    near = difflib.get_close_matches(revision or "", there, n=3, cutoff=0.3)
    step = f"the nearest are {', '.join(near)}" if near else f"there are {', '.join(there[:8]) or 'none'}"
    return broken(f"a revision of {name} must exist", revision, step)


def _library() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError as error:
        raise AnisoscopeError('models from the hub need huggingface_hub: pip install "anisoscope[models]"') from error
    return huggingface_hub
