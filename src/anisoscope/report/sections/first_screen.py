"""The first screen: the answer, the figure that shows it, the ladder as signs, and what the run cannot say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from anisoscope.report.answer import answer
from anisoscope.report.choices import ALL_MODELS, Chosen, alone
from anisoscope.report.formatting import number
from anisoscope.report.ladder_findings import JUDGED, LadderFinding, findings, smallest_ratio
from anisoscope.report.names import word_of
from anisoscope.report.plain_words import HEADS, gives, short
from anisoscope.report.reading import Context
from anisoscope.report.sections.limits import limits
from anisoscope.report.tree import Cell, Front, Mark, MarkTable, Section
from anisoscope.verdict import ABOVE
from anisoscope.vocabulary import ladder_of

Words = Callable[[Chosen, str], list[Section]]
MOST_MODELS = 12
"""Models that are told one by one at most; of more the page shows rows and curves of one alone, not its words."""
LEGEND = (
    "✓ above this null and every earlier one; (✓) above, but an earlier null is not passed; = equal within the "
    "margin; ✗ below; ? cannot tell; – not measured. Numbers: odds ratio pooled over layers; 1 is the null."
)


def fronts(chosen: Sequence[Chosen], sections: Words | None = None) -> list[Front]:
    """What a page says for every combination of choices; those after the first say whether they differ from it.

    Where there are several models, each combination is also told of every model alone. ``sections`` makes the words
    of the folds; those of the first combination are the page's own.
    """
    made = [_front(one, model, sections) for one in chosen for model in _models(chosen[0].context)]
    return [replace(made[0], sections=[]), *(replace(other, note=_note(made[0], other)) for other in made[1:])]


def _models(context: Context) -> list[str]:
    """All together first, then one by one."""
    labels = [subject.label for subject in context.subjects]
    return [ALL_MODELS, *labels] if 1 < len(labels) <= MOST_MODELS else [ALL_MODELS]


def _front(chosen: Chosen, model: str, sections: Words | None) -> Front:
    """One combination, of all models or of one alone."""
    one = chosen if model == ALL_MODELS else alone(chosen, model)
    found = findings(one.context, one.view)
    said, several = answer(found), len(chosen.context.subjects) > 1
    tags = chosen.tags | ({"model": model} if several else {})
    words = [] if sections is None else sections(one, model)
    return Front(tags, said.text, ladder_table(found), limits(one.context, found), sections=words)


def _note(first: Front, other: Front) -> str:
    """Whether other choices lead to another verdict than those that the page began with."""
    words = ", ".join(word_of(value) for key, value in other.choices.items() if first.choices.get(key) != value)
    begins = ", ".join(word_of(value) for value in first.choices.values() if value != ALL_MODELS)
    there = _passed(other)
    if {name: nulls for name, nulls in _passed(first).items() if name in there} == there:
        return f"Other choices ({words}): as many nulls are passed in a row as with {begins}."
    return f"Other choices ({words}): the verdict differs from that with {begins}, which is: {first.answer.head}"


def _passed(front: Front) -> dict[str, list[str]]:
    """Nulls that are passed, by model and window."""
    if front.ladder is None:
        return {}
    names = [term for _, term in front.ladder.columns]
    return {
        name.text: [null for null, mark in zip(names, marks, strict=True) if isinstance(mark, Mark) and _counts(mark)]
        for name, marks in front.ladder.rows
    }


def _counts(mark: Mark) -> bool:
    return mark.outcome in ABOVE and not mark.beyond


def ladder_table(found: Sequence[LadderFinding]) -> MarkTable | None:
    """A row a model and window, a column a null."""
    told = [f for f in found if f.verdict is not None and f.window in JUDGED]
    if not told:
        return None
    view = told[0].view
    columns = [(HEADS.get(null, null), null) for null in ladder_of(view)]
    rows: list[tuple[Cell, list[Mark | Cell]]] = [
        (Cell(f.label), [_mark(f, null) for null in ladder_of(view)]) for f in told
    ]
    return MarkTable("nulls", "Which nulls are passed", LEGEND, columns, rows)


def _mark(f: LadderFinding, null: str) -> Mark:
    """The outcome of one model and window over one null."""
    assert f.verdict is not None
    effect, counts = f.effects.get(null), f.verdict.merged(null)
    place = ladder_of(f.view).index(null)
    shown = "" if effect is None else number(effect.value)
    said = ", ".join(f"{short(count)} {name}" for name, count in counts.items()) or "no rows"
    detail = f"{f.label}, over {gives(null)}: {f.outcome(null)}. "
    detail += f"Pooled odds ratio {effect}. " if effect is not None else ""
    detail += f"Of {short(f.verdict.total)} {f.verdict.parts}: {said}."
    least = smallest_ratio([f], null) if "cannot tell" in counts else None
    detail += f" Found in 80 % of repetitions: odds ratio {least}." if least else ""
    detail += f" {f.reasons[null]}." if null in f.reasons and f.outcome(null) == "not measured" else ""
    link = "figure-enrichment-layers" if f.subject.source.is_profile else "figure-emergence"
    return Mark(
        f.outcome(null), shown, detail, link, {"null": null, "view": f.view}, beyond=f.height >= 0 and place > f.height
    )
