"""``anisoscope figures``: the figures of a run for papers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter


def figures(
    run: str,
    *,
    out: Path | None = None,
    form: Annotated[Literal["pdf", "svg", "png"], Parameter(name="--format")] = "pdf",
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
    out
        Folder to write to. Without it: figures inside the run.
    form
        Format of the files.

    """
    from anisoscope.report.figures import draw_figures
    from anisoscope.report.make import write_whole
    from anisoscope.report.reading import read
    from anisoscope.report.view import view

    folder = out if out is not None else Path("figures") if "://" in run else Path(run) / "figures"
    for name, content in draw_figures(view(read([run])), form=form):
        write_whole(folder / name, content)
        print(folder / name)
