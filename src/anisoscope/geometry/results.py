"""Named results: a number with what is needed to read it."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A measured number. ``float(estimate)`` gives the value.

    ``low`` and ``high`` bound a 95 % interval and are ``None`` where none exists; ``low90`` and ``high90`` a 90 % one.
    ``floor`` is what isotropic noise of the same shape would score (1 for a ratio over a null; for a dimension, in the
    rows of a table, what a Gaussian cloud of equal covariance and ``n`` gives), ``None`` where it is not known. ``se``
    is the standard error (of the logarithm, for a ratio) with ``df`` degrees of freedom, ``units`` the number of
    independent units behind it. ``n`` counts the rows used. An undefined number is NaN and ``note`` says why.
    """

    value: float
    n: int
    low: float | None = None
    high: float | None = None
    floor: float | None = None
    note: str | None = None
    se: float | None = None
    low90: float | None = None
    high90: float | None = None
    units: float | None = None
    df: float | None = None

    def __float__(self) -> float:
        return self.value

    @property
    def details(self) -> str | None:
        """What was left out, or stands beside the number, in words."""
        return None

    def __str__(self) -> str:
        interval = "" if self.low is None or self.high is None else f" [{self.low:.4g}, {self.high:.4g}]"
        note = "" if self.note is None else f" ({self.note})"
        return f"{self.value:.4g}{interval}{note}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CosineEstimate(Estimate):
    """The average cosine; ``zero_rows`` have no direction and were left out."""

    zero_rows: int = 0

    @property
    def details(self) -> str | None:
        """Rows without a direction."""
        return f"{self.zero_rows} zero rows left out" if self.zero_rows else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEstimate(Estimate):
    """Isotropy inside clusters beside that of the whole; small clusters were left out, with their rows."""

    whole: float = math.nan
    clusters: int = 0
    clusters_left_out: int = 0
    rows_left_out: int = 0

    @property
    def details(self) -> str | None:
        """The global score, and clusters that were too small."""
        left_out = f", {self.clusters_left_out} small clusters left out" if self.clusters_left_out else ""
        return f"{self.whole:.3g} over the whole cloud{left_out}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DimensionEstimate(Estimate):
    """An intrinsic dimension from neighbour distances of ``n`` unique rows.

    The interval is the sampling error of the estimator at this ``n``; it does not cover the true dimension, from which
    the bias parts it.
    """

    exact_duplicates: int = 0
    near_duplicates: int = 0

    @property
    def duplicates(self) -> int:
        """Rows removed before ranks were formed."""
        return self.exact_duplicates + self.near_duplicates

    @property
    def details(self) -> str | None:
        """Duplicates that were removed."""
        return f"{self.duplicates} duplicates removed ({self.near_duplicates} near)" if self.duplicates else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePoint(Estimate):
    """The dimension seen between the neighbours of rank ``order`` and ``2·order``, at mean distance ``radius``."""

    order: int = 1
    radius: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleCurve(DimensionEstimate):
    """Dimension against scale; the value is that of the smallest scale."""

    points: tuple[ScalePoint, ...] = ()
