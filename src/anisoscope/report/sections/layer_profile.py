"""One finished model by layer: isotropy and dimension with and without the tokens that decide them, and enrichment."""

from __future__ import annotations

from anisoscope.bell_rule import SMALLEST
from anisoscope.report.formatting import interval, listed, number
from anisoscope.report.names import word_of
from anisoscope.report.reading import Context, Row, Subject
from anisoscope.report.sections.emergence import ENRICHMENT, NULL_AT_ONE, Fit, chosen, fit_controls, fit_of, fit_tags
from anisoscope.report.sections.isotropy_profiles import definitions, no_effects
from anisoscope.report.summary import curve
from anisoscope.report.tree import (
    Axis,
    Block,
    Cell,
    Control,
    Figure,
    Gap,
    Point,
    Section,
    Series,
    Table,
    Text,
    Tone,
    values_of,
)
from anisoscope.vocabulary import MEASURES, NULLS, SUBSETS, VIEWS, Measure, rank_of

RULE = (
    "The rule: the peak is the layer with the largest mean over batches; its prominence is the peak minus the higher "
    "end, taken within each batch, with a 95 % interval (Student's t) over batches. A bell has its peak at an inner "
    "layer that exceeds both ends by more than the error of the difference, adjusted for the number of layers, and by "
    "at least 5 % of the largest size; a valley is the same upside down. Otherwise the profile is rising or falling if "
    "its ends differ by that much, flat if all of it lies within 5 % of the ends, and otherwise “cannot tell” "
    "(docs/report.md; docs/calibration.md says how often noise is called a bell). For the dimension, layers with less "
    "than half as many distinct vectors as others are left out."
)
SINK = (
    "The first position is an attention sink in many decoders: its activations can be many times larger than all "
    "others, and then a single token per sequence dominates measures of variance"
)
TWIN, TRAINED = 0, 1


def layer_profile_section(context: Context) -> Section:
    """The profile in words, drawn, and its shapes in a table."""
    series = [s for subject in context.subjects for s in _profiles(subject)]
    if not series:
        return Section("profile", "Layer profile", [Text("The run has no measures by layer yet.")])
    blocks: list[Block] = [text for subject in context.subjects for text in said(subject)]
    blocks.append(_figure(series))
    table = _shapes(context)
    if table is not None:
        blocks += [table, Text(RULE, small=True)]
    first = next((b for b in blocks if isinstance(b, Text)), None)
    finding = "" if first is None else f"{first.head} {first.text.split('. ')[0].rstrip('.')}."
    return Section("profile", "Layer profile", blocks, finding)


def enrichment_section(context: Context, view: str = "representation") -> Section:
    """Enrichment of every layer over every null."""
    if not context.drawn:
        return Section("enrichment", "Gradients by layer", [Gap("enrichment-layers")], _finding(context, view))
    series = [s for subject in context.subjects for s in _enrichments(subject)]
    if not series:
        return Section("enrichment", "Gradients by layer", [Text("No gradients were judged in this run.")])
    views = values_of(series, "view")
    nulls = [null for null in NULLS if null in values_of(series, "null")]
    controls = [
        Control("view", "View", views, chosen(views, "representation")),
        *fit_controls(series, context.subjects[0]),
    ]
    models = values_of(series, "model")
    figure = Figure(
        "enrichment-layers",
        "Enrichment by layer, over every null",
        "Odds ratio of the gradient's energy share inside the proxy over that of each null; 1 (dashed) is the null. "
        "The proxy is fitted on one fold of sequences and judged on the other. Bands and bars are 95 % intervals over "
        "sequences or documents. `init` is the untrained twin of the same configuration, on the same "
        "text.",
        f"Enrichment by layer over {', '.join(map(word_of, nulls))} for {listed(models)}.",
        Axis("layer (0: what enters the first block)", fixed=True),
        Axis(ENRICHMENT, log=True),
        series,
        colour="null",
        panel="model",
        choose=[c for c in controls if len(c.values) > 1],
        toggle=[Control("null", "Nulls", nulls), Control("model", "Models", models)],
        references=[NULL_AT_ONE],
    )
    return Section("enrichment", "Gradients by layer", [figure], _finding(context, view))


def _finding(context: Context, view: str) -> str:
    """The highest layer over random directions."""
    parts = []
    for subject in context.subjects:
        rows = [r for r in subject.main("enrichment", view=view, null="haar") if r["step"] == TRAINED]
        line = [point for point in curve(rows, lambda row: row["layer"], ratio=True) if point.y is not None]
        if line:
            top = max(line, key=lambda point: point.y or 0.0)
            parts.append(f"{subject.label} at most {number(top.y)} (layer {number(top.x)})")
    return f"Over random directions: {'; '.join(parts)}." if parts else ""


def _profiles(subject: Subject) -> list[Series]:
    found = []
    for word in MEASURES.values():
        for variant in word.in_rows() if word.shown else ():
            found += _variant(subject, word, variant)
    return found


def _variant(subject: Subject, word: Measure, variant: str | None) -> list[Series]:
    found = []
    rows = [row for row in subject.by_measure.get(word.name, []) if _of_profile(row, variant)]
    for subset, tokens in SUBSETS.items():
        tags = {"model": subject.label, "measure": word.variant_label(variant), "tokens": tokens}
        for step, null in ((TRAINED, False), (TWIN, True)):
            line = _by_layer([row for row in rows if row["subset"] == subset and row["step"] == step])
            if line:
                label = f"{subject.label}, {tokens}" + (", untrained twin" if null else "")
                found.append(Series(label, tags, line, null=null))
    return found


def _of_profile(row: Row, variant: str | None) -> bool:
    return row["tensor"] == "activations" and row["variant"] == variant


def _by_layer(rows: list[Row]) -> list[Point]:
    return curve(rows, lambda row: row["layer"])


def _enrichments(subject: Subject) -> list[Series]:
    groups: dict[tuple[str, Fit, str, str], list[Row]] = {}
    for row in subject.by_measure.get("enrichment", []):
        fit = fit_of(row)
        usual = row["step"] == TRAINED and row["tensor"] == "gradients" and row["layer"] is not None
        if fit is not None and usual and row["view"] in VIEWS and row["null"] in NULLS and rank_of(row) == subject.rank:
            groups.setdefault((row["view"], fit, row["null"], subject.map_label(row)), []).append(row)
    found = []
    order = sorted(groups, key=lambda k: (list(VIEWS).index(k[0]), k[1], list(NULLS).index(k[2]), k[3]))
    for view, fit, null, module in order:
        if null == "normal":  # equals the odds ratio over `haar` by definition
            continue
        line = curve(groups[view, fit, null, module], lambda row: row["layer"], ratio=True)
        if line:
            tags = {"model": subject.label, "view": view, **fit_tags(fit), "null": null}
            label = f"{subject.label}, over {word_of(null)}" + (f", {module}" if module else "")
            found.append(Series(label, tags, line))
    return found


def _figure(series: list[Series]) -> Figure:
    measures, models = values_of(series, "measure"), values_of(series, "model")
    return Figure(
        "layer-profile",
        "Every layer, with and without first positions and special tokens",
        f"{definitions(measures)} Every selection of tokens has the same number of vectors. Points are means over "
        "batches, bands and bars their 95 % intervals (Student's t). Dashed: the untrained twin of the same "
        "configuration, one batch.",
        f"Layer profiles of {listed(measures)} for {listed(models)}, by selection of tokens.",
        Axis("layer (0: what enters the first block)", fixed=True),
        Axis("value", by={"key": "measure"}),
        series,
        colour="tokens",
        panel="model",
        choose=[Control("measure", "Measure", measures, chosen(measures, "top share"))],
        toggle=[Control("tokens", "Tokens", values_of(series, "tokens")), Control("model", "Models", models)],
        references=no_effects(measures),
    )


def _shape_rows(subject: Subject) -> dict[tuple[str, str], tuple[Row, Row]]:
    """Prominence and peak by measure and selection of tokens."""
    peaks = {(r["variant"], r["subset"]): r for r in subject.by_measure.get("peak_layer", []) if r["step"] == TRAINED}
    return {
        key: (row, peaks[key])
        for row in subject.by_measure.get("prominence", [])
        if row["step"] == TRAINED and (key := (row["variant"], row["subset"])) in peaks
    }


def _shapes(context: Context) -> Table | None:
    rows = []
    for subject in context.subjects:
        for (measure, subset), (row, peak) in _shape_rows(subject).items():
            tone: Tone | None = "yes" if row["note"] == "bell" else None
            turned = row["note"] in ("bell", "valley")
            layers = f"{number(peak['low'])} to {number(peak['high'])} over batches"
            rows.append(
                [
                    Cell(_label(measure)),
                    Cell(subject.label),
                    Cell(SUBSETS.get(subset, subset)),
                    Cell(row["note"] or "–", tone=tone),
                    Cell(number(peak["value"]), layers),
                    Cell(interval(row["value"], row["low"], row["high"]) if turned else "–"),
                ]
            )
    caption = "Where each profile peaks (a valley: where it is lowest) and by how much; intervals are over batches."
    columns = ["measure", "model", "tokens", "shape", "peak layer", "prominence"]
    return Table("shapes", "The shape of the profile, measured", caption, columns, rows, heads=3) if rows else None


def _label(shaped: str) -> str:
    """A measure, with its variant after a comma where that is not the usual one."""
    measure, _, variant = shaped.partition(", ")
    return MEASURES[measure].variant_label(variant or None) if measure in MEASURES else shaped


def said(subject: Subject) -> list[Text]:
    """What the first position does to the profiles of dimension and top share (Razzhigaev et al. 2023)."""
    shapes, found = _shape_rows(subject), []
    for measure in ("two_nn", "top_share"):
        whole, later = shapes.get((measure, "all")), shapes.get((measure, "no-first"))
        if whole is None or later is None:
            continue
        words = MEASURES[measure].label
        with_first, without = whole[0]["note"], later[0]["note"]
        ratio, moves = _ratio(subject, measure), _moves(whole[1], later[1])
        if with_first == without and moves and with_first in ("bell", "valley"):
            text = (
                f"the profile of the {words} is a {with_first} with and without first positions, but not the same one: "
                f"it turns at layer {number(whole[1]['value'])} with them and at {number(later[1]['value'])} without. "
            )
            text += (
                f"{SINK}; here leaving it out changes a layer by a factor of up to {number(ratio)}." if ratio else SINK
            )
            found.append(Text(text, f"{subject.label}:", "open"))
            continue
        if with_first == without:
            text = f"the profile of the {words} is {_a(with_first)} with and without first positions."
            text += f" Leaving them out changes a layer by a factor of up to {number(ratio)}." if ratio else ""
            found.append(Text(text, f"{subject.label}:", "plain"))
            continue
        text = f"the profile of the {words} is {_a(with_first)} with first positions and {_a(without)} without them. "
        if ratio is not None and ratio <= 1 + SMALLEST:
            text += (
                f"But no layer changes by more than a factor of {ratio:.3f}: the names differ more than the curves do."
            )
        else:
            text += (
                f"Leaving them out changes a layer by a factor of up to {number(ratio)}. " if ratio is not None else ""
            )
            text += f"{SINK}."
        found.append(Text(text, f"{subject.label}:", "open"))
    return found


def _moves(a: Row, b: Row) -> bool:
    """Whether two peaks, of the means over batches, are more than a layer apart."""
    return abs(a["value"] - b["value"]) > 1


def _ratio(subject: Subject, measure: str) -> float | None:
    """By how much a layer changes at most when first positions go."""
    rows = [r for r in subject.by_measure.get(measure, []) if _of_profile(r, None) and r["step"] == TRAINED]
    whole, later = (
        {row["layer"]: row["value"] for row in rows if row["subset"] == subset} for subset in ("all", "no-first")
    )
    ratios = [max(whole[k] / later[k], later[k] / whole[k]) for k in whole if k in later and whole[k] and later[k]]
    return max(ratios, default=None)


def _a(word: str) -> str:
    if word == "cannot tell":
        return "of undecided shape"
    return f"a {word}" if word in ("bell", "valley") else word
