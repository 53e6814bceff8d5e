"""The view tree as one HTML file that asks the network for nothing.

Everything that comes from a run is text here: escaped in the markup, escaped once more in the JSON that the drawings
read, and a Content-Security-Policy allows only the page's own script and style, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from importlib.resources import files
from typing import Any

from anisoscope.report.tree import Block, Cell, Concepts, Figure, LadderFigure, Report, Section, Table, Text, plain
from anisoscope.report.words import number
from anisoscope.vocabulary import as_plain

SCRIPTS = ("scale.js", "chart.js", "ladder.js", "report.js")


def page(report: Report) -> str:
    """The whole file."""
    report = _drawable(report)
    style, script = asset("report.css"), "\n".join(map(asset, SCRIPTS))
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data: blob:; base-uri "
        "'none'; form-action 'none'"
    )
    links = "".join(f'<li><a href="#{s.id}">{escape(s.title)}</a></li>' for s in report.sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(report.title)} · anisoscope</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<a class="skip" href="#verdict">Skip to the verdict</a>
<div class="shell">
<header>
<p class="kicker">anisoscope report</p>
<h1><bdi>{escape(report.title)}</bdi></h1>
<p class="subtitle">{escape(report.subtitle)}</p>
<button type="button" class="theme" hidden></button>
{"".join(_text(text, "banner") for text in report.status)}
</header>
<div class="columns">
<nav aria-label="Sections"><ol>{links}</ol></nav>
<main>
<noscript><p class="said open">The drawings need JavaScript; words and tables do not.</p></noscript>
{"".join(map(_section, report.sections))}
</main>
</div>
<footer>Made by anisoscope from the rows of the run alone.
In a figure, arrow keys move between points and Escape leaves; a chip pressed with Shift shows that one alone.</footer>
</div>
<script type="application/json" id="data">{as_json([plain(figure) for figure in report.figures()])}</script>
<script type="application/json" id="vocabulary">{as_json(as_plain())}</script>
<script>{script}</script>
</body>
</html>
"""


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


def _section(section: Section) -> str:
    blocks = "".join(_block(block, first=i == 0 and section.id == "verdict") for i, block in enumerate(section.blocks))
    return f'<section id="{section.id}"><h2>{escape(section.title)}</h2>{blocks}</section>\n'


def _block(block: Block, *, first: bool) -> str:
    if isinstance(block, Text):
        return _text(block, "headline" if first else "")
    if isinstance(block, Table):
        return _table(block)
    return _concepts(block) if isinstance(block, Concepts) else _figure(block)


def _text(text: Text, extra: str = "") -> str:
    head = f"<b>{_marked(text.head)}</b> " if text.head else ""
    given = ("said" if text.tone else "", text.tone or "", "rule" if text.small else "", extra)
    kinds = " ".join(kind for kind in given if kind)
    return f'<p class="{kinds}">{head}{_marked(text.text)}</p>'


def _marked(text: str) -> str:
    """Escaped, with names between backticks set as code."""
    return re.sub(r"`([^`<>]{1,60})`", r"<code>\1</code>", escape(text))


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in table.columns)
    body = "".join(f"<tr>{_row(row, table.heads)}</tr>" for row in table.rows)
    longest = max((len(cell.text) for row in table.rows for cell in row), default=0)
    kind = ' class="wordy"' if longest > 40 else ' class="figures"'
    return (
        f'<div class="tabled"><h3><bdi>{escape(table.title)}</bdi></h3>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}"><table{kind}>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        f'<p class="caption">{_marked(table.caption)}</p></div>'
    )


def _row(cells: Sequence[Cell], heads: int) -> str:
    made = []
    for i, cell in enumerate(cells):
        tag, scope = ("th", ' scope="row"') if i < heads else ("td", "")
        kind = f' class="{cell.tone}-text"' if cell.tone else ""
        small = "".join(f"<small>{_marked(line)}</small>" for line in (cell.small or "").split("\n") if line)
        made.append(f"<{tag}{scope}{kind}><bdi>{escape(cell.text)}</bdi>{small}</{tag}>")
    return "".join(made)


def _figure(figure: Figure | LadderFigure) -> str:
    return (
        f'<figure id="figure-{figure.id}"><h3>{escape(figure.title)}</h3><div class="controls"></div>'
        f'<div class="plot"></div><p class="spoken" aria-live="polite"></p>'
        f"<figcaption>{_marked(figure.caption)}</figcaption>"
        f'<div class="foot"><button type="button" class="csv">Download CSV</button></div></figure>'
    )


def _concepts(concepts: Concepts) -> str:
    made = []
    for name, tokens in concepts.items:
        shown = " ".join(f'<bdi class="token" title="{number(value)}">{escape(token)}</bdi>' for token, value in tokens)
        made.append(f'<p class="concept"><b>{escape(name)}</b>{shown}</p>')
    return (
        f'<details class="tabled"{" open" if concepts.open else ""}><summary>{escape(concepts.title)}</summary>'
        f'<div class="concepts">{"".join(made)}</div></details>'
    )
