"""Blocks of the view tree as markup, and the words of a page by the places where they stand."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache

from markupsafe import Markup

from anisoscope.report.templates import markup
from anisoscope.report.tree import (
    Block,
    Concepts,
    Figure,
    Front,
    Gap,
    LadderFigure,
    MarkTable,
    Section,
    Table,
    Text,
)

ANSWER = "answer"
FINDING = ".finding"
_MACROS = {
    Text: "text",
    Table: "table",
    MarkTable: "marks",
    Concepts: "concepts",
    Figure: "figure",
    LadderFigure: "figure",
}


@dataclass(frozen=True, slots=True)
class Slot:
    """A place whose words may change with a choice, and the drawing before it, which stays."""

    name: str
    drawing: Markup
    words: Markup


def slots_in_order(section: Section) -> list[Slot]:
    """The slots of a section as its page begins, without its line of what was found."""
    drawn = {b.id: block_markup(b) for b in section.blocks if isinstance(b, Figure | LadderFigure)}
    drawn |= {f"{i}": block_markup(b) for i, b in enumerate(section.blocks) if isinstance(b, Concepts)}
    found = slots_of(section)
    del found[section.id + FINDING]
    first, *after = found
    return [
        Slot(first, Markup(), found[first]),
        *(Slot(name, drawn[name.rpartition(".")[2]], found[name]) for name in after),
    ]


def slots_of(section: Section, among: Collection[str] | None = None) -> dict[str, Markup]:
    """The words of a section by place: its line, what stands first, and what follows each drawing.

    ``among`` are the drawings of the page, where not all gaps of the section have one.
    """
    place = f"{section.id}.words"
    found: dict[str, list[Markup]] = {section.id + FINDING: [markup("words", section.finding)], place: []}
    for i, block in enumerate(section.blocks):
        if isinstance(block, Concepts):
            place = f"{section.id}.{i}"
            found[place] = []
        elif isinstance(block, Figure | LadderFigure | Gap):
            if among is None or block.id in among:
                place = f"{section.id}.{block.id}"
                found[place] = []
        else:
            found[place].append(block_markup(block, first=i == 0))
    return {name: Markup().join(parts) for name, parts in found.items()}


def front_slots(front: Front, among: Collection[str]) -> dict[str, Markup]:
    """All that a page says under one set of choices, by place."""
    found = {ANSWER: markup("front", front)}
    for section in front.sections:
        found |= slots_of(section, among)
    return found


def choices_key(choices: dict[str, str]) -> str:
    """Choices as one word, by which the page finds what it says under them."""
    return "|".join(f"{key}={value}" for key, value in sorted(choices.items()))


def block_markup(block: Block, *, first: bool = False) -> Markup:
    """Any block; a judgement that comes first is the headline."""
    if isinstance(block, Gap):
        return Markup()
    if isinstance(block, Text) and first and block.tone in ("yes", "part", "no", "open"):
        return markup("text", block, "headline")
    return _markup_of(_Same(repr(block), block))


@dataclass(frozen=True, slots=True)
class _Same:
    """A block that is known by its words: under most choices a table is the same."""

    words: str
    block: Block = field(compare=False)


@lru_cache(maxsize=2048)
def _markup_of(same: _Same) -> Markup:
    return markup(_MACROS[type(same.block)], same.block)
