"""The rows of a theory run, by what they are about; and what its claims are called."""

from __future__ import annotations

import math

from anisoscope.report.formatting import number
from anisoscope.report.reading import Row
from anisoscope.report.tree import Point, Series
from anisoscope.verdict import ABOVE, BELOW, outcome_of_fit
from anisoscope.vocabulary import shown_in

CLAIMS = {word.name: word.label for word in shown_in("claim")}
LIMITS = ("chord-coefficient", "attenuation")  # numbers, not exponents
OPEN_CLAIM = "symmetric-gradient-ratio"
BOUNDS = {
    "published": ("published, βt", "the ratio of the two upper bounds"),
    "corrected": ("corrected, βt/γ", "γ of the same tokens: a theorem, so anything but all would be a fault of ours"),
    "held-out": (
        "corrected, γ from other sequences",
        "the lower end of γ's interval; only where γ is clearly above noise",
    ),
}
THEORY = {"what": "theory"}  # tag of what is drawn beside the data
HOLDS, FAILS, OPEN, MISSING = "holds", "does not hold", "cannot tell", "not measured"
_SAID = {"equal": HOLDS, "not measured": MISSING} | dict.fromkeys(ABOVE | BELOW, FAILS)
"""What the outcome of a fit says of its claim."""


class LaboratoryRows:
    """The rows of a laboratory by what they are about."""

    def __init__(self, rows: list[Row]) -> None:
        self.by_measure: dict[str, list[Row]] = {}
        for row in rows:
            self.by_measure.setdefault(row["measure"] or "", []).append(row)
        self.fits = self._of("fit")
        self.expected = self._of("fit_expected")
        self.r2 = self._of("fit_r2")
        self.bounds = self._of("bound_holds")

    def _of(self, measure: str) -> dict[str, Row]:
        return {row["variant"]: row for row in self.by_measure.get(measure, [])}

    def outcome(self, claim: str) -> str:
        """Of a fit against theory. Runs from before the column was there are judged by their numbers, same rule."""
        fit = self.fits[claim]
        return fit.get("outcome") or outcome_of_fit(
            fit["value"], fit["low"], fit["high"], self.expected[claim]["value"]
        )

    def said(self, claim: str) -> str:
        """Whether a claim holds, does not hold, cannot be told, or was not measured."""
        return _SAID.get(self.outcome(claim), OPEN)

    def curve(self, measure: str, *models: str) -> list[Point]:
        """Values against the radius (or the exponent) they were taken at: the geometric mean over models, or all."""
        rows = [r for r in self.by_measure.get(measure, []) if not models or r["model"] in models]
        found: dict[float, list[Row]] = {}
        for row in rows:
            found.setdefault(place_of(row), []).append(row)
        return [_point(x, members) for x, members in sorted(found.items())]

    def models(self, measure: str) -> list[str]:
        """Names of the manifolds that a measure is about."""
        return list(dict.fromkeys(r["model"] for r in self.by_measure.get(measure, [])))


def precise(fit: Row) -> str:
    """A fitted number to as many digits as its interval has.

    >>> precise({"value": 3.99851, "low": 3.98243, "high": 4.01459})
    '3.999 [3.982, 4.015]'
    """
    half = (fit["high"] - fit["low"]) / 2
    digits = min(max(1 - math.floor(math.log10(half)), 2), 8) if half > 0 else 8
    shown = (f"{fit[end]:.{digits}f}".replace("-", "−") for end in ("value", "low", "high"))
    value, low, high = shown
    return f"{value} [{low}, {high}]"


def place_of(row: Row) -> float:
    """Where on its curve a row lies: at a radius, or at an exponent."""
    return row["radius"] if row["radius"] is not None else row["parameter"]


def fit_line(lab: LaboratoryRows, claim: str, tags: dict[str, str], *models: str) -> list[Series]:
    """The power law fitted to all models, at the level of the geometric mean of these."""
    points = [p for p in lab.curve(claim, *models) if p.y is not None and p.y > 0]
    if claim not in lab.fits or len(points) < 2:
        return []
    power = lab.fits[claim]["value"]
    level = sum(math.log(p.y or 1.0) - power * math.log(p.x) for p in points) / len(points)
    line = [Point(p.x, math.exp(level + power * math.log(p.x))) for p in (points[0], points[-1])]
    return [Series(f"fitted: exponent {number(power)}", tags, line, null=True)]


def _point(x: float, rows: list[Row]) -> Point:
    if len(rows) == 1:
        return Point(x, rows[0]["value"], rows[0]["low"], rows[0]["high"], rows[0]["n"])
    logs = [math.log(row["value"]) for row in rows if row["value"] and row["value"] > 0]
    return Point(x, math.exp(sum(logs) / len(logs)) if logs else None, n=sum(row["n"] or 0 for row in rows))
