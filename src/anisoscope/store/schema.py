"""The columns of a run: one number a row, a missing field null, an undefined number NaN.

A new column that may be null does not raise ``SCHEMA_VERSION``: readers fill it with null where a part lacks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from anisoscope.errors import AnisoscopeError, broken
from anisoscope.vocabulary import OUTCOMES, SUBSETS, TENSORS, TIMINGS, VIEWS

SCHEMA_VERSION = 2

_TEXT, _WHOLE, _REAL = pa.string(), pa.int64(), pa.float64()
COLUMNS: dict[str, tuple[pa.DataType, str]] = {
    "run": (_TEXT, "name of the run"),
    "model": (_TEXT, "which model of the run"),
    "role": (_TEXT, "decoder or encoder"),
    "seed": (_WHOLE, "seed of the training"),
    "step": (_WHOLE, "optimiser steps before this observation"),
    "tokens": (_WHOLE, "tokens trained on up to and with this step"),
    "layer": (_WHOLE, "blocks before this place; 0 is what enters the first; null for the whole model"),
    "site": (_TEXT, "name of the module"),
    "view": (_TEXT, f"one of {', '.join(VIEWS)}"),
    "tensor": (_TEXT, f"what the points are: {', '.join(TENSORS)}"),
    "subset": (_TEXT, f"which tokens: {', '.join(SUBSETS)}, or a bin of frequency"),
    "proxy": (_TEXT, "method of the subspace"),
    "rank": (_WHOLE, "rank K of the subspace"),
    "rank_rule": (_TEXT, "how K was found at this place, such as 95% or id; null where it was given as a number"),
    "width": (_WHOLE, "width D of the space"),
    "timing": (_TEXT, f"of the proxy: {' or '.join(TIMINGS)}"),
    "measure": (_TEXT, "what the number is"),
    "variant": (_TEXT, "which of the ways that the definitions allow; null for the usual one"),
    "null": (_TEXT, "the null that the number is relative to"),
    "item": (_WHOLE, "which one of several that a measure lists: a concept, a type, a random case"),
    "place": (_WHOLE, "place in the order of an item: of a token in its concept"),
    "token_id": (_WHOLE, "token that the number is about"),
    "token": (_TEXT, "its text"),
    "radius": (_REAL, "radius or arc at which the number was taken"),
    "parameter": (_REAL, "another setting at which it was taken, as the measure says"),
    "value": (_REAL, "the number; NaN if undefined, and the note says why"),
    "floor": (_REAL, "what noise, or the case without effect, gives"),
    "low": (_REAL, "lower end of the 95 % interval"),
    "high": (_REAL, "upper end"),
    "low90": (_REAL, "lower end of the 90 % interval"),
    "high90": (_REAL, "upper end"),
    "se": (_REAL, "standard error; of the logarithm, where the number is a ratio with a null"),
    "df": (_REAL, "degrees of freedom of the standard error"),
    "units": (_REAL, "effective number of independent units that the interval rests on"),
    "p": (_REAL, "two-sided p-value"),
    "q": (_REAL, "p adjusted over layers"),
    "q_floor": (_REAL, "smallest q that this test can give"),
    "detectable": (_REAL, "about the smallest effect found in 80 % of repetitions: a ratio; of a fit, a distance"),
    "outcome": (_TEXT, f"of the number against its null, or against theory: {', '.join(OUTCOMES)}"),
    "n": (_WHOLE, "points or units that the number rests on"),
    "note": (_TEXT, "what to know about the number"),
}
SCHEMA = pa.schema([pa.field(name, kind, metadata={"about": about}) for name, (kind, about) in COLUMNS.items()])


def as_table(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Rows as a table; columns that a row lacks are null, and NaN stays NaN.

    >>> table = as_table([{"step": 3, "measure": "energy", "value": float("nan")}])
    >>> table["value"][0].as_py(), table["low"][0].as_py()
    (nan, None)
    """
    rows = list(rows)
    for row in rows:
        unknown = set(row) - set(COLUMNS)
        if unknown:
            raise broken("rows must have the columns of the schema", sorted(unknown), f"known are {', '.join(COLUMNS)}")
    try:
        arrays = [
            pa.array([row.get(name) for row in rows], kind, from_pandas=False) for name, (kind, _) in COLUMNS.items()
        ]
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise broken("a row must hold values of its columns' types", error, "see anisoscope.store.schema") from error
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def require_known(version: Any, where: str) -> None:
    """Raise for a run that was written by a newer anisoscope."""
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise AnisoscopeError(
            f"{where} has schema_version {version!r}, and this anisoscope reads up to {SCHEMA_VERSION}; "
            "update anisoscope to read it"
        )
