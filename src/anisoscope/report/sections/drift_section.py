"""Proxy drift: principal angles over training, beside those of random subspaces."""

from __future__ import annotations

import numpy as np

from anisoscope.report.formatting import number
from anisoscope.report.reading import Context, Row, Subject
from anisoscope.report.sections.emergence import chosen, layer_order, layers_of
from anisoscope.report.summary import errors, over_training
from anisoscope.report.tree import Axis, Control, Figure, Gap, Reference, Section, Series, Text, values_of


def drift_section(context: Context, view: str = "representation") -> Section:
    """Principal angles over training."""
    if not context.drawn:
        return Section("drift", "Proxy drift", [Gap("drift")], _finding(context, view))
    series = [s for subject in context.subjects for s in _angles(context, subject)]
    if not series:
        return Section("drift", "Proxy drift", [Text("The run has no rows of the angle between proxies.")])
    proxies, since, views = (values_of(series, key) for key in ("proxy", "since", "view"))
    controls = [
        Control("since", "Angle", since, chosen(since, "since first")),
        Control("proxy", "Proxy", proxies, chosen(proxies, context.subjects[0].proxy)),
        Control("view", "View", views, chosen(views, "representation")),
    ]
    references = [
        Reference(random_angle(subject.width, subject.rank), "random subspaces", {"model": subject.label})
        for subject in context.subjects
        if subject.width is not None and isinstance(subject.rank, int)
    ]
    figure = Figure(
        "drift",
        "How far the proxy moves",
        "Mean principal angle in degrees between the proxy of an observation and that of the first (or the previous) "
        "one, on the same fold of sequences; 0 is the same subspace. The null (dashed) is the mean angle between two "
        "random subspaces of this rank and width. This separates a rolling proxy that moves from an effect that fades. "
        + (
            errors(context, ratio=False)
            if context.seeded > 1
            else "The rows of the angle have no intervals, so there are no bands."
        ),
        f"Mean principal angle against {context.x_label}, one line per layer.",
        Axis(context.x_label, log=context.x_log),
        Axis("mean principal angle (degrees)"),
        series,
        colour="layer",
        panel="model",
        choose=[c for c in controls if len(c.values) > 1],
        toggle=[
            Control("layer", "Layers", layers_of(series)),
            Control("model", "Models", values_of(series, "model")),
        ],
        references=references,
        zones=context.zones,
    )
    return Section("drift", "Proxy drift", [figure], _finding(context, view))


def _finding(context: Context, view: str) -> str:
    """How far the main proxy has turned at the end, the median over layers."""
    parts = []
    for subject in context.subjects:
        rows = subject.pick("angle", subset="all", variant="since first", proxy=subject.proxy, view=view)
        points = over_training(context, subject, [row for row in rows if row["layer"] is not None])
        if points:
            chance = (
                ""
                if not subject.width or not isinstance(subject.rank, int)
                else random_angle(subject.width, subject.rank)
            )
            beside = f" (random subspaces {number(chance)}°)" if chance else ""
            parts.append(f"{subject.label} {number(points[-1].y)}°{beside}")
    return f"Turned since the first observation: {', '.join(parts)}." if parts else ""


def _angles(context: Context, subject: Subject) -> list[Series]:
    groups: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in subject.pick("angle", subset="all"):
        if row["layer"] is not None and row["variant"] and row["proxy"] and row["view"]:
            groups.setdefault((row["view"], row["variant"], row["proxy"], subject.layer_label(row)), []).append(row)
    found = []
    for (view, since, proxy, layer), rows in sorted(groups.items(), key=lambda g: (*g[0][:3], layer_order(g[0][3]))):
        tags = {"model": subject.label, "view": view, "since": since, "proxy": proxy, "layer": layer}
        points = over_training(context, subject, rows)
        if points:
            found.append(Series(f"{subject.label}, layer {layer}", tags, points))
    return found


def random_angle(width: int, rank: int, draws: int = 8) -> float:
    """Mean principal angle in degrees between two uniformly random subspaces, from a few seeded draws.

    >>> 43 < random_angle(2, 1, draws=2000) < 47
    True
    """
    if not 0 < rank < width:
        return 0.0
    generator = np.random.default_rng(0)
    angles = []
    for _ in range(draws):
        # One of the two may be the first coordinates: only their relative position counts.
        basis, _ = np.linalg.qr(generator.standard_normal((width, rank)))
        cosines = np.linalg.svd(basis[:rank], compute_uv=False)
        angles.append(np.degrees(np.arccos(np.clip(cosines, 0, 1))).mean())
    return float(np.mean(angles))
