"""How many jobs go, for people: a live display in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from anisoscope.escape_text import tell, visible
from anisoscope.jobs.job_pool import Outcome

_PLAIN_EVERY = 10.0  # seconds between plain lines about one job
_MOST = 20  # running jobs shown


class JobLines:
    """Plain lines: one a job that ends, failures at once, and now and then how far a long one is."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total, self._done, self._failed, self._began = 0, 0, 0, time.monotonic()
        self._last: dict[str, float] = {}
        self._shares: dict[str, float] = {}

    def said(self, line: str) -> None:
        """Something to know, once."""
        tell(self._console, line)

    def begun(self, names: Sequence[str]) -> None:
        """All jobs there are."""
        self._total, self._done, self._failed, self._began = len(names), 0, 0, time.monotonic()
        self._shares.clear()
        self.said("1 job" if self._total == 1 else f"{self._total} jobs")

    def started(self, name: str) -> None:
        """No line: its end has one."""
        self._last[name] = time.monotonic()

    def progressed(self, name: str, share: float, text: str) -> None:
        """Every few seconds a job; at once when it has not started, for then it waits."""
        now = time.monotonic()
        self._shares[name] = share
        if now - self._last.get(name, -_PLAIN_EVERY) >= _PLAIN_EVERY:
            self._last[name] = now
            over = self._done + self._failed
            left = time_left(self._total, over, self._shares.values(), now - self._began)
            about = "" if left is None else f", about {_clock(left)} left"
            self.said(f"{name}: {share:.0%}" + (f", {text}" if text else "") + about)

    def failed_once(self, name: str, why: str) -> None:
        """At once."""
        self.said(f"{name} failed and is tried again: {why}")

    def ended(self, outcome: Outcome) -> None:
        """With the count."""
        name = outcome.task.name
        self._last.pop(name, None)
        self._shares.pop(name, None)
        if outcome.error is None:
            self._done += 1
            self.said(f"{self._done} of {self._total} done: {name} ({outcome.seconds:.1f} s)")
        else:
            self._failed += 1
            self.said(f"{name} failed for good after {_times(outcome)}: {outcome.error}")


@dataclass(slots=True)
class _Line:
    """A running job."""

    began: float = field(default_factory=time.monotonic)
    share: float = 0.0
    text: str = ""


class JobBoard:
    """A bar for all jobs, and a line a running one."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total, self._done, self._failed = 0, 0, 0
        self._began = time.monotonic()
        self._running: dict[str, _Line] = {}
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._drawn)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """While jobs run."""
        with self._live:
            yield

    def said(self, line: str) -> None:
        """Above the table."""
        tell(self._console, line, fold=True)

    def begun(self, names: Sequence[str]) -> None:
        """All jobs there are."""
        self._total, self._done, self._failed = len(names), 0, 0
        self._began = time.monotonic()
        self._running.clear()

    def started(self, name: str) -> None:
        """One more line."""
        self._running[name] = _Line()

    def progressed(self, name: str, share: float, text: str) -> None:
        """Its line changes; a job that waits has one too."""
        line = self._running.setdefault(name, _Line())
        line.share, line.text = share, text

    def failed_once(self, name: str, why: str) -> None:
        """A word above the table, for its line will begin anew."""
        self._running.pop(name, None)
        self.said(f"{name} failed and is tried again: {why}")

    def ended(self, outcome: Outcome) -> None:
        """One line less."""
        self._running.pop(outcome.task.name, None)
        if outcome.error is None:
            self._done += 1
        else:
            self._failed += 1
            self.said(f"{outcome.task.name} failed for good after {_times(outcome)}: {outcome.error}")

    @property
    def left(self) -> float | None:
        """Seconds left at the pace so far, counting what running jobs have done; not known before a tenth of one."""
        shares = [line.share for line in self._running.values()]
        return time_left(self._total, self._done + self._failed, shares, time.monotonic() - self._began)

    def _drawn(self) -> RenderableType:
        if not self._total:
            return Text("")
        over, left = self._done + self._failed, self.left
        head = Table.grid(padding=(0, 2, 0, 0))
        head.add_row(
            ProgressBar(total=self._total, completed=over, width=40),
            f"{self._done} of {self._total} done",
            Text(f"{self._failed} failed", style="red") if self._failed else "",
            "" if over == self._total else f"{_clock(left)} left",
        )
        jobs = Table.grid(padding=(0, 2, 0, 0))
        for _ in range(5):
            jobs.add_column(no_wrap=True)
        now = time.monotonic()
        for name, line in list(self._running.items())[:_MOST]:
            bar = ProgressBar(total=1.0, completed=line.share, width=20)
            told = Text(visible(line.text), style="dim")
            jobs.add_row(Text(visible(name)), bar, f"{line.share:.0%}", _clock(now - line.began), told)
        more = len(self._running) - _MOST
        return Group(head, jobs, Text(f"and {more} more", style="dim")) if more > 0 else Group(head, jobs)


def time_left(total: int, over: int, shares: Iterable[float], spent: float) -> float | None:
    """Seconds left at the pace so far, where jobs are alike; None before a tenth of one is done.

    >>> time_left(4, 1, [0.5], 30.0), time_left(4, 0, [0.05], 3.0)
    (50.0, None)
    """
    worth = over + sum(shares)
    return spent / worth * max(total - worth, 0.0) if worth >= 0.1 else None


def _times(outcome: Outcome) -> str:
    return "1 try" if outcome.tries == 1 else f"{outcome.tries} tries"


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
