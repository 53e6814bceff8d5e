"""How many jobs go, for people: a live display in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich.console import Console, RenderableType
from rich.progress import BarColumn, TaskID, TaskProgressColumn

from anisoscope.jobs.job_pool import JobOutcome
from anisoscope.jobs.progress_table import PlainLines, ProgressTable, TimeLeft, TimeTaken, Words
from anisoscope.jobs.time_left import clock, time_left

_MOST = 20  # running jobs shown


@dataclass(slots=True)
class _Count:
    """How many jobs there are, how many are over, and how far the others are."""

    total: int = 0
    done: int = 0
    failed: int = 0
    shares: dict[str, float] = field(default_factory=dict)
    began: float = 0.0

    @property
    def over(self) -> int:
        """Done or failed for good."""
        return self.done + self.failed

    @property
    def left(self) -> float | None:
        """Seconds left at the pace so far, counting what running jobs have done; not known before a tenth of one."""
        shares = tuple(self.shares.values())  # at once: a display is drawn by a thread of its own
        return time_left(self.total, self.over, shares, time.monotonic() - self.began)

    def end(self, outcome: JobOutcome) -> None:
        """One job less."""
        self.shares.pop(outcome.task.name, None)
        if outcome.error is None:
            self.done += 1
        else:
            self.failed += 1


class JobLines(PlainLines):
    """Plain lines: one a job that ends, failures at once, and now and then how far a long one is."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._count = _Count()

    def begun(self, names: Sequence[str]) -> None:
        """All jobs there are."""
        self._count = _Count(len(names), began=time.monotonic())
        self.said("1 job" if len(names) == 1 else f"{len(names)} jobs")

    def started(self, name: str) -> None:
        """No line: its end has one."""
        self.is_due(name, always=True)

    def progressed(self, name: str, share: float, text: str) -> None:
        """Every few seconds a job; at once when it has not started, for then it waits."""
        self._count.shares[name] = share
        if self.is_due(name):
            left = self._count.left
            about = "" if left is None else f", about {clock(left)} left"
            self.said(f"{name}: {share:.0%}" + (f", {text}" if text else "") + about)

    def failed_once(self, name: str, why: str) -> None:
        """At once."""
        self._count.shares.pop(name, None)
        self.said(_again(name, why))

    def ended(self, outcome: JobOutcome) -> None:
        """With the count."""
        self._said_at.pop(outcome.task.name, None)
        self._count.end(outcome)
        if outcome.error is None:
            count = f"{self._count.done} of {self._count.total} done"
            self.said(f"{count}: {outcome.task.name} ({outcome.seconds:.1f} s)")
        else:
            self.said(_given_up(outcome))


class JobBoard(ProgressTable):
    """A bar for all jobs, and a row a running one."""

    def __init__(self, console: Console) -> None:
        self._all = ProgressTable(
            console,
            BarColumn(),
            Words("{task.fields[done]} of {task.total} done"),
            Words("{task.fields[failed]}", style="red"),
            TimeLeft(),
        )
        super().__init__(
            console,
            Words("{task.description}"),
            BarColumn(20),
            TaskProgressColumn(),
            TimeTaken(),
            Words("{task.fields[text]}", style="dim", long=True),
            most=_MOST,
        )
        self._count = _Count()
        self._rows: dict[str, TaskID] = {}

    def begun(self, names: Sequence[str]) -> None:
        """All jobs there are."""
        self._count = _Count(len(names), began=time.monotonic())
        for name in tuple(self._rows):
            self._drop(name)
        for row in self._all.task_ids:
            self._all.remove_task(row)
        if names:
            self._all.add_task("", total=len(names), done=0, failed="", left=lambda: self.left)

    def started(self, name: str) -> None:
        """One more row."""
        self._drop(name)
        self._rows[name] = self.add_task(name, total=1.0, text="")

    def progressed(self, name: str, share: float, text: str) -> None:
        """Its row changes; a job that waits has one too."""
        if name not in self._rows:
            self.started(name)
        self._count.shares[name] = share
        self.update(self._rows[name], completed=share, text=text)

    def failed_once(self, name: str, why: str) -> None:
        """A word above the table, for its row will begin anew."""
        self._drop(name)
        self.said(_again(name, why))

    def ended(self, outcome: JobOutcome) -> None:
        """One row less."""
        self._drop(outcome.task.name)
        self._count.end(outcome)
        failed = f"{self._count.failed} failed" if self._count.failed else ""
        for row in self._all.task_ids:
            self._all.update(row, completed=self._count.over, done=self._count.done, failed=failed)
        if outcome.error is not None:
            self.said(_given_up(outcome))

    @property
    def left(self) -> float | None:
        """Seconds left, where that is known."""
        return self._count.left

    def get_renderables(self) -> Iterable[RenderableType]:
        """All jobs, then those that run."""
        yield self._all
        yield from super().get_renderables()

    def _drop(self, name: str) -> None:
        self._count.shares.pop(name, None)
        if name in self._rows:
            self.remove_task(self._rows.pop(name))


def _again(name: str, why: str) -> str:
    return f"{name} failed and is tried again: {why}"


def _given_up(outcome: JobOutcome) -> str:
    tries = "1 try" if outcome.tries == 1 else f"{outcome.tries} tries"
    return f"{outcome.task.name} failed for good after {tries}: {outcome.error}"
