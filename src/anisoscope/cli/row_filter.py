"""Rows chosen by what their columns hold."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from anisoscope.errors import broken

if TYPE_CHECKING:
    import pyarrow as pa

_CONDITION = re.compile(r"\s*(\w+)\s*(!=|<=|>=|=|<|>)(.*)", re.S)


def known_column(name: str) -> str:
    """A column of the schema, or an error with the nearest ones."""
    from anisoscope.store.schema import COLUMNS

    return nearest("a column must be one of a run's", name, tuple(COLUMNS))


def nearest(rule: str, name: str, known: Sequence[str]) -> str:
    """The name if it is known, else an error that says what was probably meant."""
    if name in known:
        return name
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    raise broken(rule, repr(name), f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(known)}")


def chosen(table: pa.Table, equal: Mapping[str, Sequence[str]], where: Sequence[str]) -> pa.Table:
    """Rows that hold one of the values in each column of ``equal`` and meet every condition of ``where``.

    An empty value stands for null; ``first`` and ``last`` are steps, of the rows that all else leaves.
    """
    ends = {"first": min, "last": max}
    late = any(step in ends for step in equal.get("step", ()))
    for column, given in equal.items():
        if given and not (column == "step" and late):
            table = table.filter(_one_of(table, column, given))
    for condition in where:
        match = _CONDITION.fullmatch(condition)
        if match is None:
            raise broken("--where must be column=value (or != < > <= >=)", repr(condition), "for example: layer>=3")
        table = table.filter(_met(table, known_column(match[1]), match[2], match[3].strip()))
    steps = [step for step in table["step"].to_pylist() if step is not None] if late else []
    if not steps:
        return table.slice(0, 0) if late else table
    return table.filter(_one_of(table, "step", [str(ends[x](steps)) if x in ends else x for x in equal["step"]]))


def _one_of(table: pa.Table, column: str, given: Sequence[str]) -> pa.ChunkedArray:
    return reduce(lambda a, b: _call("or_kleene", a, b), (_met(table, column, "=", value) for value in given))


def _met(table: pa.Table, column: str, sign: str, text: str) -> pa.ChunkedArray:
    """Which rows meet a condition; null meets none, but is different from every value.

    A mask, where an expression would start Arrow's pool of threads.
    """
    import pyarrow as pa

    values = table[column]
    if not text:
        if sign not in ("=", "!="):
            raise broken(f"{column}{sign} must be followed by a value", "none", f"write {column}= for rows without one")
        return _call("is_null" if sign == "=" else "is_valid", values)
    wanted = _value(column, values.type, text)
    if wanted != wanted:  # NaN equals nothing, itself included
        if sign not in ("=", "!="):
            raise broken("NaN is neither less nor greater than a number", f"{column}{sign}NaN", f"use {column}=NaN")
        undefined = _call("is_nan", values)
        return undefined if sign == "=" else _or_null(_call("invert", undefined))
    name = {"=": "equal", "!=": "not_equal", "<": "less", ">": "greater", "<=": "less_equal", ">=": "greater_equal"}[
        sign
    ]
    met = _call(name, values, pa.scalar(wanted, values.type))
    return _or_null(met) if sign == "!=" else met


def _call(function: str, *arguments: Any) -> pa.ChunkedArray:
    import pyarrow.compute as pc

    return pc.call_function(function, list(arguments))


def _or_null(met: pa.ChunkedArray) -> pa.ChunkedArray:
    return _call("coalesce", met, True)


def _value(column: str, kind: pa.DataType, text: str) -> Any:
    read = {"int64": int, "double": float}.get(str(kind), str)
    try:
        value = read(text)
    except ValueError:
        value = None
    if value is None or (read is int and abs(value) >= 2**63):
        numbers = "whole numbers" if read is int else "numbers"
        raise broken(f"{column} holds {numbers}", repr(text), f"give a number, or {column}= for none")
    return value
