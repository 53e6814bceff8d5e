"""The view tree as one HTML file that asks the network for nothing.

Everything that comes from a run is text here: escaped by the templates, escaped once more in the JSON that the drawings
read, and a Content-Security-Policy allows only the page's own script and style, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace
from importlib.resources import files
from typing import Any

from anisoscope.report.blocks import slots_in_order
from anisoscope.report.glossary import entries, terms
from anisoscope.report.names import KEYS, all_words, short_words
from anisoscope.report.spoken import deflated, spoken
from anisoscope.report.templates import filled
from anisoscope.report.tree import Block, Figure, Report, Text, packed
from anisoscope.vocabulary import as_plain

SCRIPTS = ("scale.js", "chart.js", "ladder.js", "plot.js", "folds.js", "tips.js", "choices.js", "live.js", "report.js")
REFRESH = 5
"""Seconds after which a live page reads itself anew."""


def page(report: Report) -> str:
    """The whole file."""
    report = _drawable(report)
    style, script = asset("report.css"), "\n".join(map(asset, SCRIPTS))
    return filled(
        "page.html.j2",
        report=report,
        refresh=REFRESH,
        policy=policy(style, script),
        style=style,
        script=script,
        slots=slots_in_order,
        glossary=entries(),
        drawings=as_json([packed(figure) for figure in report.figures()]),
        words=as_json(deflated(spoken(report))),
        vocabulary=as_json(as_plain() | _words()),
    )


def _words() -> dict[str, Any]:
    """Terms with what explains them, and identifiers with their words, for the script."""
    return {"terms": terms(), "named": {"keys": KEYS, "words": all_words(), "short": short_words()}}


def policy(style: str, script: str) -> str:
    """The Content-Security-Policy of a page with this style and script, and nothing else."""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data: blob:; base-uri "
        "'none'; form-action 'none'"
    )


def _drawable(report: Report) -> Report:
    """The same without series that have no points, which have no place on an axis; a figure of none is a sentence."""
    return replace(report, sections=[replace(s, blocks=list(map(_with_points, s.blocks))) for s in report.sections])


def _with_points(block: Block) -> Block:
    if not isinstance(block, Figure):
        return block
    series = [one for one in block.series if one.points]
    return replace(block, series=series) if series else Text("no row has a number to draw.", f"{block.title}:", "open")


def as_json(data: Any) -> str:
    """Data of the drawings, in which nothing can end the element that holds it."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def asset(name: str) -> str:
    """A file that belongs to the page."""
    return (files("anisoscope.report") / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
