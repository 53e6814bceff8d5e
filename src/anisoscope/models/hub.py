"""Models on the Hugging Face hub and in its cache: which revisions there are, and their files on this disk."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
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


def snapshot(name: str, revision: str | None = None, *, allow_pickle: bool = False, cache: Path | None = None) -> Path:
    """The folder of a revision, downloaded if it is not there; without a network what the cache has."""
    hub = _library()
    patterns = [*TEXTS, *WEIGHTS, *(PICKLES if allow_pickle else ())]
    try:
        return Path(hub.snapshot_download(name, revision=revision, allow_patterns=patterns, cache_dir=cache))
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
        wanted = f"{name}@{revision}" if revision else name
        raise AnisoscopeError(f"{wanted} cannot be downloaded (no network?), and {known}") from error


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


def cached(name: str, *, cache: Path | None = None) -> list[str]:
    """Revisions of a model that the cache knows by name."""
    root = cache or Path(_library().constants.HF_HUB_CACHE)
    folder = root / f"models--{name.replace('/', '--')}" / "refs"
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def is_here(name: str, revision: str, *, allow_pickle: bool = False, cache: Path | None = None) -> bool:
    """Whether a revision is on this disk already."""
    hub = _library()
    patterns = [*TEXTS, *WEIGHTS, *(PICKLES if allow_pickle else ())]
    options = {"allow_patterns": patterns, "cache_dir": cache, "local_files_only": True}
    try:
        hub.snapshot_download(name, revision=revision, **options)
    except (hub.errors.LocalEntryNotFoundError, hub.errors.RevisionNotFoundError, OSError):
        return False
    return True


def forget(name: str, revision: str, *, cache: Path | None = None) -> None:
    """Take a revision off this disk; files that other revisions share stay."""
    hub = _library()
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
        if there and label not in there and not _COMMIT.fullmatch(label):
            raise _no_such_revision(name, label, there)


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
