"""Verdicts of a model, and names of profiles over layers, from rows whose noise is known."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy import stats

from anisoscope.evidence.inference import adjust
from anisoscope.shape import independent, name_shape
from anisoscope.verdict import ladder
from anisoscope.vocabulary import ladder_of
from bench.calibration.cells import REJECTION_BAR, Row, rate
from bench.calibration.section import Section

NULLS = ladder_of("representation")


def verdict_rows(repetitions: int) -> Iterator[Row]:
    """How far a model gets, by layers, how much noise they share, and how large the effect is in standard errors."""
    for layers in (12, 31):
        for shared in (0.0, 0.5, 0.99):
            for effect in (0.0, 2.8, 5.0):
                rng = np.random.default_rng(layers)
                heights, pooled = np.zeros(len(NULLS) + 1), 0
                for _ in range(repetitions):
                    common = rng.standard_normal((1, len(NULLS)))
                    own = rng.standard_normal((layers, len(NULLS)))
                    z = effect + math.sqrt(shared) * common + math.sqrt(1 - shared) * own
                    heights[ladder(_observation(z), view="representation").model.height] += 1
                    error = math.sqrt(shared + (1 - shared) / layers)
                    pooled += bool((z.mean(0) > 1.96 * error).all())
                shares = [f"{count / repetitions:.3f}" for count in heights]
                name = "none" if effect == 0 else f"{effect:g}"
                yield [str(layers), f"{shared:g}", name, *shares, f"{pooled / repetitions:.3f}"]


def _observation(z_LN: np.ndarray) -> list[dict[str, object]]:
    """Rows of one observation whose log odds ratios have a standard error of 0.1."""
    p_LN = 2 * stats.norm.sf(np.abs(z_LN))
    q_LN = np.stack([adjust(p_LN[:, k]) for k in range(len(NULLS))], 1)
    found = []
    for (layer, k), z in np.ndenumerate(z_LN):
        ends = {name: math.exp(0.1 * (z + c)) for name, c in (("low", -1.96), ("high", 1.96))}
        ends |= {name: math.exp(0.1 * (z + c)) for name, c in (("low90", -1.645), ("high90", 1.645))}
        p, q = float(p_LN[layer, k]), float(q_LN[layer, k])
        found.append({"layer": layer, "null": NULLS[k], "value": math.exp(0.1 * z), "p": p, "q": q} | ends)
    return found


def shape_rows(repetitions: int) -> Iterator[Row]:
    """What profiles of noise are called, and a planted bell."""
    for layers in (6, 12, 32):
        for height in (0.0, 6.0):
            rng, words = np.random.default_rng(layers), {}
            truth = height * np.exp(-((np.arange(layers) - layers / 2) ** 2) / (layers / 2))
            for _ in range(repetitions):
                values = truth + rng.standard_normal(layers) + 10
                named = name_shape(values.tolist(), independent([1.0] * layers))
                assert named is not None
                words[named.word] = words.get(named.word, 0) + 1
            turned = words.get("bell", 0) + words.get("valley", 0)
            slope = words.get("rising", 0) + words.get("falling", 0)
            bar = REJECTION_BAR if height == 0 else None
            what = "noise" if height == 0 else "a bell of 6 standard errors"
            yield [str(layers), what, rate(turned, repetitions, bar), rate(slope, repetitions, None)]


SECTIONS = (
    Section(
        "verdicts",
        "Verdicts",
        "How far a model gets (the last null passed in a row by more than half of its layers), where no null is false "
        "and where all five are, by an effect in standard errors. *Shared*: correlation of the layers' noise. "
        "*Pooled*: the interval of the mean over layers lies above 1 for all five nulls ({repetitions} repetitions of "
        "rows, not of trainings).",
        ["layers", "shared", "effect", "none", *NULLS, "pooled"],
        verdict_rows,
        0.25,
    ),
    Section(
        "shapes",
        "Shapes of profiles",
        "Profiles of independent layers with known standard errors ({repetitions} repetitions).",
        ["layers", "profile", "called bell or valley", "called rising or falling"],
        shape_rows,
    ),
)
