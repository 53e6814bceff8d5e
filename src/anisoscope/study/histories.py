"""A training history brought together: its checkpoints in order, each with the fingerprint of its weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from anisoscope.errors import AnisoscopeError, BrokenRuleError, broken
from anisoscope.models.fingerprints import fingerprint
from anisoscope.models.hub import parted, refs, snapshot
from anisoscope.models.integrity import Checkpoint, Finding, inspect
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
        if len(found) < 2:
            raise broken(
                f"auto needs revisions of {name} that tell a step or a number of tokens",
                ", ".join(found) or "none",
                "name them: --revisions step0,step512",
            )
        return found, []
    if asked == "pythia":
        return [*PYTHIA], [*PYTHIA]
    given = [label.strip() for label in asked.split(",") if label.strip()]
    if len(given) < 2:
        raise broken("--revisions must name at least two revisions", asked, "separate them by commas, or use auto")
    return in_order(given), []


def checked(
    sources: Sequence[str],
    *,
    revisions: str | None = None,
    allow_pickle: bool = False,
    begun: Callable[[str, int, int], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> History:
    """Fingerprint every checkpoint and compare them: folders, or the revisions of one model on the hub.

    ``begun`` is told the label, its number and how many there are; ``progress`` the bytes read.
    """
    history: list[Checkpoint] = []
    expected: list[str] = []
    if revisions is None:
        found = [(path.stem if path.is_file() else path.name, path) for path in folders(sources)]
        if len(found) < 2:
            raise broken("a history must have at least two checkpoints", len(found), "name more folders")
        names = [label for label, _ in found]
        found = [(label if names.count(label) == 1 else str(path), path) for label, path in found]
        where = {label: (lambda path=path: path) for label, path in found}
    else:
        if len(sources) != 1:
            raise broken("--revisions goes with one model", len(sources), "name one model, or folders without it")
        name, pinned = parted(sources[0])
        if pinned is not None:
            raise broken("with --revisions the model is named without one", sources[0], f"name {name}")
        labels, expected = labels_of(name, revisions)
        where = {label: (lambda label=label: snapshot(name, label, allow_pickle=allow_pickle)) for label in labels}
    for number, (label, located) in enumerate(where.items()):
        if begun is not None:
            begun(label, number, len(where))
        history.append(_read(label, located, allow_pickle, progress))
    if all(one.weights is None for one in history):
        raise AnisoscopeError(f"no checkpoint can be read: {history[0].problem}")
    return History(tuple(history), tuple(inspect(history, expected=expected)))


def _read(
    label: str, located: Callable[[], Path], allow_pickle: bool, progress: Callable[[int], None] | None
) -> Checkpoint:
    found = place(label)
    at = None if found is None else found[1]
    try:
        return Checkpoint(label, at, fingerprint(located(), allow_pickle=allow_pickle, progress=progress))
    except (AnisoscopeError, BrokenRuleError) as error:
        return Checkpoint(label, at, None, str(error))
