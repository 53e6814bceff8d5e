"""Isotropy gain over training: the proxy removed, against random directions orthogonal to it."""

from __future__ import annotations

from anisoscope.report.choices import figure_controls, fits
from anisoscope.report.reading import Context, Subject
from anisoscope.report.summary import errors, over_training
from anisoscope.report.tree import Axis, Control, Figure, Reference, Series, values_of

TANGENT, RAW, NORMAL = "tangent, ζ = 0.2", "tangent, ζ = 0", "normal, ζ = 0.2"


def gain_figure(context: Context) -> Figure | None:
    """Tangent against normal removal, the median over layers."""
    chosen = fits(context)
    series = [s for one in chosen for subject in one.context.subjects for s in _curves(context, subject, one.tags)]
    if not any(s.tags["removed"] == TANGENT for s in series):
        return None
    return Figure(
        "gains",
        "Isotropy gain of tangent and of normal removal",
        "IsoScore* of the gradient cloud after a subspace was removed (in D − K dimensions) minus before (in D), "
        "both under one reference, representation view, the median over layers. Tangent: the proxy is removed. "
        "Normal: the null, the mean over random subspaces orthogonal to the proxy. 0 is no gain. The score shrinks "
        "the covariance by ζ = 0.2; the same without shrinkage (ζ = 0) is shown with it, because a fixed reference "
        "makes any nearly empty rest look isotropic. " + errors(context, ratio=False),
        f"Isotropy gain against {context.x_label} for {' and '.join(values_of(series, 'model'))}.",
        Axis(context.x_label, log=context.x_log),
        Axis("isotropy gain", fixed=True),
        series,
        colour="removed",
        panel="model",
        choose=figure_controls(series, chosen[0].tags),
        toggle=[
            Control("removed", "Removed", values_of(series, "removed")),
            Control("model", "Models", values_of(series, "model")),
        ],
        references=[Reference(0.0, "no gain: 0")],
        zones=context.zones,
    )


def _curves(context: Context, subject: Subject, fit: dict[str, str]) -> list[Series]:
    gains = subject.main("isotropy_gain", view="representation")
    kinds = {
        TANGENT: [row for row in gains if row["variant"] is None],
        NORMAL: subject.main("isotropy_gain_normal", view="representation"),
        RAW: [row for row in gains if row["variant"] == "zeta0"],
    }
    found = []
    for name, rows in kinds.items():
        points = over_training(context, subject, rows)
        if points:
            found.append(Series(f"{subject.label}, {name}", {"model": subject.label, "removed": name, **fit}, points))
    return found
