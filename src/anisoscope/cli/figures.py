"""``anisoscope figures``: the figures of a run for papers."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from pydantic import Field

from anisoscope.cli.output import say
from anisoscope.errors import AnisoscopeError
from anisoscope.escape_text import visible
from anisoscope.study.setting_fields import CommandOptions
from anisoscope.vocabulary import Timing


class FiguresCommand(CommandOptions):
    """Every option of `figures`."""

    out: Path | None = Field(default=None, description="Folder to write to. By default: figures inside the run.")
    format: tuple[Literal["pdf", "svg", "png"], ...] = Field(
        default=("pdf", "svg"), description="Formats of the files, separated by commas."
    )
    width: Literal["auto", "column", "page"] = Field(
        default="auto",
        description="A column (3.25 in), a page of two (6.75 in), or (auto) a page where a figure has several panels.",
    )
    style: str | None = Field(
        default=None, description="A matplotlib style file or the name of a style; it overrides the default settings."
    )
    proxy: str | None = Field(default=None, description="Proxy to draw, as in `anisoscope report`.")
    timing: Timing | None = Field(default=None, description="Timing to draw, as in `anisoscope report`.")


def figures(
    run: str,
    *,
    options: Annotated[FiguresCommand, Parameter(name="*")] = FiguresCommand(),  # noqa: B008
) -> None:
    """Draw the figures of RUN for a paper.

    These are the figures of `anisoscope report`, drawn with matplotlib: one file per figure, and one per value where a
    figure has a choice (of the null, of the measure). Each comes with its caption as .tex; a main table for every view
    is written as LaTeX (booktabs) and Markdown. Fonts are embedded, and lines differ in marker as well as colour.

    For example:

    * `anisoscope figures runs/pair`
    * `anisoscope figures runs/pair --format svg --width column --out paper/figures`
    * `anisoscope figures runs/pair --style mine.mplstyle --proxy semi_nmf --timing anchored`

    Parameters
    ----------
    run
        Folder or URL of a run.

    """
    from anisoscope.report.make import write_whole
    from anisoscope.report.paper_figures import draw_figures
    from anisoscope.report.paper_tables import paper_tables
    from anisoscope.report.reading import Choice, read
    from anisoscope.report.view import view

    out = options.out
    folder = out if out is not None else Path("figures") if "://" in run else Path(run) / "figures"
    context = read([run], wanted=Choice(proxy=options.proxy, timing=options.timing))
    left_out = [*context.sources[0].damaged, *context.sources[0].strays]
    if left_out:
        names = ", ".join(left_out)
        say(f"warning: {run}: {len(left_out)} file(s), damaged or not part of the run, left out: {names}")
    figures_drawn = draw_figures(view(context), forms=options.format, width=options.width, style=options.style)
    tables = () if context.sources[0].is_theory else paper_tables(context)
    drawn = 0
    for drawn, (name, content) in enumerate(itertools.chain(tables, figures_drawn), start=1):  # noqa: B007
        write_whole(folder / name, content)
        print(visible(str(folder / name)))
    if not drawn:
        raise AnisoscopeError(f"{run} has no rows that a figure shows; see: anisoscope rows {run}")
