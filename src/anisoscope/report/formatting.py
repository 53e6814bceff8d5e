"""Numbers and foreign text as a reader sees them."""

from __future__ import annotations

import math
import unicodedata

LIMIT = 240
_KNOWN = {"\n": "↵", "\t": "⇥"}
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def visible(text: str, limit: int = LIMIT) -> str:
    r"""Text of unknown origin, of bounded length, in which nothing is hidden: controls and marks become symbols.

    >>> visible("a\x00b\u202ec\n")
    'a⟨U+0000⟩b⟨U+202E⟩c↵'
    >>> visible("x" * 300, limit=3)
    'xxx… (300 characters)'
    """
    shown = "".join(_shown(character) for character in text[:limit])
    return shown if len(text) <= limit else f"{shown}… ({len(text)} characters)"


def _shown(character: str) -> str:
    if character in _KNOWN:
        return _KNOWN[character]
    # Formats, surrogates, private use, unassigned, line and paragraph separators: none of them shows itself.
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        return f"⟨U+{ord(character):04X}⟩"
    return character


def number(value: float | None) -> str:
    """Three digits that count.

    >>> [number(x) for x in (9.3456, 0.00012, 23456.0, -0.5, None, float("nan"), 0.0)]
    ['9.35', '1.2·10⁻⁴', '23,456', '−0.5', '–', 'undefined', '0']
    """
    if value is None:
        return "–"
    if math.isnan(value):
        return "undefined"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    if size >= 1e7 or 0 < size < 1e-3:
        mantissa, exponent = f"{value:.1e}".split("e")
        text = f"{mantissa.removesuffix('.0')}·10{str(int(exponent)).translate(_SUPERSCRIPT)}"
    elif size >= 1000:
        text = f"{value:,.0f}"
    else:
        text = f"{value:.3g}"
    return text.replace("-", "−")


def interval(value: float | None, low: float | None, high: float | None) -> str:
    """A number with its interval, where it has one.

    >>> interval(0.9, 0.8, 1.04), interval(2.0, None, None)
    ('0.9 [0.8, 1.04]', '2')
    """
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return number(value)
    return f"{number(value)} [{number(low)}, {number(high)}]"


def times(ratio: float) -> str:
    """A ratio in words.

    >>> times(3.24), times(1.0), times(0.5)
    ('3.24 times', '1 times', '0.5 times')
    """
    return f"{number(ratio)} times"


def listed(parts: list[str]) -> str:
    """Words in a row: a, b and c."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""


def counted(n: int, one: str, many: str | None = None) -> str:
    """A number of things.

    >>> counted(1, "seed"), counted(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{n:,} {one if n == 1 else many or one + 's'}"
