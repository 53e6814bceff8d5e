"""The ladder of nulls: how far a claim climbs. A pure function of rows, without torch; evidence and report share it.

A layer passes a rung if its enrichment over that null is above 1, its interval excludes 1 and q ≤ 0.05. A model passes
when more than half of its layers do, a window of training when more than half of its observations do. The verdict is
the last rung of the unbroken run of passes; later rungs are shown, not counted. A rung without interval or p is
undetermined and ends the run. *Depleted* is the same below 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anisoscope.errors import broken
from anisoscope.vocabulary import OUTCOMES, ladder_of

Status = str  # a word of ``vocabulary.OUTCOMES``
ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class Rung:
    """One null of the ladder and how it was met."""

    null: str
    status: Status
    why: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """How far a claim climbs: ``last`` rung passed (``None``: not even the first), ``first_not_passed``, and why."""

    view: str
    last: str | None
    first_not_passed: str | None
    why: str
    rungs: tuple[Rung, ...]

    def __str__(self) -> str:
        reached = f"passes up to {self.last}" if self.last else "not supported"
        return reached if self.first_not_passed is None else f"{reached}; {self.first_not_passed}: {self.why}"


@dataclass(frozen=True, slots=True)
class Ladder:
    """Verdicts of each layer (of each layer and module, where a layer has several) and of the model."""

    layers: dict[Any, Verdict]
    model: Verdict


def rung(null: str, value: float | None, low: float | None, high: float | None, q: float | None) -> Rung:
    """Judge one number against one null.

    >>> rung("haar", 5.0, 3.0, 8.0, 0.002).status, rung("haar", 0.4, 0.2, 0.7, 0.002).status
    ('passed', 'depleted')
    >>> rung("haar", 5.0, None, None, 0.002)
    Rung(null='haar', status='undetermined', why='no interval')
    """
    if value is None or math.isnan(value):
        return Rung(null, "undetermined", "not measured")
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return Rung(null, "undetermined", "no interval")
    if q is None or math.isnan(q):
        return Rung(null, "undetermined", "no p-value")
    numbers = f"{value:.3g} [{low:.3g}, {high:.3g}], q = {q:.2g}"
    if q > ALPHA:
        return Rung(null, "not passed", f"{numbers}: q is above {ALPHA}")
    if value > 1 and low > 1:
        return Rung(null, "passed", numbers)
    if value < 1 and high < 1:
        return Rung(null, "depleted", f"{numbers}: below 1")
    return Rung(null, "not passed", f"{numbers}: the interval includes 1")


def majority(rungs: Sequence[Rung], *, of: str) -> Rung:
    """The rung of a whole (a model of layers, a window of observations): what more than half of its parts say."""
    if not rungs:
        raise broken(f"a majority of {of} must have at least one", 0, "pass the rows of a finished observation")
    count = {status: sum(r.status == status for r in rungs) for status in OUTCOMES}
    half, null = len(rungs) / 2, rungs[0].null
    for status in ("passed", "depleted"):
        if count[status] > half:
            return Rung(null, status, f"{count[status]} of {len(rungs)} {of} {status}")
    if count["undetermined"] and max(count["passed"], count["depleted"]) + count["undetermined"] > half:
        why = next(r.why for r in rungs if r.status == "undetermined")
        return Rung(null, "undetermined", f"{count['undetermined']} of {len(rungs)} {of} undetermined ({why})")
    return Rung(null, "not passed", f"only {count['passed']} of {len(rungs)} {of} passed")


def climb(rungs: Iterable[Rung], *, view: str) -> Verdict:
    """The verdict of a set of rungs, in the order of the view's ladder; a rung that is missing is undetermined."""
    order = ladder_of(view)
    given = {r.null: r for r in rungs}
    ordered = tuple(given.get(null, Rung(null, "undetermined", "not measured")) for null in order)
    last: str | None = None
    for step in ordered:
        if step.status != "passed":
            return Verdict(view, last, step.null, f"{step.status} ({step.why})", ordered)
        last = step.null
    return Verdict(view, last, None, "all rungs passed", ordered)


def ladder(rows: Iterable[Mapping[str, Any]], *, view: str) -> Ladder:
    """Verdicts from rows of one model and step, each with ``layer null value low high q``.

    >>> row = dict(null="haar", value=4.0, low=2.0, high=8.0, q=0.01)
    >>> print(ladder([dict(row, layer=0), dict(row, layer=1, q=0.5), dict(row, layer=2)], view="representation").model)
    passes up to haar; axes: undetermined (3 of 3 layers undetermined (not measured))
    """
    by_site: dict[tuple[Any, Any], dict[str, Rung]] = {}
    for row in rows:
        met = rung(row["null"], row.get("value"), row.get("low"), row.get("high"), row.get("q"))
        by_site.setdefault((row["layer"], row.get("site")), {})[row["null"]] = met
    modules = Counter(layer for layer, _ in by_site)
    by_layer = {site if modules[site[0]] > 1 else site[0]: found for site, found in by_site.items()}
    if not by_layer:
        raise broken("a ladder must have the rows of at least one layer", 0, "pass a finished observation")
    missing = {null: Rung(null, "undetermined", "not measured") for null in ladder_of(view)}
    layers = {layer: climb(found.values(), view=view) for layer, found in by_layer.items()}
    model = [majority([found.get(null, missing[null]) for found in by_layer.values()], of="layers") for null in missing]
    return Ladder(layers, climb(model, view=view))


def window(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of a window of training from those of its observations."""
    if not verdicts:
        raise broken("a window must hold at least one observation", 0, "observe more often")
    view = verdicts[0].view
    columns = zip(*(verdict.rungs for verdict in verdicts), strict=True)
    return climb([majority(column, of="observations") for column in columns], view=view)
