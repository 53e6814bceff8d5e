"""Published beside measured, as one page, from the plain result of a recipe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from anisoscope.report.formatting import visible
from anisoscope.report.page import page
from anisoscope.report.tree import Block, Cell, Report, Section, Table, Text, Tone

_TONES: dict[str, Tone] = {"agrees": "yes", "differs": "no", "cannot be compared": "open"}
RULES = (
    "A claim about layers agrees if more than half of its places (layers at the observations of the window) lie on the "
    "published side, by their outcome or their 95 % interval, and differs if more than half lie on the other; a shape "
    "by the rule of bells; phases by turning points: the change of the median over layers on both sides must exceed "
    "the summed half-intervals. All else cannot be compared, and the reason is given. Places of one model are no "
    "sample of models; agreement at a small scale says that the effect is there too, not that a number was met."
)
_NONE = "no model of this scale is of the kind that the claim is about"


def make_reproduction(result: Mapping[str, Any]) -> str:
    """The page."""
    counts = Counter(line["outcome"] for claim in result["claims"] if not claim["own"] for line in claim["measured"])
    words = {"agrees": "agree", "differs": "differ"}
    parts = [f"{counts[word]} {words.get(word, word)}" for word in _TONES if counts[word]]
    said = ", ".join(parts) or "nothing could be compared"
    head: list[Block] = [
        Text(f"of claims times models, {said}, at scale {result['scale']}.", "Published beside measured:", "plain"),
        _table(result),
        Text(RULES, small=True),
    ]
    sections = [Section("verdict", "Published beside measured", head), _unknown(result), _runs(result)]
    return page(Report(visible(result["title"]), visible(result["paper"]), [], sections))


def _table(result: Mapping[str, Any]) -> Table:
    nothing = [{"model": "–", "outcome": "cannot be compared", "measured": "–", "why": _NONE}]
    rows = [_line(claim, line) for claim in result["claims"] for line in claim["measured"] or nothing]
    caption = "A line a claim and model. Small: where the claim was read, and why a line decides nothing."
    return Table("claims", "Claims", caption, ["claim", "published", "model", "measured", "outcome"], rows, heads=1)


def _line(claim: Mapping[str, Any], line: Mapping[str, Any]) -> list[Cell]:
    published = claim["published"] or "in words; no number in the material at hand"
    return [
        Cell(visible(claim["says"]), visible(claim["source"])),
        Cell("our own, not of the source" if claim["own"] else visible(published)),
        Cell(visible(line["model"])),
        Cell(visible(line["measured"]), visible(line["why"]) or None),
        Cell(line["outcome"], tone=_TONES.get(line["outcome"])),
    ]


def _unknown(result: Mapping[str, Any]) -> Section:
    blocks: list[Block] = [Text(visible(result["source"]), "Read in:", "plain")]
    blocks += [Text(visible(one), "Not known of the original:", "open") for one in result["unknown"]]
    blocks += [
        Text(visible(f"{one['says']}: {one['why']}"), "Not answered here:", "open") for one in result["unanswered"]
    ]
    return Section("unknown", "What is not known", blocks)


def _runs(result: Mapping[str, Any]) -> Section:
    rows = [[Cell(visible(run["name"])), Cell(run["study"]), Cell(visible(run["path"]))] for run in result["runs"]]
    caption = f"Each is a run with rows of its own (anisoscope report PATH). Made by anisoscope {result['anisoscope']}."
    return Section("runs", "Runs", [Table("runs", "Runs", caption, ["name", "study", "path"], rows, heads=1)])
