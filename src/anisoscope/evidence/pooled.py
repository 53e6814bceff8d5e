"""The effect over all layers of a model, with the interval that layers of the same units allow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.evidence.inference import FEWEST_EFFECTIVE, Spread, bounded_exp
from anisoscope.evidence.result import Evidence
from anisoscope.geometry.results import Estimate


@dataclass(frozen=True, slots=True, eq=False)
class PooledLayer:
    """What one layer adds: its odds ratios, the same with each unit left out, and which units these are."""

    rank: int
    width: int
    enrichment: Mapping[str, Estimate]
    lost: Mapping[str, tuple[Tensor, ...]]
    ids: Tensor | None

    @classmethod
    def of(cls, found: Evidence) -> PooledLayer:
        """From the evidence of that layer."""
        ids = None if found.folds is None else torch.cat([units.ids for units in found.folds])
        return cls(found.rank, found.width, found.enrichment, found.lost, ids)


def pool(layers: Sequence[PooledLayer], null: str) -> Estimate | None:
    """Mean log odds ratio over layers, as a ratio; its error is the jackknife over units of that mean.

    Layers see the same sequences, so their errors go together: a mean of layers is not more certain for having many.
    None where no layer has a finite ratio; without an interval where the layers do not rest on the same units.
    """
    found = [(e, e.enrichment.get(null, Estimate(value=math.nan, n=0))) for e in layers]
    logs = [math.log(r.value) for _, r in found if r.value > 0 and math.isfinite(r.value)]
    if not logs:
        return None
    mean, units = sum(logs) / len(logs), [r.units for _, r in found if r.units is not None]
    effective = min(units) if len(units) == len(found) else None
    plain = Estimate(value=bounded_exp(mean), n=len(logs), floor=1.0, units=effective)
    lost = [e.lost.get(null, ()) for e, _ in found]
    if len(logs) < len(found) or effective is None or effective < FEWEST_EFFECTIVE or not all(lost):
        return plain
    if len({tuple(part.shape for part in one) for one in lost}) > 1 or not _same_units([e for e, _ in found]):
        return plain
    spread = Spread.of_parts([torch.stack(parts).mean(0) for parts in zip(*lost, strict=True)])
    return spread.estimate(plain, mean, ratio=True)


def _same_units(layers: Sequence[PooledLayer]) -> bool:
    """Whether all layers rest on the same sequences, or documents."""
    ids = [layer.ids for layer in layers if layer.ids is not None]
    return len(ids) == len(layers) and all(torch.equal(one, ids[0]) for one in ids)
