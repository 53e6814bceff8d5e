"""How a job goes, for people: a live display in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID
from rich.table import Column

from anisoscope.evaluate.row_builders import Row
from anisoscope.jobs.progress_table import PlainLines, ProgressTable, TimeLeft, Words
from anisoscope.jobs.time_left import clock
from anisoscope.study.pair.trainer_run import TrainingJob
from anisoscope.vocabulary import HEADLINES, PROXIES, is_main, matches

_TICKS = "▁▂▃▄▅▆▇█"
_FEWEST = 5
_NOTE = "enrichment: odds of gradient energy in the tangent proxy, relative to random directions; 1 is chance"


@dataclass(slots=True)
class Progress:
    """One training: where it is, how fast, and the enrichment of its layers at the last observation."""

    job: TrainingJob
    begin: int
    notify: _Show
    step: int = 0
    loss: float = math.nan
    tokens: int = 0
    last: float = field(default_factory=time.monotonic)
    taken: deque[float] = field(default_factory=lambda: deque(maxlen=50))
    layers: dict[int, float] = field(default_factory=dict)
    history: list[float] = field(default_factory=list)
    seen_at: int = -1

    def stepped(self, step: int, loss: float, tokens: int) -> None:
        """A step is done."""
        now = time.monotonic()
        self.taken.append(now - self.last)
        self.step, self.loss, self.last = step, loss, now
        self.tokens += tokens
        self.notify.changed(self)

    def observed(self, rows: list[Row]) -> None:
        """An observation is judged."""
        settings = self.job.settings
        proxy = settings.proxies[0]
        rank = PROXIES[proxy].rank or settings.rank
        main = [r for r in rows if matches(r, HEADLINES["enrichment_haar"].where) and is_main(r, proxy, rank)]
        found = {r["layer"]: r["value"] for r in main if r["value"] is not None and math.isfinite(r["value"])}
        if found:
            self.layers, self.seen_at = found, rows[0]["step"]
            self.history.append(statistics.median(found.values()))
            self.notify.news(self)

    @property
    def total(self) -> int:
        """Steps of the whole training."""
        return self.job.settings.steps

    @property
    def rate(self) -> float:
        """Tokens a second in a step like most of late."""
        done = self.step - self.begin
        return self.tokens / done / max(statistics.median(self.taken), 1e-9) if done and self.taken else math.nan

    @property
    def left(self) -> float:
        """Seconds left at the pace of late, without what observations add; not known before a few steps."""
        if len(self.taken) < _FEWEST:
            return math.nan
        return statistics.median(self.taken) * (self.total - self.step)

    @property
    def enrichment(self) -> str:
        """Enrichment over ``haar`` by layer, as text."""
        return " ".join(f"{self.layers[layer]:.1f}" for layer in sorted(self.layers))


class _Show:
    """What a progress tells of changes."""

    def changed(self, progress: Progress) -> None:
        """A step was taken."""

    def news(self, progress: Progress) -> None:
        """An observation was judged."""


class Lines(PlainLines, _Show):
    """Plain lines: one every few seconds, and one an observation."""

    def training(self, job: TrainingJob, begin: int) -> Progress:
        """A training begins."""
        self.said(f"{job.name}: {job.model_name}, from step {begin} to {job.settings.steps}")
        return Progress(job, begin, self)

    def changed(self, progress: Progress) -> None:
        """Every few seconds, and at the end."""
        if self.is_due("training", always=progress.step == progress.total):  # whichever it is: one goes at a time
            self.said(
                f"{progress.job.name}: step {progress.step}/{progress.total}, loss {progress.loss:.3f}, "
                f"{progress.rate:,.0f} tokens/s, {clock(progress.left)} left"
            )

    def news(self, progress: Progress) -> None:
        """What the scope saw."""
        self.said(
            f"{progress.job.name}: at step {progress.seen_at} enrichment over haar by layer: {progress.enrichment}"
        )


class Board(ProgressTable, _Show):
    """A live table, a row a training."""

    def __init__(self, console: Console) -> None:
        super().__init__(
            console,
            Words("{task.description}", "model"),
            BarColumn(20),
            MofNCompleteColumn(table_column=Column("step", no_wrap=True)),
            Words("{task.fields[loss]}", "loss"),
            Words("{task.fields[rate]}", "tokens/s"),
            TimeLeft("{}", "left"),
            Words("{task.fields[enrichment]}", "enrichment by layer", long=True),
            Words("{task.fields[course]}", "median so far", "cyan", long=True),
            note=_NOTE,
        )
        self._rows: dict[str, TaskID] = {}

    def training(self, job: TrainingJob, begin: int) -> Progress:
        """One more row."""
        progress = Progress(job, begin, self, step=begin)
        unknown = dict.fromkeys(("loss", "rate", "enrichment", "course"), "")
        self._rows[job.name] = self.add_task(
            job.name, total=progress.total, completed=begin, left=lambda: progress.left, **unknown
        )
        return progress

    def changed(self, progress: Progress) -> None:
        """The row moves on."""
        loss = "" if math.isnan(progress.loss) else f"{progress.loss:.3f}"
        rate = "" if math.isnan(progress.rate) else f"{progress.rate:,.0f}"
        self.update(self._rows[progress.job.name], completed=progress.step, loss=loss, rate=rate)

    def news(self, progress: Progress) -> None:
        """The row has another enrichment."""
        course = sparkline(progress.history)
        self.update(self._rows[progress.job.name], enrichment=progress.enrichment, course=course)


def sparkline(values: list[float]) -> str:
    """A curve in one line, on a logarithmic scale.

    >>> sparkline([1.0, 2.0, 4.0, 128.0])
    '▁▂▃█'
    """
    logs = [math.log(value) for value in values if value > 0 and math.isfinite(value)]
    if not logs:
        return ""
    low, span = min(logs), (max(logs) - min(logs)) or 1.0
    return "".join(_TICKS[min(len(_TICKS) - 1, round((x - low) / span * (len(_TICKS) - 1)))] for x in logs)
