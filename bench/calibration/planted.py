"""Models whose layers have planted effects and known noise, judged by the product's own pooling, ladder and headline.

Letters: L layers, N nulls, n units.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import lru_cache

import numpy as np
import torch
from scipy import stats

from anisoscope.evidence.inference import Spread
from anisoscope.evidence.ladder import ladder
from anisoscope.evidence.pooled import PooledLayer, pool
from anisoscope.evidence.result import Evidence
from anisoscope.evidence.units import AdditiveUnits, Energies
from anisoscope.geometry.results import Estimate
from anisoscope.report.ladder_findings import LadderFinding
from anisoscope.report.reading import Source, Subject
from anisoscope.report.sections.verdict_section import headline
from anisoscope.report.window_effects import WindowEffect
from anisoscope.testing import planted_layers
from anisoscope.verdict import Verdict
from anisoscope.vocabulary import MAIN_TIMING, ladder_of

VIEW = "representation"
NULLS = ladder_of(VIEW)
UNITS = 32
ENDS = ("low", "high", "low90", "high90")


@dataclass(frozen=True)
class Planted:
    """Log odds ratios over all nulls or the ``first`` few, with this error; a share of the layers lies ``below``."""

    effect: float = 0.0
    error: float = 0.1
    first: int = len(NULLS)
    below: float = 0.0


@dataclass
class Tally:
    """Counts over repetitions: heights of models, what pooled intervals and headlines say, outcomes of one layer."""

    heights: Counter[int] = field(default_factory=Counter)
    words: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)  # of the last layer over the last null
    pooled_above: int = 0  # over every null
    pooled_excludes: int = 0  # over the last one
    mixed: int = 0


@lru_cache(maxsize=256)
def tally(planted: Planted, layers: int, shared: float, repetitions: int) -> Tally:
    """Judge so many models; ``shared`` is the correlation of the layers' noise."""
    found = Tally()
    for seed in range(repetitions):
        evidences = drawn(planted, layers, shared, seed)
        judged = ladder(evidences, view=VIEW)
        verdict, last = judged.model, NULLS[-1]
        pooled = {null: pool([PooledLayer.of(e) for e in evidences], null) for null in NULLS}
        found.heights[verdict.height] += 1
        found.words[_word(verdict, pooled)] += 1
        found.outcomes[judged.layers[layers - 1].rungs[-1].outcome] += 1
        missed = verdict.first_not_passed
        found.mixed += bool(verdict.mixed_and_passed) or (missed is not None and verdict.is_mixed(missed))
        found.pooled_above += all(one is not None and (one.low or 0) > 1 for one in pooled.values())
        one = pooled[last]
        found.pooled_excludes += one is not None and one.low is not None and not one.low < 1 < (one.high or 1)
    return found


def drawn(planted: Planted, layers: int, shared: float, seed: int) -> list[Evidence]:
    """The evidence of each layer, as if from so many equal units: intervals by jackknife, p by Student's t."""
    values_nLN = planted_layers(layers, shared=shared, units=UNITS, nulls=len(NULLS), seed=seed, **asdict(planted))
    mean_LN = values_nLN.mean(0)
    lost_nLN = (UNITS * mean_LN - values_nLN) / (UNITS - 1)
    error_LN = values_nLN.std(0) / math.sqrt(UNITS)
    p_LN = 2 * stats.t.sf(np.abs((mean_LN / error_LN).numpy()), UNITS - 1)
    even = torch.full((UNITS,), 0.5, dtype=torch.float64)
    folds = (AdditiveUnits(torch.arange(UNITS), Energies(even, even, even)),)
    evidences = []
    for layer in range(layers):
        enrichment, lost = {}, {}
        for k, null in enumerate(NULLS):
            centre, lost[null] = float(mean_LN[layer, k]), (lost_nLN[:, layer, k],)
            plain = Estimate(value=math.exp(centre), n=UNITS, floor=1.0, units=UNITS)
            enrichment[null] = Spread.of_parts(lost[null]).estimate(plain, centre, ratio=True)
        p = {null: float(p_LN[layer, k]) for k, null in enumerate(NULLS)}
        numbers = {"energy": 0.5, "inside": 1.0, "outside": 1.0, "width": 16, "rank": 8, "n": UNITS, "seed": 0}
        numbers |= {"units": UNITS, "effective_units": float(UNITS), "resamples": 0}
        evidences.append(Evidence(**numbers, enrichment=enrichment, p=p, lost=lost, folds=folds))
    return evidences


def _word(verdict: Verdict, pooled: dict[str, Estimate | None]) -> str:
    """The headline's word, for a report about one finished model."""
    source = Source("model", "", {"kind": "profile", "status": "finished"}, [], [], 1)
    subject = Subject(source, None, None, "model", [])
    effects = {
        null: WindowEffect(one.value, *(getattr(one, end) for end in ENDS), over="units")
        for null, one in pooled.items()
        if one is not None
    }
    found = LadderFinding(subject, VIEW, "late", "pca", MAIN_TIMING, verdict, (verdict,), 1, (1, 1), effects)
    return (headline([found]).head or "").removesuffix(".")
