"""``anisoscope measure``: all measures of clouds in files, as a table or as JSON."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from pydantic import Field

from anisoscope.cli.output import as_json
from anisoscope.errors import broken
from anisoscope.escape_text import visible
from anisoscope.study.measure.measure_settings import MeasureSettings
from anisoscope.study.setting_fields import CommandOptions

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor

    from anisoscope.data.cloud_files import CloudFile
    from anisoscope.jobs.progress_table import ProgressTable
    from anisoscope.study.measure.measure_study import Measured

DEMO = "demo"


class MeasureRun(CommandOptions):
    """What `measure` takes beside what decides its numbers."""

    json_: Annotated[bool, Parameter(name="--json", negative=())] = Field(
        default=False,
        alias="json",
        description='Print JSON instead of a table: a missing field is null, an undefined number the string "NaN".',
    )


class MeasureCommand(MeasureSettings, MeasureRun):
    """Every option of `measure`."""


def measure(
    *files: Annotated[str, Parameter(negative=())],
    options: Annotated[MeasureCommand, Parameter(name="*")] = MeasureCommand(),  # noqa: B008
) -> None:
    """Measure isotropy and dimension of the points in FILES.

    Each file holds one cloud, one point per row: .npy .npz .safetensors .parquet .csv. The word `demo` stands for a
    synthetic cloud. Rows are streamed once; measures that need neighbours use a seeded sample, whose size is n.

    For example:

    * `anisoscope measure demo`
    * `anisoscope measure layer3.npy layer4.npy --json`
    * `anisoscope measure run.safetensors --key h.7`
    * `anisoscope measure table.parquet --columns x,y,z`
    * `anisoscope measure demo --plugins hubness.py`

    Parameters
    ----------
    files
        Files to measure, or `demo`.

    """
    if not files:
        raise broken("measure needs at least one file", "none", "try: anisoscope measure demo")
    # Everything that can be wrong with the names is found before the first long computation.
    sources = [_source(name, options.key, options.columns) for name in files]
    results: list[tuple[CloudFile, Measured]] = []
    for source in sources:
        result = _measured(source, options.seed, options.sample)
        results.append((source, result))
        if not options.json_:
            _print_table(source, result)
    if options.json_:
        print(as_json([_as_json(source, result) for source, result in results]))


def _source(name: str, key: str | None, columns: tuple[str, ...] | None) -> CloudFile:
    from anisoscope.data.cloud_files import CloudFile, open_cloud

    return CloudFile(DEMO, 4000, _demo) if name == DEMO else open_cloud(Path(name), key=key, columns=columns)


def _demo() -> Iterator[Tensor]:
    """4 000 points that crowd as token vectors do: eight strong directions in 64, and a common offset."""
    from anisoscope.testing import gaussian

    yield gaussian(4000, [8.0] * 8 + [0.05] * 56, mean=0.5)


def _measured(source: CloudFile, seed: int, sample: int) -> Measured:
    from anisoscope.study.measure.measure_study import measure_cloud

    with _progress(source.name, source.rows) as advance:
        return measure_cloud(source.chunks(), seed=seed, sample_rows=sample, progress=advance)


@contextlib.contextmanager
def _progress(name: str, rows: int | None) -> Iterator[Callable[[str, int], None]]:
    """A bar on standard error where that is a terminal, else nothing: a pipe may take it together with the JSON."""
    from rich.console import Console

    from anisoscope.jobs.progress_table import open_display

    with open_display(Console(stderr=True), _bar, lambda console: None) as table:
        if table is None:
            yield lambda stage, done: None
            return
        row = table.add_task(name, total=rows)

        def advance(stage: str, done: int) -> None:
            nonlocal row
            if stage == "reading":
                table.update(row, completed=done)
            else:  # nobody knows how far such a stage is
                table.remove_task(row)
                row = table.add_task(f"{name}: {stage}", total=None)

        yield advance


def _bar(console: Console) -> ProgressTable:
    from rich.progress import BarColumn, TaskProgressColumn

    from anisoscope.jobs.progress_table import ProgressTable, TimeLeft, Words

    columns = (Words("{task.description}", long=True), BarColumn(), TaskProgressColumn(), TimeLeft())
    return ProgressTable(console, *columns, transient=True)


def _as_json(source: CloudFile, result: Measured) -> dict[str, object]:
    def plain(value: object) -> object:
        return str(value).replace("nan", "NaN") if isinstance(value, float) and not math.isfinite(value) else value

    rows = [{field: plain(value) for field, value in row.as_dict().items()} for row in result.table]
    return {
        "file": source.name,
        "rows": result.rows,
        "width": result.width,
        "sampled": result.sampled,
        "seed": result.seed,
        "columns_left_out": list(source.left_out),
        "measures": rows,
    }


def _print_table(source: CloudFile, result: Measured) -> None:
    """A table that fits 80 columns; notes stand below it."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # As text: a file may be called layer[bold].npy or a:x:.npz, which rich would read as its own language.
    title = Text(f"{visible(source.name)}: {result.rows:,} rows × {result.width}", style="bold")
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("measure", no_wrap=True)
    table.add_column("variant", style="dim")
    for heading in ("value", "95 % interval", "floor", "n"):
        table.add_column(heading, justify="right", no_wrap=True)
    previous, notes = None, {}
    for row in result.table:
        interval = "" if row.low is None or row.high is None else f"{_short(row.low)} … {_short(row.high)}"
        variant = row.variant if row.radius is None else f"{row.variant}, r={row.radius:.3g}"
        if row.note:
            notes.setdefault(row.note, []).append(row.measure)
        floor = "" if row.floor is None else _short(row.floor)
        name = row.measure if row.measure != previous else ""
        table.add_row(name, variant, _short(row.value), interval, floor, f"{row.n:,}")
        previous = row.measure
    # A pipe has no width of its own; a table folded to 80 columns helps nobody there.
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    console.print(table)
    below = [f"{', '.join(dict.fromkeys(measures))}: {note}" for note, measures in notes.items()]
    below += _explained(result)
    if result.sampled < result.rows:
        below.append(f"n = {result.sampled:,}: seeded sample")
    if source.left_out:
        below.append(f"columns left out, not real numbers: {', '.join(source.left_out)}")
    for line in below:
        console.print(Text(visible(line), style="dim"))
    console.print()


def _explained(result: Measured) -> list[str]:
    """What the columns mean. A dimension has another floor than an isotropy, and an interval of its own kind."""
    from anisoscope.geometry.measure_registry import methods

    controlled = {method.name for method in methods() if method.control}
    lines = ["floor: what isotropic noise of this shape scores"]
    if any(row.floor is not None for row in result.table if row.measure in controlled):
        lines[0] += "; of a dimension, what a Gaussian cloud of equal covariance and n reads"
        lines.append("interval of a dimension: sampling error at this n; the bias, which the floor shows, is not in it")
    if any(row.radius is not None for row in result.table):
        lines.append("r: mean distance of that neighbour")
    return lines


def _short(value: float) -> str:
    return f"{value:.4g}"
