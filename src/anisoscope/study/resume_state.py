"""What a resume reads from a manifest; one that is incomplete or of other settings is told in a line."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from anisoscope.errors import AnisoscopeError
from anisoscope.store.run import Run, open_run
from anisoscope.study.setting_fields import told

Made = TypeVar("Made", bound=BaseModel)
Needed = TypeVar("Needed")


def recorded(manifest: Mapping[str, Any], *keys: str) -> Any:
    """A field of a manifest, by the keys that lead to it."""
    found: Any = manifest
    for key in keys:
        if not isinstance(found, Mapping) or key not in found:
            raise AnisoscopeError(
                f"the manifest of {manifest.get('name', 'the run')} lacks {'.'.join(keys)}: it cannot be resumed"
            )
        found = found[key]
    return found


def require_progress(manifest: Mapping[str, Any]) -> None:
    """Raise for a manifest that does not say in its own words what is done, what failed and what the run is of."""
    done, failed, hashes = recorded(manifest, "done"), manifest.get("failed") or {}, manifest.get("hashes", {})
    fits = isinstance(done, list) and all(isinstance(name, str) for name in done)
    if not fits or not isinstance(failed, Mapping) or not isinstance(hashes, Mapping):
        what = "done" if not fits else "failed" if not isinstance(failed, Mapping) else "hashes"
        raise AnisoscopeError(
            f"the manifest of {manifest.get('name', 'the run')} has an invalid field {what}: it cannot be resumed"
        )


def settings_in(manifest: Mapping[str, Any], kind: type[Made], **usual: Any) -> Made:
    """The settings that a run was begun with; ``usual`` are for those that an older release did not have."""
    config = recorded(manifest, "config")
    with incomplete(str(manifest.get("name", "the run"))):
        return kind(**(usual | config))


@contextlib.contextmanager
def incomplete(name: str) -> Iterator[None]:
    """Whatever is wrong with what a manifest holds, as one error."""
    try:
        yield
    except ValidationError as error:
        raise AnisoscopeError(f"the manifest of {name} holds invalid settings: {told(error)}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise AnisoscopeError(f"the manifest of {name} is incomplete ({error}): it cannot be resumed") from error


def resume_study(
    path: str | Path, kind: str, read: Callable[[Run], Needed], go_on: Callable[[Run, Needed], Run]
) -> Run:
    """Open a study that was stopped or killed and go on with it; one that is finished without failures stays as it is.

    ``read`` takes from the run what going on needs; whatever is wrong with it, or with the run, is told before anything
    is done, and leaves the run closed. Jobs that failed are tried again.
    """
    run = open_run(path, write=True)
    try:
        if run.manifest.get("kind") != kind:
            raise AnisoscopeError(f"{path} is a run of kind {run.manifest.get('kind')!r}, not {kind}")
        run.require_current()
        needed = read(run)
        if is_done(run):
            run.close()
            return run
    except BaseException:
        run.close()
        raise
    return go_on(run, needed)


def is_done(run: Run) -> bool:
    """Whether nothing is left to do."""
    return run.finished and not run.manifest.get("failed")
