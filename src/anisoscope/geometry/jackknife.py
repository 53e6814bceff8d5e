"""Intervals from leaving whole groups out, by Student's t. Letters: n groups."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeVar

from scipy import special
from torch import Tensor

from anisoscope.geometry.results import Estimate

FEWEST_GROUPS = 8
E = TypeVar("E", bound=Estimate)


def with_jackknife(found: E, left_out_n: Tensor, *, df: float | None = None) -> E:
    """The estimate with its standard error and its intervals, from its values without each group.

    Degrees of freedom are by default ``(Σd²)²/Σd⁴ − 1``, d the centred values: where a few groups decide the number,
    its error is known from those few.
    """
    values = left_out_n.double().cpu()
    squares = (values - values.mean()).square()
    n, total, fourth = values.numel(), float(squares.sum()), float(squares.square().sum())
    if not math.isfinite(total):
        return found
    if df is None:
        df = max(1.0, total * total / fourth - 1) if fourth > 0 else float(n - 1)
    return with_error(found, math.sqrt(total * (n - 1) / n), df=df)


def with_error(found: E, error: float, *, df: float) -> E:
    """The estimate with this standard error, and its 95 % and 90 % intervals by Student's t."""
    half, half90 = (float(special.stdtrit(df, level)) * error for level in (0.975, 0.95))
    v = found.value
    return replace(found, se=error, df=df, low=v - half, high=v + half, low90=v - half90, high90=v + half90)
