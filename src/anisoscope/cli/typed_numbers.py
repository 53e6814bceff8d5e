"""Numbers as they were typed: a count of 1.5 is an error, which cyclopts would round to 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cyclopts import Token, convert

from anisoscope.errors import broken


def as_typed(kind: Any, tokens: Sequence[Token]) -> Any:
    """The value of a flag; its name is put before the error by cyclopts."""
    if kind is not int:
        return convert(kind, tokens)
    try:
        return int(tokens[0].value)
    except ValueError:
        raise broken("it must be a whole number", repr(tokens[0].value), "write for example 100") from None
