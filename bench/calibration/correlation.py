"""Correlations over token types, by how many there are, of well-behaved numbers and of Zipf counts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy import stats

from anisoscope.evidence.correlation import correlations
from anisoscope.testing import paired_properties
from bench.calibration.cells import MISS_BAR, Row, missed, rate
from bench.calibration.section import Section

MANY = 1 << 20


def rows(repetitions: int) -> Iterator[Row]:
    for counts in (False, True):
        for rho in (0.0, -0.5, 0.9):
            x, y = (one.numpy() for one in paired_properties(MANY, rho, counts=counts, seed=10**6))
            rank = float(np.corrcoef(stats.rankdata(x), stats.rankdata(y))[0, 1])
            plain = float(np.corrcoef(np.log(x) if counts else x, y)[0, 1])
            for n in (10, 20, 30, 50, 200):
                ranked, raw, logs, seen = [], [], [], 0
                for seed in range(repetitions):
                    a, b = paired_properties(n, rho, counts=counts, seed=seed)
                    found = correlations(a, b)
                    ranked.append(missed(found["spearman"], rank))
                    seen += missed(found["spearman"], 0.0)[1]
                    # Raw Zipf counts have no variance, and so no correlation to miss: only whether one is told counts.
                    raw.append(missed(found["pearson"], plain))
                    logs.append(missed(correlations(a.log(), b)["pearson"], plain) if counts else raw[-1])
                name = f"{'Zipf counts' if counts else 'Gaussian'}, ρ = {rho:g}"
                power = "–" if rho == 0 else rate(seen, repetitions, None)
                yield [name, str(n), *_coverage(ranked), power, *_coverage(logs), _issued(raw) if counts else "–"]


def _issued(found: list[tuple[int, int]]) -> str:
    return f"{sum(issued for issued, _ in found) / len(found):.2f}"


def _coverage(found: list[tuple[int, int]]) -> Row:
    return [_issued(found), rate(sum(missing for _, missing in found), len(found), MISS_BAR)]


SECTIONS = (
    Section(
        "correlation",
        "Correlations over types",
        "Two properties of token types in a Gaussian copula (`paired_properties`, {repetitions} repetitions); of *Zipf "
        "counts* half are 1. Truths are those of a million types. Pearson's is of the logarithm of counts; of raw "
        "counts, which have no variance, *raw* says how often one has an interval.",
        [
            "construction",
            "types",
            "Spearman issued",
            "issued and misses",
            "excludes 0",
            "Pearson issued",
            "issued and misses",
            "raw",
        ],
        rows,
    ),
)
