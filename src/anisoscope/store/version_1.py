"""Parts of schema 1, read as schema 2: two columns had other names, and some numbers were packed into texts."""

from __future__ import annotations

import math
import re
from typing import Any

import pyarrow as pa

_RENAMED = {"cloud": "subset", "points": "tensor"}
COLUMNS = {name: pa.string() for name in _RENAMED}
"""Columns that schema 1 has and schema 2 lacks."""
_TOKEN_ROWS = ("concept", "type_place")
_FLOOR = re.compile(r"(?:^|; )noise floor ([-+.\deE]+|nan)")
_RADIUS = re.compile(r"(?:mean distance|seen at radius) ([-+.\deE]+)")
_NUMBERS = {"t": "radius", "s": "parameter", "tilt": "parameter", "draw": "item"}
_ADDED = {
    "item": pa.int64(),
    "place": pa.int64(),
    "token": pa.string(),
    "radius": pa.float64(),
    "parameter": pa.float64(),
    "floor": pa.float64(),
}


def from_version_1(part: pa.Table) -> pa.Table:
    """The same rows under the names of today."""
    part = part.rename_columns([_RENAMED.get(name, name) for name in part.column_names])
    needed = part.select(["measure", "variant", "note"]).to_pylist()
    unpacked = [_unpacked(row["measure"] or "", row["variant"], row["note"]) for row in needed]
    for name in ("variant", "note"):
        column = pa.array([row[name] for row in unpacked], pa.string())
        part = part.set_column(part.column_names.index(name), name, column)
    for name, kind in _ADDED.items():
        part = part.append_column(name, pa.array([row.get(name) for row in unpacked], kind))
    return part


def _unpacked(measure: str, variant: str | None, note: str | None) -> dict[str, Any]:
    """Numbers and tokens out of the texts that held them."""
    found: dict[str, Any] = {"variant": variant, "note": note}
    if measure in _TOKEN_ROWS and variant is not None:
        first, _, second = variant.rpartition(":")
        if measure == "concept" and first.isdecimal() and second.isdecimal():
            found |= {"variant": None, "item": int(first), "place": int(second), "token": note, "note": None}
        elif measure == "type_place" and second.isdecimal():
            found |= {"variant": first, "item": int(second), "token": note, "note": None}
        return found
    if variant is not None and "=" in variant:
        parts = [part.partition("=") for part in variant.split(";")]
        if all(name in _NUMBERS and _is_number(value) for name, _, value in parts):
            for name, _, value in parts:
                found[_NUMBERS[name]] = int(value) if name == "draw" else float(value)
            found["variant"] = None
    if note is not None:
        floor, radius = _FLOOR.search(note), _RADIUS.search(note)
        if floor and _is_number(floor[1]):
            found["floor"] = float(floor[1])
        if radius and _is_number(radius[1]):
            found["radius"] = float(radius[1])
    return found


def _is_number(text: str) -> bool:
    try:
        return not math.isinf(float(text))
    except ValueError:
        return False
