"""From rows to words: the outcome of a number against its null, the ladder of a model, the verdict of a window.

Pure functions of rows, without torch; evidence and report share them.

An *outcome* is about one layer and one null. *above*: the 95 % interval of the odds ratio lies above 1 and q ≤ 0.05;
*below* likewise. *equal*: the 90 % interval lies inside the margin, ``1/m`` to ``m``, declared before the run (over
``haar`` also p > 0.05). Where an effect is certain and within the margin, both are said: *equal, above 1*. Else the
rows *cannot tell*: a missing significance is no equality.

Each layer passes nulls by itself, in the order of the ladder; its height is the last null of its unbroken run of
*above*. A model reaches the greatest height that more than half of its layers reach; in a window of training, more than
half of them on average.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from anisoscope.errors import broken
from anisoscope.vocabulary import OUTCOMES, ladder_of

ALPHA = 0.05
MARGIN = 1.25
FIT_MARGIN = 0.2
"""Margin of a fitted exponent; of a number below 1, this share of it."""
MIXED = 0.1
"""From this share of layers on both sides of a null, the model is called mixed."""
ABOVE, BELOW = frozenset({"above", "equal, above 1"}), frozenset({"below", "equal, below 1"})
"""Outcomes that count as above and as below."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One null of the ladder, the outcome against it, and the numbers in words."""

    null: str
    outcome: str
    why: str


def outcome_of(row: Mapping[str, Any], margin: float = MARGIN) -> Rung:
    """Judge one row of enrichment against its null.

    >>> row = dict(null="axes", value=5.0, low=3.0, high=8.0, low90=3.2, high90=7.7, p=0.001, q=0.002)
    >>> outcome_of(row).outcome, outcome_of(row | dict(value=1.0, low=0.9, high=1.1, low90=0.92, high90=1.08)).outcome
    ('above', 'equal')
    >>> outcome_of(row | dict(low=None)).outcome, outcome_of(row | dict(q=0.3)).why
    ('cannot tell', '5 [3, 8], q = 0.3: q is above 0.05')
    """
    null, value, low, high = row["null"], row.get("value"), row.get("low"), row.get("high")
    q, q_floor = row.get("q"), row.get("q_floor")
    if value is None or math.isnan(value):
        return Rung(null, "not measured", row.get("note") or "not measured")
    if not (math.isfinite(value) and value > 0):
        return Rung(null, "cannot tell", f"{value:.3g} is no odds ratio to judge")
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return Rung(null, "cannot tell", f"{value:.3g} without an interval")
    numbers = f"{value:.3g} [{low:.3g}, {high:.3g}]"
    if not low <= value <= high:
        return Rung(null, "cannot tell", f"{numbers}: the interval does not hold the number")
    if q is None or math.isnan(q):  # also where a swap test has too few units
        return Rung(null, "cannot tell", f"{numbers} without a p-value")
    numbers += f", q = {q:.2g}"
    equal = _is_equal(row, margin)
    side = "above" if low > 1 else "below" if high < 1 else None
    if side is not None and q <= ALPHA:
        return Rung(null, f"equal, {side} 1" if equal else side, numbers)
    if equal:
        return Rung(null, "equal", numbers)
    if side is not None:
        few = q_floor is not None and q_floor > ALPHA
        why = f"too few arrangements, q cannot be below {q_floor:.2g}" if few else f"q is above {ALPHA}"
        return Rung(null, "cannot tell", f"{numbers}: {why}")
    return Rung(null, "cannot tell", f"{numbers}: the interval includes 1")


def outcome_over(row: Mapping[str, Any], floor: float | None) -> str | None:
    """Judge a number that is no ratio, such as the captured share, against what chance gives; equality is not told."""
    value, low, high, q = (row.get(name) for name in ("value", "low", "high", "q"))
    if value is None or math.isnan(value) or floor is None or math.isnan(floor):
        return "not measured"
    if low is None or high is None or q is None or not q <= ALPHA:
        return "cannot tell"
    return "above" if low > floor else "below" if high < floor else "cannot tell"


def outcome_of_difference(row: Mapping[str, Any], margin: float) -> str:
    """Judge a difference, such as of two losses: *above* 0, *below*, or *equal* within the margin, in its own unit.

    >>> row = dict(value=0.5, low=0.3, high=0.7, low90=0.33, high90=0.67, q=0.01)
    >>> outcome_of_difference(row, 0.1), outcome_of_difference(row, 1.0), outcome_of_difference(row | dict(q=0.2), 0.1)
    ('above', 'equal, above 1', 'cannot tell')
    """
    value, low, high, q = (row.get(name) for name in ("value", "low", "high", "q"))
    if value is None or math.isnan(value):
        return "not measured"
    if low is None or high is None or q is None or math.isnan(q):
        return "cannot tell"
    low90, high90 = row.get("low90"), row.get("high90")
    equal = low90 is not None and high90 is not None and -margin <= low90 and high90 <= margin
    side = None if q > ALPHA else "above" if low > 0 else "below" if high < 0 else None
    if side is None:
        return "equal" if equal else "cannot tell"
    return f"equal, {side} 1" if equal else side


def fit_margin(expected: float) -> float:
    """How far a fitted number may lie from the number that a theory gives and still count as equal to it."""
    return FIT_MARGIN * min(abs(expected), 1.0)


def outcome_of_fit(value: float | None, low: float | None, high: float | None, expected: float) -> str:
    """Judge a fitted number by its interval against the number that a theory gives.

    *equal* needs the interval inside the margin; a number that differs by less than that is *equal, above 1* (of the
    fitted over the expected one) or *equal, below 1*, as for odds ratios.

    >>> outcome_of_fit(2.0, 1.9, 2.1, 2.0), outcome_of_fit(2.0, 1.7, 2.3, 2.0), outcome_of_fit(2.1, 2.05, 2.15, 2.0)
    ('equal', 'cannot tell', 'equal, above 1')
    """
    if value is None or math.isnan(value):
        return "not measured"
    if low is None or high is None or not math.isfinite(high - low):
        return "cannot tell"
    margin = fit_margin(expected)
    equal = expected - margin <= low and high <= expected + margin
    side = "above" if low > expected else "below" if high < expected else None
    if side is None:
        return "equal" if equal else "cannot tell"
    return f"equal, {side} 1" if equal else side


def outcome_of_quotient(low: float | None, high: float | None, margin: float = MARGIN) -> str:
    """Judge a quotient by its 95 % interval alone, without a p-value: where it lies from 1, and whether in the margin.

    >>> outcome_of_quotient(1.3, 1.9), outcome_of_quotient(0.9, 1.1), outcome_of_quotient(0.6, 1.1)
    ('above', 'equal', 'cannot tell')
    """
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return "cannot tell"
    equal = 1 / margin <= low and high <= margin
    side = "above" if low >= 1 else "below" if high < 1 else None
    if side is None:
        return "equal" if equal else "cannot tell"
    return f"equal, {side} 1" if equal else side


def _is_equal(row: Mapping[str, Any], margin: float) -> bool:
    low, high, p = row.get("low90"), row.get("high90"), row.get("p")
    if low is None or high is None or not (1 / margin <= low and high <= margin):
        return False
    return row["null"] != "haar" or (p is not None and p > ALPHA)


@dataclass(frozen=True, slots=True)
class Climb:
    """How far one layer gets: the ``last`` null of its unbroken run of *above*, None where it passes none."""

    view: str
    last: str | None
    rungs: tuple[Rung, ...]

    @property
    def height(self) -> int:
        """How many nulls it passes in a row."""
        return 0 if self.last is None else ladder_of(self.view).index(self.last) + 1


def climb(rungs: Iterable[Rung], *, view: str) -> Climb:
    """How far one layer gets, in the order of the view's nulls; a null without a row is not measured."""
    given = {rung.null: rung for rung in rungs}
    ordered = tuple(given.get(null, Rung(null, "not measured", "not measured")) for null in ladder_of(view))
    last: str | None = None
    for rung in ordered:
        if rung.outcome not in ABOVE:
            break
        last = rung.null
    return Climb(view, last, ordered)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How far a model gets: the greatest height that more than half of its layers (or of what is counted) reach.

    ``reached`` counts, for each null, those whose height is at least that; ``outcomes`` counts outcomes null by null,
    whatever came before. Counts are weights where observations weigh differently; they add up to ``total``.
    """

    view: str
    last: str | None
    total: float
    reached: dict[str, float]
    outcomes: dict[str, dict[str, float]]
    why: dict[str, str] = field(default_factory=dict)  # an example for each null: numbers of its commonest outcome
    parts: str = "layers"  # what is counted; modules, where a layer has several

    @property
    def height(self) -> int:
        """How many nulls are passed in a row."""
        return 0 if self.last is None else ladder_of(self.view).index(self.last) + 1

    @property
    def first_not_passed(self) -> str | None:
        """The null at which it ends."""
        nulls = ladder_of(self.view)
        return nulls[self.height] if self.height < len(nulls) else None

    def commonest(self, null: str) -> str:
        """The most frequent outcome at a null; where two are equally frequent, the rows cannot tell."""
        counts = self.merged(null)
        most = max(counts.values(), default=0.0)
        names = [name for name in OUTCOMES if most > 0 and counts.get(name, 0.0) > most - 1e-9]
        return names[0] if len(names) == 1 else "cannot tell" if names else "not measured"

    def majority(self, null: str) -> str | None:
        """The outcome of more than half of what is counted, None where there is none."""
        counts = self.merged(null)
        return next((name for name, count in counts.items() if 2 * count > self.total * (1 + 1e-9)), None)

    def merged(self, null: str) -> dict[str, float]:
        """Counts at a null, with what is equal and above (or below) counted as above (or below)."""
        found: dict[str, float] = {}
        for name, count in self.outcomes.get(null, {}).items():
            name = "above" if name in ABOVE else "below" if name in BELOW else name
            found[name] = found.get(name, 0.0) + count
        return found

    def is_mixed(self, null: str) -> bool:
        """Whether layers lie on both sides of a null, at least a tenth on each."""
        counts = self.merged(null)
        return min(counts.get("above", 0.0), counts.get("below", 0.0)) >= MIXED * self.total > 0

    @property
    def mixed_and_passed(self) -> list[str]:
        """Nulls that are passed although some layers lie below them."""
        return [null for null in ladder_of(self.view)[: self.height] if self.is_mixed(null)]

    def __str__(self) -> str:
        nulls = ladder_of(self.view)
        heights = ", ".join(f"{null} {_count(self.reached[null])}" for null in nulls)
        reached = f"passes up to {self.last}" if self.last else "passes no null"
        parts = self.parts.removesuffix("s") if self.total == 1 else self.parts
        counts = f" (of {_count(self.total)} {parts}: {heights})"
        counts += f", mixed over {', '.join(self.mixed_and_passed)}" if self.mixed_and_passed else ""
        missed = self.first_not_passed
        if missed is None:
            return f"{reached}{counts}"
        mixed = ", mixed" if self.is_mixed(missed) else ""
        found, why = self.commonest(missed), self.why.get(missed)
        return f"{reached}{counts}; {missed}: {found}{mixed}{f' ({why})' if why and why != found else ''}"


@dataclass(frozen=True, slots=True)
class Ladder:
    """How far each layer gets (each layer and module, where a layer has several), and the verdict of the model."""

    layers: dict[Any, Climb]
    model: Verdict


def ladder(rows: Iterable[Mapping[str, Any]], *, view: str, margin: float = MARGIN) -> Ladder:
    """Verdicts from rows of one model and observation, each with ``layer null value low high low90 high90 p q``.

    >>> row = dict(null="haar", value=4.0, low=2.0, high=8.0, p=0.01, q=0.01)
    >>> print(ladder([dict(row, layer=0), dict(row, layer=1, q=0.5), dict(row, layer=2)], view="representation").model)
    passes up to haar (of 3 layers: haar 2, axes 0, init 0, targets 0, targets-uniform 0); axes: not measured
    """
    by_site: dict[tuple[Any, Any], dict[str, Rung]] = {}
    for row in rows:
        met, found = outcome_of(row, margin), by_site.setdefault((row["layer"], row.get("site")), {})
        twice = met.null in found and found[met.null] != met
        found[met.null] = Rung(met.null, "cannot tell", "several rows of one layer and null") if twice else met
    if not by_site:
        raise broken("a ladder must have the rows of at least one layer", 0, "pass a finished observation")
    modules = Counter(layer for layer, _ in by_site)
    layers = {
        site if modules[site[0]] > 1 else site[0]: climb(found.values(), view=view) for site, found in by_site.items()
    }
    parts = "modules" if max(modules.values()) > 1 else "layers"
    return Ladder(layers, replace(counted(list(layers.values()), view=view), parts=parts))


def counted(climbs: Sequence[Climb], *, view: str, weights: Sequence[float] | None = None) -> Verdict:
    """The verdict over layers of equal or given weight."""
    weights = [1.0] * len(climbs) if weights is None else weights
    nulls, total = ladder_of(view), sum(weights)
    reached = {
        null: sum(w for c, w in zip(climbs, weights, strict=True) if c.height > place)
        for place, null in enumerate(nulls)
    }
    outcomes: dict[str, dict[str, float]] = {null: {} for null in nulls}
    for one, weight in zip(climbs, weights, strict=True):
        for rung in one.rungs:
            outcomes[rung.null][rung.outcome] = outcomes[rung.null].get(rung.outcome, 0.0) + weight
    last = None
    for null in nulls:
        if 2 * reached[null] > total:
            last = null
    found = Verdict(view, last, total, reached, outcomes)
    examples: dict[str, str] = {}
    for rung in (rung for one in climbs for rung in one.rungs):
        if rung.outcome == found.commonest(rung.null):
            examples.setdefault(rung.null, rung.why)
    return Verdict(view, last, total, reached, outcomes, examples)


def over_observations(verdicts: Sequence[Verdict], weights: Sequence[float]) -> Verdict:
    """The verdict of a window: counts become averages, and it reaches what more than half of the layers reach."""
    if not verdicts:
        raise broken("a window must hold at least one observation", 0, "observe more often")
    view, whole = verdicts[0].view, sum(weights)
    share = [w / whole for w in weights] if whole > 0 else [1 / len(verdicts)] * len(verdicts)
    nulls = ladder_of(view)
    outcomes: dict[str, dict[str, float]] = {null: {} for null in nulls}
    for v, w in zip(verdicts, share, strict=True):
        for null in nulls:
            for name, count in v.outcomes[null].items():
                outcomes[null][name] = outcomes[null].get(name, 0.0) + w * count
    reached = {null: sum(w * v.reached[null] for v, w in zip(verdicts, share, strict=True)) for null in nulls}
    total = sum(w * v.total for v, w in zip(verdicts, share, strict=True))
    passed = [null for null in nulls if 2 * reached[null] > total * (1 + 1e-9)]
    found = Verdict(view, passed[-1] if passed else None, total, reached, outcomes, parts=verdicts[0].parts)
    heaviest = max(range(len(verdicts)), key=lambda k: share[k])
    return replace(found, why={null: _example(verdicts, heaviest, found, null) for null in nulls})


def weights_of(steps: Sequence[int], first: float, last: float) -> list[float]:
    """How much each observation of a window weighs: the steps of the window nearer to it than to any other there.

    So a verdict does not depend on how densely a part of the window was observed.

    >>> weights_of([1, 2, 4, 30], 1, 30)
    [0.5, 1.5, 14.0, 13.0]
    """
    ordered = sorted(set(steps))
    edges = [first, *((a + b) / 2 for a, b in pairwise(ordered)), last]
    weight = {step: max(edges[k + 1] - edges[k], 0.0) for k, step in enumerate(ordered)}
    if len(ordered) == 1 or not sum(weight.values()) > 0:
        return [1.0] * len(steps)
    return [weight[step] for step in steps]


def _example(verdicts: Sequence[Verdict], heaviest: int, found: Verdict, null: str) -> str:
    wanted = found.commonest(null)
    for verdict in (verdicts[heaviest], *verdicts):
        if verdict.commonest(null) == wanted and null in verdict.why:
            return verdict.why[null]
    return ""


def _count(value: float) -> str:
    return f"{value:.0f}" if abs(value - round(value)) < 1e-9 else f"{value:.1f}"
