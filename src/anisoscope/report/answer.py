"""The answer of a run in one or two plain sentences: a pure function of outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anisoscope.report.formatting import listed, number
from anisoscope.report.ladder_findings import JUDGED, LadderFinding
from anisoscope.report.plain_words import beyond, counted_layers, directions, gives, hides, listed_nulls, percent, short
from anisoscope.report.sections.verdict_section import headline
from anisoscope.report.tree import Text, Tone
from anisoscope.verdict import Verdict
from anisoscope.vocabulary import ladder_of

ENERGY = {
    "representation": "the gradient's energy",
    "weight": "the weight gradient's energy",
    "embedding": "the embedding gradient's energy",
}
ROLES = ("Decoder", "Encoder")
_BESIDE_CHANCE = {"above": "above chance", "below": "below chance", "equal": "equal to chance"}
_AVERAGE = " on average"
_WHEN = {"late": "Late in training", "middle": "In the middle of training", "early": "Early in training"}


@dataclass(frozen=True, slots=True)
class Answer:
    """A word, its tone, and the sentences that say what was found."""

    head: str
    tone: Tone | None
    sentences: tuple[str, ...]

    @property
    def text(self) -> Text:
        """As a paragraph of the page."""
        return Text(" ".join(self.sentences), self.head, self.tone)


def answer(found: Sequence[LadderFinding]) -> Answer:
    """What the last observed window of each model says; models that end alike share a sentence."""
    judged = [f for f in found if f.verdict is not None and f.window in JUDGED]
    said = headline(list(found), found[0].view if found else "representation")
    if not judged:
        return Answer(said.head or "", said.tone, (said.text,))
    last = list({f.subject.label: f for f in judged}.values())  # windows come in order: the last one stays
    groups: dict[tuple[str, ...], list[LadderFinding]] = {}
    for f in last:
        groups.setdefault(_pattern(f), []).append(f)
    sentences = [sentence for group in groups.values() for sentence in _told(group)]
    sentences += [text for text in (_earlier(f, judged) for f in last) if text]
    return Answer(said.head or "", said.tone, tuple(map(_upper, sentences)))


def _pattern(f: LadderFinding) -> tuple[str, ...]:
    """Findings of one pattern are told together: the same window, proxy and nulls passed."""
    v = _verdict(f)
    own = f.subject.label if len({s.last for s in f.seeds}) > 1 or v.mixed_and_passed else ""
    over = "" if v.height else v.majority(ladder_of(f.view)[0]) or f.subject.label
    shares = "" if f.shares is None else "shares"
    return (f.window, f.view, directions(f), v.last or "", over, own, shares, str(len(f.seeds)), _so_far(f))


def _told(group: list[LadderFinding]) -> list[str]:
    """Sentences about models that pass the same nulls."""
    one = group[0]
    sentences = [_first(group)]
    if one.height:
        sentences += _beyond(group)
    if len({s.last for s in one.seeds}) > 1:
        each = listed([f"{seed.height}" for seed in one.seeds])
        sentences.append(f"Seeds disagree: of {len(ladder_of(one.view))} nulls, they pass the first {each}.")
    return sentences


def _first(group: list[LadderFinding]) -> str:
    """What the directions hold beside chance, and the outcome over random directions."""
    one = group[0]
    null = ladder_of(one.view)[0]
    outcome = "above" if one.height else _verdict(one).majority(null)
    what = f"{_where(one)}{_owners(group)}"
    if any(f.shares is None for f in group):
        return _without_shares(group, what, null, outcome)
    each = [_times(f) for f in group]
    times = f"{each[0] if len(set(each)) == 1 else listed(each)} times the {_chance(group)} expected by chance"
    energy = f"{what} hold {_held(group)} of {ENERGY[one.view]}{_others(group)}, {times}"
    mean = f"mean of {len(one.seeds)} seeds" if len(one.seeds) > 1 else ""
    plain = f"{energy} ({mean})" if mean else energy
    layers = _agreement(group, null, outcome)
    full = f"{energy} ({layers}{mean and f'; {mean}'})"
    return {
        "above": f"{full}.",
        "below": f"{full}: less than random directions.",
        "equal": f"{full}: as much as random directions, within the margin.",
        "cannot tell": f"{plain}. Whether that differs from chance is undecided ({layers}).",
        "not measured": f"{plain}. Random directions were not measured{_why(one, null)}.",
    }.get(outcome or "", f"{plain}. Layers disagree on this: {layers}.")


def _held(group: list[LadderFinding]) -> str:
    assert group[0].shares is not None
    return percent(group[0].shares.share)


def _others(group: list[LadderFinding]) -> str:
    """What the other models of the group hold."""
    parts = [f"{_short_owner(f)} {percent(f.shares.share)}" for f in group[1:] if f.shares is not None]
    return f", {listed(parts)}" if len(parts) > 1 else f" and {parts[0]}" if parts else ""


def _chance(group: list[LadderFinding]) -> str:
    """To three digits: it is known exactly, and the share is set beside it."""
    return listed(list(dict.fromkeys(f"{100 * f.shares.chance:.3g} %" for f in group if f.shares is not None)))


def _times(f: LadderFinding) -> str:
    assert f.shares is not None
    return f"{float(f'{f.shares.times:.2g}'):g}"


def _without_shares(group: list[LadderFinding], what: str, null: str, outcome: str | None) -> str:
    """The same where rows have no shares: the odds ratio, named as such."""
    one = group[0]
    effects = [f.effects[null] for f in group if null in f.effects]
    ratio = f" (odds ratio {listed([number(e.value) for e in effects])})" if len(effects) == len(group) else ""
    counts = _agreement(group, null, outcome)
    energy = ENERGY[one.view]
    counts += f"; mean of {len(one.seeds)} seeds" if len(one.seeds) > 1 else ""
    endings = {
        "above": f"hold more of {energy} than random directions{ratio}; {counts}.",
        "below": f"hold less of {energy} than random directions{ratio}; {counts}.",
        "equal": f"hold as much of {energy} as random directions, within the margin{ratio}; {counts}.",
        "cannot tell": f"may or may not hold more of {energy} than random directions{ratio}; {counts}.",
        "not measured": f"were not compared with random directions{_why(one, null)}.",
    }
    return f"{what} {endings.get(outcome or '', f'differ between layers{ratio}: {counts}.')}"


def _beyond(group: list[LadderFinding]) -> list[str]:
    """Nulls that are passed beyond random directions, and the first that is not."""
    one = group[0]
    nulls = ladder_of(one.view)
    passed, missed = nulls[1 : one.height], _verdict(one).first_not_passed
    sentences = []
    if passed:
        verb = "gives" if len(passed) == 1 and passed[0] == "init" else "give"
        ending = ": every null is passed" if missed is None else ""
        sentences.append(f"That is more than {listed_nulls(passed)} {verb}{_though(one)}{ending}.")
    elif _though(one):
        sentences.append(f"That holds{_though(one)}.")
    if missed is None:
        return sentences
    ends: dict[str, list[LadderFinding]] = {}
    for f in group:
        ends.setdefault(_end(f, missed), []).append(f)
    for said, members in ends.items():
        who = "" if len(ends) == 1 else f"In {listed([_name(f) for f in members])}, "
        sentences.append(f"{who}{said}" if who else _upper(said))
    return sentences


def _end(f: LadderFinding, missed: str) -> str:
    """What the rows say to the first null that is not passed."""
    v = _verdict(f)
    outcome = v.majority(missed)
    if (told := beyond(outcome, missed)) is not None:
        return told
    if outcome == "above":
        above = counted_layers(v.merged(missed)["above"], v)
        few = "but too few of them pass every earlier null too"
        return f"{above} are above {hides(missed)}, {few}: this null is not passed."
    if outcome == "cannot tell":
        return f"whether {hides(missed)} {_give_less(missed)} is undecided."
    if outcome == "not measured":
        return f"{hides(missed)} {_was(missed)} not measured{_why(f, missed)}, so this null is open."
    return f"layers disagree on {hides(missed)} ({_outcomes(v, missed)}): this null is not passed."


def _earlier(f: LadderFinding, judged: list[LadderFinding]) -> str:
    """Windows of the same model that came to another height."""
    others = [o for o in judged if o.subject.label == f.subject.label and o.window != f.window]
    fewer = [o for o in others if o.height < f.height]
    more = [o for o in others if o.height > f.height]
    parts = []
    for group, word in ((more, "more"), (fewer, "fewer")):
        if group:
            when = listed(
                [_WHEN[o.window][:1].lower() + _WHEN[o.window][1:].removesuffix(" of training") for o in group]
            )
            how = listed([_reached(o) for o in group])
            parts.append(f"{word} nulls {when} ({how})")
    who = _name(f)
    return f"{who} passes {' and '.join(parts)}." if parts else ""


def _reached(f: LadderFinding) -> str:
    last = _verdict(f).last
    return "none" if last is None else f"up to {gives(last)}"


def _where(f: LadderFinding) -> str:
    if f.subject.source.is_profile:
        return ""
    return f"{_so_far(f)}{_WHEN[f.window]}, "


def _so_far(f: LadderFinding) -> str:
    if f.subject.source.status != "running" or f.steps is None:
        return ""
    return f"So far (step {f.steps[1]:,} of {f.subject.source.steps:,}): "


def _owners(group: list[LadderFinding]) -> str:
    """Whose directions the sentence is about: with shares the first, whom the others follow by name."""
    told = group[:1] if all(f.shares is not None for f in group) else group
    if all(f.subject.label in ROLES for f in told):
        return f"{listed([_possessive(_name(f)) for f in told])} {directions(group[0])}"
    return f"the {directions(group[0])} of {listed([_name(f) for f in told])}"


def _short_owner(f: LadderFinding) -> str:
    return _possessive(_name(f)) if f.subject.label in ROLES else f"those of {_name(f)}"


def _possessive(name: str) -> str:
    return f"{name}'s"


def _name(f: LadderFinding) -> str:
    """The decoder, the decoder of a run among several, or a model by its name."""
    run, _, role = f.subject.label.rpartition(" · ")
    if role not in ROLES:
        return f.subject.label
    return f"the {role.lower()} of {run}" if run else f"the {role.lower()}"


def _agreement(group: list[LadderFinding], null: str, outcome: str | None) -> str:
    """How many layers have this outcome: above chance in all 5 layers."""
    said = [_counts(_verdict(f), null, outcome) for f in group]
    if len(set(said)) > 1:
        return "; ".join(f"{_name(f)}: {text}" for text, f in zip(said, group, strict=True))
    if len(group) == 1 or outcome is None:
        return said[0]
    own, average = said[0].removesuffix(_AVERAGE), _AVERAGE if said[0].endswith(_AVERAGE) else ""
    return f"{own} of each{average}"


def _counts(v: Verdict, null: str, outcome: str | None) -> str:
    if outcome is None:
        return _outcomes(v, null)
    count = v.merged(null).get(outcome, 0.0)
    return f"{_BESIDE_CHANCE.get(outcome, outcome)} in {counted_layers(count, v)}"


def _outcomes(v: Verdict, null: str) -> str:
    parts = [f"{short(count)} {name}" for name, count in v.merged(null).items()]
    return f"of {short(v.total)} {v.parts}, {listed(parts)}"


def _though(f: LadderFinding) -> str:
    """Layers that lie below a null which most of them pass."""
    v = _verdict(f)
    if not v.mixed_and_passed:
        return ""
    null = v.mixed_and_passed[-1]
    return f", though {short(v.merged(null)['below'])} of {short(v.total)} {v.parts} lie below {hides(null)} (mixed)"


def _why(f: LadderFinding, null: str) -> str:
    return f" ({f.reasons[null]})" if null in f.reasons else ""


def _give_less(null: str) -> str:
    return "gives less" if null == "init" else "give less"


def _was(null: str) -> str:
    return "was" if null == "init" else "were"


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _verdict(f: LadderFinding) -> Verdict:
    assert f.verdict is not None, "only windows with rows are told"
    return f.verdict
