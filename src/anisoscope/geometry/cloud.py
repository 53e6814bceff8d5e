"""What a measure accepts as a cloud, checked once. Letters: N rows, D width."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.stats.moments import Moments

Cloud = Tensor | np.ndarray
Measurable = Cloud | Moments


def as_cloud(x: Any, *, at_least: int = 3) -> Tensor:
    """The rows of ``x`` as a finite real ``(N, D)`` tensor without gradient; a ``ValueError`` says what is wrong."""
    if isinstance(x, Moments):
        raise broken("this measure needs the rows of a cloud", "Moments", "pass the rows themselves")
    if not isinstance(x, Tensor):
        x = np.asarray(x)
        if x.dtype.kind not in "f" or x.dtype.itemsize > 8:
            raise broken("a cloud must be of a real floating-point dtype", x.dtype, _conversion(x.dtype.kind == "c"))
        with warnings.catch_warnings():  # a read-only memory map is welcome: nothing here writes
            warnings.simplefilter("ignore", UserWarning)
            x = torch.from_numpy(np.ascontiguousarray(x.astype(x.dtype.newbyteorder("="), copy=False)))
    if not x.is_floating_point():
        raise broken("a cloud must be of a real floating-point dtype", x.dtype, _conversion(x.is_complex()))
    if x.ndim != 2 or x.shape[1] == 0:
        raise broken(
            "a cloud must have the shape (N, D) with D ≥ 1",
            f"shape {tuple(x.shape)}",
            "flatten leading dimensions with x.reshape(-1, x.shape[-1])",
        )
    if x.shape[0] < at_least:
        raise broken(f"a cloud must have at least {at_least} rows", x.shape[0], "pass more points")
    x = x.detach()
    require_finite(x)
    return x


def require_finite(x_ND: Tensor, *, first_row: int = 0) -> None:
    """Raise if any row holds NaN or Inf."""
    if bool(torch.isfinite(x_ND.sum())):  # NaN and Inf survive any sum; a sum that overflows is looked at closely
        return
    bad_N = ~torch.isfinite(x_ND).all(1)
    if bool(bad_N.any()):
        where = first_row + int(bad_N.to(torch.int8).argmax())
        raise broken(
            "a cloud must be finite",
            f"{int(bad_N.sum())} rows with NaN or Inf (first: row {where})",
            "drop them with x[torch.isfinite(x).all(1)]",
        )


def _conversion(is_complex: bool) -> str:
    return "pass real and imaginary parts as columns" if is_complex else "if the numbers are coordinates, use .float()"
