"""A profile layer by layer, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anisoscope.cli.output import print_table, short
from anisoscope.vocabulary import HEADLINES, MEASURES, matches, rank_of

Row = Mapping[str, Any]
_MODEL = 1  # the step of the model itself; 0 is its untrained twin


def print_layers(rows: Sequence[Row]) -> None:
    """What a report shows first, one line a layer, with the 95 % interval where there is one; all tokens, the model."""
    columns: dict[str, dict[int, str]] = {}
    of_model = [row for row in rows if row["step"] == _MODEL and row["layer"] is not None]
    for headline in HEADLINES.values():
        measure = MEASURES[str(headline.where["measure"])]
        usual = [measure.row_variant(name) for name, _ in measure.variants] or [None]
        for variant in usual:
            found = [row for row in of_model if matches(row, {"variant": variant} | headline.where)]
            if found:
                main = (found[0]["proxy"], rank_of(found[0]))
                shown = [row for row in found if (row["proxy"], rank_of(row)) == main]
                columns[headline.name.replace("_", " ")] = {row["layer"]: _cell(row) for row in reversed(shown)}
                break
    layers = sorted({layer for cells in columns.values() for layer in cells})
    names = ["layer", *columns]
    if layers:
        cells = [[str(at), *(columns[name].get(at, "") for name in columns)] for at in layers]
        print_table(names, cells, right=names, spare=names[:0:-1])
        print()


def _cell(row: Row) -> str:
    value = short(row["value"])
    return value if row["low"] is None else f"{value} [{short(row['low'])}, {short(row['high'])}]"
