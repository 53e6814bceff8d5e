"""``anisoscope figures``: the figures of a run for papers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from pydantic import Field

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
    for name, content in draw_figures(view(read([run])), form=options.format):
        write_whole(folder / name, content)
        print(visible(str(folder / name)))
