"""Intrinsic dimension: intervals against the estimator's own mean at this N, and ties that leave no dimension."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from torch import Tensor

from anisoscope import gride, levina_bickel, neighbours, two_nn
from anisoscope.geometry.controls import gaussian_like
from anisoscope.geometry.neighbours import Neighbours
from anisoscope.geometry.results import Estimate
from anisoscope.testing import LAWS, elliptical, gaussian, lattice, noisy_lattice, plane, rounded, sphere
from bench.calibration.cells import Row, coverage_row, generator, missed, rate
from bench.calibration.section import Limit, Section

Draw = Callable[[int, int], Tensor]


def _clustered(sequences: int, seed: int) -> Tensor:
    return LAWS["clustered"].draw(sequences, 10, 10, generator(seed)).flatten(0, 1)


CLOUDS: dict[str, tuple[float, Draw]] = {
    "cube, d = 2": (2, lambda n, seed: plane(n, dim=2, width=6, seed=seed)),
    "sphere, d = 5": (5, lambda n, seed: sphere(n, dim=5, width=8, seed=seed)),
    "Gaussian, d = 20": (20, lambda n, seed: gaussian(n, [1.0] * 20, seed=seed)),
    "elliptical t4, d = 10": (10, lambda n, seed: elliptical(n, 10, radii="t4", seed=seed)),
    "tokens of sequences, d = 10": (10, lambda n, seed: _clustered(n // 10, seed)),
}
ESTIMATORS: dict[str, Callable[[Neighbours], Estimate]] = {
    "`two_nn`": two_nn,
    "`two_nn`, mle": lambda found: two_nn(found, variant="mle"),
    "`levina_bickel`": levina_bickel,
    "`gride`, n = 1": gride,
    "`gride`, n = 8": lambda found: gride(found).points[3],
}
CONTROLS = 50


def interval_rows(repetitions: int) -> Iterator[Row]:
    for name, (dimension, draw) in CLOUDS.items():
        for n in (300, 1000):
            found: dict[str, list[Estimate]] = {word: [] for word in ESTIMATORS}
            over: dict[str, list[float]] = {word: [] for word in ESTIMATORS}
            for seed in range(repetitions):
                x = draw(n, seed)
                near = neighbours(x, 64)
                control = neighbours(gaussian_like(x, seed=seed), 64) if seed < CONTROLS else None
                for word, estimate in ESTIMATORS.items():
                    found[word].append(estimate(near))
                    if control is not None:
                        over[word].append(found[word][-1].value / estimate(control).value)
            for word, estimates in found.items():
                mean = float(np.mean([e.value for e in estimates]))
                cells = coverage_row(f"{word}, {name}", n, [missed(e, mean) for e in estimates])
                true = sum(missed(e, dimension)[1] for e in estimates)
                yield [*cells, f"{mean:.2f}", f"{np.mean(over[word]):.2f}", f"{1 - true / repetitions:.2f}"]


TIES: dict[str, tuple[bool, float, Callable[[int], Tensor]]] = {
    "integer lattice, d = 3": (True, 3, lambda seed: lattice(10, dim=3)),
    "half of its points": (True, 3, lambda seed: noisy_lattice(12, dim=3, share=0.5, seed=seed)),
    "the lattice with noise of 1e-12": (True, 3, lambda seed: noisy_lattice(10, dim=3, noise=1e-12, seed=seed)),
    "the lattice with noise of 0.3": (False, 3, lambda seed: noisy_lattice(10, dim=3, noise=0.3, seed=seed)),
    "two numbers in 60 steps": (True, 2, lambda seed: rounded(1000, 2, steps=60, seed=seed)),
    "five numbers in 10 steps": (True, 5, lambda seed: rounded(1000, 5, steps=10, seed=seed)),
    "five numbers in 1000 steps": (False, 5, lambda seed: rounded(1000, 5, steps=1000, seed=seed)),
    "float32, d = 10": (False, 10, lambda seed: gaussian(1000, [1.0] * 10, seed=seed).float()),
    "bfloat16, d = 10": (False, 10, lambda seed: gaussian(1000, [1.0] * 10, seed=seed).bfloat16()),
}


def tie_rows(repetitions: int) -> Iterator[Row]:
    for name, (expected, dimension, draw) in TIES.items():
        told, values = {"fit": 0, "gride": 0}, []
        for seed in range(repetitions):
            near = neighbours(draw(seed), 64)
            for word, estimate in (("fit", two_nn(near)), ("gride", gride(near))):
                told[word] += math.isnan(estimate.value) and "equally far" in (estimate.note or "")
            value = two_nn(near).value
            values += [] if math.isnan(value) else [value]
        left = f"{np.median(values):.1f}" if values else "–"
        rates = [rate(count, repetitions, None) for count in told.values()]
        yield [name, "yes" if expected else "no", *rates, left, f"{dimension:g}"]


SECTIONS = (
    Section(
        "dimension",
        "Intrinsic dimension",
        "Intervals are of the sampling error: *covers* and *misses* are about the mean of the same estimator over all "
        "clouds of this N ({repetitions} of each), *true d* is the share of intervals that hold the dimension itself, "
        "which the bias moves away from. *Over Gaussian*: the estimate over that on a Gaussian cloud of equal "
        f"covariance and N, mean of {CONTROLS}.",
        ["estimator, cloud", "rows", "issued", "covers", "issued and misses", "mean", "over Gaussian", "true d"],
        interval_rows,
        0.2,
        (
            Limit(
                "Intervals of a dimension take rows for independent. Tokens of one sequence are not: where many of the "
                "20 nearest rows are of a row's own sequence (30 sequences of 10 tokens), `levina_bickel` and wide "
                "scales of `gride` miss in about 0.2; `two_nn` does not.",
                "tokens of sequences",
            ),
        ),
    ),
    Section(
        "ties",
        "Lattices and rounded numbers",
        "Clouds whose neighbours tie have no dimension from neighbour ratios (`noisy_lattice`, `rounded`). *Told*: no "
        "number, and a note ({repetitions} repetitions of 1000 rows). *Estimate*: the median of `two_nn` where "
        "nothing was told.",
        ["cloud", "should be told", "told by `two_nn`", "told by `gride`", "estimate", "d"],
        tie_rows,
        0.05,
    ),
)
