"""The progress display of every command: rows that change in a terminal, plain lines now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console, RenderableType
from rich.progress import Progress, ProgressColumn, Task, TextColumn
from rich.table import Column, Table
from rich.text import Text

from anisoscope.escape_text import tell, visible
from anisoscope.jobs.time_left import clock

_PLAIN_EVERY = 10.0  # seconds between plain lines about one thing
_PADDING = (0, 2, 0, 0)

Live = TypeVar("Live", bound="ProgressTable")
Plain = TypeVar("Plain")


class Words(TextColumn):
    """A text of a row as it stands: names and notes come from outside, and rich must not read [red] in them.

    Where there is little room, bars and texts that are ``long`` are cut, so that numbers stay whole.
    """

    def __init__(self, form: str, heading: str = "", style: str = "none", *, long: bool = False) -> None:
        super().__init__(form, style, markup=False, table_column=Column(heading, no_wrap=not long))

    def render(self, task: Task) -> Text:
        """The text in one line, with its controls as escapes."""
        text = visible(self.text_format.format(task=task))
        return Text(text, style=self.style, no_wrap=True, overflow="ellipsis")


class TimeTaken(ProgressColumn):
    """How long a row has been there; rich's own column writes 0:00:05 where plain lines say 0:05."""

    def render(self, task: Task) -> Text:
        """As a clock."""
        return Text(clock(task.elapsed))


class TimeLeft(ProgressColumn):
    """The time left as the field ``left`` of a row reckons it, else as rich does; nothing when the row is over.

    rich takes the mean pace of the last 30 s. Jobs end more rarely than that, so theirs is the pace of all jobs since
    the beginning, with the parts of those that run. A training stands still while an observation is made, so its own is
    the median of its last steps.
    """

    def __init__(self, form: str = "{} left", heading: str = "") -> None:
        super().__init__(Column(heading, no_wrap=True))
        self._form = form

    def render(self, task: Task) -> Text:
        """As a clock."""
        if task.total is None or task.completed >= task.total:
            return Text("")
        reckoned: Callable[[], float | None] | None = task.fields.get("left")
        return Text(self._form.format(clock(task.time_remaining if reckoned is None else reckoned())))


class ProgressTable(Progress):
    """Rows that change, under the headings of their columns where those have any; what is said stands above.

    ``title`` is text above the rows that may change with them, as it stands.
    """

    def __init__(
        self,
        console: Console,
        *columns: ProgressColumn,
        note: str = "",
        most: int | None = None,
        transient: bool = False,
    ) -> None:
        self._note, self._most, self.title = note, most, ""
        super().__init__(*columns, console=console, refresh_per_second=4, transient=transient, get_time=time.monotonic)

    def said(self, line: str) -> None:
        """Something to know, once."""
        tell(self.console, line, fold=True)

    def get_renderables(self) -> Iterable[RenderableType]:
        """The title, the first rows, how many there are beyond them, and the note."""
        rows = self.tasks
        shown = rows[: self._most]
        if self.title:
            yield Text(self.title)
        if not rows:
            return
        yield self.make_tasks_table(shown)
        if len(rows) > len(shown):
            yield Text(f"and {len(rows) - len(shown)} more", style="dim")
        if self._note:
            yield Text(self._note, style="dim")

    def make_tasks_table(self, tasks: Iterable[Task]) -> Table:
        """The table of rich, with headings."""
        table = super().make_tasks_table(tasks)
        table.padding = _PADDING
        table.show_header = any(column.header for column in table.columns)
        return table


class PlainLines:
    """Lines for what has no cursor to move: what is said, and now and then how far something is."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said_at: dict[str, float] = {}

    def said(self, line: str) -> None:
        """Something to know, once."""
        tell(self._console, line)

    def is_due(self, name: str, *, always: bool = False) -> bool:
        """Whether it is time for another line about ``name``, which then counts as said."""
        now = time.monotonic()
        due = always or now - self._said_at.get(name, -_PLAIN_EVERY) >= _PLAIN_EVERY
        if due:
            self._said_at[name] = now
        return due


@contextmanager
def open_display(
    console: Console, live: Callable[[Console], Live], plain: Callable[[Console], Plain]
) -> Iterator[Live | Plain]:
    """The live display where the cursor can be moved; the plain one in pipes, files and terminals of TERM=dumb."""
    if not console.is_interactive:
        yield plain(console)
        return
    with live(console) as display:
        yield display
