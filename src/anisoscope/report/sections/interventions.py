"""What interventions did: effects of arms against the control of the same seed, and what they cost in loss."""

from __future__ import annotations

from anisoscope.report.formatting import counted, interval, listed, number
from anisoscope.report.reading import Row, Source
from anisoscope.report.sections.causal_verdicts import finding, price_figure, sentence_blocks
from anisoscope.report.tree import Block, Cell, Section, Table, Text, Tone
from anisoscope.verdict import ABOVE, BELOW
from anisoscope.vocabulary import EFFECTS, MEASURES

_TONES: dict[str, Tone] = {"above": "yes", "below": "no"}
_REST = "the others are equal, undecided, or were not measured."


def interventions_sections(source: Source) -> list[Section]:
    """In words, with what effects cost; folded, every arm by every outcome, by every dose, and the laws of tokens."""
    effects = [row for row in source.rows if row["measure"] == "effect" and row["layer"] is None]
    if not effects:
        return [Section("effects", "Effects", [_trained(source), *_failed(source)], open=True)]
    blocks: list[Block] = [*sentence_blocks(source), _null(source, effects), *_failed(source)]
    priced = price_figure(effects)
    if priced is not None:
        blocks.append(priced)
    told = [_merged(row["outcome"]) for row in effects if row["variant"] in EFFECTS]
    shown = sum(outcome in _TONES for outcome in told)
    shown_of = f"{shown} of {counted(len(told), 'effect')} of arms are above or below the control; {_REST}"
    sections = [Section("effects", "Effects", blocks, finding(source) or shown_of, open=True)]
    sections.append(Section("arms", "Every arm", [_table("effects", "Effects of arms", effects)], shown_of))
    trends = [row for row in source.rows if row["measure"] == "trend"]
    if trends:
        clear = sum(_merged(row["outcome"]) in _TONES for row in trends)
        line = f"{clear} of {counted(len(trends), 'trend')} rise or fall with the dose; {_REST}"
        sections.append(Section("doses", "Doses", [_table("trends", "Trends over doses", trends)], line))
    realised = [row for row in source.rows if row["measure"] == "realised_exponent"]
    if realised:
        line = f"{counted(len(realised), 'law')} of tokens, beside what was asked for."
        sections.append(Section("laws", "Token laws", [_realised(realised)], line))
    return sections


def _trained(source: Source) -> Text:
    """How far a plan has come that has no effects yet."""
    done, seen = source.manifest.get("done"), sorted({str(row["model"]) for row in source.rows if row["model"]})
    many = len(done) if isinstance(done, list) else 0
    under_way = f" There are rows of {listed(seen)}." if seen else ""
    text = f"They are computed when every training has ended; {counted(many, 'training')} ended so far.{under_way}"
    return Text(text, "No effects yet.", "open")


def _null(source: Source, effects: list[Row]) -> Text:
    """The arm that changed nothing must show nothing: anything else would be a fault of the instrument."""
    arms = (source.manifest.get("config") or {}).get("arms") or []
    named = {arm.get("name") for arm in arms if isinstance(arm, dict) and arm.get("kind") == "null"} or {"null"}
    own = [row for row in effects if row["model"] in named]
    moved = [row for row in own if row["value"]]
    if not own:
        return Text("The plan has no arm that changes nothing.", "Null arm.", "open")
    if moved:
        what = listed([str(row["variant"]) for row in moved])
        return Text(f"It differs from the control in {what}: the training runs were not identical.", "Null arm.", "no")
    return Text(
        "A different label with nothing changed: every outcome of every seed equals that of the control to the "
        "last bit.",
        "Null arm.",
        "yes",
    )


def _failed(source: Source) -> list[Text]:
    failed = source.manifest.get("failed")
    if not isinstance(failed, dict) or not failed:
        return []
    named = "; ".join(f"{name}: {why}" for name, why in list(failed.items())[:8])
    return [Text(f"{counted(len(failed), 'training run')} did not finish. {named}", "Failed.", "no")]


def _table(name: str, title: str, rows: list[Row]) -> Table:
    arms = list(dict.fromkeys(str(row["model"]) for row in rows))
    by_outcome: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_outcome.setdefault(str(row["variant"]), {})[str(row["model"])] = row
    cells = [
        [Cell(EFFECTS[outcome].label if outcome in EFFECTS else outcome), *(_cell(found.get(arm)) for arm in arms)]
        for outcome, found in by_outcome.items()
    ]
    caption = (
        "Arm minus control at the same seed, mean over seeds with Student's 95 % interval (from 3 seeds on), at the "
        "end of training; loss is the price. Numbers of layers are medians over layers; ratios are compared as "
        "logarithms. Outcomes: above or below (the interval excludes 0 and q ≤ 0.05, adjusted "
        "over the outcomes of an arm and dose), equal (the 90 % interval lies within the margin declared before the "
        "run), or cannot tell; below each, the smallest effect that plans of this size would find in 80 % of cases. "
        "The loss of an arm with another objective or corpus is a different quantity and is not compared with the "
        "control."
    )
    return Table(name, title, caption, ["outcome", *arms], cells)


def _cell(row: Row | None) -> Cell:
    if row is None:
        return Cell("–")
    word = row["outcome"] or "not measured"
    seen = "" if row["detectable"] is None else f"; finds {number(row['detectable'])}"
    note = f"; {row['note']}" if row["note"] and row["low"] is None else ""
    return Cell(interval(row["value"], row["low"], row["high"]), f"{word}{seen}{note}", _TONES.get(_merged(word)))


def _merged(outcome: str | None) -> str:
    return "above" if outcome in ABOVE else "below" if outcome in BELOW else outcome or "not measured"


def _realised(rows: list[Row]) -> Table:
    made = [
        [
            Cell(str(row["model"])),
            Cell(str(row["seed"])),
            Cell(MEASURES["realised_exponent"].variant_label(row["variant"])),
            Cell("–" if row["floor"] is None else number(row["floor"])),
            Cell(number(row["value"]), row["note"]),
        ]
        for row in rows
    ]
    caption = (
        "For weights and rates: the slope of the new token law on that of the corpus, over types, in logarithms; 1 is "
        "the corpus. For the training data: the exponent of the corpus counts under which the target tokens, weighted, "
        "are most likely. By its words: the exponent of the synthetic language under which the training words are most "
        "likely."
    )
    return Table(
        "realised", "Token laws as realised", caption, ["arm and dose", "seed", "what", "requested", "realised"], made
    )
