"""How a job goes, for people: a live display in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from anisoscope.escape_text import tell
from anisoscope.evaluate.row_builders import Row
from anisoscope.study.pair.trainer_run import Job
from anisoscope.vocabulary import HEADLINES, PROXIES, is_main, matches

_TICKS = "▁▂▃▄▅▆▇█"
_PLAIN_EVERY = 10.0  # seconds between plain lines
_FEWEST = 5


@dataclass(slots=True)
class Progress:
    """One training: where it is, how fast, and the enrichment of its layers at the last observation."""

    job: Job
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


class Lines(_Show):
    """Plain lines: one every few seconds, and one an observation."""

    def __init__(self, console: Console) -> None:
        self._console, self._last = console, 0.0

    def said(self, line: str) -> None:
        """Something to know, once."""
        self._print(line)

    def training(self, job: Job, begin: int) -> Progress:
        """A training begins."""
        self._print(f"{job.name}: {job.model_name}, from step {begin} to {job.settings.steps}")
        return Progress(job, begin, self)

    def changed(self, progress: Progress) -> None:
        """Every few seconds, and at the end."""
        now = time.monotonic()
        if now - self._last >= _PLAIN_EVERY or progress.step == progress.total:
            self._last = now
            self._print(
                f"{progress.job.name}: step {progress.step}/{progress.total}, loss {progress.loss:.3f}, "
                f"{progress.rate:,.0f} tokens/s, {_clock(progress.left)} left"
            )

    def news(self, progress: Progress) -> None:
        """What the scope saw."""
        self._print(
            f"{progress.job.name}: at step {progress.seen_at} enrichment over haar by layer: {progress.enrichment}"
        )

    def _print(self, line: str) -> None:
        tell(self._console, line)


class Board(_Show):
    """A live table, a row a training."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._all: list[Progress] = []
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._drawn)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """While the job runs."""
        with self._live:
            yield

    def said(self, line: str) -> None:
        """Above the table."""
        tell(self._console, line, fold=True)

    def training(self, job: Job, begin: int) -> Progress:
        """One more row."""
        self._all.append(Progress(job, begin, self, step=begin))
        return self._all[-1]

    def _drawn(self) -> RenderableType:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in ("model", "", "step", "loss", "tokens/s", "left", "enrichment by layer", "median so far"):
            table.add_column(name, no_wrap=True)
        for one in self._all:
            over = one.step >= one.total
            table.add_row(
                Text(one.job.name),
                ProgressBar(total=one.total, completed=one.step, width=20),
                f"{one.step}/{one.total}",
                "" if math.isnan(one.loss) else f"{one.loss:.3f}",
                "" if math.isnan(one.rate) else f"{one.rate:,.0f}",
                "" if over else _clock(one.left),
                one.enrichment,
                Text(sparkline(one.history), style="cyan"),
            )
        note = Text("enrichment: energy of the gradient in the tangent proxy, odds over random directions; 1 is chance")
        note.stylize("dim")
        return Group(table, note) if self._all else Text("")


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


def _clock(seconds: float) -> str:
    if math.isnan(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
