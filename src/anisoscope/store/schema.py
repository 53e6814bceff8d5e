"""The columns of a run: one number a row, a missing field null, an undefined number NaN."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from anisoscope.errors import AnisoscopeError, broken

SCHEMA_VERSION = 1

_TEXT, _WHOLE, _REAL = pa.string(), pa.int64(), pa.float64()
COLUMNS: dict[str, tuple[pa.DataType, str]] = {
    "run": (_TEXT, "name of the run"),
    "model": (_TEXT, "which model of the run"),
    "role": (_TEXT, "decoder or encoder"),
    "seed": (_WHOLE, "seed of the training"),
    "step": (_WHOLE, "optimiser steps before this observation"),
    "tokens": (_WHOLE, "tokens trained on up to and with this step"),
    "layer": (_WHOLE, "blocks before this place; 0 is what enters the first"),
    "site": (_TEXT, "name of the module"),
    "view": (_TEXT, "representation, weight or embedding"),
    "points": (
        _TEXT,
        "activations, gradients, gradients-out, update or update-raw; input or output: a table of embeddings",
    ),
    "cloud": (_TEXT, "which tokens: all, no-first, no-special, or a bin of frequency"),
    "proxy": (_TEXT, "method of the subspace"),
    "rank": (_WHOLE, "rank of the subspace"),
    "timing": (_TEXT, "rolling or anchored"),
    "measure": (_TEXT, "what the number is"),
    "variant": (_TEXT, "which of the ways that the definitions allow"),
    "null": (_TEXT, "the null that the number is relative to"),
    "value": (_REAL, "the number; NaN if undefined, and the note says why"),
    "low": (_REAL, "lower end of the 95 % interval"),
    "high": (_REAL, "upper end"),
    "p": (_REAL, "two-sided p-value"),
    "q": (_REAL, "p adjusted over layers"),
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
