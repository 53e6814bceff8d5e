"""What changes over training, or over the layers of a finished model: one curve for both."""

from __future__ import annotations

from anisoscope.report.reading import Context, Row, Subject
from anisoscope.report.sections.layer_profile import TRAINED
from anisoscope.report.summary import curve, over_training
from anisoscope.report.tree import Axis, Point


def course(context: Context, subject: Subject, rows: list[Row], *, ratio: bool = False) -> list[Point]:
    """Over training; of a finished model over its layers."""
    if context.of_profiles:
        return curve([row for row in rows if row["step"] == TRAINED], lambda row: row["layer"], ratio=ratio)
    return over_training(context, subject, rows, ratio=ratio)


def course_axis(context: Context) -> Axis:
    """What such a course runs along."""
    if context.of_profiles:
        return Axis("layer (0: what enters the first block)", fixed=True)
    return Axis(context.x_label, log=context.x_log)
