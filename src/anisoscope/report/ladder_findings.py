"""How far the claim gets, per model, view, proxy, timing and window: the ladder applied to the rows of runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from anisoscope.report.formatting import number, times
from anisoscope.report.reading import Context, Row, Subject
from anisoscope.report.summary import defined
from anisoscope.report.window_effects import WindowEffect, window_effect
from anisoscope.verdict import Verdict, ladder, over_observations, weights_of
from anisoscope.vocabulary import WINDOWS, ladder_of, window_bounds

JUDGED = tuple(name for name in WINDOWS if name != "before")
"""Windows that a headline rests on: before training there is nothing to claim."""
PLAUSIBLE = 1e6
"""Odds ratios beyond it are as good as infinite: an energy share of 0.999999."""
NO_SIZE = "no plausible size"


@dataclass(frozen=True, slots=True)
class Shares:
    """Energy inside the proxy and what chance gives, averaged over layers and observations of a window."""

    share: float
    chance: float

    @property
    def times(self) -> float:
        """How many times as much as chance."""
        return self.share / self.chance

    def __str__(self) -> str:
        return f"{number(self.share)}, {times(self.times)} the chance level {number(self.chance)}"


@dataclass(frozen=True, slots=True)
class LadderFinding:
    """The verdict of one window, seed by seed and together, with the pooled effect over each null.

    ``verdict`` is ``None`` without rows. Of several seeds its counts are averages.
    """

    subject: Subject
    view: str
    window: str
    proxy: str
    timing: str
    verdict: Verdict | None
    seeds: tuple[Verdict, ...] = ()
    observations: int = 0
    steps: tuple[int, int] | None = None
    effects: dict[str, WindowEffect] = field(default_factory=dict)
    detectable: dict[str, float] = field(default_factory=dict)
    shares: Shares | None = None
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Whom it is about."""
        return self.subject.label if self.subject.source.is_profile else f"{self.subject.label}, {self.window}"

    @property
    def height(self) -> int:
        """Nulls passed in a row; −1 where nothing was measured."""
        return -1 if self.verdict is None else self.verdict.height

    def outcome(self, null: str) -> str:
        """What the model says to a null: *above* where it is passed, else what more than half of its layers say."""
        if self.verdict is None:
            return "not measured"
        if ladder_of(self.view).index(null) < self.height:
            return "above"
        return self.verdict.majority(null) or "cannot tell"


def findings(context: Context, view: str) -> list[LadderFinding]:
    """One finding a model and window, of the main proxy; views that a model has no rows of are left out."""
    return [
        finding(subject, view, name)
        for subject in context.subjects
        if enrichment_rows(subject, view, subject.proxy, subject.timing)
        for name in windows_of(subject)
    ]


def windows_of(subject: Subject) -> tuple[str, ...]:
    """Windows of training; of a finished model there is the end alone."""
    return ("late",) if subject.source.is_profile else tuple(WINDOWS)


def finding(
    subject: Subject, view: str, name: str, *, proxy: str | None = None, timing: str | None = None
) -> LadderFinding:
    """Judge the observations of a window, seed by seed; asked for again, it is found at once."""
    proxy, timing = proxy or subject.proxy, timing or subject.timing
    key = ("finding", view, name, proxy, timing, subject.subset, subject.rank)
    if key not in subject.kept:
        subject.kept[key] = _judged(subject, view, name, proxy, timing)
    return subject.kept[key]


def _judged(subject: Subject, view: str, name: str, proxy: str, timing: str) -> LadderFinding:
    rows = subject.window(enrichment_rows(subject, view, proxy, timing), name)
    by_seed: dict[int | None, dict[int, list[Row]]] = {}
    for row in rows:
        by_seed.setdefault(row["seed"], {}).setdefault(row["step"], []).append(row)
    seeds = tuple(_seed_verdict(subject, view, name, steps) for steps in by_seed.values())
    steps = [step for observed in by_seed.values() for step in observed]
    key = {"view": view, "proxy": proxy, "timing": timing}
    pooled = {null: pooled_rows(subject, null, **key) for null in ladder_of(view)}
    effects = {null: window_effect(subject, found, name) for null, found in pooled.items()}
    return LadderFinding(
        subject,
        view,
        name,
        proxy,
        timing,
        _of_seeds(seeds),
        seeds,
        len(steps),
        (min(steps), max(steps)) if steps else None,
        {null: effect for null, effect in effects.items() if effect is not None},
        _detectable(rows),
        _shares(subject, name, **key),
        _reasons(subject, view, name),
    )


def enrichment_rows(subject: Subject, view: str, proxy: str, timing: str) -> list[Row]:
    """Rows of enrichment over the nulls of a view's ladder."""
    rungs = ladder_of(view)
    rows = subject.main("enrichment", view=view, proxy=proxy, timing=timing)
    return [row for row in rows if row["null"] in rungs]


def _seed_verdict(subject: Subject, view: str, window: str, steps: dict[int, list[Row]]) -> Verdict:
    verdicts = [ladder(observed, view=view, margin=subject.margin).model for observed in steps.values()]
    return over_observations(verdicts, weights_of(list(steps), *window_bounds(window, subject.source.steps)))


def _of_seeds(seeds: Sequence[Verdict]) -> Verdict | None:
    return over_observations(seeds, [1.0] * len(seeds)) if seeds else None


def pooled_rows(subject: Subject, null: str, *, view: str, proxy: str, timing: str) -> list[Row]:
    """Pooled rows; where a run has none (it is older), enrichment itself, which is then averaged over layers."""
    found = subject.model_rows("pooled_enrichment", view=view, proxy=proxy, timing=timing, null=null)
    if found:
        return found
    plain = subject.main("enrichment", view=view, proxy=proxy, timing=timing, null=null)
    return [{**row, "se": None, "df": None} for row in plain]


def _detectable(rows: Sequence[Row]) -> dict[str, float]:
    """The median over layers and observations of the smallest effect that would have been seen."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row["detectable"] is not None:
            found.setdefault(row["null"], []).append(row["detectable"])
    return {null: sorted(values)[len(values) // 2] for null, values in found.items()}


def smallest_ratio(found: Sequence[LadderFinding], null: str) -> str | None:
    """The smallest odds ratio that would have been found in 80 % of repetitions; ``None`` if no row says it."""
    known = [f.detectable[null] for f in found if null in f.detectable]
    seen = [value for value in known if math.isfinite(value) and value < PLAUSIBLE]
    if not seen:
        return NO_SIZE if known else None
    low, high = number(min(seen)), number(max(seen))
    return f"about {low if low == high else f'{low} to {high}'}"


def smallest(found: Sequence[LadderFinding], null: str) -> str:
    """The same as a sentence."""
    ratio = smallest_ratio(found, null)
    if ratio is None:
        return ""
    if ratio == NO_SIZE:
        return "No effect of a plausible size would have been found in a single layer."
    return f"In a single layer, an odds ratio of {ratio} would have been found in 80 % of repetitions."


def _shares(subject: Subject, window: str, **key: str) -> Shares | None:
    rows = defined(subject.window(subject.main("energy", **key), window))
    found = window_means(subject, window, [(row, row["value"], _chance(row)) for row in rows])
    return None if found is None else Shares(*found)


def _chance(row: Row) -> float | None:
    """The share that random directions have; rows of older runs may not say it."""
    if row["floor"]:
        return row["floor"]
    return row["rank"] / row["width"] if row["rank"] and row["width"] else None


def window_means(
    subject: Subject, window: str, given: Sequence[tuple[Row, float, float | None]]
) -> tuple[float, float] | None:
    """Means of two numbers a row over a window: over the layers of an observation, over observations, over seeds."""
    known = [(row, value, chance) for row, value, chance in given if chance is not None]
    if not known or len(known) < len(given):
        return None
    by_seed: dict[int | None, dict[int, list[tuple[float, float]]]] = {}
    for row, value, chance in known:
        by_seed.setdefault(row["seed"], {}).setdefault(row["step"], []).append((value, chance))
    means = []
    for observed in by_seed.values():
        weights = weights_of(list(observed), *window_bounds(window, subject.source.steps))
        total = sum(weights)
        sums = [0.0, 0.0]
        for numbers, weight in zip(observed.values(), weights, strict=True):
            for place in (0, 1):
                sums[place] += weight / total * sum(pair[place] for pair in numbers) / len(numbers)
        means.append(sums)
    return sum(m[0] for m in means) / len(means), sum(m[1] for m in means) / len(means)


def _reasons(subject: Subject, view: str, window: str) -> dict[str, str]:
    """Why a null could not be had in a window, where the run says so: of the whole model, or else of its layers."""
    rows = subject.window(subject.by_measure.get("enrichment", []), window)
    noted = [row for row in rows if row["null"] and row["note"]]
    of_layers = [row for row in noted if row["view"] == view and row["value"] is not None and math.isnan(row["value"])]
    of_model = [row for row in noted if row["layer"] is None]
    return {row["null"]: row["note"].removeprefix("cannot tell: ") for row in (*of_layers, *of_model)}
