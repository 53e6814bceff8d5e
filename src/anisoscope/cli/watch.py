"""``anisoscope watch``: the page of a run while it is written, and its headline in the terminal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from pydantic import Field

from anisoscope.cli.output import say
from anisoscope.escape_text import visible
from anisoscope.study.setting_fields import CommandOptions

if TYPE_CHECKING:
    from anisoscope.report.reading import Context


class WatchCommand(CommandOptions):
    """Every option of `watch`."""

    port: int = Field(default=0, ge=0, le=65535, description="Port on 127.0.0.1; 0 takes a free one.")
    serve: bool = Field(default=True, description="Serve the page; without it, show the terminal's table alone.")
    every: float = Field(default=2.0, gt=0, description="Seconds between two looks at the run.")
    once: Annotated[bool, Parameter(negative=())] = Field(
        default=False, description="Show the table as it is now, and end."
    )


def watch(
    run: str,
    *,
    options: Annotated[WatchCommand, Parameter(name="*")] = WatchCommand(),  # noqa: B008
) -> None:
    """Watch RUN while it is trained: its page in a browser, its headline as a table in the terminal.

    The page is served on 127.0.0.1 only, under a random path, and reads itself anew; nothing can be written through it,
    and no file of the run is reached. From another machine: ssh -L 8000:127.0.0.1:PORT HOST, then open the address with
    port 8000. The run may be another process's, may not have begun, or may be finished. Ctrl-C ends the watch alone.

    For example:

    * `anisoscope watch runs/pair`
    * `anisoscope watch runs/pair --port 8000`
    * `anisoscope watch runs/pair --no-serve`

    Parameters
    ----------
    run
        Folder or URL of a run.

    """
    from rich.console import Console, Group
    from rich.text import Text

    from anisoscope.report.live import Follower
    from anisoscope.report.reading import read

    context = read([run], allow_damaged=True)  # what is no run is told at once
    console, follower = Console(highlight=False), Follower(run)
    if options.once:
        for told in _left_out(context):
            say(f"warning: {run}: {told}")
        console.print(_table(context))
        return
    with contextlib.suppress(KeyboardInterrupt), _served(follower, options, console), _shown(console) as show:
        while True:
            if follower.refresh() or follower.page is None:
                context = read([run], allow_damaged=True)
                lacking = [Text(f"warning: {told}") for told in _left_out(context)]
                show(Group(*lacking, _table(context)))
            if not options.serve and _is_over(run):
                return
            time.sleep(options.every)


@contextlib.contextmanager
def _served(follower: Any, options: WatchCommand, console: Any) -> Iterator[None]:
    """The page at an address that is printed."""
    if not options.serve:
        yield
        return
    from anisoscope.cli.page_server import PageServer

    with PageServer(lambda: follower.page, port=options.port) as server:
        console.print(f"page: {server.url}  (Ctrl-C ends the watch, not the run)", soft_wrap=True)
        yield


@contextlib.contextmanager
def _shown(console: Any) -> Iterator[Any]:
    """On a terminal one table that changes; elsewhere a new one after every observation."""
    if not console.is_terminal:
        yield console.print
        return
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        yield lambda table: live.update(table, refresh=True)


def _is_over(run: str) -> bool:
    from anisoscope.store.run import open_run

    return open_run(run).manifest.get("status") != "running"


def _table(context: Context) -> Any:
    """The answer and a line a model and null."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from anisoscope.report.about import about
    from anisoscope.report.headline import headline_lines, headline_words

    table = Table(box=None, pad_edge=False)
    for name in ("model", "over", "enrichment so far", "now (odds ratio)", "outcome"):
        table.add_column(name)
    for line in headline_lines(context):
        table.add_row(*(Text(visible(cell)) for cell in (line.model, line.over, line.course, line.now, line.outcome)))
    return Group(Text(about(context)), Text(headline_words(context)), table)


def _left_out(context: Context) -> list[str]:
    """Parts that are damaged or could not be read: numbers are without them."""
    found = context.sources[0].damaged
    return [f"{len(found)} part(s) that are damaged or cannot be read left out: {', '.join(found)}"] if found else []
