"""Log count against distance to the centroid, type by type, with the fit."""

from __future__ import annotations

import math

from anisoscope.report.reading import Context, Row
from anisoscope.report.sections.emergence import chosen
from anisoscope.report.sections.layer_profile import TRAINED
from anisoscope.report.summary import defined
from anisoscope.report.tree import Axis, Control, Figure, Point, Series, values_of
from anisoscope.vocabulary import TABLES

MOST_STEPS = 6


def type_scatter(context: Context) -> Figure | None:
    """Log count against distance, with the fit, at a few observations."""
    series: list[Series] = []
    steps: list[int] = []
    for subject in context.subjects:
        rows = defined(subject.by_measure.get("type_place", []))
        if context.of_profiles:
            rows = [row for row in rows if row["step"] == TRAINED]
        mine = sorted({row["step"] for row in rows})
        shown = sorted({mine[round(k * (len(mine) - 1) / (MOST_STEPS - 1))] for k in range(MOST_STEPS)}) if mine else []
        steps += [step for step in shown if step not in steps]
        groups: dict[tuple[int, str, str], list[Row]] = {}
        for row in rows:
            if row["step"] in shown and row["seed"] == subject.seeds[0] and row["variant"] and row["n"]:
                groups.setdefault((row["step"], row["tensor"], row["variant"]), []).append(row)
        for (step, tensor, variant), group in sorted(groups.items()):
            tags = {"model": subject.label, "step": str(step), "table": TABLES.get(tensor, tensor)}
            tags["centroid"] = variant.removeprefix("distance, ")
            dots = [Point(row["n"], row["value"]) for row in sorted(group, key=lambda row: row["n"])]
            series.append(Series(f"{subject.label}, types", tags | {"what": "types"}, dots, scattered=True))
            series.append(Series(f"{subject.label}, fit", tags | {"what": "fit"}, _fit(dots)))
    if not series:
        return None
    at = [str(step) for step in sorted(steps)]
    words = [f"step {step}" for step in at]
    tables, centroids = values_of(series, "table"), values_of(series, "centroid")
    controls = [
        Control("step", "Observation", at, at[-1], words if len(at) > 1 else []),
        Control("table", "Table", tables, chosen(tables, TABLES["output"])),
        Control("centroid", "Centroid", centroids, chosen(centroids, "plain")),
    ]
    return Figure(
        "frequency-scatter",
        "Log count against distance to the centroid",
        "Some types from the rarest to the most frequent, with the least-squares line. The centroid is the "
        "mean of the rows of all types that occur, each once (plain) or by their counts (weighted). Correlations over "
        "all types of the sample, with intervals, are in the text above and in the rows of the run.",
        "Distance of embeddings to their centroid against the count of the type, with a fitted line.",
        Axis("count in the text", log=True, fixed=True),
        Axis("distance to the centroid"),
        series,
        colour="what",
        panel="model",
        choose=[c for c in controls if len(c.values) > 1],
        toggle=[Control("model", "Models", values_of(series, "model"))],
    )


def _fit(dots: list[Point]) -> list[Point]:
    """The least-squares line of distance on log count, at its two ends."""
    known = [(math.log(dot.x), dot.y) for dot in dots if dot.y is not None and dot.x > 0]
    n = len(known)
    if n < 3:
        return []
    mean_x, mean_y = sum(x for x, _ in known) / n, sum(y for _, y in known) / n
    spread = sum((x - mean_x) ** 2 for x, _ in known)
    if spread == 0:
        return []
    slope = sum((x - mean_x) * (y - mean_y) for x, y in known) / spread
    ends = min(dots[0].x, dots[-1].x), max(dots[0].x, dots[-1].x)
    return [Point(x, mean_y + slope * (math.log(x) - mean_x)) for x in ends]
