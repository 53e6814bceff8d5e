"""A training history brought together: its checkpoints in order, each with the fingerprint of its weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from anisoscope.errors import AnisoscopeError, BrokenRuleError, broken
from anisoscope.models.catalogue import find
from anisoscope.models.checkpoint_integrity import Checkpoint, Finding, inspect
from anisoscope.models.fingerprints import fingerprint
from anisoscope.models.model_hub import parted, refs, require_revisions, snapshot, subfolders
from anisoscope.models.revisions import PYTHIA, folders, in_order, place


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """Checkpoints in the order of training, and what was found of them."""

    checkpoints: tuple[Checkpoint, ...]
    findings: tuple[Finding, ...]

    @property
    def trusted(self) -> list[Checkpoint]:
        """Those that curves may be drawn through."""
        gone = {finding.label for finding in self.findings if finding.excluded}
        return [one for one in self.checkpoints if one.label not in gone]


def labels_of(name: str, asked: str) -> tuple[list[str], list[str]]:
    """Revisions to look at in the order of training, and those that should exist: by name, ``pythia``, or ``auto``."""
    if asked == "auto":
        found = in_order(ref for ref in refs(name) if place(ref) is not None or ref == "main")
        if len(found) < 2:  # no branch and no tag tells a step: the checkpoints may lie in folders of the main one
            inside = [f":{folder}" for folder in subfolders(name) if place(folder) is not None]
            found = in_order([*found, *inside]) if inside else found
        if len(found) < 2:
            raise broken(
                f"auto needs revisions or subfolders of {name} whose names give a step or a number of tokens",
                ", ".join(found) or "none",
                "name them: --revisions step0,step512",
            )
        return found, []
    if asked == "pythia":
        return [*PYTHIA], [*PYTHIA]
    given = [label.strip() for label in asked.split(",") if label.strip()]
    if len(given) < 2:
        raise broken("--revisions must name at least two revisions", asked, "separate them by commas, or use auto")
    require_revisions(name, given)
    return in_order(given), []


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a checkpoint comes from: a folder or file, or a revision of a model on the hub."""

    label: str
    path: str | None = None
    name: str | None = None

    def here(self, *, allow_pickle: bool = False) -> Path:
        """Its files on this disk, downloaded if need be."""
        if self.path is not None:
            return Path(self.path)
        assert self.name is not None, "a checkpoint has a path or a name"
        return snapshot(self.name, self.label, allow_pickle=allow_pickle)


def origins_of(sources: Sequence[str], revisions: str | None = None) -> tuple[list[Origin], list[str]]:
    """Checkpoints in the order of training, and labels that should be among them."""
    revisions = revisions or _known(sources)
    if revisions is None:
        found = [(path.stem if path.is_file() else path.name, path) for path in folders(sources)]
        if len(found) < 2:
            raise broken("a history must have at least two checkpoints", len(found), "name more folders")
        names = [label for label, _ in found]
        return [Origin(label if names.count(label) == 1 else str(path), str(path)) for label, path in found], []
    if len(sources) != 1:
        raise broken("--revisions goes with one model", len(sources), "name one model, or folders without it")
    name, pinned = parted(sources[0])
    if pinned is not None:
        raise broken("with --revisions the model is named without one", sources[0], f"name {name}")
    entry = find(name)
    labels, expected = labels_of(name if entry is None else entry.source("step0"), revisions)
    return [Origin(label, name=name if entry is None else entry.source(label)) for label in labels], expected


def _known(sources: Sequence[str]) -> str | None:
    """The revisions of a model of the literature that is named without any."""
    entry = find(sources[0]) if len(sources) == 1 and not Path(sources[0]).exists() else None
    if entry is None or not entry.revisions:
        return None
    return entry.revisions if isinstance(entry.revisions, str) else ",".join(entry.revisions)


def checked(
    origins: Sequence[Origin],
    *,
    expected: Sequence[str] = (),
    allow_pickle: bool = False,
    begun: Callable[[str, int, int], None] | None = None,
    progress: Callable[[int], None] | None = None,
    done: Callable[[Origin], None] = lambda origin: None,
) -> History:
    """Fingerprint every checkpoint and compare them.

    ``begun`` is told the label, its number and how many there are; ``progress`` the bytes read; ``done`` the checkpoint
    that was read.
    """
    history: list[Checkpoint] = []
    for number, origin in enumerate(origins):
        if begun is not None:
            begun(origin.label, number, len(origins))
        history.append(_read(origin, allow_pickle, progress))
        done(origin)
    if all(one.weights is None for one in history):
        raise AnisoscopeError(f"no checkpoint can be read: {history[0].problem}")
    return History(tuple(history), tuple(inspect(history, expected=expected)))


def _read(origin: Origin, allow_pickle: bool, progress: Callable[[int], None] | None) -> Checkpoint:
    found = place(origin.label)
    at = None if found is None else found[1]
    try:
        path = origin.here(allow_pickle=allow_pickle)
        return Checkpoint(origin.label, at, fingerprint(path, allow_pickle=allow_pickle, progress=progress))
    except (AnisoscopeError, BrokenRuleError) as error:
        return Checkpoint(origin.label, at, None, str(error))
    except Exception as error:  # whatever a damaged file makes a reader do, the others are still read
        why = str(error).strip().splitlines()[:1]
        return Checkpoint(origin.label, at, None, ": ".join(("cannot be read", type(error).__name__, *why)))
