"""The small scale: whether the proxy is tangent at all, what curvature can be told, whether the premise holds."""

from __future__ import annotations

import math

from anisoscope.report.formatting import counted, interval, listed, number
from anisoscope.report.reading import Context, Row, Subject
from anisoscope.report.sections.x_axis import course, course_axis
from anisoscope.report.summary import defined, errors, summarise
from anisoscope.report.tree import Axis, Block, Control, Figure, Gap, Reference, Section, Series, Text, values_of
from anisoscope.verdict import ABOVE, BELOW

TITLE = "Tangency, curvature and the premise"
INSIDE = {
    None: "local tangents",
    "elliptical": "local tangents",
    "gaussian": "local tangents",  # the control of runs before the test
    "normal part": "normal part of neighbourhoods",
}
PREMISE = {
    "tangent over normal": "tangent over normal, γᵀ/γᴺ",
    None: "tangent parts, γᵀ",
    "normal part": "normal parts, γᴺ",
    "random signs": "tangent parts, γᵀ",
}
_PREMISE_SAID = dict.fromkeys(ABOVE, "holds") | {"equal": "holds up to the margin (the two are equal within it)"}
_PREMISE_SAID |= dict.fromkeys(BELOW, "fails") | {"equal, below 1": "fails by less than the margin"}
_PREMISE_SAID |= {"cannot tell": "is undecided", "not measured": "was not measured"}
_OLD_PREMISE = {"holds": "above", "fails": "below"}
LEVEL = 0.05
DASHED = ("elliptical", "gaussian", "random signs")
OVERLAP_CAPTION = (
    "Tangents are estimated by local PCA around some tokens of one fold; shown is their share inside the proxy "
    "fitted on the other fold. Random proxies hold K/D. Local PCA finds wide directions, and "
    "so does the proxy, so the relevant control is a cloud of the same covariance and radii with otherwise random "
    "directions (elliptical; dashed, in the colour of the layer): it has no tangents, so the share "
    "of its neighbourhoods inside the proxy comes from variance and tails alone. A difference counts only where a test "
    "over several such clouds rejects (q ≤ 0.05 over layers); clusters can also cause one. First positions are "
    "left out. "
)
PREMISE_CAPTION = (
    "γ: norm of the sum over tokens of parts of a weight gradient, over the sum of their norms; 1 is no cancellation. "
    "The gradient's ratio of normal to tangent is that of single tokens times γᴺ/γᵀ, so the step of Bernas et al. "
    "(2026) from tokens to the gradient holds where γᵀ/γᴺ is at least 1 (see docs/theory.md); that quotient is of γ "
    "without the noise of the sequences, and none is shown where one of the two may be 0. With random signs of "
    "sequences γᵀ would lie below the dashed line. From the sequences kept, error signals in 32 random directions. "
)


def local_section(context: Context) -> Section | None:
    """Tangency, premise and curvature; nothing where the run has no such rows."""
    if not any(s.by_measure.get("tangent_overlap") or s.by_measure.get("non_cancellation") for s in context.subjects):
        return None
    blocks: list[Block] = []
    for subject in context.subjects:
        blocks += [Text(text, f"{subject.label}:", "plain") for text in _said(subject)]
    if not context.drawn:
        return Section("local", TITLE, [*blocks, Gap("tangent-overlap")], _finding(context))
    figures = (
        _figure(context, "tangent_overlap", INSIDE, "Is the proxy tangent?", "share inside the proxy", OVERLAP_CAPTION),
        _figure(context, "non_cancellation", PREMISE, "The theory's premise", "non-cancellation", PREMISE_CAPTION),
    )
    blocks += [figure for figure in figures if figure is not None]
    return Section("local", TITLE, blocks, _finding(context))


def _finding(context: Context) -> str:
    """The outcome of the test of tangency, layer by layer."""
    parts = []
    for subject in context.subjects:
        said = _tangency_said(_last(subject, "tangent_overlap", "over elliptical"))
        parts.append(f"{subject.label}: {said.split('.')[0][:1].lower()}{said.split('.')[0][1:]}")
    return f"{'; '.join(parts)}."


def _last(subject: Subject, measure: str, variant: str | None) -> list[Row]:
    rows = subject.pick(measure, variant=variant)
    last = max((row["step"] for row in defined(rows) if row["step"] is not None), default=None)
    return sorted((row for row in rows if row["step"] == last), key=lambda row: row["layer"] or 0)


def _said(subject: Subject) -> list[str]:
    """At the last observation."""
    said = []
    inside = summarise(_last(subject, "tangent_overlap", None))
    controls = {name: summarise(_last(subject, "tangent_overlap", name)) for name in ("elliptical", "gaussian")}
    control = controls["elliptical"] or controls["gaussian"]
    chance = summarise(_last(subject, "tangent_overlap", "random proxy"))
    if inside is not None and control is not None and chance is not None and inside.y is not None:
        clouds = (
            "clouds of equal covariance and radii, which have no tangents"
            if controls["elliptical"]
            else "a Gaussian cloud of equal covariance, which has no tangents"
        )
        said.append(
            f"the proxy holds {interval(inside.y, inside.low, inside.high)} of the local tangents (median layer), "
            f"random directions {number(chance.y)}, and the proxy {interval(control.y, control.low, control.high)} of "
            f"the same in {clouds}. " + _tangency_said(_last(subject, "tangent_overlap", "over elliptical"))
        )
    said += _premise_said(subject.pick("non_cancellation", variant="tangent over normal"))
    return said + _curvature_said(subject)


def _tangency_said(rows: list[Row]) -> str:
    """What the test of the difference shows, layer by layer: nothing is called tangent that it does not reject."""
    by_layer: dict[str, list[str]] = {}
    for row in defined(rows):
        outcome, q = row["outcome"], row["p"] if row["q"] is None else row["q"]
        if outcome is None and q is not None:  # a run of an earlier release
            outcome = "cannot tell" if q > LEVEL else "above" if row["value"] > 0 else "below"
        if outcome is not None:
            by_layer.setdefault(str(row["layer"]), []).append(outcome)
    if not by_layer:
        return "The difference was not tested, so tangency itself is not shown."
    # Of several seeds, more than half must agree.
    above, below = (
        [layer for layer, outcomes in by_layer.items() if 2 * outcomes.count(side) > len(outcomes)]
        for side in ("above", "below")
    )
    less = f" At layer {listed(below)}, it holds less of them than in those clouds." if below else ""
    if not above:
        return f"No layer is shown to hold more than those clouds do, so tangency itself is not shown.{less}"
    many = f"{len(above)} of {counted(len(by_layer), 'layer')}, q ≤ {LEVEL:g}"
    return f"It holds more of them than in those clouds at layer {listed(above)} ({many}).{less}"


def _curvature_said(subject: Subject) -> list[str]:
    """At the last observation that allows a number; which one, if it is not the last."""
    every = subject.pick("curvature", variant="rms")
    told = [row for row in defined(_last(subject, "curvature", "rms")) if row["low"] is not None]
    if not told:
        why = (every[-1]["note"] or "no number").removeprefix("cannot tell: ") if every else ""
        return [f"curvature is undecided at every layer: {why}."] if every else []
    point, step = summarise(told), told[0]["step"]
    assert point is not None
    earlier = step is not None and step < max(row["step"] for row in every if row["step"] is not None)
    ratio = summarise(defined(_last(subject, "curvature", "along proxy over random")))
    more = (
        ""
        if ratio is None
        else f"; along the proxy {interval(ratio.y, ratio.low, ratio.high)} times that along random tangent directions"
    )
    later = f" at step {step}, and none later" if earlier else ""
    allow = "allows" if len(told) == 1 else "allow"
    said = f"curvature (rms, median) {interval(point.y, point.low, point.high)} at {counted(len(told), 'layer')} that"
    return [f"{said} {allow} a number{later}{more}."]


def _premise_said(rows: list[Row]) -> list[str]:
    """Where tangent parts cancel no more than normal ones: by the outcome of their quotient."""
    if not rows:
        return []
    last = max((row["step"] for row in rows if row["step"] is not None), default=None)
    by: dict[str, list[str]] = {words: [] for words in _PREMISE_SAID.values()}
    least: list[float] = []
    for row in sorted((row for row in rows if row["step"] == last), key=lambda row: row["layer"] or 0):
        outcome, why = _premise_outcome(row)
        words = _PREMISE_SAID[outcome]
        if outcome == "cannot tell" and why:
            words += f" ({why})"
        elif outcome == "cannot tell" and row["detectable"] is not None and math.isfinite(row["detectable"]):
            least.append(row["detectable"])
        by.setdefault(words, []).append(str(row["layer"]))
    parts = [f"{words} at layer {listed(layers)}" for words, layers in by.items() if layers]
    said = f"the theory's premise (tangent gradients cancel no more than normal ones) {'; '.join(parts)}."
    if least:
        seen = number(sorted(least)[(len(least) - 1) // 2])
        said += f" A quotient γᵀ/γᴺ of about {seen}, or its inverse, would have been found in 80 % of repetitions"
        said += " (median of the layers that cannot tell and have one)."
    return [said]


def _premise_outcome(row: Row) -> tuple[str, str]:
    """The outcome of the quotient, and why there is none; rows of old have both in the note, ``verdict: why``."""
    note = row["note"] or ""
    if row["outcome"] in _PREMISE_SAID:
        return row["outcome"], note
    verdict, _, why = note.partition(": ")
    return _OLD_PREMISE.get(verdict, "cannot tell"), why


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
                label = f"{subject.label}, {place}" + (f", {variant}" if variant in DASHED else "")
                series.append(Series(label, tags, points, null=variant in DASHED))
        chance = summarise(_last(subject, measure, "random proxy"))
        if chance is not None and chance.y is not None:
            references.append(Reference(chance.y, "random proxy", {"model": subject.label}))
    if measure == "non_cancellation":
        references.append(Reference(1.0, "equal", {"what": PREMISE["tangent over normal"]}))
    if not series:
        return None
    found = values_of(series, "what")
    whats, layers = [what for what in dict.fromkeys(variants.values()) if what in found], values_of(series, "layer")
    controls = [Control("what", "What", whats, whats[0])] if len(whats) > 1 else []
    return Figure(
        measure.replace("_", "-"),
        title,
        caption + errors(context, ratio=False, rows="points" if measure == "tangent_overlap" else None),
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
