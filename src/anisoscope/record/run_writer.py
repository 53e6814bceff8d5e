"""The run that a scope writes: a new one, or that of a training which is resumed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from anisoscope.errors import AnisoscopeError
from anisoscope.record.notices import Notices
from anisoscope.stats.reduce import RankGroup
from anisoscope.store.files import Folder
from anisoscope.store.parquet_parts import ENDING
from anisoscope.store.recorded import MANIFEST
from anisoscope.store.run import Run, RunSink, create_run, open_run

KIND = "scope"
_MAY_DIFFER = ("steps", "schedule", "budget", "anchor", "training")
"""Settings that a training which goes on may have changed: its length, and what follows from that."""
_AT_STEP = re.compile(r"-(\d{9})\.(?:parquet|safetensors)$")
ASIDE = "superseded"


class ScopeRun:
    """The run of a scope, on the rank that leads; a run that was there before is not changed until the first step."""

    def __init__(self, run: Run, *, is_old: bool, config: Mapping[str, Any], constant: dict[str, Any]) -> None:
        self.run, self._config, self._constant = run, config, constant
        self._untouched = is_old

    @property
    def sink(self) -> RunSink:
        """Where observations go."""
        return self.run.sink("scope", **self._constant)

    def sink_of(self, name: str) -> RunSink:
        """Where values that were logged under a name go."""
        return self.run.sink(f"scope-log-{name}", **self._constant)

    def begin(self, step: int, steps: int | None, notices: Notices) -> None:
        """The training takes its first step: what an earlier session left is taken up."""
        if not self._untouched:
            return
        self._untouched = False
        aside = go_on(self.run, step, config=self._config, steps=steps)
        if aside:
            notices.warn(
                f"{self.run.path} had observations of step {step} and later, which this training takes again: {aside} "
                "files of them were put aside in a folder of the run"
            )

    def close(self, status: str) -> None:
        """Let others write; a run that was opened and not gone on with stays as it was."""
        self.run.close(None if self._untouched else status)


def open_together(
    store: str | os.PathLike[str],
    rank_group: RankGroup,
    notices: Notices,
    *,
    config: Mapping[str, Any],
    constant: dict[str, Any],
    **about: Any,
) -> ScopeRun | None:
    """Open the run on the rank that leads, None on others; all ranks learn whether it could be opened."""
    found: ScopeRun | None = None
    error: Exception | None = None
    if rank_group.is_first:
        try:
            is_old = Folder(store).exists(MANIFEST)
            run, changed = open_or_create(store, config=config, **about)
            run.keep_page()
            found = ScopeRun(run, is_old=is_old, config=config, constant=constant)
            for name in changed:
                if name != "training":
                    notices.warn(f"the run in {store} was begun with another {name}: its rows go by both")
        except Exception as trouble:
            error = trouble
    said = [why for why in rank_group.all_gather(None if error is None else str(error)) if why is not None]
    if error is not None:
        raise error
    if said:
        raise AnisoscopeError(f"rank 0: {said[0]}")
    return found


def open_or_create(
    store: str | os.PathLike[str], *, config: Mapping[str, Any], model: Mapping[str, Any], goes_on: bool, **about: Any
) -> tuple[Run, list[str]]:
    """The run in ``store``, and what of its settings has changed; a training that is no other's is refused.

    ``goes_on`` says whether the training is one that may be resumed.
    """
    if not Folder(store).exists(MANIFEST):
        return create_run(store, config=config, kind=KIND, watched=model, **about), []
    found = open_run(store)  # to read: whoever opens a run to write it changes its files
    found.require_current()
    _require_own(found, config, model)
    if not goes_on:
        raise AnisoscopeError(
            f"{store} holds a run already, of the same settings; nothing was overwritten. Choose another folder, or "
            "resume that training: session=SessionOptions(resumable=True) and scope.restore(state), or first_step= "
            "where the scope was not saved"
        )
    run = open_run(store, write=True)
    before = run.manifest.get("config", {})
    return run, [name for name in _MAY_DIFFER if _plain(before.get(name)) != _plain(config.get(name))]


def go_on(run: Run, step: int, *, config: Mapping[str, Any], steps: int | None) -> int:
    """Take up a run at ``step``: rows of steps that will be taken again are put aside. Returns how many files.

    They stay in a folder of the run: what a training did before it was set back is of no use to its rows, but is no
    rubbish either.
    """
    folder = Folder(run.path)
    later = [name for name in (*folder.names(ENDING), *folder.names(".safetensors")) if _step_in(name) >= step]
    if later:
        number = 1 + sum(name.startswith(f"{ASIDE}-") for name in _tops(folder))
        aside = Folder(f"{str(run.path).rstrip('/')}/{ASIDE}-{number}")
        for name in later:
            aside.write(name, folder.read(name))
        for name in later:
            folder.remove(name)
    entry: dict[str, Any] = {"step": step, "at": _now(), "status_before": run.manifest.get("status")}
    if _plain(run.manifest.get("config")) != _plain(config):
        entry["config_before"] = run.manifest.get("config")
    resumed = [*run.manifest.get("resumed", ()), entry]
    run.update(status="running", reason=None, ended=None, resumed=resumed, config=dict(config), steps=steps)
    return len(later)


def _require_own(run: Run, config: Mapping[str, Any], model: Mapping[str, Any]) -> None:
    if run.manifest.get("kind") != KIND:
        raise AnisoscopeError(
            f"{run.path} holds a run of kind {run.manifest.get('kind')!r}, which a scope cannot resume; nothing was "
            "overwritten. Choose another folder"
        )
    before: Mapping[str, Any] = run.manifest.get("config", {})
    names = dict.fromkeys((*before, *config))
    pairs = [(name, before.get(name), config.get(name)) for name in names if name not in _MAY_DIFFER]
    pairs += [(f"the model's {name}", run.manifest.get("watched", {}).get(name), own) for name, own in model.items()]
    different = [f"{name} {_short(old)}, here {_short(new)}" for name, old, new in pairs if _plain(old) != _plain(new)]
    if different:
        more = f" and {len(different) - 3} more" if len(different) > 3 else ""
        raise AnisoscopeError(
            f"{run.path} holds a different training run ({'; '.join(different[:3])}{more}); nothing was overwritten. "
            "Choose another folder"
        )


def _tops(folder: Folder) -> set[str]:
    return {name.split("/", 1)[0] for name in folder.tree()}


def _step_in(name: str) -> int:
    match = _AT_STEP.search(name)
    return int(match[1]) if match else -1


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
