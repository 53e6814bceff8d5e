"""Frequency: where frequent types lie and whether they are pinned, and whose gradients the proxy captures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from anisoscope.report.formatting import interval, number
from anisoscope.report.reading import Context, Row, Subject
from anisoscope.report.sections.emergence import NULL_AT_ONE, chosen
from anisoscope.report.sections.type_scatter import type_scatter
from anisoscope.report.sections.x_axis import course, course_axis
from anisoscope.report.summary import defined, errors, summarise
from anisoscope.report.tree import (
    Axis,
    Block,
    Cell,
    Control,
    Figure,
    Gap,
    Reference,
    Section,
    Series,
    Table,
    Text,
    values_of,
)
from anisoscope.vocabulary import BIN_SIDES, BIN_SIZES, BINS, MEASURES, TABLES, bin_of, bin_subset

DRAWINGS = ("frequency-scatter", "frequency-bins", "frequency-correlations")
_BINNED = ("enrichment", "energy", "isotropy_loss", "spread", "visible_curvature")
BINNED = {
    (word.name, variant): word.variant_label(variant)
    for word in (MEASURES[f"bin_{name}"] for name in _BINNED)
    for variant in word.in_rows()
}
CORRELATED = {
    "distance, plain": "distance to the plain centroid",
    "distance, weighted": "distance to the weighted centroid",
    "trajectory": "variance of the trajectory",
    "spread": "spread of contextual vectors",
}
FORKS = (
    "Each of these involves a choice that can decide its sign, so both options are shown: distance to the plain "
    "centroid (every type counts once) or to the one weighted by counts; bins by input token or by target token, with "
    "equal numbers of tokens or of types. Counts are those of the training text (of the text read, for finished "
    "models); types that never occur are left out."
)
BINS_RULE = (
    "Types are ordered by count and cut into fifths. Enrichment: odds ratio of gradient energy inside the rolling "
    "proxy over random directions, whose share is K/D in every bin. Share of lost isotropy: the contribution of a bin "
    "to the anisotropic part of the gradient's second moment; it may be negative. Shares are of all tokens, including "
    "those in no bin: an encoder's mask and, for targets, positions without a prediction. Spread: root mean square "
    "distance of a type's contextual vectors to their mean, over that of the cloud. Visible curvature: variance about "
    "the type's mean outside the proxy over that inside; with local tangents: off and along the local tangent, around "
    "tokens of the bin, at the radius at which its types are seen. Both leave out first positions."
)


def frequency_section(context: Context) -> Section | None:
    """Everything about frequency; nothing where the run has no such rows."""
    if not any(s.by_measure.get("frequency_correlation") for s in context.subjects):
        return None
    blocks: list[Block] = [Text(t, f"{s.label}:", "plain") for s in context.subjects for t in _said(s)]
    blocks.append(Text(FORKS, small=True))
    if context.drawn:
        drawings = (type_scatter(context), _binned(context), _pinning(context))
        blocks += [figure for figure in drawings if figure is not None]
    else:
        blocks += map(Gap, DRAWINGS)
    table = _trends(context)
    if table is not None:
        blocks.append(table)
    return Section("frequency", "Frequency", blocks, _finding(context))


def _finding(context: Context) -> str:
    """The trend over fifths of frequency at the last observation, by the token that was asked for."""
    parts = []
    for subject in context.subjects:
        subset = bin_subset("target", "tokens")
        point = summarise(_last(r for r in subject.by_measure.get("bin_enrichment_trend", []) if _is(r, subset)))
        if point is not None and point.y is not None:
            parts.append(f"{subject.label} {number(math.exp(point.y))}")
    what = "Factor of enrichment from one fifth of frequency to the next (by target, median layer)"
    return f"{what}: {', '.join(parts)}." if parts else ""


def _last(rows: Iterable[Row]) -> list[Row]:
    """Rows of the last observation that has any."""
    found = defined(rows)
    last = max((row["step"] for row in found if row["step"] is not None), default=None)
    return [row for row in found if row["step"] == last]


def _said(subject: Subject) -> list[str]:
    """The forks in words, at the last observation."""
    said = []
    for tensor, words in TABLES.items():
        both, parts = [], []
        for centre in ("plain", "weighted"):
            rows = subject.pick("frequency_correlation", tensor=tensor, variant=f"distance, {centre}, spearman")
            point = summarise(_last(rows))
            if point is not None:
                both.append(f"{interval(point.y, point.low, point.high)} to the {centre} centroid")
        if both:
            parts.append(f"distance {' and '.join(both)}")
        point = summarise(_last(subject.pick("frequency_correlation", tensor=tensor, variant="trajectory, spearman")))
        if point is not None and point.y is not None:
            sign = (
                "frequent types move less, as pinning predicts"
                if point.high is not None and point.high < 0
                else "frequent types move more, the opposite of pinning"
                if point.low is not None and point.low > 0
                else "which shows neither pinning nor its opposite"
            )
            parts.append(f"variance of the trajectory {interval(point.y, point.low, point.high)}: {sign}")
        if parts:
            said.append(f"correlations of log count over the types of the {words}: {'; '.join(parts)}.")
    parts = []
    for side in BIN_SIDES:
        subset = bin_subset(side, "tokens")
        rows = _last(r for r in subject.by_measure.get("bin_enrichment_trend", []) if _is(r, subset))
        point = summarise(rows)
        if point is not None and point.y is not None:
            ends = (None if end is None else math.exp(end) for end in (point.low, point.high))
            parts.append(f"by the {side} token {interval(math.exp(point.y), *ends)}")
    if not parts:
        return said
    what = "factor of the enrichment (odds ratio) from one fifth of frequency to the next more frequent, median layer"
    return [*said, f"{what}: {'; '.join(parts)}."]


def _is(row: Row, subset: str) -> bool:
    return row["view"] == "representation" and row["subset"] == subset


def _binned(context: Context) -> Figure | None:
    """Bins over training, one line a bin."""
    series: list[Series] = []
    for subject in context.subjects:
        groups: dict[tuple[str, str, str, int], list[Row]] = {}
        for (measure, variant), words in BINNED.items():
            for row in subject.pick(measure, variant=variant):
                bins = bin_of(row["subset"])
                # Of the embedding view the update is shown beside the representation's gradients.
                fits = row["view"] == "representation" or row["tensor"] == "update"
                if bins is not None and fits and row["layer"] is not None:
                    side, size, k = bins
                    groups.setdefault((words, _side(side, size), _where(context, row), k), []).append(row)
        for (measure, side, layer, k), rows in sorted(groups.items()):
            tags = {"model": subject.label, "measure": measure, "bins": side, "place": layer}
            points = course(context, subject, rows, ratio=not measure.startswith("share"))
            if points:
                words = BINS[k - 1]
                series.append(Series(f"{subject.label}, {words}", tags | {"bin": words}, points))
    if not series:
        return None
    order: list[str] = list(BINS)
    series.sort(key=lambda s: (s.tags["model"], order.index(s.tags["bin"])))
    measures = [words for words in BINNED.values() if words in values_of(series, "measure")]
    sides, places = sorted(values_of(series, "bins")), sorted(values_of(series, "place"), key=_layer_order)
    middle = places[len([p for p in places if p.startswith("layer ")]) // 2]
    controls = [
        Control("measure", "Measure", measures, chosen(measures, BINNED["bin_enrichment", None])),
        Control("bins", "Bins", sides, chosen(sides, _side("target", "tokens"))),
        Control("place", "Place", places, middle),
    ]
    of_profile = context.of_profiles
    return Figure(
        "frequency-bins",
        "By token frequency" + (", layer by layer" if of_profile else ", over training"),
        f"{BINS_RULE} {errors(context, rows=f'{context.units} (types for spread, curvature and the update)')}",
        f"{', '.join(measures).capitalize()} by fifth of frequency.",
        course_axis(context),
        Axis("value", by={"key": "measure"}),
        series,
        colour="bin",
        panel="model",
        choose=[c for c in controls if len(c.values) > 1],
        toggle=[
            Control("bin", "Bins", [words for words in order if words in values_of(series, "bin")]),
            Control("model", "Models", values_of(series, "model")),
        ],
        references=[Reference(NULL_AT_ONE.y, NULL_AT_ONE.label, {"measure": BINNED["bin_enrichment", None]})],
        zones=[] if of_profile else context.zones,
    )


def _where(context: Context, row: Row) -> str:
    """A place that a reader can choose; of a finished model the layers lie along the axis."""
    if row["view"] == "embedding":
        return "embedding update"
    return "layers" if context.of_profiles else f"layer {row['layer']}"


def _side(side: str, size: str) -> str:
    return f"by {side} token, equal {size}"


def _layer_order(place: str) -> tuple[bool, int]:
    return (not place.startswith("layer"), int(place.rpartition(" ")[2]) if place.startswith("layer ") else 0)


def _pinning(context: Context) -> Figure | None:
    """Correlations with log count over training: where frequent types lie, whether they are pinned."""
    series: list[Series] = []
    for subject in context.subjects:
        groups: dict[tuple[str, str, str], list[Row]] = {}
        for row in subject.by_measure.get("frequency_correlation", []):
            what, _, how = (row["variant"] or "").rpartition(", ")
            if how == "norm held":
                what, _, how = what.rpartition(", ")
                how = f"{how}, norm held fixed"
            if what not in CORRELATED:
                continue
            where = TABLES.get(row["tensor"]) or _where(context, row)
            groups.setdefault((what, how, where), []).append(row)
        for (what, how, where), rows in sorted(groups.items()):
            points = course(context, subject, rows)
            tags = {"model": subject.label, "what": CORRELATED[what], "how": how, "place": where}
            if points:
                series.append(Series(f"{subject.label}, {where}", tags, points))
    if not series:
        return None
    whats = [words for words in CORRELATED.values() if words in values_of(series, "what")]
    hows = values_of(series, "how")
    controls = [
        Control("what", "Log count against", whats, chosen(whats, CORRELATED["distance, weighted"])),
        Control("how", "Correlation", hows, chosen(hows, "spearman")),
    ]
    return Figure(
        "frequency-correlations",
        "Geometry against log count" + (", layer by layer" if context.of_profiles else ", over training"),
        "Correlation over types of log count with the chosen property. The variance of the trajectory is over all "
        "observations so far, equally weighted: pinned types have little. Contextual vectors are averaged by type "
        "(those in at least 4 sequences), and the contribution of the noise of such means to a distance or a "
        "trajectory is "
        "subtracted. " + errors(context, ratio=False, rows="types"),
        "Correlations with log count.",
        course_axis(context),
        Axis("correlation with log count", fixed=True),
        series,
        colour="place",
        panel="model",
        choose=[c for c in controls if len(c.values) > 1],
        toggle=[
            Control("place", "Where", values_of(series, "place")),
            Control("model", "Models", values_of(series, "model")),
        ],
        references=[Reference(0.0, "none: 0")],
        zones=[] if context.of_profiles else context.zones,
    )


def _trends(context: Context) -> Table | None:
    """The trend across bins at the last observation, layer by layer."""
    rows: list[list[Cell]] = []
    for subject in context.subjects:
        for side, size in itertools.product(BIN_SIDES, BIN_SIZES):
            for measure in dict.fromkeys(name for name, _ in BINNED if f"{name}_trend" in MEASURES):
                trends = subject.by_measure.get(f"{measure}_trend", [])
                found = [r for r in trends if _is(r, bin_subset(side, size))]
                last = _last(found)
                point = summarise(last)
                if point is None or point.y is None or point.low is None or point.high is None:
                    continue
                up = sum(r["low"] is not None and r["low"] > 0 for r in last)
                down = sum(r["high"] is not None and r["high"] < 0 for r in last)
                ends = interval(math.exp(point.y), math.exp(point.low), math.exp(point.high))
                rows.append(
                    [
                        Cell(subject.label),
                        Cell(BINNED[measure, None]),
                        Cell(_side(side, size)),
                        Cell(ends, "median layer"),
                        Cell(f"{up} rise, {down} fall", f"of {len(last)} layers"),
                    ]
                )
    if not rows:
        return None
    caption = (
        "Factor from one fifth of frequency to the next more frequent one (least squares on logarithms), at the last "
        "observation; rise and fall: the 95 % interval excludes no change. Bernas et al. (2026) expect enrichment to "
        "rise with frequency; the theory behind it expects spread and visible curvature to fall."
    )
    columns = ["model", "measure", "bins", "factor per bin", "layers"]
    return Table("frequency-trends", "Trends across bins", caption, columns, rows, heads=3)
