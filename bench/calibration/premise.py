"""The premise quotient `γ^T/γ^N`: its interval, and the verdict that follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from anisoscope.evidence.premise import Premise, premise
from anisoscope.evidence.units import BilinearUnits
from anisoscope.testing import partly_cancelling
from bench.calibration.cells import REJECTION_BAR, Row, coverage_row, missed, rate
from bench.calibration.section import Section


@dataclass(frozen=True)
class Construction:
    """Means of both parts, what a sequence shares, and how unequal sequences are."""

    name: str
    tangent: float
    normal: float
    noise: float = 0.5
    tails: float = 0.0


CONSTRUCTIONS = (
    Construction("nothing is common", 0.0, 0.0),
    Construction("both alike, clear", 0.6, 0.6, 0.3),
    Construction("both alike, noisy, sizes with σ = 0.7", 0.5, 0.5, 0.5, 0.7),
    Construction("tangent parts cancel more", 0.3, 0.8),
    Construction("tangent parts cancel less, sizes with σ = 0.5", 0.8, 0.3, 0.5, 0.5),
    Construction("tangent parts cancel, normal ones do not", 0.0, 0.8),
)


def rows(repetitions: int) -> Iterator[Row]:
    for made in CONSTRUCTIONS:
        right = "equal" if made.tangent == made.normal else "above" if made.tangent > made.normal else "below"
        for n in (8, 16, 32):
            found = [judged(made, n, seed) for seed in range(repetitions)]
            outcomes = [one.outcome() for one, _ in found]
            wrong = sum(word not in (right, "cannot tell") for word in outcomes)
            cells = coverage_row(made.name, n, [missed(one.quotient, truth) for one, truth in found])
            seen = rate(outcomes.count(right), repetitions, None)
            yield [*cells, rate(wrong, repetitions, REJECTION_BAR), seen]


def judged(made: Construction, n: int, seed: int) -> tuple[Premise, float]:
    folds, basis, place = [], torch.eye(6, 3, dtype=torch.float64), torch.arange(n)
    truth = 0.0
    for fold in (0, 1):
        sizes = {"tangent": made.tangent, "normal": made.normal}
        x, d, truth = partly_cancelling(n, **sizes, noise=made.noise, tails=made.tails, length=12, seed=2 * seed + fold)
        folds.append(BilinearUnits(place, x, d, basis, place))
    return premise(folds, draws=1), truth


SECTIONS = (
    Section(
        "premise",
        "The premise of the theory",
        "`γ^T/γ^N` at a linear layer (the step of Bernas et al. 2026 from tokens to gradients), without the noise of "
        "sequences (`partly_cancelling`, {repetitions} repetitions). "
        "Where one of the two may be 0 there is no quotient, and the verdict follows from the difference. *Wrong*: "
        "*above*, *below* or *equal* where another is true; *right*: the true one, else it is *cannot tell*.",
        ["construction", "sequences a fold", "issued", "covers", "issued and misses", "verdict wrong", "verdict right"],
        rows,
        0.25,
    ),
)
