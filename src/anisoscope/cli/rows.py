"""``anisoscope rows``: the rows of a run, chosen and written as people and programs read them."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from pydantic import BeforeValidator, Field

from anisoscope.cli.open_runs import clearly, opened, warn_of_damage
from anisoscope.cli.output import as_csv, as_json, plain_table, print_table, say, short, visible
from anisoscope.cli.row_filter import chosen, known_column
from anisoscope.errors import AnisoscopeError, broken
from anisoscope.study.setting_fields import CommandOptions, Words

if TYPE_CHECKING:
    import pyarrow as pa

Format = Literal["table", "csv", "json", "parquet"]


def _words(given: Any) -> Any:
    """Parts of texts with commas; a TOML file may give one text, one number or a list of them."""
    texts = given if isinstance(given, list | tuple) else (given,)
    if not all(isinstance(text, str | int | float) and not isinstance(text, bool) for text in texts):
        raise ValueError("must be a word, a number, or a list of them")
    return tuple(part.strip() for text in texts for part in str(text).split(","))


_SHOWN = Parameter(group="Filters", negative=(), show_default=False)
# Unlike in other lists an empty word counts: it stands for rows without a value.
Filter = Annotated[tuple[str, ...], BeforeValidator(_words), _SHOWN]
ON_TERMINAL = 50
_FILTERS = ("measure", "view", "layer", "role", "step", "null", "proxy", "timing")
_SPARE = (
    "site",
    "tokens",
    "run",
    "model",
    "seed",
    "p",
    "rank",
    "subset",
    "n",
    "timing",
    "tensor",
    "q",
    "note",
    "proxy",
)
_NUMBERS = ("value", "low", "high", "p", "q", "n")


class RowsCommand(CommandOptions):
    """Every option of `rows`."""

    format: Format | None = Field(
        default=None,
        description="`table` `csv` `json` `parquet`; by default from the extension of --out, else a table. In CSV, "
        'null is an empty field; in JSON, it is null. An undefined number is NaN, in JSON the string "NaN".',
    )
    out: str | None = Field(default=None, description="File to write (atomically) instead of standard output.")
    columns: Words | None = Field(
        default=None, min_length=1, description="Columns to show, separated by commas, in this order."
    )
    limit: int | None = Field(
        default=None,
        ge=0,
        description="Maximum number of rows to show. By default: 50 in a table on a terminal, otherwise all. 0: all.",
    )
    measure: Filter = Field(default=(), description="What the number is: energy, enrichment, isoscore_star …")
    view: Filter = Field(default=(), description="representation, weight or embedding.")
    layer: Filter = Field(default=(), description="Number of blocks before the site, as in `--layer 0,6,12`.")
    role: Filter = Field(default=(), description="decoder or encoder.")
    step: Filter = Field(default=(), description="Optimiser steps before the observation; also `first` and `last`.")
    null: Filter = Field(default=(), description="The null that the number is relative to: haar, pairing …")
    proxy: Filter = Field(default=(), description="Method that fitted the subspace.")
    timing: Filter = Field(default=(), description="rolling or anchored.")
    where: Annotated[tuple[str, ...], _SHOWN] = Field(
        default=(),
        description="Condition on any column: `column=value`, or with != < > <= >=; `column=` for rows without a value."
        " Repeat it for several; the value is taken as it stands, commas included.",
    )


def rows(
    run: str,
    /,
    *,
    options: Annotated[RowsCommand, Parameter(name="*")] = RowsCommand(),  # noqa: B008
) -> None:
    """Show the rows of a run, or write them as CSV, JSON or Parquet.

    Different filters are combined with and; several values of one filter (separated by commas, or by repeating it)
    with or. A table omits empty columns and states once what is the same in all rows. A damaged part is named and left
    out.

    For example:

    * `anisoscope rows runs/pair --measure enrichment --null haar --step last`
    * `anisoscope rows runs/pair --layer 0,6,12 --where "q<=0.05" --columns step,layer,value,q`
    * `anisoscope rows runs/pair --format csv --where role=decoder > decoder.csv`
    * `anisoscope rows s3://bucket/runs/pair --out rows.parquet`

    Parameters
    ----------
    run
        Folder of the run, or an fsspec URL.

    """
    out = options.out
    kind = options.format or _by_ending(out)
    names = None if options.columns is None else list(dict.fromkeys(map(known_column, options.columns)))
    if kind == "parquet" and out is None and sys.stdout.isatty():
        raise broken(
            "Parquet is binary and must not go to a terminal", "no --out", "add --out rows.parquet, or pipe it"
        )
    found = opened(run)
    with clearly(run):
        table = found.table()
    warn_of_damage(found)
    equal = {column: getattr(options, column) for column in _FILTERS}
    kept = chosen(table, equal, options.where)
    if table.num_rows and not kept.num_rows:
        _say_what_there_is(table, equal)
    _written(_shown(kept, names, options.limit, kind, out), names, kind, out, folder=found.path, all_rows=kept.num_rows)


def _by_ending(out: str | None) -> Format:
    ending = "" if out is None else Path(out).suffix.lower()
    endings: dict[str, Format] = {".csv": "csv", ".json": "json", ".parquet": "parquet"}
    return endings.get(ending, "table")


def _shown(table: pa.Table, names: list[str] | None, limit: int | None, kind: Format, out: str | None) -> pa.Table:
    if limit is None:
        limit = ON_TERMINAL if kind == "table" and out is None and sys.stdout.isatty() else 0
    return (table if names is None else table.select(names)).slice(0, limit or None)


def _written(
    table: pa.Table, names: list[str] | None, kind: Format, out: str | None, *, folder: str, all_rows: int
) -> None:
    left_out = all_rows - table.num_rows
    line = f"{left_out:,} more of {all_rows:,} rows left out; --limit 0 shows all" if left_out else ""
    if kind == "table":
        _table(table, names, out, folder, line)
        return
    if kind == "parquet":
        import pyarrow.parquet as pq

        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        content = buffer.getvalue()
    elif kind == "csv":
        content = as_csv(table.column_names, table.to_pylist()).encode()
    else:
        content = (as_json(table.to_pylist()) + "\n").encode()
    _put(content, out, folder)
    if line:
        say(line)


def _table(table: pa.Table, names: list[str] | None, out: str | None, folder: str, left_out: str) -> None:
    """Columns that hold nothing are left out, and what is the same in all rows is said once, unless asked for."""
    full = [name for name in table.column_names if names or table[name].null_count < table.num_rows]
    once = [] if names or table.num_rows < 2 else [name for name in full if name not in _NUMBERS and _same(table, name)]
    full = [name for name in full if name not in once]
    cells = [[short(row[name]) for name in full] for row in table.to_pylist()]
    above = "in all rows: " + ", ".join(f"{name} {short(table[name][0].as_py())}" for name in once) if once else ""
    right = [name for name in full if str(table[name].type) != "string"]
    below = left_out if left_out else "" if cells else "no rows"
    if out is not None:
        text = "\n".join(part for part in (above, plain_table(full, cells, right=right).rstrip("\n"), below) if part)
        _put((text + "\n").encode(), out, folder)
        return
    if above:
        print(above)
    if cells:
        print_table(full, cells, right=right, spare=() if names else _SPARE)
    if below:
        print(below)
    sys.stdout.flush()  # a reader that went away is noticed here, where it is handled


def _same(table: pa.Table, name: str) -> bool:
    return len(table[name].unique()) == 1


def _put(content: bytes, out: str | None, folder: str) -> None:
    if out is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    from anisoscope.store.files import Folder

    with clearly(out):
        path = Path(out)
        if path.exists() and not path.is_file() and not path.is_dir():  # a device or a pipe
            path.write_bytes(content)
            return
        where, _, name = (out if "://" in out else str(path.resolve())).rpartition("/")
        if _is_same_folder(where, folder):
            raise broken("--out must lie outside the run", out, "a file among its parts would be read as one of them")
        if not name or path.is_dir():
            raise AnisoscopeError(f"{out} is a folder; name a file in it")
        Folder(where).write(name, content)


def _is_same_folder(one: str, other: str) -> bool:
    if "://" in one or "://" in other:
        return one.rstrip("/") == other.rstrip("/")
    return Path(one).resolve() == Path(other).resolve()


def _say_what_there_is(table: pa.Table, equal: Mapping[str, Sequence[str]]) -> None:
    """No row was found: the first filter that nothing meets is named with what the run holds."""
    for column, given in equal.items():
        if given and not chosen(table, {column: given}, ()).num_rows:
            present = sorted(value for value in table[column].unique().to_pylist() if value is not None)
            listed = ", ".join(visible(str(value)) for value in present[:20]) + (" …" if len(present) > 20 else "")
            say(f"no row has {column} {', '.join(given)}; there are: {listed or 'none'}")
            return
    say(f"none of {table.num_rows:,} rows meets all conditions")
