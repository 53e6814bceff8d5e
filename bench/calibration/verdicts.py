"""Outcomes of layers, verdicts and headlines of a model, and names of profiles over layers, from known noise."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from anisoscope.bell_rule import independent, name_shape
from anisoscope.testing import noisy_profile
from anisoscope.verdict import ABOVE, BELOW, MARGIN
from bench.calibration.cells import REJECTION_BAR, Row, rate
from bench.calibration.planted import NULLS, UNITS, Planted, tally
from bench.calibration.section import Limit, Section

ERROR = 0.1
EFFECTS = {"none": 0.0, "2.8": 2.8, "5": 5.0}
SUPPORTED, IN_PART, WITHIN, AGAINST, UNDECIDED = WORDS = (
    "Supported", "Supported in part", "Within the margin", "Not supported", "Undecided"
)  # fmt: skip
NO_EFFECT = frozenset({SUPPORTED, IN_PART})
"""Headlines that are wrong where there is no effect, or one below the nulls."""
HEADLINES: dict[str, tuple[Planted, frozenset[str]]] = {
    "no effect": (Planted(), NO_EFFECT),
    "no effect, error 0.04": (Planted(error=0.04), NO_EFFECT),
    "no effect, error 0.3": (Planted(error=0.3), NO_EFFECT),
    "2.8 errors, all nulls": (Planted(2.8 * ERROR), frozenset({AGAINST, WITHIN})),
    "5 errors, all nulls": (Planted(5 * ERROR), frozenset({AGAINST, WITHIN})),
    "5 errors, the first three nulls": (Planted(5 * ERROR, first=3), frozenset({SUPPORTED, AGAINST, WITHIN})),
    "5 errors, half of the layers above, half below": (
        Planted(5 * ERROR, below=0.5),
        frozenset({SUPPORTED, IN_PART, AGAINST, WITHIN}),
    ),
    "5 errors, two thirds of the layers above, a third below": (
        Planted(5 * ERROR, below=1 / 3),
        frozenset({AGAINST, WITHIN}),
    ),
    "5 errors below all nulls": (Planted(-5 * ERROR), NO_EFFECT),
    "odds ratio 1.1, error 0.02": (Planted(math.log(1.1), error=0.02), frozenset({AGAINST})),
}


def outcome_rows(repetitions: int) -> Iterator[Row]:
    """What is said of one layer, by its true odds ratio and its standard error."""
    for error in (0.05, 0.1, 0.3):
        for ratio in (1.0, 1.1, MARGIN, 1.5, 2.0, 1 / 1.5):
            said = tally(Planted(math.log(ratio), error), 12, 0.0, repetitions).outcomes
            below, above = (sum(said[word] for word in words) for words in (BELOW, ABOVE))
            equal = sum(count for word, count in said.items() if word.startswith("equal"))
            wrong = below + above if ratio == 1 else below if ratio > 1 else above
            wrong += equal if max(ratio, 1 / ratio) >= MARGIN else 0
            counts = (said["above"], said["equal, above 1"], said["equal"], below, said["cannot tell"])
            rates = [rate(count, repetitions, None) for count in counts]
            yield [f"{ratio:.3g}", f"{error:g}", *rates, rate(wrong, repetitions, REJECTION_BAR)]


def verdict_rows(repetitions: int) -> Iterator[Row]:
    """How far a model gets, by layers, how much noise they share, and how large the effect is in standard errors."""
    for layers in (12, 31):
        for shared in (0.0, 0.5, 0.99):
            for name, effect in EFFECTS.items():
                found = tally(Planted(effect * ERROR), layers, shared, repetitions)
                heights = [rate(found.heights[height], repetitions, None) for height in range(1, len(NULLS) + 1)]
                bar = REJECTION_BAR if effect == 0 else None
                passed = rate(repetitions - found.heights[0], repetitions, bar)
                pooled = rate(found.pooled_above, repetitions, None), rate(found.pooled_excludes, repetitions, bar)
                yield [str(layers), f"{shared:g}", name, passed, *heights, *pooled]


def headline_rows(repetitions: int) -> Iterator[Row]:
    """Which word a report begins with."""
    for name, (planted, wrong) in HEADLINES.items():
        for layers, shared in ((12, 0.0), (12, 0.5), (31, 0.5)):
            if planted.below == 0.5 and layers % 2:
                continue  # no half
            found = tally(planted, layers, shared, repetitions)
            words: Counter[str] = found.words
            assert set(words) <= set(WORDS), words
            rates = [rate(words[word], repetitions, None) for word in WORDS]
            false = rate(sum(words[word] for word in wrong), repetitions, REJECTION_BAR)
            yield [name, str(layers), f"{shared:g}", *rates, rate(found.mixed, repetitions, None), false]


def shape_rows(repetitions: int) -> Iterator[Row]:
    """What profiles of noise are called, and a planted bell."""
    for layers in (6, 12, 32):
        for height in (0.0, 6.0):
            words: dict[str, int] = {}
            for seed in range(repetitions):
                values = noisy_profile(layers, height=height, seed=seed)
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
        "outcomes",
        "Outcomes of a layer",
        "What is said of one of 12 independent layers with the same true odds ratio over a null other than `haar`, by "
        f"the standard error of its logarithm ({UNITS} units, "
        "`planted_layers`, {repetitions} repetitions of rows, not of trainings). "
        "*Below* holds *equal, below 1* too. *Wrong*: a side that is not the true one, any side where the ratio is 1, "
        f"or *equal* of a ratio that lies at the margin of {MARGIN:g} or beyond.",
        ["odds ratio", "error", "above", "equal, above 1", "equal", "below", "cannot tell", "wrong"],
        outcome_rows,
        0.15,
    ),
    Section(
        "verdicts",
        "Verdicts",
        "How far a model gets (the last null passed in a row by more than half of its layers), where no null is false "
        "and where all five are, by an effect in standard errors of a layer; *any* is the sum. *Shared*: correlation "
        "of the layers' noise. *Pooled*: the interval of the mean over layers lies above 1 for all five nulls; "
        "*excludes 1*: that over one null does, on either side (`planted_layers`, {repetitions} repetitions of rows, "
        f"not of trainings; {UNITS} units).",
        ["layers", "shared", "effect", "any", *NULLS, "pooled", "excludes 1"],
        verdict_rows,
        0.15,
    ),
    Section(
        "headlines",
        "Headlines",
        "The word that a report begins with, of one finished model with planted effects (in standard errors of a "
        f"layer, {ERROR:g} in log odds unless said otherwise). "
        "*Mixed*: that word is said too, of a null that is passed or of the first that "
        "is not. *Wrong*: *Supported* or *in part* where no null is false or all are below; *Supported* where "
        "the last two nulls hold; *Not supported* or *Within the margin* where an effect beyond the margin is there; "
        "all but *Undecided* where half of the layers lie on either side (`planted_layers`, {repetitions} "
        "repetitions of rows).",
        ["planted", "layers", "shared", *WORDS, "mixed", "wrong"],
        headline_rows,
        0.15,
        (
            Limit(
                "A headline counts layers: where two thirds of them are above every null and a third below, it is "
                "*Supported*, and says *Mixed*."
            ),
            Limit(
                "An effect that is certain over every null counts as above however small it is: an odds ratio of 1.1 "
                f"with an error of 0.02, within the margin of {MARGIN:g}, makes the headline *Supported*. "
                "A sentence beside it says that the effect lies within the margin."
            ),
        ),
    ),
    Section(
        "shapes",
        "Shapes of profiles",
        "Profiles of independent layers with known standard errors (`noisy_profile`, {repetitions} repetitions).",
        ["layers", "profile", "called bell or valley", "called rising or falling"],
        shape_rows,
    ),
)
