"""``anisoscope watch``: the page of a run while it is written, and its headline in the terminal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from pydantic import Field

from anisoscope.cli.output import say
from anisoscope.study.setting_fields import CommandOptions

if TYPE_CHECKING:
    from rich.console import Console

    from anisoscope.jobs.progress_table import ProgressTable
    from anisoscope.report.reading import Context


class WatchCommand(CommandOptions):
    """Every option of `watch`."""

    port: int = Field(default=0, ge=0, le=65535, description="Port on 127.0.0.1; 0 picks a free one.")
    serve: bool = Field(default=True, description="Serve the page; without it, show only the table in the terminal.")
    every: float = Field(default=2.0, gt=0, description="Seconds between two updates.")
    once: Annotated[bool, Parameter(negative=())] = Field(default=False, description="Show the table once and exit.")


def watch(
    run: str,
    *,
    options: Annotated[WatchCommand, Parameter(name="*")] = WatchCommand(),  # noqa: B008
) -> None:
    """Watch RUN during training: its page in a browser, its headline as a table in the terminal.

    The page is served on 127.0.0.1 only, under a random path, and refreshes itself; it is read-only and gives no access
    to the files of the run. From another machine: ssh -L 8000:127.0.0.1:PORT HOST, then open the address with port
    8000. The run may belong to another process, may not have begun, or may be finished. Ctrl-C ends only the watch.

    For example:

    * `anisoscope watch runs/pair`
    * `anisoscope watch runs/pair --port 8000`
    * `anisoscope watch runs/pair --no-serve`

    Parameters
    ----------
    run
        Folder or URL of a run.

    """
    from rich.console import Console

    from anisoscope.jobs.progress_table import open_display
    from anisoscope.report.live import Follower
    from anisoscope.report.reading import read

    context = read([run], allow_damaged=True)  # what is no run is told at once
    console, follower = Console(highlight=False), Follower(run)
    if options.once:
        for told in _left_out(context):
            say(f"warning: {run}: {told}")
        _show(_table(console), context)
        return
    with (
        contextlib.suppress(KeyboardInterrupt),
        _served(follower, options, console),
        open_display(console, _table, _table) as table,
    ):
        while True:
            if follower.refresh() or follower.page is None:
                context = read([run], allow_damaged=True)
                _show(table, context, *(f"warning: {told}" for told in _left_out(context)))
            if not options.serve and _is_over(run):
                return
            time.sleep(options.every)


@contextlib.contextmanager
def _served(follower: Any, options: WatchCommand, console: Console) -> Iterator[None]:
    """The page at an address that is printed."""
    if not options.serve:
        yield
        return
    from anisoscope.cli.page_server import PageServer

    with PageServer(lambda: follower.page, port=options.port) as server:
        console.print(f"page: {server.url}  (Ctrl-C ends the watch, not the run)", soft_wrap=True)
        yield


def _is_over(run: str) -> bool:
    from anisoscope.store.run import open_run

    return open_run(run).manifest.get("status") != "running"


def _table(console: Console) -> ProgressTable:
    """One line per model and null."""
    from anisoscope.jobs.progress_table import ProgressTable, Words

    cells = {"model": "model", "over": "over", "course": "enrichment so far", "now": "now (odds ratio)"}
    columns = [Words(f"{{task.fields[{cell}]}}", heading) for cell, heading in cells.items()]
    return ProgressTable(console, *columns, Words("{task.fields[outcome]}", "outcome"))


def _show(table: ProgressTable, context: Context, *above: str) -> None:
    """The answer as it is now and its lines: in place where the display changes, else once more."""
    from anisoscope.report.about import about
    from anisoscope.report.headline import headline_lines, headline_words

    table.title = "\n".join([*above, about(context), headline_words(context)])
    for old in table.task_ids:
        table.remove_task(old)
    for line in headline_lines(context):
        table.add_task("", **asdict(line))
    if table.live.is_started:
        table.refresh()
    else:
        table.console.print(table)


def _left_out(context: Context) -> list[str]:
    """Parts that are damaged or could not be read: numbers are without them."""
    found = context.sources[0].damaged
    return [f"{len(found)} part(s) that are damaged or cannot be read left out: {', '.join(found)}"] if found else []
