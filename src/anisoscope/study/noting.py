"""An overseer that also writes into the run which jobs are done and which failed."""

from __future__ import annotations

from anisoscope.store.run import Run
from anisoscope.study.pool import Outcome, Overseer


class Noting:
    """Passes everything on, and keeps ``done`` and ``failed`` of the manifest."""

    def __init__(self, run: Run, overseer: Overseer) -> None:
        self._run, self._overseer = run, overseer
        self.begun, self.started = overseer.begun, overseer.started
        self.progressed, self.failed_once = overseer.progressed, overseer.failed_once

    def ended(self, outcome: Outcome) -> None:
        """Write down, and pass on."""
        name, run = outcome.task.name, self._run
        if outcome.error is None:
            run.update(done=[*run.manifest["done"], name])
        elif outcome.tries:  # not those that an interrupt kept from beginning
            run.update(failed=run.manifest["failed"] | {name: outcome.error})
        self._overseer.ended(outcome)
