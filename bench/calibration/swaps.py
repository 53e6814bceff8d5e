"""Swap tests (`targets`): rejection where only sizes differ, and the interval in the weight view."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from anisoscope import Subspace, judge
from anisoscope.testing import two_labellings, unequal_dispersion
from bench.calibration.cells import REJECTION_BAR, RESAMPLES, Row, coverage_row, generator, missed, rate
from bench.calibration.section import Limit, Section

PROXY = Subspace(torch.eye(8, 2, dtype=torch.float64))


def weight_rows(repetitions: int) -> Iterator[Row]:
    """The same law on both sides, so that the true ratio is 1."""
    for signal in (0.0, 0.3):
        for n in (16, 32):
            found = []
            for seed in range(repetitions):
                x, d, other = two_labellings(n, signal=signal, seed=seed)
                gradient = torch.einsum("nte,ntd->ed", d, x)
                options = {"nulls": ("targets",), "others": {"targets": other}, "resamples": 1, "isotropy": False}
                e = judge(gradient, PROXY, inputs=x, deltas=d, **options).enrichment["targets"]
                found.append(missed(e, 1.0))
            yield coverage_row("a common signal" if signal else "no common signal", n, found)


def swap_rows(repetitions: int) -> Iterator[Row]:
    """Both sides hold the same share, one of them in sequences of very different size."""
    for sigma in (0.0, 1.0, 1.5):
        for n in (16, 32, 64):
            p = rule = 0
            for seed in range(repetitions):
                g, other = unequal_dispersion(n, sigma=sigma, seed=seed)
                options = {"resamples": RESAMPLES, "generator": generator(seed), "isotropy": False}
                found = judge(g, PROXY, nulls=("targets",), others={"targets": other}, **options)
                e = found.enrichment["targets"]
                hit = found.p["targets"] <= 0.05
                p += hit
                rule += hit and e.low is not None and e.high is not None and not e.low < 1 < e.high
            yield [f"{sigma:g}", str(n), rate(p, repetitions, None), rate(rule, repetitions, REJECTION_BAR)]


SECTIONS = (
    Section(
        "weight-targets",
        "`targets` in the weight view",
        "Both sides of one law, so that the true ratio is 1 (`two_labellings`, {repetitions} repetitions).",
        ["construction", "sequences", "issued", "covers", "issued and misses"],
        weight_rows,
        0.25,
        (
            Limit(
                "In the weight view an interval is too wide where sequences share no signal: the gradient is a sum, "
                "and the jackknife of a sum of noise overstates its error. The isotropy gain there rests on error "
                "signals kept as 32 random directions, which widens it by 1.5 to 6."
            ),
        ),
    ),
    Section(
        "swaps",
        "Swap tests",
        "`targets` where nothing differs but the sizes of sequences on one side (log-normal with deviation σ, "
        "{repetitions} repetitions).",
        ["σ", "sequences", "p ≤ 0.05", "both"],
        swap_rows,
        0.25,
        (
            Limit(
                "By itself the p of a swap test is too small where only one side couples size and share; a verdict "
                "asks for the interval too."
            ),
        ),
    ),
)
