"""Tangency against elliptical controls: clouds without tangents whatever their tails, and planted sheets."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from anisoscope import Subspace, fit_subspace
from anisoscope.evaluate.small_scale_rows import CONTROLS
from anisoscope.geometry.tangency import DRAWS, Tangency, tangency
from anisoscope.testing import RADII, elliptical, parallel_sheets, with_duplicates
from bench.calibration.cells import REJECTION_BAR, Row, rate
from bench.calibration.section import Limit, Section

SHAPES = ((250, 8), (600, 24), (120, 150))


def rows(repetitions: int) -> Iterator[Row]:
    for n, width in SHAPES:
        for radii in RADII:
            yield _row(f"elliptical, `{radii}` radii", n, width, repetitions, REJECTION_BAR)
    for radii in RADII:
        yield _row(f"elliptical, `{radii}` radii", *SHAPES[0], repetitions, REJECTION_BAR, DRAWS)
    for noise in (1.0, 0.5, 0.1):
        yield _row(f"parallel sheets, noise {noise:g}", 250, 16, repetitions // 4, None)
    yield _row("elliptical, 30 % near copies", 250, 8, repetitions // 4, None)


def _row(name: str, n: int, width: int, repetitions: int, bar: float | None, draws: int = CONTROLS) -> Row:
    found = [judged(name, n, width, seed, draws) for seed in range(repetitions)]
    told = [one for one in found if one.p is not None]
    differences = [one.value for one in told]
    refused = f"{1 - len(told) / len(found):.2f}"
    mean = f"{np.mean(differences):+.3f}" if told else "–"
    hits = rate(sum((one.p or 1) <= 0.05 for one in told), len(told), bar)
    return [name, f"{n} × {width}", str(draws), refused, hits, mean]


def judged(name: str, n: int, width: int, seed: int, draws: int) -> Tangency:
    """One cloud and its test, by the name of the construction."""
    proxy: Tensor | Subspace
    if name.startswith("parallel"):
        x, proxy = parallel_sheets(n, width=width, noise=float(name.split()[-1]), seed=seed)
        return tangency(x, proxy, dim=2, points=range(0, n, 8), draws=draws, seed=seed)
    radii = name.split("`")[1] if "`" in name else "gaussian"
    x, other = (elliptical(n, width, radii=radii, turn=seed, seed=2 * seed + k) for k in (0, 1))
    proxy = fit_subspace(other, method="pca", rank=max(2, width // 4))
    if "copies" in name:
        x = with_duplicates(x, 0.3, noise=1e-8, seed=seed)
    return tangency(x, proxy, dim=3, points=range(0, n, 8), draws=draws, seed=seed)


SECTIONS = (
    Section(
        "tangency",
        "Tangency",
        "The share of local tangents inside a proxy against elliptical controls: "
        f"{CONTROLS} as in a run, {DRAWS} where `tangency` is called by itself. In the first rows nothing is tangent, "
        "and the proxy was fitted on other rows of the same law ({repetitions} repetitions; a quarter of them for the "
        "rest). The 95 % interval of the difference leaves out 0 where p < 0.05, so the rate is also that of "
        "intervals that miss.",
        ["construction", "rows × width", "controls", "refused", "p ≤ 0.05", "mean difference"],
        rows,
        0.2,
        (
            Limit(
                "A manifold that is itself elliptical (a flat one, a sphere without noise) is not told from its "
                "control by `tangency`. Rows are taken to be independent: tokens of one sequence are not."
            ),
        ),
    ),
)
