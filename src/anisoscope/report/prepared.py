"""What templates ask of Python: text as pieces, captions in halves, the class of a table. No markup is made here."""

from __future__ import annotations

import re
from typing import NamedTuple

from anisoscope.report.glossary import TERMS
from anisoscope.report.names import word_of
from anisoscope.report.tree import Table

LONG = 300
"""Captions beyond so many characters (some three lines) have their details behind a fold."""
_NAMED = re.compile(r"(^|\. )?`([^`]{1,60})`")
_END = re.compile(r"\.(?=\s[A-ZΓγ`])")


class Piece(NamedTuple):
    """Text, or with a ``tag`` a name: a ``span`` where it has words, else ``code``; ``term`` explains it."""

    text: str
    tag: str | None = None
    term: str | None = None


def pieces(text: str) -> list[Piece]:
    """Text in which names between backticks are pieces of their own, in words where there are any.

    >>> [piece.text for piece in pieces("Over `haar` it is 2. `init` was not run; `lr` is 1.")]
    ['Over ', 'random directions', ' it is 2. ', 'The untrained network', ' was not run; ', 'lr', ' is 1.']
    """
    found, end = [], 0
    for match in _NAMED.finditer(text):
        before, name = match.groups()
        found.append(Piece(text[end : match.start()] + (before or "")))
        word = word_of(name)
        if word != name and before is not None:
            word = word[:1].upper() + word[1:]
        found.append(Piece(word, "code" if word == name else "span", name if name in TERMS else None))
        end = match.end()
    found.append(Piece(text[end:]))
    return [piece for piece in found if piece.text]


def halves(text: str) -> tuple[str, str]:
    """The sentences of a caption that fit into some three lines, and the rest."""
    if len(text) <= LONG:
        return text, ""
    ends = [match.end() for match in _END.finditer(text) if match.end() <= LONG]
    return (text[: ends[-1]], text[ends[-1] :].strip()) if ends else ("", text)


def table_class(table: Table) -> str:
    """``wordy`` if a cell holds more than a number would need, else ``figures``."""
    cells = [cell for row in table.rows for cell in row]
    longest = max((len(cell.text) for cell in cells), default=0)
    below = max((len(line) for cell in cells for line in (cell.small or "").split("\n")), default=0)
    return "wordy" if longest > 40 or below > 34 else "figures"
