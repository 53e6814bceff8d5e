"""The two views side by side with their nulls, so that what construction forces is seen as such."""

from __future__ import annotations

from anisoscope.report.choices import figure_controls, fits
from anisoscope.report.formatting import interval, number
from anisoscope.report.names import word_of
from anisoscope.report.reading import Context, Row, Subject
from anisoscope.report.sections.emergence import ENRICHMENT, NULL_AT_ONE
from anisoscope.report.summary import defined, errors, over_training, summarise
from anisoscope.report.tree import Axis, Block, Control, Figure, Gap, Section, Series, Text, values_of
from anisoscope.vocabulary import NULLS

PAIR = ("representation", "weight")


def views_section(context: Context) -> Section:
    """Figure, what is forced, and the turns below 1 explained."""
    chosen = fits(context) if context.drawn else []
    series = [
        s
        for one in chosen
        for subject in one.context.subjects
        for view in PAIR
        for s in _by_null(context, subject, view, one.tags)
    ]
    if not series and context.drawn:
        return Section("views", "Two views", [Text("The run has enrichment in neither of the two views.")])
    blocks: list[Block] = [Text(text) for text in filter(None, map(artefact, context.subjects))]
    blocks.append(_figure(context, series, chosen[0].tags) if context.drawn else Gap("views"))
    blocks += [Text(text, "A turn below 1.", "plain") for s in context.subjects for text in turns(s)]
    ends = [text for text in map(depleted_end, context.subjects) if text is not None]
    blocks += [Text(text, "The last layer.", "plain") for text in ends]
    if context.drawn and "weight" not in values_of(series, "view"):
        blocks.append(Text("The run has no rows of the weight view, so the two cannot be compared."))
    return Section("views", "Two views and their nulls", blocks, _finding(context))


def _finding(context: Context) -> str:
    """What the weight view has before any training."""
    parts = []
    for subject in context.subjects:
        rows = [r for r in subject.main("enrichment", view="weight", null="haar") if r["step"] == 0]
        found = summarise(rows, ratio=True)
        if found is not None:
            parts.append(f"{subject.label} {number(found.y)}")
    if not parts:
        return "There are no rows of the weight view before training."
    return f"Weight view over random directions before any training: {', '.join(parts)}."


def _by_null(context: Context, subject: Subject, view: str, fit: dict[str, str]) -> list[Series]:
    found = []
    for null in NULLS:
        points = over_training(context, subject, subject.main("enrichment", view=view, null=null), ratio=True)
        # `normal` equals the odds ratio over `haar` by definition: a second line on top of the first would mislead.
        if points and null != "normal":
            panel = f"{subject.label}: {view}"
            tags = {"panel": panel, "model": subject.label, "view": view, "null": null, **fit}
            found.append(Series(f"{panel}, over {word_of(null)}", tags, points))
    return found


def _figure(context: Context, series: list[Series], begins: dict[str, str]) -> Figure:
    nulls = [null for null in NULLS if null in values_of(series, "null")]
    return Figure(
        "views",
        "Enrichment over every null, in both views",
        "Enrichment (odds ratio; 1, dashed, is the null) over each null, the median over layers. Left, "
        "representation: gradients ∂L/∂h at the residual stream. Right, weight: the gradient G = Σ δxᵀ of a matrix "
        "that reads the stream. G is built from inputs x like those the proxy was fitted on, so a "
        "large enrichment over `haar` is expected there before any training; for `pairing`, every δ gets the x of "
        f"another sequence, which keeps that part. What matters is the distance of a line from 1, not from another "
        f"line. {errors(context)} The interval is that of the median layer.",
        f"Median enrichment over {', '.join(map(word_of, nulls))} against {context.x_label}, in panels by "
        "model and view.",
        Axis(context.x_label, log=context.x_log),
        Axis(ENRICHMENT, log=True),
        series,
        colour="null",
        panel="panel",
        choose=figure_controls(series, begins),
        toggle=[Control("null", "Nulls", nulls), Control("model", "Models", values_of(series, "model"))],
        references=[NULL_AT_ONE],
        zones=context.zones,
    )


def artefact(subject: Subject) -> str | None:
    """What the weight view shows before anything was learned, in words."""
    start = {
        (view, null): summarise(
            (r for r in subject.main("enrichment", view=view, null=null) if r["step"] == 0), ratio=True
        )
        for view in PAIR
        for null in ("haar", "pairing")
    }
    weight, representation, paired = (
        start["weight", "haar"],
        start["representation", "haar"],
        start["weight", "pairing"],
    )
    if weight is None or weight.y is None:
        return None
    text = f"{subject.label}, before training: the weight view has {number(weight.y)} over `haar`"
    if representation is not None:
        text += f", the representation view {number(representation.y)}"
    if paired is not None:
        text += f"; over `pairing` the weight view has {number(paired.y)}"
    if weight.low is not None and weight.low > 1:
        return f"{text} (median layer). No step was taken yet, so what exceeds 1 over `haar` was not learned."
    return (
        f"{text} (median layer). Its interval over `haar` does not lie above 1, so no artefact of construction is seen."
    )


def depleted_end(subject: Subject) -> str | None:
    """Explain a last layer that lies below 1 at the last observation."""
    rows = [row for row in subject.main("enrichment", view="representation", null="haar") if row["step"]]
    if not rows:
        return None
    step, layer = max(row["step"] for row in rows), max(row["layer"] for row in rows)
    end = summarise((r for r in rows if r["step"] == step and r["layer"] == layer), ratio=True)
    if end is None or end.high is None or end.high >= 1:
        return None
    radial = summarise(
        row for row in subject.main("radial", view="representation") if row["step"] == step and row["layer"] == layer
    )
    share = f" (its share of the energy is {number(radial.y)} here)" if radial is not None else ""
    return (
        f"At the last layer of {subject.label}, enrichment over `haar` is {interval(end.y, end.low, end.high)} at step "
        f"{step:,}. The normalisation that follows lets hardly any gradient pass along the activation itself{share}, "
        "and the proxy consists of activation directions, so some depletion is expected there without any learning."
    )


def turns(subject: Subject) -> list[str]:
    """Explain stretches in which the median over layers of the weight view lies below 1 over ``haar``."""
    if subject.proxy != "pca":
        return []
    below = _below_one(subject.main("enrichment", view="weight", null="haar"))
    if not below:
        return []
    svd = [r for r in subject.main("enrichment", view="weight", null="haar", proxy="svd") if r["step"] in below]
    other = summarise(svd, ratio=True)
    when = (
        f"step {below[0]:,}"
        if len(below) == 1
        else f"{len(below)} observations between steps {below[0]:,} and {below[-1]:,}"
    )
    text = (
        f"In the weight view of {subject.label}, the median layer's enrichment over `haar` is below 1 at {when}. One "
        "reason may be that centred `pca` removes the mean before it finds directions: while nearly all inputs "
        "lie along their mean direction, so does G = Σ δxᵀ, and that direction is not in the proxy."
    )
    if other is None or other.y is None:
        return [f"{text} There are no rows of uncentred `svd`, which keeps the mean, to check this with."]
    if other.y > 1:
        return [
            f"{text} Uncentred `svd`, which keeps the mean, has {number(other.y)} at the same steps, which agrees "
            "with that."
        ]
    return [
        f"{text} But uncentred `svd`, which keeps the mean, has {number(other.y)} there too, which does not agree "
        "with that."
    ]


def _below_one(rows: list[Row]) -> list[int]:
    steps: dict[int, list[Row]] = {}
    for row in defined(rows):
        steps.setdefault(row["step"], []).append(row)
    medians = {step: summarise(group, ratio=True) for step, group in steps.items()}
    return sorted(step for step, at in medians.items() if at is not None and at.y is not None and at.y < 1)
