"""Pairing where the direction of a sequence depends on its length; δ and x are independent given it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from anisoscope import cross_fit_weight
from anisoscope.testing import leaning_by_length
from bench.calibration.cells import REJECTION_BAR, RESAMPLES, Row, generator, rate
from bench.calibration.section import Limit, Section


def rows(repetitions: int) -> Iterator[Row]:
    for n in (32, 64):
        for low, high in ((16, 24), (8, 64)):
            p = told = rule = 0
            for seed in range(repetitions):
                x, d, inside = leaning_by_length(n, shortest=low, longest=high, seed=seed)
                options = {"rank": 2, "nulls": ("pairing",), "resamples": RESAMPLES, "generator": generator(seed)}
                options |= {"strata": torch.where(inside, 0, -1), "isotropy": False}
                found = cross_fit_weight(x, d, **options)
                if "pairing" in found.p:
                    told += 1
                    hit = found.p["pairing"] <= 0.05
                    e = found.enrichment["pairing"]
                    p += hit
                    rule += hit and e.low is not None and e.high is not None and not e.low < 1 < e.high
            rates = rate(p, told, REJECTION_BAR), rate(rule, told, REJECTION_BAR)
            yield [f"{low} to {high}", str(n), f"{told / repetitions:.2f}", *rates]


SECTIONS = (
    Section(
        "pairing",
        "Pairing with unequal lengths",
        "The direction of inputs and of error signals depends on the length of their sequence alone "
        "(`leaning_by_length`, {repetitions} repetitions). *Told*: enough sequences in classes of equal length.",
        ["lengths", "sequences", "told", "p ≤ 0.05, where told", "both, where told"],
        rows,
        0.25,
        (
            Limit(
                "Classes of `pairing` are 8 positions wide. Where the direction changes from one extreme to the other "
                'within one class (the rows "16 to 24"), it rejects too often; spread over 8 to 64 positions it does '
                "not.",
                "16 to 24",
            ),
        ),
    ),
)
