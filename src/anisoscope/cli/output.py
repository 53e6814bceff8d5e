"""Tables, CSV and JSON of what was read from a run; whatever its strings hold is shown as text."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from anisoscope.escape_text import tell, visible

Row = Mapping[str, Any]


def short(value: Any) -> str:
    """A value in a table: four digits of a number, nothing for null.

    >>> short(0.123456), short(None), short(float("nan")), short(1833)
    ('0.1235', '', 'NaN', '1833')
    """
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}".replace("nan", "NaN")
    return visible(value if isinstance(value, str) else str(value))


def as_json(value: Any) -> str:
    """Strict JSON: null stays null, and a number that JSON cannot write is a string, as "NaN"."""
    text = json.dumps(_plain(value), indent=1, ensure_ascii=False)
    return re.sub(r"[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]", lambda m: f"\\u{ord(m[0]):04x}", text)


def as_csv(columns: Sequence[str], rows: Iterable[Row]) -> str:
    r"""CSV in which null is an empty field, an empty string ``""``, an undefined number NaN, and controls are escapes.

    >>> as_csv(["a", "b", "c"], [{"a": None, "b": "", "c": float("nan")}])
    'a,b,c\n,"",NaN\n'
    """
    lines = [",".join(columns), *(",".join(_field(row[column]) for column in columns) for row in rows)]
    return "\n".join(lines) + "\n"


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Iterable[str] = (), spare: Sequence[str] = ()
) -> None:
    """A rich table on a terminal, elsewhere plain lines, one a row and never folded.

    A terminal that is too narrow does without the ``spare`` columns, the first of them first, and says so. Whatever
    cells hold is shown as text, whether the caller saw to that or not.
    """
    right = set(right)
    rows = [[visible(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich(columns, rows, right, spare)
    else:
        print(plain_table(columns, rows, right=right), end="")


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Iterable[str] = ()) -> str:
    """A table in plain text."""
    right, widths = set(right), _widths(columns, rows)
    result = ""
    for row in (columns, *rows):
        cells = (
            " " * (width - _cells(cell)) + cell if column in right else cell + " " * (width - _cells(cell))
            for column, cell, width in zip(columns, row, widths, strict=True)
        )
        result += "  ".join(cells).rstrip() + "\n"
    return result


def say(text: str) -> None:
    """A line on standard error, beside the output."""
    from rich.console import Console

    tell(Console(stderr=True), text, "yellow")


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[str]], right: set[str], spare: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    widths = dict(zip(columns, _widths(columns, rows), strict=True))
    if "note" in widths:
        widths["note"] = min(widths["note"], 20)  # a note is read as well when it is folded
    dropped = []
    for column in spare:
        if column in widths and sum(widths.values()) + 2 * len(widths) > console.width:
            del widths[column]
            dropped.append(column)
    # Where there is no room all the same, cells are folded: nothing may be cut off unsaid.
    fits = sum(widths.values()) + 2 * len(widths) <= console.width
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in widths:
        justify = "right" if column in right else "left"
        table.add_column(Text(column), justify=justify, no_wrap=column != "note" and fits, overflow="fold")
    kept = [index for index, column in enumerate(columns) if column in widths]
    for row in rows:
        table.add_row(*(Text(row[index]) for index in kept))  # as text: rich must not read [red] as its own language
    console.print(table)
    if dropped:
        line = f"no room for {', '.join(dropped)}: widen the terminal, filter more, or choose --columns"
        console.print(Text(line, style="dim"))


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(_cells, (column, *cells))) for column, *cells in zip(columns, *rows, strict=True)]


def _cells(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def _field(value: Any) -> str:
    value = _plain(value)
    if value is None:
        return ""
    text = visible(str(value))
    return f'"{text.replace(chr(34), chr(34) * 2)}"' if not text or any(c in text for c in ',"\r\n') else text


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value).replace("nan", "NaN")
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
