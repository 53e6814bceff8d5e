"""The view tree as one HTML file that asks the network for nothing.

Everything that comes from a run is text here: escaped in the markup, escaped once more in the JSON that the drawings
read, and a Content-Security-Policy allows only the page's own script and style, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace
from html import escape
from importlib.resources import files
from typing import Any

from anisoscope.report.blocks import choices_html, front_html, section_html, text_html
from anisoscope.report.glossary import glossary_html, terms
from anisoscope.report.names import KEYS, all_words, short_words
from anisoscope.report.spoken import deflated, spoken
from anisoscope.report.tree import Block, Figure, Report, Text, packed
from anisoscope.vocabulary import as_plain

SCRIPTS = ("scale.js", "chart.js", "ladder.js", "plot.js", "folds.js", "tips.js", "choices.js", "live.js", "report.js")
REFRESH = 5
"""Seconds after which a live page reads itself anew."""
GLOSSARY = "glossary"


def page(report: Report) -> str:
    """The whole file."""
    report = _drawable(report)
    style, script = asset("report.css"), "\n".join(map(asset, SCRIPTS))
    entries = [(section.id, section.title) for section in report.sections] + [(GLOSSARY, "Words")]
    links = "".join(f'<li><a href="#{id}">{escape(title)}</a></li>' for id, title in entries)
    first = "answer" if report.fronts else report.sections[0].id
    live = f' data-live="{REFRESH}"' if report.live else ""
    return f"""<!doctype html>
<html lang="en"{live}>
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy(style, script)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(report.title)} · anisoscope</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<a class="skip" href="#{first}">Skip to the answer</a>
<div class="shell">
<header>
<h1><span class="kicker">anisoscope report</span> <bdi>{escape(report.title)}</bdi></h1>
<p class="subtitle">{escape(report.subtitle)}</p>
<button type="button" class="theme" hidden></button>
{"".join(text_html(text, "banner") for text in report.status)}
{choices_html(report)}
</header>
<div class="columns">
{front_html(report)}
<nav aria-label="Sections"><button type="button" class="unfold" aria-pressed="false" hidden>Expand all</button>
<ol>{links}</ol></nav>
<main>
<noscript><p class="said open">The drawings need JavaScript; words and tables do not.</p></noscript>
{"".join(map(section_html, report.sections))}
{glossary_html(GLOSSARY)}
</main>
</div>
<footer>Made by anisoscope from the rows of the run alone.
In a figure, arrow keys move between points and Escape leaves; a chip pressed with Shift shows that one alone.</footer>
</div>
<script type="application/json" id="data">{as_json([packed(figure) for figure in report.figures()])}</script>
<script type="application/json" id="words">{as_json(deflated(spoken(report)))}</script>
<script type="application/json" id="vocabulary">{as_json(as_plain() | _words())}</script>
<script>{script}</script>
</body>
</html>
"""


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
