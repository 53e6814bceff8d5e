"""The main table of a run for papers: shares beside chance, and the odds ratio over every null with its outcome."""

from __future__ import annotations

import re
from collections.abc import Iterator

from anisoscope.report.formatting import interval
from anisoscope.report.ladder_findings import JUDGED, LadderFinding, findings
from anisoscope.report.names import short_of, word_of
from anisoscope.report.plain_words import percent
from anisoscope.report.reading import Context
from anisoscope.report.tex import tex
from anisoscope.vocabulary import VIEWS, ladder_of

NOTE = (
    "Odds ratio of the gradient's energy share inside the proxy over each null, pooled over layers, with its 95 % "
    "interval where there is one; 1 is the null. Outcome of most layers: + above, − below, = equal within the declared "
    "margin, ? cannot tell."
)
_INTERVAL = re.compile(r"\[[^\]]*\]")
_SIGNS = {"above": "+", "below": "−", "equal": "=", "cannot tell": "?", "not measured": "–"}


def paper_tables(context: Context) -> Iterator[tuple[str, bytes]]:
    """Names and contents of files: a table a view, as LaTeX (booktabs) and as Markdown."""
    for view in VIEWS:
        found = [f for f in findings(context, view) if f.verdict is not None and f.window in JUDGED]
        if found:
            head, rows = _table(found)
            yield f"table-{view}.tex", _latex(found[0], head, rows).encode()
            yield f"table-{view}.md", _markdown(head, rows).encode()


def _table(found: list[LadderFinding]) -> tuple[list[str], list[list[str]]]:
    nulls = ladder_of(found[0].view)
    head = ["model", "window", "share", "chance", *map(short_of, nulls)]
    return head, [[*_named(f), *_shares(f), *(_cell(f, null) for null in nulls)] for f in found]


def _named(f: LadderFinding) -> list[str]:
    return [f.subject.label, "the model" if f.subject.source.is_profile else f.window]


def _shares(f: LadderFinding) -> list[str]:
    return ["–", "–"] if f.shares is None else [percent(f.shares.share), percent(f.shares.chance)]


def _cell(f: LadderFinding, null: str) -> str:
    effect = f.effects.get(null)
    sign = _SIGNS[f.outcome(null)]
    return sign if effect is None else f"{interval(effect.value, effect.low, effect.high)} {sign}"


def _latex(first: LadderFinding, head: list[str], rows: list[list[str]]) -> str:
    """For the inside of a table environment; intervals stand below their numbers, so that it fits on a page."""
    proxy, rank = word_of(first.proxy), str(first.subject.rank).replace("%", r"\%")
    about = f"Proxy {proxy} of rank {rank}, {first.timing}; {first.view} view. {NOTE}"
    lines = [
        r"% \usepackage{booktabs}",
        r"\small\setlength{\tabcolsep}{4pt}",
        r"\begin{tabular}{@{}ll" + "r" * (len(head) - 2) + "@{}}",
        r"\toprule",
        " & ".join(_stacked(word) for word in head) + r" \\",
        r"\midrule",
        *(line for row in rows for line in _two_lines(row)),
        r"\bottomrule",
        r"\end{tabular}",
        rf"\caption{{{tex(about)}}}",
        rf"\label{{tab:anisoscope-{first.view}}}",
    ]
    return "\n".join(lines) + "\n"


def _stacked(word: str) -> str:
    """A head of two words on two lines."""
    before, space, after = word.partition(" ")
    return rf"\shortstack[r]{{{tex(before)}\\{tex(after)}}}" if space else tex(word)


def _two_lines(row: list[str]) -> Iterator[str]:
    """Numbers with their outcomes, and below them their intervals, where there are any."""
    found = [_INTERVAL.search(cell) for cell in row]
    yield " & ".join(tex(" ".join(_INTERVAL.sub(" ", cell).split())) for cell in row) + r" \\"
    if any(found):
        below = (rf"{{\scriptsize {tex(one.group())}}}" if one else "" for one in found)
        yield " & ".join(below) + r" \\[2pt]"


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    line = ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in (head, *rows)]
    rule = "|" + "|".join(["---"] * 2 + ["---:"] * (len(head) - 2)) + "|"
    return "\n".join([line[0], rule, *line[1:], "", NOTE]) + "\n"
