"""Ablations: how rank and method change the result."""

from __future__ import annotations

from anisoscope.report.formatting import number
from anisoscope.report.names import word_of
from anisoscope.report.reading import Context, Subject
from anisoscope.report.sections.emergence import ENRICHMENT, NULL_AT_ONE, chosen
from anisoscope.report.sections.isotropy_profiles import observed_at
from anisoscope.report.summary import curve, errors, summarise
from anisoscope.report.tree import Axis, Block, Control, Figure, Gap, Point, Reference, Section, Series, Text, values_of
from anisoscope.vocabulary import PROXIES, VIEWS, WINDOWS, rank_of


def ablations_section(context: Context, view: str = "representation") -> Section:
    """Enrichment against rank, and by method."""
    if not context.drawn:
        return Section("ablations", "Ablations", [Gap("ranks"), Gap("methods")], _finding(context, view))
    blocks: list[Block] = []
    ranks = [s for subject in context.subjects for s in _by_rank(subject)]
    if max((len(s.points) for s in ranks), default=0) > 1:
        blocks.append(_rank_figure(context, ranks))
    else:
        blocks.append(Text("The run was judged at one rank only."))
    methods = _methods(context)
    blocks.append(methods if methods is not None else Text("The run was judged with one method only."))
    return Section("ablations", "Ablations", blocks, _finding(context, view))


def _finding(context: Context, view: str) -> str:
    """Each method at the end, over random directions."""
    parts = []
    for subject in context.subjects:
        used = [proxy for proxy in PROXIES if subject.main("enrichment", view=view, proxy=proxy)]
        found = {
            proxy: summarise(
                subject.window(subject.main("enrichment", view=view, null="haar", proxy=proxy), "late"),
                ratio=True,
            )
            for proxy in used
        }
        said = [f"{word_of(proxy)} {number(point.y)}" for proxy, point in found.items() if point is not None]
        if said:
            parts.append(f"{subject.label} {', '.join(said)}")
    return f"Late, over random directions: {'; '.join(parts)}." if parts else ""


def _by_rank(subject: Subject) -> list[Series]:
    found = []
    usual = {
        "view": "representation",
        "subset": "all",
        "timing": "rolling",
        "proxy": subject.proxy,
        "tensor": "gradients",
    }
    for measure, extra in (("enrichment", {"null": "haar"}), ("energy", {})):
        rows = [row for row in subject.pick(measure, **usual, **extra) if row["rank"] is not None]
        others = [row for row in rows if rank_of(row) != subject.rank and row["step"] is not None]
        for step in sorted(observed_at(subject, others).values()):
            points = curve((r for r in rows if r["step"] == step), lambda r: r["rank"], ratio=measure == "enrichment")
            tags = {"model": subject.label, "measure": measure, "step": f"step {step:,}"}
            found.append(Series(f"{subject.label}, step {step:,}", tags, points))
            if measure == "energy" and subject.width:
                floor = [Point(p.x, p.x / subject.width) for p in points]
                found.append(
                    Series("K/D, a random subspace", {"model": subject.label, "measure": measure}, floor, null=True)
                )
    return found


def _rank_figure(context: Context, series: list[Series]) -> Figure:
    steps = values_of(series, "step")
    return Figure(
        "ranks",
        "Over rank",
        "Enrichment over `haar` (odds ratio; the null is 1) and energy share (the null is K/D) of proxies of other "
        "ranks, representation view, refitted at each step, the median over layers. Enrichment falls with rank where "
        f"the leading directions carry the effect. {errors(context)} The interval is that of the median layer; the "
        "energy share has none within a seed.",
        f"Enrichment and energy share against rank at {', '.join(steps)}.",
        Axis("rank K", log=True),
        Axis("enrichment over random directions (odds ratio)", log=True, by={"key": "measure"}),
        series,
        colour="model",
        dash="step",
        choose=[Control("measure", "Measure", values_of(series, "measure"), "enrichment")],
        toggle=[
            Control("model", "Models", values_of(series, "model")),
            Control("step", "Steps", steps),
        ],
        references=[Reference(1.0, "null: 1", {"measure": "enrichment"})],
    )


def _methods(context: Context) -> Figure | None:
    kinds = sorted(
        {
            (row["proxy"] != "pca", row["proxy"], row["timing"] != "rolling", row["timing"])
            for subject in context.subjects
            for row in subject.by_measure.get("enrichment", [])
            if row["proxy"] and row["timing"]
        }
    )
    categories = [f"{word_of(proxy)}, {timing}" for _, proxy, _, timing in kinds]
    if len(categories) < 2:
        return None
    series = []
    for subject in context.subjects:
        for view in VIEWS:
            for null in dict.fromkeys(r["null"] for r in subject.main("enrichment", view=view) if r["null"]):
                for window in WINDOWS:
                    points = []
                    for x, (_, proxy, _, timing) in enumerate(kinds):
                        fixed = PROXIES[proxy].rank if proxy in PROXIES else None
                        rank = {} if fixed is None else {"rank": fixed}
                        rows = subject.main("enrichment", view=view, null=null, proxy=proxy, timing=timing, **rank)
                        point = summarise(subject.window(rows, window), float(x), ratio=True)
                        if point is not None:
                            points.append(point)
                    if points and null != "normal":
                        tags = {"model": subject.label, "view": view, "null": null, "window": window}
                        series.append(Series(f"{subject.label}, {window}", tags, points))
    if not series:
        return None
    nulls, views, windows = (values_of(series, key) for key in ("null", "view", "window"))
    return Figure(
        "methods",
        "Over method and timing",
        "Enrichment (odds ratio; the null, dashed, is 1) of proxies made by other methods: PCA centred, SVD "
        "uncentred, semi-NMF with codes ≥ 0, the mean direction only, random directions; rolling (refitted) or "
        "anchored (fitted on the first 30 % and frozen, so late only). The median over layers and observations of "
        f"the window. {errors(context)}",
        "Enrichment by method and timing, early and late.",
        Axis("method and timing", categories=categories),
        Axis(ENRICHMENT, log=True),
        series,
        colour="model",
        dash="window",
        choose=[
            Control("null", "Null", nulls, chosen(nulls, "haar")),
            Control("view", "View", views, chosen(views, "representation")),
        ],
        toggle=[
            Control("model", "Models", values_of(series, "model")),
            Control("window", "Window", windows),
        ],
        references=[NULL_AT_ONE],
    )
