"""Blocks of the view tree as markup. Whatever comes from a run is escaped here, and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from html import escape

from anisoscope.report.formatting import number
from anisoscope.report.glossary import TERMS
from anisoscope.report.names import KEYS, word_of
from anisoscope.report.tree import (
    Block,
    Cell,
    Concepts,
    Control,
    Figure,
    Front,
    Gap,
    LadderFigure,
    Mark,
    MarkTable,
    Report,
    Section,
    Table,
    Text,
)
from anisoscope.verdict import ABOVE, BELOW

SIGNS = {"above": "✓", "below": "✗", "equal": "=", "cannot tell": "?", "not measured": "–"}
ANSWER = "answer"
FINDING = ".finding"
LONG = 300
"""Captions beyond so many characters (some three lines) have their details behind a fold."""


def section_html(section: Section) -> str:
    """A section: folded, its title with one line of what was found. What may change with a choice has a slot."""
    slots = slots_of(section)
    drawn = {b.id: _figure(b) for b in section.blocks if isinstance(b, Figure | LadderFigure)}
    drawn |= {f"{i}": _concepts(b) for i, b in enumerate(section.blocks) if isinstance(b, Concepts)}
    first, *after = [name for name in slots if not name.endswith(FINDING)]
    blocks = _slot(first, slots[first])
    blocks += "".join(drawn[name.rpartition(".")[2]] + _slot(name, slots[name]) for name in after)
    finding = f'<span class="finding" data-slot="{section.id}{FINDING}">{slots[section.id + FINDING]}</span>'
    return (
        f'<section id="{section.id}"><details class="fold"{" open" if section.open else ""}>'
        f"<summary><h2>{escape(section.title)}</h2>{finding}</summary>{blocks}</details></section>\n"
    )


def _slot(name: str, markup: str) -> str:
    return f'<div class="slot" data-slot="{name}">{markup}</div>'


def slots_of(section: Section, among: Collection[str] | None = None) -> dict[str, str]:
    """The words of a section by place: its line, what stands first, and what follows each drawing.

    ``among`` are the drawings of the page, where not all gaps of the section have one.
    """
    found, place = {f"{section.id}{FINDING}": marked(section.finding)}, f"{section.id}.words"
    found[place] = ""
    for i, block in enumerate(section.blocks):
        if isinstance(block, Concepts):
            place = f"{section.id}.{i}"
            found[place] = ""
        elif isinstance(block, Figure | LadderFigure | Gap):
            if among is None or block.id in among:
                place = f"{section.id}.{block.id}"
                found[place] = ""
        else:
            found[place] += block_html(block, first=i == 0)
    return found


def front_slots(front: Front, among: Collection[str]) -> dict[str, str]:
    """All that a page says under one set of choices, by place."""
    found = {ANSWER: _front(front)}
    for section in front.sections:
        found |= slots_of(section, among)
    return found


def front_html(report: Report) -> str:
    """The first screen."""
    if not report.fronts:
        return ""
    shown = f'<div class="shown" data-slot="{ANSWER}">{_front(report.fronts[0])}</div>'
    figure = "" if report.figure is None else _figure(report.figure)
    return f'<section id="answer" class="front" aria-label="The answer">{shown}{figure}</section>'


def choices_html(report: Report) -> str:
    """The controls at the top of the page; its script fills and shows them."""
    if not report.choices:
        return ""
    groups = "".join(
        f'<label class="group"><span class="name">{escape(control.label)}</span>'
        f'<select data-page="{escape(control.key)}">{"".join(_option(control, value) for value in control.values)}'
        "</select></label>"
        for control in report.choices
    )
    return f'<form class="choices" aria-label="Choices for the whole page" hidden>{groups}</form>'


def _option(control: Control, value: str) -> str:
    chosen = " selected" if value == control.selected else ""
    shown = word_of(value) if control.key in KEYS else value
    return f'<option value="{escape(value)}"{chosen}>{escape(shown)}</option>'


def _front(front: Front) -> str:
    limits = "".join(f"<li>{marked(text)}</li>" for text in front.limits)
    note = f'<p class="note">{marked(front.note)}</p>' if front.note else ""
    cannot = f'<div class="limits"><h2>What this run cannot say</h2><ul>{limits}</ul></div>' if limits else ""
    ladder = "" if front.ladder is None else _marks(front.ladder)
    return f'<div class="told">{text_html(front.answer, "headline")}{note}</div><div class="why">{ladder}{cannot}</div>'


def choices_key(choices: dict[str, str]) -> str:
    """Choices as one word, by which the page finds what it says under them."""
    return "|".join(f"{key}={value}" for key, value in sorted(choices.items()))


def block_html(block: Block, *, first: bool = False) -> str:
    """Any block."""
    if isinstance(block, Text):
        return text_html(block, "headline" if first and block.tone in ("yes", "part", "no", "open") else "")
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, MarkTable):
        return _marks(block)
    if isinstance(block, Gap):
        return ""
    return _concepts(block) if isinstance(block, Concepts) else _figure(block)


def text_html(text: Text, extra: str = "") -> str:
    """A paragraph."""
    head = f"<b>{marked(text.head)}</b> " if text.head else ""
    given = ("said" if text.tone else "", text.tone or "", "rule" if text.small else "", extra)
    kinds = " ".join(kind for kind in given if kind)
    said = f'<p class="{kinds}">{head}{marked(text.text)}</p>'
    return _computed(said) if text.small and len(text.text) > LONG else said


def _computed(markup: str) -> str:
    return f'<details class="computed"><summary>How this was computed</summary>{markup}</details>'


def marked(text: str) -> str:
    """Escaped; names between backticks become words that explain themselves, or code where there is no word."""
    return re.sub(r"(^|\. |<b>)?`([^`<>]{1,60})`", _code, escape(text))


def _code(found: re.Match[str]) -> str:
    before, name = found.group(1), found.group(2)
    word = word_of(name)
    if word != name and before is not None:
        word = word[:1].upper() + word[1:]
    kind = "code" if word == name else "span"
    term = f' data-term="{name}"' if name in TERMS else ""
    return f"{before or ''}<{kind}{term}>{word}</{kind}>"


def _caption(tag: str, text: str, kind: str = "") -> str:
    """A caption of at most some three lines; the rest is behind "how this was computed"."""
    attribute = f' class="{kind}"' if kind else ""
    short, rest = _split(text)
    more = _computed(f"<p>{marked(rest)}</p>") if rest else ""
    inner = f"{marked(short)}{more}"
    return f"<{tag}{attribute}>{inner}</{tag}>"


def _split(text: str) -> tuple[str, str]:
    if len(text) <= LONG:
        return text, ""
    ends = [m.end() for m in re.finditer(r"\.(?=\s[A-ZΓγ`])", text) if m.end() <= LONG]
    return (text[: ends[-1]], text[ends[-1] :].strip()) if ends else ("", text)


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in table.columns)
    body = "".join(f"<tr>{_row(row, table.heads)}</tr>" for row in table.rows)
    longest = max((len(cell.text) for row in table.rows for cell in row), default=0)
    below = max((len(line) for row in table.rows for cell in row for line in (cell.small or "").split("\n")), default=0)
    kind = ' class="wordy"' if longest > 40 or below > 34 else ' class="figures"'
    return (
        f'<div class="tabled"><h3><bdi>{escape(table.title)}</bdi></h3>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}"><table{kind}>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        f"{_caption('div', table.caption, 'caption')}</div>"
    )


def _row(cells: Sequence[Cell], heads: int) -> str:
    return "".join(_cell(cell, heading=i < heads) for i, cell in enumerate(cells))


def _cell(cell: Cell, *, heading: bool) -> str:
    tag, scope = ("th", ' scope="row"') if heading else ("td", "")
    kind = f' class="{cell.tone}-text"' if cell.tone else ""
    small = "".join(f"<small>{marked(line)}</small>" for line in (cell.small or "").split("\n") if line)
    return f"<{tag}{scope}{kind}><bdi>{escape(cell.text)}</bdi>{small}</{tag}>"


def _marks(table: MarkTable) -> str:
    """Outcomes as signs; a sign says its number on hover and focus, and leads to its evidence."""
    head = "".join(f'<th scope="col">{_term(words, term)}</th>' for words, term in table.columns)
    body = "".join(f"<tr>{_cell(name, heading=True)}{''.join(map(_sign, marks))}</tr>" for name, marks in table.rows)
    return (
        f'<div class="marks"><h2>{escape(table.title)}</h2><div class="scroll" tabindex="0" role="region" '
        f'aria-label="{escape(table.title)}"><table><thead><tr><td></td>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{_caption('div', table.caption, 'caption')}</div>"
    )


def _term(words: str, term: str) -> str:
    if term not in TERMS:
        return escape(words)
    return f'<button type="button" class="term" data-term="{escape(term)}">{escape(words)}</button>'


def _sign(mark: Mark | Cell) -> str:
    if isinstance(mark, Cell):
        return _cell(mark, heading=False)
    outcome = "above" if mark.outcome in ABOVE else "below" if mark.outcome in BELOW else mark.outcome
    sign = f"({SIGNS[outcome]})" if mark.beyond and outcome == "above" else SIGNS[outcome]
    kind = outcome.replace(" ", "-") + (" beyond" if mark.beyond else "")
    choices = escape("|".join(f"{key}={value}" for key, value in mark.choices.items()))
    small = f"<small>{escape(mark.number)}</small>" if mark.number else ""
    return (
        f'<td><a class="sign {kind}" href="#{mark.link}" data-set="{choices}" data-tip '
        f'aria-label="{escape(mark.detail)}"><span aria-hidden="true">{sign}</span>{small}</a></td>'
    )


def _figure(figure: Figure | LadderFigure) -> str:
    return (
        f'<figure id="figure-{figure.id}"><h3>{escape(figure.title)}</h3><div class="controls"></div>'
        f'<div class="plot"></div><p class="spoken" aria-live="polite"></p>'
        f"{_caption('figcaption', figure.caption)}"
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
