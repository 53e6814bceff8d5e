"""How far the claim climbs, per model, view and window of training: the ladder's rule applied to the rows of runs."""

from __future__ import annotations

from dataclasses import dataclass

from anisoscope.report.reading import Context, Row, Subject
from anisoscope.report.summary import curve, summarise
from anisoscope.report.tree import Point
from anisoscope.verdict import Verdict, ladder, window
from anisoscope.vocabulary import WINDOWS, ladder_of


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict of one window, with the median enrichment over each null and the highest over ``haar``.

    ``verdict`` is ``None`` without rows.
    """

    subject: Subject
    view: str
    window: str
    verdict: Verdict | None
    observations: int
    steps: tuple[int, int] | None
    enrichment: dict[str, Point]
    peak: Point | None
    reasons: dict[str, str]

    @property
    def label(self) -> str:
        """Whom it is about."""
        return self.subject.label if self.subject.source.is_profile else f"{self.subject.label}, {self.window}"

    @property
    def height(self) -> int:
        """Rungs climbed; −1 where nothing was measured."""
        if self.verdict is None:
            return -1
        return 0 if self.verdict.last is None else ladder_of(self.view).index(self.verdict.last) + 1


def findings(context: Context, view: str) -> list[Finding]:
    """One finding a model and window; views that a model has no rows of are left out."""
    return [
        finding(subject, view, name)
        for subject in context.subjects
        if _rows(subject, view)
        for name in windows_of(subject)
    ]


def windows_of(subject: Subject) -> tuple[str, ...]:
    """Windows of training; of a finished model there is the end alone."""
    return ("late",) if subject.source.is_profile else tuple(WINDOWS)


def finding(subject: Subject, view: str, name: str) -> Finding:
    """Judge the observations of a window, those of all seeds together."""
    rows = subject.window(_rows(subject, view), name)
    observations: dict[tuple[int | None, int], list[Row]] = {}
    for row in rows:
        observations.setdefault((row["seed"], row["step"]), []).append(row)
    verdicts = [ladder(observed, view=view).model for observed in observations.values()]
    steps = [step for _, step in observations]
    by_null = {null: summarise((r for r in rows if r["null"] == null), ratio=True) for null in ladder_of(view)}
    return Finding(
        subject,
        view,
        name,
        window(verdicts) if verdicts else None,
        len(observations),
        (min(steps), max(steps)) if steps else None,
        {null: point for null, point in by_null.items() if point is not None},
        _peak(rows),
        _reasons(subject),
    )


def _rows(subject: Subject, view: str) -> list[Row]:
    rungs = ladder_of(view)
    return [row for row in subject.main("enrichment", view=view) if row["null"] in rungs]


def _peak(rows: list[Row]) -> Point | None:
    """The observation at which the median over layers of enrichment over ``haar`` is highest."""
    line = curve((row for row in rows if row["null"] == "haar"), lambda row: row["step"], ratio=True)
    return max(line, key=lambda point: point.y or 0.0, default=None)


def _reasons(subject: Subject) -> dict[str, str]:
    """Why a null could not be had, where the run says so."""
    without_place = (row for row in subject.by_measure.get("enrichment", []) if row["layer"] is None)
    return {row["null"]: row["note"] for row in without_place if row["null"] and row["note"]}
