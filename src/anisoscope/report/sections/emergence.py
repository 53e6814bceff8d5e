"""How enrichment emerges over training, per layer, and what the models learned meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from anisoscope.report.formatting import number
from anisoscope.report.names import word_of
from anisoscope.report.reading import Context, Row, Subject
from anisoscope.report.summary import errors, over_training
from anisoscope.report.tree import Axis, Block, Control, Figure, Gap, Reference, Section, Series, Text, values_of
from anisoscope.vocabulary import MAIN_TENSOR, NULLS, PROXIES, SUBSETS, VIEWS, rank_of

ENRICHMENT = "enrichment (odds ratio)"
EMERGENCE = "How enrichment emerges over training"
NULL_AT_ONE = Reference(1.0, "null: 1")
Fit = tuple[str, str, str]


def emergence_section(context: Context, view: str = "representation") -> Section:
    """Curves over training."""
    if not context.drawn:
        return Section("emergence", EMERGENCE, [Gap("emergence"), Gap("loss")], _finding(context, view))
    series = [s for subject in context.subjects for s in _curves(context, subject)]
    nothing = Text("The run has no enrichment rows to follow over training.")
    blocks: list[Block] = [_emergence(context, series) if series else nothing]
    loss = _loss(context)
    blocks.append(loss if loss is not None else Text("The run has no rows of the loss."))
    return Section("emergence", EMERGENCE, blocks, _finding(context, view))


def _finding(context: Context, view: str) -> str:
    """First, highest and last: the median over layers over random directions."""
    parts = []
    for subject in context.subjects:
        rows = subject.main("enrichment", view=view, null="haar")
        known = [point for point in over_training(context, subject, rows, ratio=True) if point.y is not None]
        if known:
            top = max(known, key=lambda point: point.y or 0.0)
            ends = f"{number(known[0].y)} at first, {number(known[-1].y)} at the end"
            parts.append(f"{subject.label} {ends}, at most {number(top.y)} (at {number(top.x)})")
    return f"Over random directions: {'; '.join(parts)}." if parts else ""


def _curves(context: Context, subject: Subject) -> list[Series]:
    """Every combination that was measured: view, null, proxy (with timing and tokens), layer."""
    groups: dict[tuple[str, str, Fit, str], list[Row]] = {}
    for row in subject.by_measure.get("enrichment", []):
        fit = fit_of(row)
        if (
            fit is None
            or row["layer"] is None
            or row["view"] not in VIEWS
            or row["tensor"] != MAIN_TENSOR
            or row["null"] not in NULLS
        ):
            continue
        # Ranks of the ablation have their own figure; the mean direction has rank 1 by its nature.
        if rank_of(row) == (_fixed_rank(row["proxy"]) or subject.rank):
            groups.setdefault((row["view"], row["null"], fit, subject.layer_label(row)), []).append(row)
    usual = usual_fit(subject)
    views = {view: i for i, view in enumerate(VIEWS)}
    order = sorted(groups, key=lambda k: (views[k[0]], list(NULLS).index(k[1]), k[2] != usual, k[2], layer_order(k[3])))
    found = []
    for key in order:
        view, null, fit, layer = key
        tags = {"model": subject.label, "view": view, "null": null, **fit_tags(fit), "layer": layer}
        points = over_training(context, subject, groups[key], ratio=True)
        if points:
            found.append(Series(f"{subject.label}, layer {layer}", tags, points))
    return found


def _fixed_rank(proxy: str) -> int | None:
    return PROXIES[proxy].rank if proxy in PROXIES else None


def fit_of(row: Row) -> Fit | None:
    """A proxy with its timing and tokens, as a reader chooses it."""
    if row["proxy"] is None or row["timing"] is None or row["subset"] not in SUBSETS:
        return None
    return row["proxy"], row["timing"], SUBSETS[row["subset"]]


def fit_tags(fit: Fit) -> dict[str, str]:
    """The same as tags of a series."""
    return dict(zip(("proxy", "timing", "subset"), fit, strict=True))


def fit_controls(series: list[Series], subject: Subject) -> list[Control]:
    """Choices of proxy, timing and tokens, as the page begins with them."""
    usual, labels = fit_tags(usual_fit(subject)), {"proxy": "Proxy", "timing": "Timing", "subset": "Tokens"}
    values = {key: values_of(series, key) for key in usual}
    return [Control(key, labels[key], values[key], chosen(values[key], usual[key])) for key in usual]


def usual_fit(subject: Subject) -> Fit:
    """The proxy that the verdict rests on."""
    return subject.proxy, subject.timing, SUBSETS.get(subject.subset, subject.subset)


def chosen(values: Sequence[str], wanted: str) -> str | None:
    """The wanted value if it is there, else the first."""
    return wanted if wanted in values else next(iter(values), None)


def layers_of(series: list[Series]) -> list[str]:
    """Layers that occur, in order."""
    return sorted(values_of(series, "layer"), key=layer_order)


def layer_order(label: str) -> tuple[int, str]:
    """Layers by number, then by module."""
    number, _, module = label.partition(" ")
    return int(number), module


def _emergence(context: Context, series: list[Series]) -> Figure:
    views = values_of(series, "view")
    nulls = [null for null in NULLS if null in values_of(series, "null")]
    controls = [
        Control("null", "Null", nulls, chosen(nulls, "haar")),
        Control("view", "View", views, chosen(views, "representation")),
        *fit_controls(series, context.subjects[0]),
    ]
    start = {c.key: c.selected for c in controls}
    shown = [s for s in series if all(s.tags[key] == value for key, value in start.items())]
    highest = max((p.y for s in shown for p in s.points if p.y is not None), default=None)
    models = values_of(series, "model")
    return Figure(
        "emergence",
        "Enrichment over training, layer by layer",
        "Enrichment: odds ratio of the gradient's energy share inside the proxy over that of the chosen null; 1 "
        "(dashed) is the null itself. A rolling proxy is refitted at each observation on one fold of sequences and "
        "judged on the other; an anchored one is fitted on the first 30 % of training, frozen, and judged only "
        "later. Layer 0 is what enters the first block. "
        f"{errors(context)} Over `init`, there is no number at step 0, "
        "which is that null itself.",
        f"Enrichment over {word_of(str(start['null']))} against {context.x_label}, one line per layer, for "
        f"{' and '.join(models)}; the highest value is {number(highest)}, the null is 1.",
        Axis(context.x_label, log=context.x_log),
        Axis(ENRICHMENT, log=True),
        series,
        colour="layer",
        panel="model",
        choose=[c for c in controls if len(c.values) > 1],
        toggle=[Control("layer", "Layers", layers_of(series)), Control("model", "Models", models)],
        references=[NULL_AT_ONE],
        zones=context.zones,
    )


def _loss(context: Context) -> Figure | None:
    series, references = [], []
    for subject in context.subjects:
        for kind in ("train", "held-out"):
            points = over_training(context, subject, subject.pick("loss", variant=kind))
            if points:
                tags = {"model": subject.label, "loss": kind}
                series.append(Series(f"{subject.label}, {kind}", tags, points))
        if subject.unigram_entropy is not None:
            references.append((round(subject.unigram_entropy, 3), subject.label))
    if not series:
        return None
    levels = {level: [name for at, name in references if at == level] for level, _ in references}
    shared = len(levels) == 1
    lines = [
        Reference(at, "unigram entropy" if shared else f"unigram entropy ({', '.join(names)})")
        for at, names in levels.items()
    ]
    ends = "; ".join(f"{s.label} ends at {number(s.points[-1].y)}" for s in series)
    return Figure(
        "loss",
        "Loss",
        "Cross-entropy in nats per predicted token; solid: training batches, dashed: held-out text. The null (grey, "
        "dashed) is the unigram entropy of the corpus: the loss of a model that knows only how often each token "
        "occurs. A masked model predicts different positions than a causal one, so their losses are not comparable "
        "with "
        "each other. " + (errors(context, ratio=False) if context.seeded > 1 else "One seed, so no bands."),
        f"Loss over training: {ends}.",
        Axis(context.x_label, log=context.x_log),
        Axis("loss (nats per token)"),
        series,
        colour="model",
        dash="loss",
        toggle=[
            Control("model", "Models", values_of(series, "model")),
            Control("loss", "Text", values_of(series, "loss")),
        ],
        references=lines,
        zones=context.zones,
    )
