"""An overseer that also writes into the run which jobs are done and which failed."""

from __future__ import annotations

from anisoscope.jobs.job_pool import JobListener, JobOutcome
from anisoscope.store.run import Run


class JobLog:
    """Passes everything on, and keeps ``done`` and ``failed`` of the manifest."""

    def __init__(self, run: Run, listener: JobListener) -> None:
        self._run, self._overseer = run, listener
        self.begun, self.started = listener.begun, listener.started
        self.progressed, self.failed_once = listener.progressed, listener.failed_once

    def ended(self, outcome: JobOutcome) -> None:
        """Write down, and pass on."""
        name, run = outcome.task.name, self._run
        if outcome.error is None:
            run.update(done=[*run.manifest["done"], name])
        elif outcome.tries:  # not those that an interrupt kept from beginning
            run.update(failed=run.manifest["failed"] | {name: outcome.error})
        self._overseer.ended(outcome)
