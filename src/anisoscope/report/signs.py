"""Outcomes as signs, for pages, notebooks and terminals."""

from __future__ import annotations

from typing import NamedTuple

from anisoscope.report.tree import Mark
from anisoscope.verdict import ABOVE, BELOW

SIGNS = {"above": "✓", "below": "✗", "equal": "=", "cannot tell": "?", "not measured": "–"}


class Sign(NamedTuple):
    """A mark as a page shows it: the sign, the classes of its link, and the choices that the link sets."""

    sign: str
    classes: str
    choices: str


def sign_of(mark: Mark) -> Sign:
    """What the page shows of a mark; a pass that does not count is in brackets.

    >>> sign_of(Mark("cannot tell", "1.1", "", "", {"proxy": "pca", "timing": "rolling"}))
    Sign(sign='?', classes='cannot-tell', choices='proxy=pca|timing=rolling')
    """
    outcome = "above" if mark.outcome in ABOVE else "below" if mark.outcome in BELOW else mark.outcome
    sign = f"({SIGNS[outcome]})" if mark.beyond and outcome == "above" else SIGNS[outcome]
    classes = outcome.replace(" ", "-") + (" beyond" if mark.beyond else "")
    return Sign(sign, classes, "|".join(f"{key}={value}" for key, value in mark.choices.items()))
