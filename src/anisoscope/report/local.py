"""The small scale: whether the proxy is tangent at all, what curvature can be told, whether the premise holds."""

from __future__ import annotations

from anisoscope.report.course import course, course_axis
from anisoscope.report.reading import Context, Row, Subject
from anisoscope.report.summary import defined, errors, summarise
from anisoscope.report.tree import Axis, Block, Control, Figure, Reference, Section, Series, Text, values_of
from anisoscope.report.words import counted, interval, listed, number

INSIDE = {None: "local tangents", "normal part": "normal part of neighbourhoods"}
PREMISE = {None: "tangent gradients", "random signs": "random signs (97.5 %)"}
CLEAR = "tangent gradients do not cancel"
OVERLAP_CAPTION = (
    "Tangents are estimated by local PCA around some tokens of one fold; shown is the share of them inside the "
    "proxy that was fitted on the other fold. Random proxies (dashed) hold K/D. The normal part of the same "
    "neighbourhoods, what they have off their tangents, is the control that knows the cloud: a proxy that merely "
    "follows variance holds that as well. First positions are left out. "
)
PREMISE_CAPTION = (
    "γ: norm of the sum of the tangent parts of all token gradients over the sum of their norms; 1 is no "
    "cancellation. The theory bounds the ratio of normal to tangent gradient only where γ is away from 0 (see "
    "docs/theory.md); with random signs γ would lie below the dashed line. "
)


def local_section(context: Context) -> Section | None:
    """Tangency, premise and curvature; nothing where the run has no such rows."""
    if not any(s.by_measure.get("tangent_overlap") or s.by_measure.get("non_cancellation") for s in context.subjects):
        return None
    blocks: list[Block] = []
    for subject in context.subjects:
        blocks += [Text(text, f"{subject.label}:", "plain") for text in _said(subject)]
    figures = (
        _figure(context, "tangent_overlap", INSIDE, "Is the proxy tangent?", "share inside the proxy", OVERLAP_CAPTION),
        _figure(context, "non_cancellation", PREMISE, "The theory's premise", "non-cancellation γ", PREMISE_CAPTION),
    )
    blocks += [figure for figure in figures if figure is not None]
    return Section("local", "Tangency, curvature and the premise", blocks)


def _last(subject: Subject, measure: str, variant: str | None) -> list[Row]:
    rows = subject.pick(measure, variant=variant)
    last = max((row["step"] for row in defined(rows) if row["step"] is not None), default=None)
    return sorted((row for row in rows if row["step"] == last), key=lambda row: row["layer"] or 0)


def _said(subject: Subject) -> list[str]:
    """At the last observation."""
    said = []
    inside, normal = (summarise(_last(subject, "tangent_overlap", v)) for v in (None, "normal part"))
    chance = summarise(_last(subject, "tangent_overlap", "random proxy"))
    if inside is not None and normal is not None and chance is not None and inside.y is not None:
        text = (
            f"the proxy holds {interval(inside.y, inside.low, inside.high)} of the local tangents (median layer), "
            f"random directions {number(chance.y)}, and {interval(normal.y, normal.low, normal.high)} of what "
            "neighbourhoods have off their tangents. "
        )
        apart = inside.low is not None and normal.high is not None and inside.low > normal.high
        text += (
            "So it is more tangent than the cloud's variance alone makes it."
            if apart
            else "So it is no more tangent than the cloud's variance makes it: tangency itself is not shown."
        )
        said.append(text)
    premise = _last(subject, "non_cancellation", None)
    if premise:
        fine = [str(row["layer"]) for row in premise if row["note"] == CLEAR]
        rest = [str(row["layer"]) for row in premise if row["note"] != CLEAR]
        holds = f"holds at layer {listed(fine)}" if fine else "is shown at no layer"
        text = f"the theory's premise (tangent gradients do not cancel) {holds}"
        text += f" and is not shown at layer {listed(rest)}." if fine and rest else "."
        said.append(text)
    bent = _last(subject, "curvature", "rms") or subject.pick("curvature", variant="rms")
    told = [row for row in defined(bent) if row["low"] is not None]
    if bent and not told:
        why = (bent[0]["note"] or "no number").removeprefix("cannot tell: ")
        said.append(f"curvature cannot be told at any layer: {why}.")
    elif told:
        ratios = [r for r in _last(subject, "curvature", "along proxy over random") if r in defined([r])]
        ratio = summarise(ratios)
        more = "" if ratio is None else f"; along the proxy {interval(ratio.y, ratio.low, ratio.high)} times that"
        point = summarise(told)
        assert point is not None
        said.append(
            f"curvature (rms) {interval(point.y, point.low, point.high)} at {counted(len(told), 'layer')} that "
            f"allow a number{more}."
        )
    return said


def _figure(
    context: Context, measure: str, variants: dict[str | None, str], title: str, axis: str, caption: str
) -> Figure | None:
    series: list[Series] = []
    references: list[Reference] = []
    for subject in context.subjects:
        groups: dict[tuple[str | None, str], list[Row]] = {}
        for row in subject.by_measure.get(measure, []):
            if row["layer"] is not None and row["variant"] in variants:
                place = "all layers" if context.of_profiles else f"layer {row['layer']}"
                groups.setdefault((row["variant"], place), []).append(row)
        for (variant, place), rows in sorted(groups.items(), key=lambda item: (item[0][0] or "", item[0][1])):
            points = course(context, subject, rows)
            tags = {"model": subject.label, "layer": place, "what": variants[variant]}
            if points:
                null = variant == "random signs"
                series.append(Series(f"{subject.label}, {place}", tags, points, null=null))
        chance = summarise(_last(subject, measure, "random proxy"))
        if chance is not None and chance.y is not None:
            references.append(Reference(chance.y, "random proxy", {"model": subject.label}))
    if not series:
        return None
    whats, layers = values_of(series, "what"), values_of(series, "layer")
    controls = [Control("what", "What", whats, whats[0])] if len(whats) > 1 else []
    return Figure(
        measure.replace("_", "-"),
        title,
        caption + errors(context, ratio=False, rows="points" if measure == "tangent_overlap" else "sequences"),
        f"{title} {axis.capitalize()}, layer by layer.",
        course_axis(context),
        Axis(axis, fixed=True),
        series,
        colour="layer",
        panel="model",
        choose=controls,
        toggle=[Control("layer", "Layers", layers), Control("model", "Models", values_of(series, "model"))],
        references=references,
        zones=[] if context.of_profiles else context.zones,
    )
