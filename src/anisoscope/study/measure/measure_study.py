"""Every measure of one cloud in one pass: the statistics stream, neighbour measures use a seeded sample.

Letters: N rows, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.geometry.cloud import require_finite
from anisoscope.geometry.cloud_parts import Material
from anisoscope.geometry.measure_registry import MOST_NEIGHBOURS, MeasureMethod, methods
from anisoscope.geometry.neighbours import Neighbours
from anisoscope.geometry.results import Estimate, ScalePoint
from anisoscope.geometry.selections import neighbours_of_selections
from anisoscope.machine_capacity import require_memory
from anisoscope.stats.moments import Moments
from anisoscope.stats.reservoir import Reservoir
from anisoscope.stats.unit_directions import Directions
from anisoscope.study.measure.measure_settings import SAMPLE_ROWS

SMALLEST = 1e-70  # products of four numbers must not vanish, nor those of large ones overflow
_SQUARES = 6
Which = Literal["all", "usual", "spectrum"]
"""Measures in all variants; those of a training in their usual ones; of these what needs no rows beside one another."""


@dataclass(frozen=True, slots=True)
class MeasureRow:
    """One number of the table."""

    measure: str
    variant: str
    value: float
    low: float | None
    high: float | None
    floor: float | None
    n: int
    note: str | None
    radius: float | None = None  # mean distance of the neighbour, for a dimension at a scale
    width: int | None = None

    @classmethod
    def of(cls, measure: str, variant: str, estimate: Estimate, width: int) -> MeasureRow:
        """A row that shows an estimate."""
        notes = "; ".join(part for part in (estimate.note, estimate.details) if part)
        radius = estimate.radius if isinstance(estimate, ScalePoint) else None
        ends = estimate.low, estimate.high
        return cls(measure, variant, estimate.value, *ends, estimate.floor, estimate.n, notes or None, radius, width)

    def as_dict(self) -> dict[str, object]:
        """Plain values; a missing field stays ``None``, an undefined number NaN."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Measured:
    """All measures of one cloud of ``rows`` × ``width``; ``sampled`` rows served those that need neighbours."""

    rows: int
    width: int
    sampled: int
    seed: int
    table: tuple[MeasureRow, ...]


def measure_cloud(
    chunks: Iterable[Tensor],
    *,
    seed: int = 0,
    sample_rows: int = SAMPLE_ROWS,
    which: Which = "all",
    progress: Callable[[str, int], None] = lambda stage, rows: None,
) -> Measured:
    """Measure a cloud that arrives in chunks of rows; memory does not grow with their number.

    With ``which`` *usual* only the measures of a training, in their usual variant, and with *spectrum* of these only
    functions of the covariance and of directions.

    >>> import torch
    >>> x = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
    >>> measured = measure_cloud([x[:200], x[200:]])
    >>> measured.rows, measured.width, len({row.measure for row in measured.table})
    (500, 4, 13)
    """
    if sample_rows < 3:
        raise broken("--sample must be at least 3", sample_rows, "use the default of 20 000")
    moments: Moments | None = None
    directions: Directions | None = None
    reservoir: Reservoir | None = None
    done, largest = 0, 0.0
    for chunk in chunks:
        require_finite(chunk, first_row=done)
        if moments is None:
            _require_room(chunk.shape[1])
        largest = max(largest, float(chunk.abs().max()) if chunk.numel() else 0.0)
        parts = _statistics(chunk)
        kept = Reservoir.of_rows(chunk, rows=sample_rows, seed=seed, start=done)
        if moments is None or directions is None or reservoir is None:
            (moments, directions), reservoir = parts, kept
        else:
            moments, directions = moments.merge(parts[0]), directions.merge(parts[1])
            reservoir = reservoir.merge(kept)
        done += chunk.shape[0]
        progress("reading", done)
    if moments is None or directions is None or reservoir is None or done < 3:
        raise broken("a cloud must have at least 3 rows", done, "pass more points")
    if largest != 0 and not SMALLEST < largest < 1 / SMALLEST:
        raise broken(f"the largest number must lie in {SMALLEST:g} … {1 / SMALLEST:g}", f"{largest:g}", "rescale them")
    sample_ND, unit_vectors = _in_file_order(reservoir), directions
    material = Material(
        moments=moments,
        directions=lambda: unit_vectors,
        sample=lambda: sample_ND,
        k=MOST_NEIGHBOURS,
        seed=seed,
    )
    progress("neighbours", 0)
    return Measured(done, moments.width, sample_ND.shape[0], seed, _table(material, moments.width, which))


def measure_selections(
    x_ND: Tensor, selections: Mapping[str, Tensor], *, seed: int = 0, which: Which = "all"
) -> dict[str, Measured]:
    """What ``measure_cloud`` gives for ``x_ND[rows]`` of every selection, with one search for neighbours.

    Selections are numbers of rows, ascending. Moments are not merged from those of common rows: the effective rank of
    a cloud with an empty direction (after a layer norm) is a root of their rounding, and would change in its 8th digit.
    """
    k = max((method.k for method in _methods(which) if method.needs == "neighbours"), default=0)
    if max(map(len, selections.values())) > SAMPLE_ROWS:  # then each has a sample of its own
        return {name: measure_cloud([x_ND[rows]], seed=seed, which=which) for name, rows in selections.items()}
    require_finite(x_ND)

    @cache
    def searched() -> dict[str, Neighbours]:
        return neighbours_of_selections(x_ND, selections, k)

    found = {}
    for name, rows in selections.items():
        moments, directions = _statistics(x_ND[rows])
        material = Material(
            moments=moments,
            directions=lambda units=directions: units,
            sample=lambda rows=rows: x_ND[rows],
            neighbours=(lambda name=name: searched()[name]) if k else None,
            k=k,
            seed=seed,
        )
        found[name] = Measured(len(rows), moments.width, len(rows), seed, _table(material, moments.width, which))
    return found


def _statistics(x_ND: Tensor) -> tuple[Moments, Directions]:
    double_ND = x_ND.double()
    return Moments.of(double_ND), Directions.of(double_ND)


def _methods(which: Which) -> list[MeasureMethod]:
    found = methods(training=which != "all")
    return found if which != "spectrum" else [one for one in found if one.of_spectrum or one.needs == "directions"]


def _table(material: Material, width: int, which: Which) -> tuple[MeasureRow, ...]:
    return tuple(
        MeasureRow.of(method.name, variant, estimate, width)
        for method in _methods(which)
        for variant, estimate in method.estimates(material, usual=which != "all")
    )


def _require_room(width: int) -> None:
    """Covariance, its sum over chunks, its eigenvectors and what they are computed in: D × D numbers each."""
    need = _SQUARES * 8 * width**2
    require_memory(need, f"a covariance of {width:,} columns", "measure fewer of them, or project the points first")


def _in_file_order(reservoir: Reservoir) -> Tensor:
    sample = reservoir.sample()
    return sample.values[torch.argsort(sample.positions)]
