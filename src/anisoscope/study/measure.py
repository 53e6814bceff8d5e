"""Every measure of one cloud in one pass: the statistics stream, neighbour measures use a seeded sample.

Letters: N rows, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.geometry.cloud import require_finite
from anisoscope.geometry.dimension import gride, levina_bickel, two_nn
from anisoscope.geometry.isotropy import (
    average_cosine,
    effective_rank,
    isoscore,
    isoscore_star,
    local_isotropy,
    participation_ratio,
    partition_ratio,
    top_share,
)
from anisoscope.geometry.neighbours import neighbours
from anisoscope.geometry.results import CosineEstimate, Estimate, LocalEstimate
from anisoscope.stats.directions import Directions
from anisoscope.stats.moments import Moments
from anisoscope.stats.reservoir import Reservoir

SAMPLE_ROWS = 20_000


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

    @classmethod
    def of(cls, measure: str, variant: str, estimate: Estimate, note: str | None = None) -> MeasureRow:
        """A row that shows an estimate."""
        notes = "; ".join(part for part in (estimate.note, note) if part)
        return cls(
            measure, variant, estimate.value, estimate.low, estimate.high, estimate.floor, estimate.n, notes or None
        )

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
    progress: Callable[[str, int], None] = lambda stage, rows: None,
) -> Measured:
    """Measure a cloud that arrives in chunks of rows; memory does not grow with their number.

    >>> import torch
    >>> x = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
    >>> measured = measure_cloud([x[:200], x[200:]])
    >>> measured.rows, measured.width, len({row.measure for row in measured.table})
    (500, 4, 11)
    """
    if sample_rows < 3:
        raise broken("--sample must be at least 3", sample_rows, "use the default of 20 000")
    moments: Moments | None = None
    directions: Directions | None = None
    reservoir: Reservoir | None = None
    done = 0
    for chunk in chunks:
        require_finite(chunk, first_row=done)
        double_ND = chunk.double()
        parts = Moments.of(double_ND), Directions.of(double_ND)
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
    sample_ND = _in_file_order(reservoir)
    table = _of_moments(moments, directions)
    progress("neighbours", 0)
    table += _of_sample(sample_ND, seed)
    return Measured(done, moments.width, sample_ND.shape[0], seed, tuple(table))


def _in_file_order(reservoir: Reservoir) -> Tensor:
    sample = reservoir.sample()
    return sample.values[torch.argsort(sample.positions)]


def _of_moments(moments: Moments, directions: Directions) -> list[MeasureRow]:
    cosine = average_cosine(directions)
    rows = [
        MeasureRow.of(
            "top_share",
            f"power={power}, {'centred' if centre else 'uncentred'}",
            top_share(moments, power=power, centre=centre),
        )
        for power in (2, 1)
        for centre in (True, False)
    ]
    rows.append(MeasureRow.of("average_cosine", "all pairs", cosine, _zero_rows(cosine)))
    kinds = [("plain", False), ("corrected", True)][: 2 if float(moments.count) >= 4 else 1]
    rows += [MeasureRow.of("isoscore", kind, isoscore(moments, corrected=flag)) for kind, flag in kinds]
    rows.append(MeasureRow.of("isoscore_star", "zeta=0.2, trace", isoscore_star(moments)))
    rows += [
        MeasureRow.of("participation_ratio", kind, participation_ratio(moments, corrected=flag)) for kind, flag in kinds
    ]
    rows += [
        MeasureRow.of("effective_rank", f"power={power}", effective_rank(moments, power=power)) for power in (1, 2)
    ]
    return rows


def _of_sample(sample_ND: Tensor, seed: int) -> list[MeasureRow]:
    rows = [MeasureRow.of("partition_ratio", "both signs", partition_ratio(sample_ND))]
    clusters = min(16, sample_ND.shape[0])
    local = local_isotropy(sample_ND, clusters=clusters, seed=seed)
    rows.append(MeasureRow.of("local_isotropy", f"clusters={clusters}", local, _beside(local)))
    found = neighbours(sample_ND, 64)
    copies = found.exact_duplicates + found.near_duplicates
    removed = f"{copies} duplicates removed ({found.near_duplicates} near)" if copies else None
    rows += [MeasureRow.of("two_nn", variant, two_nn(found, variant=variant), removed) for variant in ("fit", "mle")]
    if found.n > 2 and found.problem is None:
        k = min(20, found.n - 1)
        rows.append(MeasureRow.of("levina_bickel", f"k={k}", levina_bickel(found, k=k), removed))
    curve = gride(found)
    rows += [
        MeasureRow.of("gride", f"n={point.order}", point, f"mean distance {point.radius:.3g}") for point in curve.points
    ]
    if not curve.points:
        rows.append(MeasureRow.of("gride", "n=1", curve))
    return rows


def _zero_rows(cosine: CosineEstimate) -> str | None:
    return f"{cosine.zero_rows} zero rows left out" if cosine.zero_rows else None


def _beside(local: LocalEstimate) -> str:
    left_out = f", {local.clusters_left_out} small clusters left out" if local.clusters_left_out else ""
    return f"{local.whole:.3g} over the whole cloud{left_out}"
