r"""Text for LaTeX: everything that TeX takes for a command is escaped, symbols become maths that pdflatex knows."""

from __future__ import annotations

import re

_ESCAPES = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
}
_SYMBOLS = {
    "∂": r"\partial ",
    "Σ": r"\Sigma ",
    "Δ": r"\Delta ",
    "Γ": r"\Gamma ",
    "δ": r"\delta ",
    "ζ": r"\zeta ",
    "γ": r"\gamma ",
    "σ": r"\sigma ",
    "λ": r"\lambda ",
    "κ": r"\kappa ",
    "β": r"\beta ",
    "α": r"\alpha ",
    "μ": r"\mu ",
    "ᵢ": "_i",
    "ᵖ": "^p",
    "ᵀ": r"^\top ",
    "ᴺ": "^N",
    "⁻": "^-",
    "²": "^2",
    "³": "^3",
    "⁴": "^4",
    "₁": "_1",
    "₂": "_2",
    "≤": r"\le ",
    "≥": r"\ge ",
    "≈": r"\approx ",
    "×": r"\times ",
    "·": r"\cdot ",
    "−": "-",
    "‖": r"\Vert ",
    "∞": r"\infty ",
    "→": r"\to ",
    "✓": r"\checkmark ",
}
_TEXT = {"–": "--", "—": "---", "“": "``", "”": "''", "‘": "`", "’": "'", "…": r"\dots{}", "°": r"\textdegree{}"}
_SUPERSCRIPTS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


def tex(text: str) -> str:
    r"""Text as LaTeX.

    >>> tex("5 % of `haar`: G = Σ δxᵀ, 1.2·10⁻⁴")
    '5 \\% of \\texttt{haar}: G = $\\Sigma $ $\\delta $x$^\\top $, 1.2$\\cdot $10$^{-4}$'
    """
    parts = re.split(r"`([^`]{1,60})`", text)
    return "".join(rf"\texttt{{{_plain(part)}}}" if i % 2 else _plain(part) for i, part in enumerate(parts))


def _plain(text: str) -> str:
    pieces = re.split(r"([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]{2,})", text)
    return "".join(
        f"$^{{{piece.translate(_SUPERSCRIPTS)}}}$" if i % 2 else "".join(map(_character, piece))
        for i, piece in enumerate(pieces)
    )


def _character(character: str) -> str:
    if character in _SYMBOLS:
        return f"${_SYMBOLS[character]}$"
    return _ESCAPES.get(character) or _TEXT.get(character) or character
