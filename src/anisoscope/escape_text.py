"""Foreign text for a terminal: what did not come from us is printed through here and nowhere else."""

from __future__ import annotations

import unicodedata

from rich.console import Console
from rich.text import Text

_HIDDEN = ("Cc", "Cf", "Zl", "Zp", "Cs", "Co")  # what moves the cursor, turns the writing round, or shows as nothing


def visible(text: str) -> str:
    r"""Control and direction characters as escapes, so that a note cannot paint the terminal.

    >>> print(visible("two\nlines \x1b[31m"))
    two\nlines \x1b[31m
    """
    return "".join(c.encode("unicode_escape").decode() if unicodedata.category(c) in _HIDDEN else c for c in text)


def tell(console: Console, line: str, style: str = "", *, fold: bool = False) -> None:
    """One line on a console, as text: rich must not read [red] or :smile: as its own language."""
    console.print(Text(visible(line), style=style), highlight=False, soft_wrap=not fold)
