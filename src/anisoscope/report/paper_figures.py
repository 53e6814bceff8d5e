"""The figures of a report for papers, drawn by matplotlib from the same view tree as the page."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Literal

from anisoscope.errors import AnisoscopeError, broken
from anisoscope.report.formatting import number
from anisoscope.report.names import KEYS, short_of, word_of, worded
from anisoscope.report.summary import CROWD
from anisoscope.report.tex import tex
from anisoscope.report.tree import Figure, LadderFigure, Point, Report, Series, Track, values_of
from anisoscope.vocabulary import OUTCOMES

Format = Literal["pdf", "svg", "png"]
Width = Literal["auto", "column", "page"]
HUES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#000000", "#8a8f96")
"""The colours of Okabe and Ito, which the colour-blind tell apart, in an order that keeps the first six far apart."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""A shape beside each hue, so that lines can be told apart in grey too."""
FEW = 8
DASHES = ("-", "--", ":", "-.")
WIDTHS = {"column": 3.25, "page": 6.75}
"""Widths in inches: of one column of a paper, and of both."""
_STYLE: dict[Any, Any] = {
    "font.size": 7,
    "axes.labelsize": 7,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 7.5,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "svg.fonttype": "path",  # a reader need not have the font
    "pdf.fonttype": 42,
    "svg.hashsalt": "anisoscope",
}


def draw_figures(
    report: Report, *, forms: Sequence[Format] = ("pdf",), width: Width = "auto", style: str | None = None
) -> Iterator[tuple[str, bytes]]:
    """Names and contents of files: one a figure, or one for each value of its first choice, with its caption as .tex.

    ``width`` is that of a column, of a page, or (auto) of what the panels need. ``style`` is a style file of matplotlib
    or the name of one; it overrules what is set here.
    """
    context = _styled(style)
    for figure in report.figures():
        for name, part in figure_parts(figure):
            with context(), warnings.catch_warnings():
                # A token or name in a script that the font lacks is drawn as a box; that is no reason to fail.
                warnings.filterwarnings("ignore", message=".*missing from.*font", category=UserWarning)
                for form in forms:
                    yield f"{name}.{form}", _drawn(part, form, width)
            yield f"{name}.tex", caption_tex(name, part).encode()


def figure_of(figure: Figure, *, width: Width = "auto", style: str | None = None) -> Any:
    """A figure as matplotlib has it, to be shown or changed further."""
    with _styled(style)():
        return _sheet(figure, width)


def _drawn(figure: Figure | LadderFigure, form: Format, width: Width) -> bytes:
    return _saved(_sheet(figure, width), form)


def _sheet(figure: Figure | LadderFigure, width: Width) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Sheet

    sheet = Sheet(layout="constrained")
    FigureCanvasAgg(sheet)
    if isinstance(figure, LadderFigure):
        _ladder(sheet, figure, WIDTHS["page" if width == "auto" else width])
    else:
        _chart(sheet, figure, width)
    return sheet


def _styled(style: str | None) -> Callable[[], AbstractContextManager[Any]]:
    """Settings of matplotlib while figures are drawn."""
    try:
        import matplotlib
        from matplotlib import style as styles
    except ImportError as error:
        raise AnisoscopeError('figures need matplotlib; run: pip install "anisoscope[report]"') from error
    with matplotlib.rc_context():
        try:
            styles.use([_STYLE, *([style] if style else [])])
        except (OSError, ValueError) as error:
            hint = "name a file of matplotlib settings, or one of matplotlib.style.available"
            raise broken("--style must be a style that matplotlib can read", style, hint) from error
        settings = matplotlib.rcParams.copy()
    return lambda: matplotlib.rc_context(settings)


def caption_tex(name: str, figure: Figure | LadderFigure) -> str:
    """A caption with a label; a paper reads it by input, below the figure that it includes."""
    text = tex(worded(figure.caption))
    return f"\\caption{{\\textbf{{{tex(figure.title)}.}} {text}}}\n\\label{{fig:anisoscope-{name}}}\n"


def _saved(sheet: Any, form: Format) -> bytes:
    content = io.BytesIO()
    # Without a date, the same run gives the same file.
    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[form]
    sheet.savefig(content, format=form, dpi=200, metadata=undated)
    return content.getvalue()


def figure_parts(figure: Figure | LadderFigure) -> Iterator[tuple[str, Figure | LadderFigure]]:
    """A figure for each value of its first choice, the other choices as they are at first."""
    own = [control for control in figure.choose if not control.page]
    first = own[0] if own else None
    rest = {control.key: control.selected for control in figure.choose if control is not first}
    # Of a slider, paper shows one position.
    for value in [None] if first is None else [first.selected] if first.words else first.values:
        wanted = rest if first is None else rest | {first.key: value}
        name = figure.id if value is None else f"{figure.id}-{_slug(value)}"
        if isinstance(figure, LadderFigure):
            tracks = [t for t in figure.tracks if _matches(t, wanted)]
            if tracks:
                yield name, replace(figure, tracks=tracks)
        else:
            series = [s for s in figure.series if _matches(s, wanted)]
            references = [r for r in figure.references if all(wanted.get(k, v) == v for k, v in r.when.items())]
            if any(not s.null for s in series):
                label = figure.y.label if "key" not in figure.y.by or value is None else _named(figure, value)
                yield name, replace(figure, series=series, references=references, y=replace(figure.y, label=label))


def _slug(words: str) -> str:
    """A choice as part of a file's name: plain letters, the same on every system.

    >>> _slug("tangent over normal, γᵀ/γᴺ"), _slug("IsoScore*"), _slug("targets-uniform")
    ('tangent-over-normal', 'isoscore-star', 'targets-uniform')
    """
    return "-".join(re.findall(r"[a-z0-9]+", words.lower().replace("*", " star"))) or "other"


def _named(figure: Figure, value: str) -> str:
    return figure.y.label if value == "enrichment" else "energy share" if value == "energy" else value


def _matches(item: Series | Track, wanted: dict[str, str | None]) -> bool:
    return all(item.tags.get(key, value) == value for key, value in wanted.items())


def _chart(sheet: Any, figure: Figure, width: Width) -> None:
    panels = values_of(figure.series, figure.panel) if figure.panel else [None]
    across = width if width != "auto" else "column" if len(panels) == 1 else "page"
    columns = min(len(panels), 2) if across == "page" else 1
    rows = -(-len(panels) // columns)
    inches = WIDTHS[across]
    names = max((len(name) for name in figure.x.categories or []), default=0)
    sheet.set_size_inches(inches, (2.1 + 0.05 * names if across == "column" else 2.5) * rows + 0.35)
    axes = sheet.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
    colours = _colours(figure)
    dashes = values_of(figure.series, figure.dash) if figure.dash else []
    for at, panel in zip(axes, panels, strict=False):
        mine = [s for s in figure.series if panel is None or s.tags.get(figure.panel or "", panel) == panel]
        for i, s in enumerate(mine):
            colour = colours.get(s.tags.get(figure.colour, ""), "#80868d")
            beside = replace(s, points=_moved(s, i, len(mine))) if figure.x.categories else s
            _line(at, beside, colour, _marker_of(figure, s, colours), dashes, figure)
            if not s.null and len(mine) <= CROWD:
                _seeds(at, s, colour)
        for reference in figure.references:
            if panel is None or reference.when.get(figure.panel or "", panel) == panel:
                at.axhline(reference.y, color="#80868d", linestyle=(0, (5, 4)), linewidth=0.9, zorder=1)
                place = at.get_yaxis_transform()
                at.text(0.99, reference.y, _safe(reference.label), transform=place, ha="right", va="bottom", fontsize=6)
        for zone in figure.zones:
            at.axvspan(zone.low, zone.high, color="#f5f5f0", zorder=0, lw=0)
        if panel is not None:
            at.set_title(_safe(_named_value(figure.panel, panel)), loc="left", fontweight="bold")
        _scales(at, figure)
    for unused in axes[len(panels) :]:
        unused.set_visible(False)
    handles, names = _legend(figure, colours, dashes)
    longest = max((len(name) for name in names), default=1)
    fitting = int(inches * 15 / (longest + 6))  # some 15 characters an inch at this size
    sheet.legend(handles, names, loc="outside lower center", ncols=max(1, min(fitting, len(names))))


def _moved(s: Series, i: int, many: int) -> list[Point]:
    """Points of one category side by side."""
    shift = (i - (many - 1) / 2) * min(0.12, 0.7 / many)
    return [point._replace(x=point.x + shift) for point in s.points]


def _marker_of(figure: Figure, s: Series, colours: dict[str, str]) -> str:
    """Layers run from dark to light, which grey shows too; all else has a shape of its own."""
    value = s.tags.get(figure.colour, "")
    return MARKERS[list(colours).index(value) % len(MARKERS)] if figure.colour != "layer" and value in colours else "o"


def _line(at: Any, s: Series, colour: str, marker: str, dashes: list[str], figure: Figure) -> None:
    known = [p for p in s.points if p.y is not None]
    x, y = [p.x for p in known], [p.y for p in known]
    style = "--" if s.null else DASHES[max(dashes.index(s.tags[figure.dash]), 0) % 4] if figure.dash else "-"
    if figure.x.categories:
        low = [max(p.y - p.low, 0) if p.y is not None and p.low is not None else 0 for p in known]
        high = [max(p.high - p.y, 0) if p.y is not None and p.high is not None else 0 for p in known]
        hollow = {"markerfacecolor": "white"} if style != "-" else {}
        at.errorbar(x, y, yerr=[low, high], fmt=marker, color=colour, markersize=3.5, linewidth=1, **hollow)
        return
    style = "" if s.scattered else style
    at.plot(x, y, style, color=colour, linewidth=1.1, marker=None if s.null else marker, markersize=2.2)
    barred = [p for p in known if p.low is not None and p.high is not None]
    if len(barred) > 1 and not s.null:
        at.fill_between(
            [p.x for p in barred], [p.low for p in barred], [p.high for p in barred], color=colour, alpha=0.13, lw=0
        )


def _seeds(at: Any, s: Series, colour: str) -> None:
    """A small dot a seed, through it a thin line: the interval within that seed."""
    each = [(p.x, *seed[:3]) for p in s.points for seed in p.seeds]
    at.plot([x for x, *_ in each], [y for _, y, *_ in each], ".", color=colour, markersize=1.5, alpha=0.6)
    ends = [(x, low, high) for x, _, low, high in each if low is not None and high is not None]
    if ends:
        at.vlines(*zip(*ends, strict=True), color=colour, linewidth=0.4, alpha=0.6)


def _scales(at: Any, figure: Figure) -> None:
    at.set_xlabel(_safe(figure.x.label))
    at.set_ylabel(_safe(figure.y.label), fontsize=7)
    places = sorted({p.x for s in figure.series for p in s.points})
    positive = all(p.y is None or p.y > 0 for s in figure.series for p in s.points)
    if figure.y.log and positive:
        from matplotlib.ticker import LogLocator

        at.set_yscale("log")
        at.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=8))
        at.yaxis.set_major_formatter(lambda value, _: number(value))
        at.yaxis.set_minor_formatter(lambda value, _: "")
    if figure.x.categories:
        at.set_xticks(range(len(figure.x.categories)), [_safe(c) for c in figure.x.categories], rotation=30, ha="right")
    elif figure.x.log and len(places) <= FEW:
        at.set_xscale("log")
        at.set_xticks(places, [number(x) for x in places])
        at.minorticks_off()
    elif figure.x.log:
        smallest = min((p.x for s in figure.series for p in s.points if p.x > 0), default=1)
        at.set_xscale("symlog", linthresh=smallest, linscale=0.3)
        at.set_xlim(-0.2 * smallest, 1.15 * max(places, default=1))
        at.xaxis.set_major_formatter(lambda value, _: number(value))
    elif figure.x.label.startswith("layer"):
        from matplotlib.ticker import MaxNLocator

        at.xaxis.set_major_locator(MaxNLocator(integer=True))


def _legend(figure: Figure, colours: dict[str, str], dashes: list[str]) -> tuple[list[Any], list[str]]:
    from matplotlib.lines import Line2D

    shapes = MARKERS if figure.colour != "layer" else ("o",)
    handles = [
        Line2D([], [], color=colour, marker=shapes[i % len(shapes)], markersize=3)
        for i, colour in enumerate(colours.values())
    ]
    plain = figure.colour == "layer"
    names = [
        _safe(f"layer {name}" if plain and name[:1].isdigit() else _named_value(figure.colour, name))
        for name in colours
    ]
    handles += [Line2D([], [], color="#555555", linestyle=DASHES[i % 4]) for i in range(len(dashes))]
    return handles, names + [_safe(name) for name in dashes]


def _colours(figure: Figure) -> dict[str, str]:
    import matplotlib
    from matplotlib.colors import to_hex

    values = values_of(figure.series, figure.colour)
    if figure.colour != "layer":
        roles = list(dict.fromkeys(map(_role, values) if figure.colour == "model" else values))
        places = [_role(value) if figure.colour == "model" else value for value in values]
        return {value: HUES[roles.index(at) % len(HUES)] for value, at in zip(values, places, strict=True)}
    layers = sorted((value for value in values if value != "median"), key=_layer_number)
    ramp = matplotlib.colormaps["viridis"]
    found = {v: to_hex(ramp(0.88 * i / max(len(layers) - 1, 1))) for i, v in enumerate(layers)}
    return found | ({"median": "#000000"} if "median" in values else {})


def _role(model: str) -> str:
    """A model of one run among several has the colour of its role in every run."""
    return model.rpartition(" · ")[2]


def _layer_number(label: str) -> tuple[float, str]:
    """Layers by number, whatever stands around it; what has none comes last."""
    found = re.search(r"\d+", label)
    return (float(found.group()) if found else math.inf, label)


def _marker(status: str) -> str:
    outcome = OUTCOMES[status]
    return f"${outcome.glyph}$" if outcome.glyph else {"circle": "o", "triangle": "v"}[outcome.mark]


def _ladder(sheet: Any, figure: LadderFigure, inches: float) -> None:
    """A row a track, a column a null; the thick line ends at the verdict."""
    tracks = figure.tracks
    nulls = [node.null for node in tracks[0].nodes]
    sheet.set_size_inches(inches, 0.55 * len(tracks) + 0.8)
    at = sheet.subplots()
    for row, track in enumerate(tracks):
        reached = nulls.index(track.last) if track.last in nulls else -1
        at.plot(range(len(nulls)), [row] * len(nulls), color="#cccccc", linestyle=":", zorder=1)
        at.plot(range(reached + 1), [row] * (reached + 1), color=HUES[0], linewidth=3, zorder=2)
        for x, node in enumerate(track.nodes):
            face = HUES[0] if node.status == "above" and x <= reached else "white"
            edge = {"above": HUES[0], "below": HUES[1]}.get(node.status, "#666666")
            style = {"markerfacecolor": face, "markeredgecolor": edge, "markersize": 7, "zorder": 3}
            at.plot(x, row, linestyle="", marker=_marker(node.status), **style)
            at.text(
                x, row + 0.3, f"{number(node.value)}×" if node.value is not None else "–", ha="center", fontsize=6.5
            )
    narrow = {"rotation": 30, "ha": "right"} if inches < WIDTHS["page"] else {}
    at.set_xticks(range(len(nulls)), [_safe(short_of(null)) for null in nulls], **narrow)
    at.set_yticks(range(len(tracks)), [_safe(track.label) for track in tracks])
    at.set_ylim(len(tracks) - 0.4, -0.6)
    at.tick_params(length=0)
    for spine in at.spines.values():
        spine.set_visible(False)


def _named_value(key: str | None, value: str) -> str:
    """A value of a tag in words."""
    return word_of(value) if key in KEYS else value


def _safe(text: str) -> str:
    """Text that is no formula."""
    return text.replace("$", r"\$")
