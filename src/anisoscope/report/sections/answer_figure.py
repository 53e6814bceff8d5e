"""The one figure of the first screen: enrichment over training, over random directions and under other labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from anisoscope.report.choices import Chosen, figure_controls
from anisoscope.report.formatting import number
from anisoscope.report.ladder_findings import pooled_rows
from anisoscope.report.plain_words import gives
from anisoscope.report.reading import Context, Subject
from anisoscope.report.sections.emergence import NULL_AT_ONE
from anisoscope.report.sections.x_axis import course, course_axis
from anisoscope.report.summary import errors
from anisoscope.report.tree import Axis, Control, Figure, Series, values_of
from anisoscope.vocabulary import LABEL_NULLS, ladder_of


def answer_figure(context: Context, chosen: Sequence[Chosen]) -> Figure | None:
    """Over random directions solid, over gradients of shuffled labels dashed; 1 is the null. For every choice."""
    series = [s for one in chosen for subject in one.context.subjects for s in _curves(context, subject, one)]
    if not series:
        return None
    begins = chosen[0].tags
    first = [s for s in series if all(s.tags[key] == value for key, value in begins.items())]
    last = "; ".join(f"{s.label} ends at {number(s.points[-1].y)}" for s in first)
    return Figure(
        "answer",
        "Enrichment of the gradient's energy" + ("" if context.of_profiles else " over training"),
        "Odds ratio of the energy share over each null, pooled over layers; 1 (dashed line) is the null. "
        f"{_bands(context)}",
        f"{last}; the null is 1.",
        replace(course_axis(context), fixed=True),
        Axis("enrichment (odds ratio)", log=True, fixed=True),
        series,
        colour="model",
        panel="run" if context.compare else None,
        dash="over",
        choose=figure_controls(series, begins),
        toggle=[
            Control("model", "Models", values_of(series, "model")),
            Control("over", "Over", values_of(series, "over")),
        ],
        references=[NULL_AT_ONE],
        zones=[] if context.of_profiles else context.zones,
    )


def _bands(context: Context) -> str:
    return errors(context).split(". ")[0].rstrip(".") + "."


def _curves(context: Context, subject: Subject, chosen: Chosen) -> list[Series]:
    found = []
    view = chosen.view
    for null in (ladder_of(view)[0], LABEL_NULLS[0]):
        key = {"view": view, "proxy": subject.proxy, "timing": subject.timing}
        rows = (
            subject.main("enrichment", null=null, **key) if context.of_profiles else pooled_rows(subject, null, **key)
        )
        points = course(context, subject, rows, ratio=True)
        if points:
            words = gives(null)
            tags = {"model": subject.label, "over": words, "run": subject.source.label, **chosen.tags}
            found.append(Series(f"{subject.label}, over {words}", tags, points))
    return found
