"""``anisoscope report``: one offline HTML page about one run, or comparing several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from pydantic import Field

from anisoscope.errors import broken
from anisoscope.escape_text import visible
from anisoscope.study.setting_fields import CommandOptions
from anisoscope.vocabulary import Timing


class ReportCommand(CommandOptions):
    """Every option of `report`."""

    out: Path | None = Field(
        default=None,
        description="File to write. By default: report.html inside the run, or compared.html here for several runs.",
    )
    proxy: str | None = Field(
        default=None, description="Proxy that the page shows first: pca, svd, semi_nmf, or another that was judged."
    )
    timing: Timing | None = Field(
        default=None,
        description="Timing that the page shows first: refitted, or fitted early and frozen (Bernas et al. 2026).",
    )
    allow_damaged: Annotated[bool, Parameter(negative=())] = Field(
        default=False, description="Leave out parts that changed after the run was closed, and list them."
    )


def report(
    *runs: Annotated[str, Parameter(negative=())],
    options: Annotated[ReportCommand, Parameter(name="*")] = ReportCommand(),  # noqa: B008
) -> None:
    """Write the results of RUNS as one self-contained HTML page.

    The page starts with the answer in words, derived from the rows by a stated rule; everything else is folded below
    it. It can show every proxy, timing, view and seed in the rows; --proxy and --timing choose which come first. For a
    run in progress, the page says so. Several runs are compared, aligned by the fraction of training. Parts are checked
    against the hashes recorded when a run was closed.

    For example:

    * `anisoscope report runs/pair`
    * `anisoscope report runs/pair --out pair.html`
    * `anisoscope report runs/pair --proxy semi_nmf --timing anchored`
    * `anisoscope report runs/small runs/large --out compared.html`

    Parameters
    ----------
    runs
        Folders or URLs of runs.

    """
    from anisoscope.report.make import make_report, write_whole
    from anisoscope.report.reading import Choice

    if not runs:
        raise broken("report needs at least one run", "none", "name the folder of a run")
    path = options.out if options.out is not None else _usual(runs)
    if path.is_dir():
        raise broken("--out must name a file", f"the folder {path}", f"try --out {path / 'report.html'}")
    wanted = Choice(proxy=options.proxy, timing=options.timing)
    made = make_report(runs, allow_damaged=options.allow_damaged, wanted=wanted).encode()
    write_whole(path, made)
    print(f"{visible(str(path))}  ({len(made) / 1e6:.1f} MB)")


def _usual(runs: Sequence[str]) -> Path:
    if len(runs) > 1:
        return Path("compared.html")
    # A run behind a URL is read there and reported here.
    return Path("report.html") if "://" in runs[0] else Path(runs[0]) / "report.html"
