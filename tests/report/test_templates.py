"""Templates escape what they are given, fail where something is missing, and mark safe only the page's own."""

import re
from dataclasses import replace
from html import unescape
from importlib.resources import files

import pytest
from jinja2 import UndefinedError

from anisoscope.report.blocks import block_markup
from anisoscope.report.page import page
from anisoscope.report.prepared import LONG, pieces
from anisoscope.report.templates import filled, markup
from anisoscope.report.tree import (
    Axis,
    Cell,
    Concepts,
    Control,
    Figure,
    Front,
    LadderFigure,
    Mark,
    MarkTable,
    Node,
    Point,
    Report,
    Section,
    Series,
    Table,
    Text,
    Track,
)
from report.planted import HOSTILE
from report.test_page import Elements

EVIL = f"{HOSTILE}\" onclick='x' `{HOSTILE}` & {{{{ 7 * 7 }}}} {{% raw %}}"
LONG_EVIL = f"{'A sentence. ' * (LONG // 12)}{EVIL} More. {EVIL}"
ASSETS = files("anisoscope.report") / "assets"


def hostile_report():
    mark = Mark("above", EVIL, EVIL, EVIL, {EVIL: EVIL})
    cell = Cell(EVIL, f"{EVIL}\n{EVIL}", "yes")
    marks = MarkTable("marks", EVIL, LONG_EVIL, [(EVIL, "null"), (EVIL, EVIL)], [(cell, [mark, cell])])
    series = Series(EVIL, {EVIL: EVIL}, [Point(0, 1.0)])
    figure = Figure("figure", EVIL, LONG_EVIL, EVIL, Axis(EVIL), Axis(EVIL), [series], colour=EVIL)
    ladder = LadderFigure("ladder", EVIL, EVIL, EVIL, [Track(EVIL, {}, None, [Node(EVIL, EVIL, 1, 1, 1, EVIL)])], [])
    blocks = [
        Text(EVIL, EVIL, "yes"),
        Text(LONG_EVIL, EVIL, small=True),
        Table("table", EVIL, LONG_EVIL, [EVIL], [[cell, cell]]),
        marks,
        figure,
        ladder,
        Concepts(EVIL, [(EVIL, [(EVIL, 1.0), (EVIL, None)])]),
        Text(EVIL),
    ]
    sections = [Section("verdict", EVIL, blocks, finding=EVIL)]
    fronts = [Front({EVIL: value}, Text(EVIL, EVIL), marks, [EVIL], EVIL, sections) for value in ("a", "b")]
    first = replace(figure, id="first")
    choices = [Control(EVIL, EVIL, [EVIL, "b"], EVIL)]
    return Report(EVIL, EVIL, [Text(EVIL, EVIL)], sections, fronts, first, choices, live=True)


def test_every_string_of_every_kind_of_block_becomes_text():
    made = page(hostile_report())
    found = Elements(made)
    assert found.tags.count("script") == 4
    assert "img" not in found.tags
    assert not [name for _, name, _ in found.attributes if name.startswith("on")]
    assert "{{ 7 * 7 }} {% raw %}" in made  # text of a run is never a template
    assert ("option", "value", EVIL) in found.attributes


def test_what_is_escaped_is_what_was_given():
    table = Table("t", EVIL, "", [EVIL], [[Cell(EVIL)]])
    shown = unescape(re.sub(r"<[^>]*>", "\0", block_markup(table)))
    assert [part for part in re.split("\0+", shown) if part.strip()] == [EVIL, EVIL, EVIL]


def test_only_the_pages_own_style_script_policy_and_data_are_marked_safe():
    safe = {}
    for path in ASSETS.iterdir():
        if path.name.endswith(".j2"):
            text = re.sub(r"{#.*?#}", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
            assert "autoescape" not in text
            safe[path.name] = re.findall(r"(\w+)\s*\|\s*safe", text)
            assert len(safe[path.name]) == text.count("safe")
    own = ["policy", "style", "drawings", "words", "vocabulary", "script"]
    assert safe == {"page.html.j2": own, "blocks.html.j2": [], "notebook.html.j2": []}


def test_a_value_that_is_missing_is_an_error():
    with pytest.raises(UndefinedError, match="about"):
        filled("notebook.html.j2", head="", text="", ladder=None)
    with pytest.raises(UndefinedError, match="has no attribute 'id'"):
        markup("section", Text("no section"), [])


def test_names_between_backticks_explain_themselves_or_are_code():
    assert markup("words", "a < b: `haar` and `lr`") == (
        'a &lt; b: <span data-term="haar">random directions</span> and <code>lr</code>'
    )
    assert markup("words", "One. `init` is. ") == 'One. <span data-term="init">The untrained network</span> is. '
    assert [piece.text for piece in pieces(f"`{'x' * 61}`")] == [f"`{'x' * 61}`"]
