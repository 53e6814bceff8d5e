"""The gradient of an embedding, a sum by type, on new batches of sequences; the proxies stay."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch

from anisoscope import Subspace
from anisoscope.evidence.energy import energy_share
from anisoscope.evidence.measure_fold import Fold
from anisoscope.evidence.pool_folds import pool_folds
from anisoscope.evidence.typed_units import TypedUnits
from anisoscope.geometry.results import Estimate
from anisoscope.stats.moments import Moments
from anisoscope.testing import embedding_batch
from bench.calibration.cells import Row, coverage_row, missed
from bench.calibration.section import Limit, Section

VOCABULARY, LENGTH, WIDTH = 60, 24, 12


def rows(repetitions: int) -> Iterator[Row]:
    """Intervals against the mean over all batches."""
    for n in (16, 32, 64):
        for signal in (0.0, 1.0):
            estimates = [enrichment_of_batch(n, signal, seed) for seed in range(repetitions)]
            truth = math.exp(float(np.mean([math.log(e.value) for e in estimates])))
            name = "types share a signal" if signal else "no signal"
            yield coverage_row(name, n, [missed(e, truth) for e in estimates])


def enrichment_of_batch(n: int, signal: float, seed: int) -> Estimate:
    """Types drawn by Zipf's law, each with a direction of its own, sequences with another."""
    batch, types_nt, turn = embedding_batch(n, signal=signal, types=VOCABULARY, length=LENGTH, width=WIDTH, seed=seed)
    gradients, types = batch.flatten(0, 1), types_nt.flatten()
    bases = [turn[:, :3].contiguous(), turn[:, 1:4].contiguous()]
    typed = TypedUnits.of(gradients, types, torch.arange(n).repeat_interleave(LENGTH), types % 2, bases)
    table_VD = torch.zeros(VOCABULARY, WIDTH, dtype=torch.float64).index_add_(0, types, gradients)
    folds = []
    for held in (0, 1):
        moments, subspace = Moments.of(table_VD[held::2], higher=False), Subspace(bases[held])
        share = energy_share(moments, subspace)
        folds.append(Fold(subspace, share, moments.second, moments.covariance, VOCABULARY // 2, typed))
    return pool_folds(folds, nulls=("haar",), initial=None, resamples=1, seed=0, isotropy=False).enrichment["haar"]


SECTIONS = (
    Section(
        "embedding",
        "The embedding's gradient",
        "A table of 60 types whose gradient is a sum over sequences; folds are of types, units are sequences. The "
        "truth is the mean over all batches (`embedding_batch`, {repetitions} repetitions).",
        ["construction", "sequences", "issued", "covers", "issued and misses"],
        rows,
        0.25,
        (
            Limit(
                "The output side of a tied embedding and its update have no interval: their parts by sequence are not "
                "known. Train several seeds."
            ),
        ),
    ),
)
