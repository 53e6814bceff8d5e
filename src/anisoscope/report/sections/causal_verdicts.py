"""The causal sentences of a plan of interventions with their verdicts, and what effects cost in held-out loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from anisoscope.report.formatting import counted, interval, number
from anisoscope.report.reading import Row, Source
from anisoscope.report.tree import (
    Axis,
    Block,
    Cell,
    Control,
    Figure,
    Point,
    Reference,
    Series,
    Table,
    Text,
    Tone,
    values_of,
)
from anisoscope.verdict import ABOVE, BELOW
from anisoscope.vocabulary import EFFECTS, NO_ARM, SENTENCES, Sentence

_CORRELATION = "correlation of dimension and probes, given step and loss"


def sentence_blocks(source: Source) -> list[Block]:
    """What became of each sentence in a line, then every comparison."""
    rows = [row for row in source.rows if row["measure"] == "sentence"]
    if not rows:
        return []
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(str(row["variant"]).partition("/")[0], []).append(row)
    told = [(SENTENCES[name], own) for name, own in by_name.items() if name in SENTENCES]
    return [*(_line(sentence, own) for sentence, own in told), _table(told)]


def finding(source: Source) -> str:
    """How many sentences came to what, in a line."""
    by_name: dict[str, list[Row]] = {}
    for row in source.rows:
        if row["measure"] == "sentence":
            by_name.setdefault(str(row["variant"]).partition("/")[0], []).append(row)
    said = Counter(
        verdict_of(SENTENCES[name], own)[0].partition(":")[0] for name, own in by_name.items() if name in SENTENCES
    )
    told = ", ".join(f"{word} {number}" for word, number in said.items())
    return f"Of {counted(sum(said.values()), 'causal sentence')}: {told}." if told else ""


def verdict_of(sentence: Sentence, rows: Sequence[Mapping[str, Any]]) -> tuple[str, Tone]:
    """In words: on which side of 0 the comparisons lie, and whether that is the side of the sentence."""
    words = [row["outcome"] for row in rows]
    measured = [word for word in words if word != "not measured"]
    if not measured:
        return "not measured", "open"
    above, below = (sum(word in side for word in measured) for side in (ABOVE, BELOW))
    equal = sum(word == "equal" for word in measured)
    of = f"of {counted(len(measured), 'comparison')}"
    for_it = above + below if sentence.side == "either" else above if sentence.side == "above" else below
    against = 0 if sentence.side == "either" else above + below - for_it
    if for_it and against:
        return f"mixed: {for_it} {of} lie on its side, {against} on the other", "part"
    if for_it:
        return f"{'holds' if for_it == len(measured) else 'holds in part'}: {for_it} {of} lie on its side", (
            "yes" if for_it == len(measured) else "part"
        )
    if against:
        return f"does not hold: {against} {of} lie on the other side", "no"
    if equal == len(measured):
        return f"does not hold: {equal} {of} are equal to no effect, within the margin", "no"
    if equal:
        return f"cannot tell: {equal} {of} are equal to no effect, the others are undecided", "open"
    return "cannot tell" if len(measured) == 1 else f"cannot tell: none {of} is decisive", "open"


def _line(sentence: Sentence, rows: list[Row]) -> Text:
    words, tone = verdict_of(sentence, rows)
    untested = f"; it takes {sentence.arms}" if all(row["model"] == NO_ARM for row in rows) else ""
    return Text(f"{words[:1].upper()}{words[1:]}{untested}.", sentence.text, tone)


def _table(told: list[tuple[Sentence, list[Row]]]) -> Table:
    cells = []
    for sentence, rows in told:
        for row in rows:
            outcome = str(row["variant"]).partition("/")[2]
            label = EFFECTS[outcome].label if outcome in EFFECTS else _CORRELATION
            word = row["outcome"] or "not measured"
            side = {"above": "above 0", "below": "below 0", "either": "either side"}[sentence.side]
            cells.append(
                [
                    Cell(sentence.text, f"its side: {side}"),
                    Cell(str(row["model"])),
                    Cell(label),
                    Cell("–" if row["outcome"] == "not measured" else interval(row["value"], row["low"], row["high"])),
                    Cell("–" if row["detectable"] is None else number(row["detectable"])),
                    Cell("–" if row["q"] is None else number(row["q"])),
                    Cell(word, row["note"], _tone(word, sentence)),
                ]
            )
    caption = (
        "Differences at the end of training at the same seed, mean over seeds with Student's 95 % interval (from 3 "
        "seeds on); q is adjusted over the comparisons of a sentence (Benjamini and Hochberg). Finds: the smallest "
        "effect that plans of this size would find in 80 % of cases. Outcomes by the rule of all pages: above or below "
        "(the interval excludes 0 and q ≤ 0.05), equal (the 90 % interval lies within the margin declared before the "
        "run), cannot tell, not measured."
    )
    columns = ["sentence", "comparison", "of", "effect", "finds", "q", "outcome"]
    return Table("sentences", "Causal sentences", caption, columns, cells)


def _tone(word: str, sentence: Sentence) -> Tone | None:
    side = "above" if word in ABOVE else "below" if word in BELOW else None
    if side is None:
        return None
    return "yes" if sentence.side in (side, "either") else "no"


def price_figure(effects: list[Row]) -> Figure | None:
    """Each arm and dose as a point: what it changed, against what that cost in held-out loss."""
    price = {row["model"]: row["value"] for row in effects if row["variant"] == "loss"}
    series = []
    for row in effects:
        outcome, cost = str(row["variant"]), price.get(row["model"])
        if outcome == "loss" or outcome not in EFFECTS or cost is None or row["value"] is None:
            continue
        tags = {"outcome": EFFECTS[outcome].label, "arm": str(row["model"])}
        point = Point(cost, row["value"], row["low"], row["high"], row["n"], row["q"])
        series.append(Series(str(row["model"]), tags, [point], scattered=True))
    if not series:
        return None
    outcomes = values_of(series, "outcome")
    shown = EFFECTS["enrichment_haar"].label
    return Figure(
        "price",
        "Effect and its price",
        "One point per arm and dose: across, how much its held-out loss lies above the control's; up, its effect "
        "on the "
        "outcome chosen, with Student's 95 % interval over seeds (from 3 on). For arms with another corpus or "
        "objective, the loss is a different quantity.",
        "Effect of each arm on an outcome against its effect on held-out loss.",
        Axis("held-out loss, arm minus control, nats", fixed=True),
        Axis("effect", by={"key": "outcome"}, fixed=True),
        series,
        colour="arm",
        choose=[Control("outcome", "Outcome", outcomes, shown if shown in outcomes else outcomes[0])],
        toggle=[Control("arm", "Arms", values_of(series, "arm"))],
        references=[Reference(0.0, "no effect")],
    )
