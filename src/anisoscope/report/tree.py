"""The view tree: what a page says, as plain values, before anything is drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

Tone = Literal["yes", "part", "no", "open", "plain"]


class Point(NamedTuple):
    """A number at a place, with its interval, the units it rests on and its adjusted p.

    ``seeds``, where there are several: value, low and high of each, the interval within that seed, and its number.
    """

    x: float
    y: float | None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    q: float | None = None
    seeds: tuple[tuple[float | None, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Series:
    """Points that belong together; ``tags`` say what they are, ``null`` that they are what others are compared with.

    Points that have no order are ``scattered``: no line joins them.
    """

    label: str
    tags: dict[str, str]
    points: list[Point]
    null: bool = False
    scattered: bool = False


@dataclass(frozen=True, slots=True)
class Control:
    """A tag that a reader can choose by (one value) or switch (several).

    With ``words``, what to say of each value, the choice is a slider; all sliders of one key move together. A choice of
    the ``page`` is made at its top alone.
    """

    key: str
    label: str
    values: list[str]
    selected: str | None = None
    words: list[str] = field(default_factory=list)
    page: bool = False


@dataclass(frozen=True, slots=True)
class Reference:
    """A level that the nulls predict; ``when`` limits it to chosen tags."""

    y: float
    label: str
    when: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Zone:
    """A stretch of the horizontal axis with a name."""

    low: float
    high: float
    label: str


@dataclass(frozen=True, slots=True)
class Axis:
    """What is along an axis; ``by`` names it by what is chosen, ``fixed`` forbids the other scale."""

    label: str
    log: bool = False
    categories: list[str] | None = None
    by: dict[str, str] = field(default_factory=dict)
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing and everything that is needed to read it."""

    id: str
    title: str
    caption: str
    alt: str
    x: Axis
    y: Axis
    series: list[Series]
    colour: str
    panel: str | None = None
    dash: str | None = None
    choose: list[Control] = field(default_factory=list)
    toggle: list[Control] = field(default_factory=list)
    references: list[Reference] = field(default_factory=list)
    zones: list[Zone] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Node:
    """One null, and the outcome over it."""

    null: str
    status: str
    value: float | None
    low: float | None
    high: float | None
    why: str


@dataclass(frozen=True, slots=True)
class Track:
    """One claim over the nulls in order: ``last`` is the last of them that it passes."""

    label: str
    tags: dict[str, str]
    last: str | None
    nodes: list[Node]


@dataclass(frozen=True, slots=True)
class LadderFigure:
    """Ladders of nulls, one track each."""

    id: str
    title: str
    caption: str
    alt: str
    tracks: list[Track]
    choose: list[Control]


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph; ``tone`` colours its edge, ``head`` stands before it in bold, ``small`` is for rules."""

    text: str
    head: str | None = None
    tone: Tone | None = None
    small: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table: a text, what stands small below it, and a tone."""

    text: str
    small: str | None = None
    tone: Tone | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells; those in the first ``heads`` columns head their row."""

    id: str
    title: str
    caption: str
    columns: list[str]
    rows: list[list[Cell]]
    heads: int = 1


@dataclass(frozen=True, slots=True)
class Concepts:
    """Concepts of one model and layer, each with its strongest tokens."""

    title: str
    items: list[tuple[str, list[tuple[str, float | None]]]]
    open: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """An outcome as a sign, with what a pointer or a screen reader is told, and where its evidence is.

    ``beyond``: what comes after the first null that is not passed, which does not count.
    """

    outcome: str
    number: str
    detail: str
    link: str
    choices: dict[str, str] = field(default_factory=dict)
    beyond: bool = False


@dataclass(frozen=True, slots=True)
class MarkTable:
    """Outcomes in rows and columns; columns are terms of the glossary, rows are named by what they are about."""

    id: str
    title: str
    caption: str
    columns: list[tuple[str, str]]
    rows: list[tuple[Cell, list[Mark | Cell]]]


@dataclass(frozen=True, slots=True)
class Gap:
    """The place of a drawing where only the words around it are wanted."""

    id: str


Block = Text | Table | Figure | LadderFigure | Concepts | MarkTable | Gap


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, a line of what was found, and what stands under it; folded unless it is ``open``."""

    id: str
    title: str
    blocks: list[Block]
    finding: str = ""
    open: bool = False


@dataclass(frozen=True, slots=True)
class Front:
    """What a page says under one set of choices: the answer, the ladder as signs, and what cannot be said.

    ``sections`` are the words of its folds under these choices, with a gap for every drawing; empty where they are
    those that the page begins with.
    """

    choices: dict[str, str]
    answer: Text
    ladder: MarkTable | None
    limits: list[str]
    note: str = ""
    sections: list[Section] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Report:
    """A whole page; ``fronts`` are what it says, one for each set of choices, the first as the page begins."""

    title: str
    subtitle: str
    status: list[Text]
    sections: list[Section]
    fronts: list[Front] = field(default_factory=list)
    figure: Figure | None = None
    choices: list[Control] = field(default_factory=list)
    live: bool = False

    def figures(self) -> list[Figure | LadderFigure]:
        """All that is drawn, in the order of the page."""
        first = [] if self.figure is None else [self.figure]
        return first + [b for section in self.sections for b in section.blocks if isinstance(b, Figure | LadderFigure)]


def values_of(series: Iterable[Series], key: str) -> list[str]:
    """The values of a tag, in the order in which they first come."""
    return list(dict.fromkeys(s.tags[key] for s in series if key in s.tags and not s.null))


def plain(value: Any) -> Any:
    """Dataclasses as JSON knows them; numbers keep four digits, and those that are not finite are null."""
    if isinstance(value, Point):
        kept = [
            _precise(value.x),
            *map(_rounded, value[1:-1]),
            [_trimmed(map(_rounded, seed), 1) for seed in value.seeds] or None,
        ]
        return _trimmed(kept, 2)
    if hasattr(value, "__dataclass_fields__"):
        named = {name: getattr(value, name) for name in value.__dataclass_fields__}
        return {name: plain(part) for name, part in named.items() if not _empty(part)}
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return _rounded(value)


def packed(figure: Figure | LadderFigure) -> dict[str, Any]:
    """A figure as JSON knows it, with every word of its series once: a series is its words by place, and its points."""
    made = plain(replace(figure, series=[]) if isinstance(figure, Figure) else replace(figure, tracks=[]))
    if isinstance(figure, LadderFigure):
        made |= _packed_tracks(figure.tracks)
    if isinstance(figure, Figure):
        places: dict[str, int] = {}
        keys = list(dict.fromkeys(key for s in figure.series for key in s.tags))

        def place(word: str | None) -> int:
            return -1 if word is None else places.setdefault(word, len(places))

        made["series"] = [
            [place(s.label), [place(s.tags.get(key)) for key in keys], plain(s.points), int(s.null), int(s.scattered)]
            for s in figure.series
        ]
        made |= {"keys": keys, "words": list(places)}
    return made


def _packed_tracks(tracks: list[Track]) -> dict[str, Any]:
    """Tracks with every word by its place in a list."""
    places: dict[str, int] = {}
    keys = list(dict.fromkeys(key for track in tracks for key in track.tags))

    def place(word: str | None) -> int:
        return -1 if word is None else places.setdefault(word, len(places))

    def node(n: Node) -> list[Any]:
        return [place(n.null), place(n.status), place(n.why), _rounded(n.value), _rounded(n.low), _rounded(n.high)]

    made = [
        [place(t.label), [place(t.tags.get(key)) for key in keys], place(t.last), [node(n) for n in t.nodes]]
        for t in tracks
    ]
    return {"tracks": made, "keys": keys, "words": list(places)}


def _trimmed(values: Iterable[Any], least: int) -> list[Any]:
    """Without what is missing at the end."""
    kept = list(values)
    while len(kept) > least and kept[-1] is None:
        kept.pop()
    return kept


def _empty(value: Any) -> bool:
    """What a reader of JSON takes for granted; 0 is a number and stays."""
    return value is None or value is False or (isinstance(value, list | dict) and not value)


def _precise(value: float) -> Any:
    """A place on an axis: steps keep all their digits."""
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) and abs(value) < 1e15 else float(f"{value:.7g}")


def _rounded(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    if value != value or value in (float("inf"), float("-inf")):
        return None
    short = float(f"{value:.4g}")
    return int(short) if short == int(short) and abs(short) < 1e15 else short
