"""The figures of a report for papers, drawn by matplotlib from the same view tree as the page."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from anisoscope.errors import AnisoscopeError
from anisoscope.report.summary import CROWD
from anisoscope.report.tree import Figure, LadderFigure, Report, Series, Track, values_of
from anisoscope.report.words import number
from anisoscope.vocabulary import OUTCOMES

Format = Literal["pdf", "svg", "png"]
HUES = ("#0b62a4", "#c8501a", "#00855f", "#9a4f96", "#8a6d00", "#4d5560", "#00809c", "#a3263f")
FEW = 8
DASHES = ("-", "--", ":", "-.")
_STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 8,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "svg.hashsalt": "anisoscope",
}


def draw_figures(report: Report, *, form: Format = "pdf") -> Iterator[tuple[str, bytes]]:
    """Names and contents of files: one a figure, or one for each value of its first choice."""
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Sheet
    except ImportError as error:
        raise AnisoscopeError('figures need matplotlib; run: pip install "anisoscope[report]"') from error
    for figure in report.figures():
        for name, part in _parts(figure):
            with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
                # A token or name in a script that the font lacks is drawn as a box; that is no reason to fail.
                warnings.filterwarnings("ignore", message=".*missing from.*font", category=UserWarning)
                sheet = Sheet(layout="constrained")
                FigureCanvasAgg(sheet)
                if isinstance(part, LadderFigure):
                    _ladder(sheet, part)
                else:
                    _chart(sheet, part)
                yield f"{name}.{form}", _saved(sheet, form)


def _saved(sheet: Any, form: Format) -> bytes:
    content = io.BytesIO()
    # Without a date, the same run gives the same file.
    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[form]
    sheet.savefig(content, format=form, dpi=200, metadata=undated)
    return content.getvalue()


def _parts(figure: Figure | LadderFigure) -> Iterator[tuple[str, Figure | LadderFigure]]:
    """A figure for each value of its first choice, the other choices as they are at first."""
    first = figure.choose[0] if figure.choose else None
    rest = {control.key: control.selected for control in figure.choose[1:]}
    # Of a slider, paper shows one position.
    for value in [None] if first is None else [first.selected] if first.words else first.values:
        wanted = rest if first is None else {first.key: value, **rest}
        name = (
            figure.id if value is None else f"{figure.id}-{''.join(c if c.isalnum() else '-' for c in value).lower()}"
        )
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


def _named(figure: Figure, value: str) -> str:
    return figure.y.label if value == "enrichment" else "energy share" if value == "energy" else value


def _matches(item: Series | Track, wanted: dict[str, str | None]) -> bool:
    return all(item.tags.get(key, value) == value for key, value in wanted.items())


def _chart(sheet: Any, figure: Figure) -> None:
    panels = values_of(figure.series, figure.panel) if figure.panel else [None]
    columns = min(len(panels), 2)
    rows = -(-len(panels) // columns)
    sheet.set_size_inches(3.4 * columns, 2.7 * rows)
    axes = sheet.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
    colours = _colours(figure)
    dashes = values_of(figure.series, figure.dash) if figure.dash else []
    for at, panel in zip(axes, panels, strict=False):
        mine = [s for s in figure.series if panel is None or s.tags.get(figure.panel or "", panel) == panel]
        for s in mine:
            colour = colours.get(s.tags.get(figure.colour, ""), "#80868d")
            _line(at, s, colour, dashes, figure)
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
            at.set_title(_safe(panel), loc="left", fontweight="bold")
        _scales(at, figure)
    for unused in axes[len(panels) :]:
        unused.set_visible(False)
    handles, names = _legend(figure, colours, dashes)
    sheet.legend(handles, names, loc="outside lower center", ncols=3 if columns == 1 else 7)


def _line(at: Any, s: Series, colour: str, dashes: list[str], figure: Figure) -> None:
    known = [p for p in s.points if p.y is not None]
    x, y = [p.x for p in known], [p.y for p in known]
    style = "--" if s.null else DASHES[max(dashes.index(s.tags[figure.dash]), 0) % 4] if figure.dash else "-"
    if figure.x.categories:
        low = [max(p.y - p.low, 0) if p.y is not None and p.low is not None else 0 for p in known]
        high = [max(p.high - p.y, 0) if p.y is not None and p.high is not None else 0 for p in known]
        hollow = {"markerfacecolor": "white"} if style != "-" else {}
        at.errorbar(x, y, yerr=[low, high], fmt="o", color=colour, markersize=4, linewidth=1, **hollow)
        return
    style = "" if s.scattered else style
    at.plot(x, y, style, color=colour, linewidth=1.1, marker=None if s.null else "o", markersize=2)
    barred = [p for p in known if p.low is not None and p.high is not None]
    if len(barred) > 1 and not s.null:
        at.fill_between(
            [p.x for p in barred], [p.low for p in barred], [p.high for p in barred], color=colour, alpha=0.13, lw=0
        )


def _seeds(at: Any, s: Series, colour: str) -> None:
    """A small dot a seed, through it a thin line: the interval within that seed."""
    each = [(p.x, *seed) for p in s.points for seed in p.seeds]
    at.plot([x for x, *_ in each], [y for _, y, *_ in each], ".", color=colour, markersize=1.5, alpha=0.6)
    ends = [(x, low, high) for x, _, low, high in each if low is not None and high is not None]
    if ends:
        at.vlines(*zip(*ends, strict=True), color=colour, linewidth=0.4, alpha=0.6)


def _scales(at: Any, figure: Figure) -> None:
    at.set_xlabel(_safe(figure.x.label))
    at.set_ylabel(_safe(figure.y.label), fontsize=7)
    positive = all(p.y is None or p.y > 0 for s in figure.series for p in s.points)
    if figure.y.log and positive:
        from matplotlib.ticker import LogLocator

        at.set_yscale("log")
        at.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=8))
        at.yaxis.set_major_formatter(lambda value, _: number(value))
        at.yaxis.set_minor_formatter(lambda value, _: "")
    if figure.x.categories:
        at.set_xticks(range(len(figure.x.categories)), [_safe(c) for c in figure.x.categories], rotation=30, ha="right")
    elif figure.x.log and len(places := sorted({p.x for s in figure.series for p in s.points})) <= FEW:
        at.set_xscale("log")
        at.set_xticks(places, [number(x) for x in places])
        at.minorticks_off()
    elif figure.x.log:
        smallest = min((p.x for s in figure.series for p in s.points if p.x > 0), default=1)
        at.set_xscale("symlog", linthresh=smallest, linscale=0.3)
        at.xaxis.set_major_formatter(lambda value, _: number(value))


def _legend(figure: Figure, colours: dict[str, str], dashes: list[str]) -> tuple[list[Any], list[str]]:
    from matplotlib.lines import Line2D

    layer = "layer " if figure.colour == "layer" else ""
    handles = [Line2D([], [], color=colour) for colour in colours.values()]
    names = [_safe(name if name == "median" else f"{layer}{name}") for name in colours]
    handles += [Line2D([], [], color="#555555", linestyle=DASHES[i % 4]) for i in range(len(dashes))]
    return handles, names + [_safe(name) for name in dashes]


def _colours(figure: Figure) -> dict[str, str]:
    import matplotlib
    from matplotlib.colors import to_hex

    values = values_of(figure.series, figure.colour)
    if figure.colour != "layer":
        return {value: HUES[i % len(HUES)] for i, value in enumerate(values)}
    layers = sorted((value for value in values if value != "median"), key=int)
    ramp = matplotlib.colormaps["viridis"]
    found = {v: to_hex(ramp(0.88 * i / max(len(layers) - 1, 1))) for i, v in enumerate(layers)}
    return found | ({"median": "#000000"} if "median" in values else {})


def _marker(status: str) -> str:
    outcome = OUTCOMES[status]
    return f"${outcome.glyph}$" if outcome.glyph else {"circle": "o", "triangle": "v"}[outcome.mark]


def _ladder(sheet: Any, figure: LadderFigure) -> None:
    """A row a track, a column a null; the thick line ends at the verdict."""
    tracks = figure.tracks
    nulls = [node.null for node in tracks[0].nodes]
    sheet.set_size_inches(6.8, 0.55 * len(tracks) + 0.8)
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
    at.set_xticks(range(len(nulls)), nulls)
    at.set_yticks(range(len(tracks)), [_safe(track.label) for track in tracks])
    at.set_ylim(len(tracks) - 0.4, -0.6)
    at.tick_params(length=0)
    for spine in at.spines.values():
        spine.set_visible(False)


def _safe(text: str) -> str:
    """Text that is no formula."""
    return text.replace("$", r"\$")
