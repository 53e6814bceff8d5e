"""``anisoscope figures``: the figures of a run for papers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from pydantic import Field

from anisoscope.cli.showing import say
from anisoscope.errors import AnisoscopeError
from anisoscope.study.options import CommandOptions
from anisoscope.visible import visible


class FiguresCommand(CommandOptions):
    """Every option of `figures`."""

    out: Path | None = Field(default=None, description="Folder to write to. Without it: figures inside the run.")
    format: Literal["pdf", "svg", "png"] = Field(default="pdf", description="Format of the files.")


def figures(
    run: str,
    *,
    options: Annotated[FiguresCommand, Parameter(name="*")] = FiguresCommand(),  # noqa: B008
) -> None:
    """Draw the figures of RUN for papers.

    They are those of `anisoscope report`, drawn by matplotlib: one file a figure, and where a figure has a choice (of
    the null, of the measure), one for each value.

    For example:

    * `anisoscope figures runs/pair`
    * `anisoscope figures runs/pair --format svg --out paper/figures`

    Parameters
    ----------
    run
        Folder or URL of a run.

    """
    from anisoscope.report.figures import draw_figures
    from anisoscope.report.make import write_whole
    from anisoscope.report.reading import read
    from anisoscope.report.view import view

    out = options.out
    folder = out if out is not None else Path("figures") if "://" in run else Path(run) / "figures"
    context = read([run])
    left_out = [*context.sources[0].damaged, *context.sources[0].strays]
    if left_out:
        names = ", ".join(left_out)
        say(f"warning: {run}: {len(left_out)} file(s), damaged or no parts of the run, left out: {names}")
    drawn = 0
    for drawn, (name, content) in enumerate(draw_figures(view(context), form=options.format), start=1):  # noqa: B007
        write_whole(folder / name, content)
        print(visible(str(folder / name)))
    if not drawn:
        raise AnisoscopeError(f"{run} has no rows that a figure shows; see: anisoscope rows {run}")
