"""The first section: the verdict in words, and the ladder drawn. Every sentence follows an outcome of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from anisoscope.report.choices import LABELS, Chosen, fits
from anisoscope.report.claim_table import claim_table
from anisoscope.report.formatting import counted, listed, number
from anisoscope.report.ladder_findings import JUDGED, LadderFinding, Shares, findings, smallest, smallest_ratio
from anisoscope.report.names import word_of
from anisoscope.report.reading import Context
from anisoscope.report.sections.expectations import expectations
from anisoscope.report.tree import Block, Control, Gap, LadderFigure, Node, Section, Text, Tone, Track
from anisoscope.verdict import ALPHA, MIXED, Verdict
from anisoscope.vocabulary import EARLY, LATE, NULLS, OUTCOMES, VIEWS, ladder_of, window_bounds

MEANING = {null.name: null.otherwise for null in NULLS.values() if null.ladder}
CLAIM = (
    "The claim under test (Bernas et al. 2026, arXiv:2604.08764): a few directions fitted on activations (the tangent "
    "proxy) hold more of the true gradient's energy than each of the nulls below gives."
)


def rule(context: Context) -> str:
    """How rows become words."""
    margins = listed(sorted({f"{subject.margin:g}" for subject in context.subjects}))
    return (
        f"The rule. One layer against one null: above or below if the 95 % interval of the odds ratio excludes 1 and q "
        f"≤ {ALPHA} (Benjamini-Hochberg over layers); equal if the 90 % interval lies inside the margin, 1/m to m with "
        f"m = {margins} in odds, declared before the run; otherwise cannot tell, with the smallest odds ratio that "
        "would have been found in 80 % of repetitions. Each layer passes nulls in order; a model reaches the greatest "
        "height that more than half of its layers reach. Pooled: the mean log odds ratio over layers, with an interval "
        "over sequences or documents, which all layers share; it can be above even where most layers are not. "
        f"Mixed: at least {100 * MIXED:.0f} % of the layers are above and at least {100 * MIXED:.0f} % below. "
        "Windows: before "
        f"(step 0), early (up to {100 * EARLY:.0f} %), middle, late (from {100 * LATE:.0f} %); an observation is "
        "weighted by the number of steps that are nearer to it than to any other, and counts are averages over the "
        "window. The headline takes models and windows together: q is adjusted over the layers of one model, view, "
        "null and observation, not again over models and windows. With several seeds, counts are also averaged over "
        "seeds; effects are the mean over seeds with Student's t interval (three seeds or more), or else the single "
        "values. How often such verdicts are wrong: docs/calibration.md."
    )


def verdict_section(context: Context, view: str = "representation") -> Section:
    """The verdict of a view in words, then as ladders, then every claim, then what was expected."""
    found = {name: findings(context, name) for name in VIEWS}
    blocks: list[Block] = [headline(found[view], view), Text(CLAIM)]
    blocks += [Text(sentence(f), f"{f.label}:", tone(f)) for f in found[view] if f.window != "before"]
    blocks += [Text(sentence(f), f"{f.label} training:", "plain") for f in found[view] if _told_before(f)]
    for other in [name for name in VIEWS if name != view]:
        if found[other]:
            blocks.append(Text(other_view(found[other]), f"{other.capitalize()} view:", "plain"))
    if any(f.verdict is not None for name in VIEWS for f in found[name]):
        blocks.append(ladders(fits(context), view) if context.drawn else Gap("ladder"))
    table = claim_table(context, view)
    if table is not None:
        blocks.append(table)
    blocks.append(Text(rule(context), small=True))
    if not context.of_profiles:  # expectations are about a training
        blocks += expectations(context)
    return Section("verdict", "The verdict in full", blocks, _passed(found))


def _passed(found: dict[str, list[LadderFinding]]) -> str:
    """How many nulls each model passes in a row in its last window, view by view."""
    parts = []
    for view, members in found.items():
        last = {f.subject.label: f for f in members if f.verdict is not None and f.window in JUDGED}
        many = [f"{label} {f.height} of {len(ladder_of(view))}" for label, f in last.items()]
        if many:
            parts.append(f"{view} view {', '.join(many)}")
    return f"Nulls passed in a row at the end: {'; '.join(parts)}." if parts else "Nothing to judge yet."


def headline(found: list[LadderFinding], view: str = "representation") -> Text:
    """One sentence over all models and windows of a view, step 0 apart, and what limits it."""
    judged = [f for f in found if f.verdict is not None and f.window in JUDGED]
    said = _headline(judged, view)
    mixed = [f.label.replace(", ", " ") for f in judged if f.verdict is not None and f.verdict.mixed_and_passed]
    text = said.text + (f" Mixed: in {listed(mixed)}, some layers lie below a null that most pass." if mixed else "")
    small = [f.label.replace(", ", " ") for f in judged if f.height and _is_small(f)]
    text += f" In {listed(small)}, the pooled odds ratio over `haar` lies within the margin." if small else ""
    return replace(said, text=text)


def _is_small(f: LadderFinding) -> bool:
    """Whether an effect over random directions, certain as it may be, is within the margin."""
    pooled = f.effects.get("haar")
    return pooled is not None and pooled.within(f.subject.margin)


def _headline(judged: list[LadderFinding], view: str) -> Text:
    if not judged:
        return Text(
            f"The run holds no evidence in the {view} view yet, so the claim is neither supported nor refuted.",
            "Nothing to judge.",
            "open",
        )
    best, worst = max(judged, key=lambda f: f.height), min(judged, key=lambda f: f.height)
    where = _where(judged)
    far = " so far" if any(f.subject.source.status == "running" for f in judged) else ""
    if best.height == 0:
        if all(_none_above(f) for f in judged):
            text = f"In {where}, most layers hold as much as random directions do, within the margin, or less{far}."
            above = [f for f in judged if (e := f.effects.get("haar")) is not None and e.low is not None and e.low > 1]
            if not above:
                return Text(text, "Not supported.", "no")
            pooled = listed([f"{f.label} {f.effects['haar']}" for f in above])
            small = all(f.effects["haar"].within(f.subject.margin) for f in above)
            text += f" Pooled over layers, the odds ratio is above 1: {pooled}."
            return Text(text, "Within the margin.", "no") if small else Text(text, "Undecided.", "open")
        text = f"In {where}, the first null, `haar`, is not passed{far}. {_ends(judged)}"
        return Text(text.strip(), "Undecided.", "open")
    if worst.height == len(ladder_of(view)):
        text = f"In {where}, more than half of the layers pass every null of the ladder{far}."
        return Text(text, "Supported.", "yes")
    if worst.height == best.height:
        text = f"In {where}, the claim passes the nulls up to {_last(best)}, and no further{far}. {_ends(judged)}"
    else:
        low = f"only up to {_last(worst)}" if worst.height else "none"
        text = (
            f"{best.label} passes the most nulls{far}, up to {_last(best)}; {worst.label} passes the fewest, {low}. "
            f"{missed(best)}"
        )
    # Signals of the data are the last two nulls: short of them the rows do not say that the data's signal counts.
    return Text(text.strip(), "Supported in part.", "part")


def _where(judged: list[LadderFinding]) -> str:
    models = {f.subject.label for f in judged}
    if all(f.subject.source.is_profile for f in judged):
        return counted(len(models), "model")
    return f"{counted(len(judged), 'window')} of {counted(len(models), 'model')}"


def _none_above(f: LadderFinding) -> bool:
    """Whether more than half of the layers are equal to random directions within the margin, or below."""
    assert f.verdict is not None
    counts = f.verdict.merged("haar")
    return 2 * (counts.get("equal", 0.0) + counts.get("below", 0.0)) > f.verdict.total * (1 + 1e-9)


def _ends(judged: list[LadderFinding]) -> str:
    """What the rows say to the null at which all windows end: its numbers, or the outcome of each window."""
    first = judged[0]
    assert first.verdict is not None
    null = first.verdict.first_not_passed
    if len(judged) == 1 or null is None:
        return missed(first)
    outcomes: dict[str, list[str]] = {}
    for f in judged:
        assert f.verdict is not None
        outcomes.setdefault(f.verdict.majority(null) or "no majority", []).append(f.label.replace(", ", " "))
    parts = [f"{outcome} in {listed(labels)}" for outcome, labels in outcomes.items()]
    said = f"Over `{null}`, the outcome of more than half of the layers: {'; '.join(parts)}."
    return f"{said} {smallest([f for f in judged if _open(f, null)], null)}".strip()


def _open(f: LadderFinding, null: str) -> bool:
    """Whether the rows of a null cannot tell, or layers differ and some cannot."""
    assert f.verdict is not None
    outcome = f.verdict.majority(null)
    return outcome == "cannot tell" or (outcome is None and "cannot tell" in f.verdict.merged(null))


def sentence(f: LadderFinding) -> str:
    """What one window of one model says."""
    if f.verdict is None:
        first, last = window_bounds(f.window, f.subject.source.steps)
        steps = f" (steps {first:,.0f} to {last:,.0f})" if first < last else ""
        return f"There are no observations in this window{steps}."
    seeds = f" of {len(f.seeds)} seeds" if len(f.seeds) > 1 else ""
    seen = (
        ""
        if f.subject.source.is_profile
        else f" Based on {counted(f.observations, 'observation')}{seeds}, {_steps(f)}."
    )
    return " ".join(part for part in (_size(f), heights(f), _mixed(f), missed(f)) if part) + seen


def _mixed(f: LadderFinding) -> str:
    """Nulls that are passed although some layers lie below them, with both counts."""
    assert f.verdict is not None
    parts = []
    for null in f.verdict.mixed_and_passed:
        counts = f.verdict.merged(null)
        parts.append(f"`{null}` {_layers(counts['above'])} above and {_layers(counts['below'])} below")
    return f"Mixed: of {_parts(f.verdict)}, over {listed(parts)}." if parts else ""


def tone(f: LadderFinding) -> Tone:
    """How far, as a colour."""
    if f.verdict is None:
        return "open"
    if f.height == 0:
        return "no" if _none_above(f) else "open"
    return "yes" if f.verdict.first_not_passed is None else "part"


def _size(f: LadderFinding) -> str:
    """Share, chance and their ratio first; the odds ratio is named as such."""
    pooled = f.effects.get("haar")
    if f.shares is None:
        return f"Over `haar` the odds ratio is {pooled}." if pooled is not None else ""
    inside = f" (odds ratio {pooled})" if pooled is not None else ""
    return f"The proxy holds {_held([f.shares])}{inside}."


def _held(shares: list[Shares]) -> str:
    """Shares, what chance gives and how many times that is; of several, from the least to the most."""
    share, chance = _span([s.share for s in shares]), _span([s.chance for s in shares])
    times = _span([s.times for s in shares])
    return f"{share} of the gradient's energy, {times} times the {chance} expected by chance"


def heights(f: LadderFinding) -> str:
    """How many layers reach each null; of several seeds, how far each gets."""
    assert f.verdict is not None
    if len({s.last for s in f.seeds}) < 2:
        alike = " All seeds get equally far." if len(f.seeds) > 1 else ""
        return _counts(f) + alike
    each = listed([f"up to `{s.last}`" if s.last else "none" for s in f.seeds])
    return f"{_counts(f)} Nulls passed in a row, seed by seed: {each}."


def _counts(f: LadderFinding) -> str:
    assert f.verdict is not None
    v = f.verdict
    if not any(v.reached.values()):
        return f"No {v.parts.removesuffix('s')} passes a null."
    parts = []
    for null in ladder_of(f.view):
        parts.append(f"`{null}` {_layers(v.reached[null])}")
        if v.reached[null] == 0:
            break  # those after it are not reached either
    head = f"It passes the nulls up to `{v.last}`" if v.last else "It passes no null"
    return f"{head}. Of {_parts(v)}, the number that pass each null and all before it: {', '.join(parts)}."


def missed(f: LadderFinding) -> str:
    """The first null that is not passed, by the commonest outcome of its layers."""
    assert f.verdict is not None
    v, null = f.verdict, f.verdict.first_not_passed
    if null is None:
        return ""
    counts, found = v.merged(null), v.majority(null)
    pooled = f.effects.get(null)
    numbers = f"pooled odds ratio {pooled}" if pooled is not None else "no pooled effect"
    how_many = f"{_layers(counts.get(found or '', 0.0))} of {_parts(v)}"
    every = ", ".join(f"{name} {_layers(counts[name])}" for name in OUTCOMES if name in counts)
    reason = f" ({f.reasons[null]})" if null in f.reasons else ""
    if found == "above":
        text = (
            f"Over `{null}`, {how_many} are above ({numbers}), but only {_layers(v.reached[null])} pass every earlier "
            "null too."
        )
    elif found == "equal":
        margin = f"the margin {f.subject.margin:g}"
        text = f"Over `{null}`, it is equal within {margin} in {how_many} ({numbers}): {MEANING[null]}."
    elif found == "below":
        text = f"Over `{null}`, it is below the null in {how_many} ({numbers}): the null shows more."
    elif found == "not measured":
        rest = f"; the others: {every}" if len(counts) > 1 else ""
        least = smallest([f], null) if "cannot tell" in counts else ""
        return f"Over `{null}`, nothing was measured in {how_many}{reason}{rest}. {least}".strip()
    elif found == "cannot tell":
        text = f"Over `{null}`, the rows cannot tell in {how_many} ({numbers}). {smallest([f], null)}".strip()
    else:
        text = f"Over `{null}`, {v.parts} disagree: of {_parts(v)}, {every} ({numbers}). {smallest([f], null)}".strip()
    if v.is_mixed(null):
        text += " Mixed: some are above the null and some below."
    elif found != "above" and pooled is not None and pooled.low is not None and pooled.low > 1:
        text += f" Pooled over {v.parts}, the effect is above the null, although most {v.parts} alone do not show it."
    elif found != "below" and pooled is not None and pooled.high is not None and pooled.high < 1:
        text += f" Pooled over {v.parts}, the effect is below the null, although most {v.parts} alone do not show it."
    return text


def other_view(found: list[LadderFinding]) -> str:
    """Another view in a few words: windows that end alike are told together."""
    groups: dict[tuple[str | None, str | None, str], list[LadderFinding]] = {}
    for f in found:
        if f.verdict is not None:
            null = f.verdict.first_not_passed
            found_there = "" if null is None else f.verdict.majority(null) or "differ"
            groups.setdefault((f.verdict.last, null, found_there), []).append(f)
    parts = [_together(members, *key) for key, members in groups.items()]
    return " ".join(parts) or "There are no observations in the windows."


def _together(members: list[LadderFinding], last: str | None, null: str | None, outcome: str) -> str:
    who = listed([f.label.replace(", ", " ") for f in members])
    verb = "passes" if len(members) == 1 else "pass"
    reached = f"{verb} the nulls up to `{last}`" if last else f"{verb} no null"
    shares = [f.shares for f in members if f.shares is not None]
    held = f"{_held(shares)}; " if len(shares) == len(members) else ""
    text = f"{who} {reached} ({held}odds ratio {_range(members, 'haar')} over `haar`)"
    if null is None:
        return f"{text}: every null is passed."
    over = f" ({_range(members, null)})" if null != "haar" else ""
    ends = {
        "equal": f"equal to `{null}` within the margin{over}: {MEANING[null]}",
        "below": f"below `{null}`{over}",
        "above": f"above `{null}`{over} in most layers, but too few of them pass every earlier null too",
        "not measured": f"nothing was measured over `{null}`{_why(members, null)}",
        "differ": f"over `{null}`, layers disagree{over}",
    }
    least = smallest([f for f in members if _open(f, null)], null)
    return f"{text}; {ends.get(outcome, f'over `{null}`, the rows cannot tell{over}')}. {least}".strip()


def _why(members: list[LadderFinding], null: str | None) -> str:
    """Why a null was not measured, where rows say so."""
    said = sorted({f.reasons[null] for f in members if null in f.reasons})
    return f" ({'; '.join(said)})" if said else ""


def _range(members: list[LadderFinding], null: str) -> str:
    values = [effect.value for f in members if (effect := f.effects.get(null)) is not None]
    return _span(values) if values else "not measured"


def _span(values: list[float]) -> str:
    """From the least to the most, or the one number that both are."""
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"


def ladders(chosen: Sequence[Chosen], view: str = "representation") -> LadderFigure:
    """The ladders as a figure, a track a model and window, for every choice of proxy, timing and tokens."""
    begins = chosen[0].tags
    tracks = [track for one in chosen for track in _tracks(one)]
    views = list(dict.fromkeys(t.tags["view"] for t in tracks))
    first = [t for t in tracks if all(t.tags[key] == word for key, word in begins.items())]
    said = "; ".join(
        f"{t.label}, {t.tags['view']}: {'up to ' + word_of(t.last) if t.last else 'no null'}" for t in first
    )
    controls = [Control("view", "View", views, view if view in views else views[0])] if len(views) > 1 else []
    values = {key: list(dict.fromkeys(t.tags[key] for t in tracks)) for key in begins}
    return LadderFigure(
        "ladder",
        "The ladder of nulls",
        "Each stop is a null. The number is the pooled odds ratio over it (1 is the null itself); hover or tap for the "
        "95 % interval and the outcomes of the layers. Filled: more than half of the layers pass this null and all "
        "before it. Thick ring: above in most layers, but an earlier null is not passed. Equals sign: equal within the "
        "margin. Triangle: below. Question mark: cannot tell. The thick line ends at the verdict. What each null "
        "breaks: "
        f"{'; '.join(f'{word_of(null)}: {NULLS[null].breaks}' for null in MEANING)}.",
        f"Ladders of nulls. {said}.",
        tracks,
        [*controls, *(Control(k, LABELS[k], v, begins[k], page=True) for k, v in values.items() if len(v) > 1)],
    )


def _tracks(one: Chosen) -> list[Track]:
    """The tracks of one choice, in every view."""
    tracks = []
    for f in (f for view in VIEWS for f in findings(one.context, view) if f.verdict is not None):
        assert f.verdict is not None
        nodes = []
        for null in ladder_of(f.view):
            at = f.effects.get(null)
            value, low, high = (at.value, at.low, at.high) if at is not None else (None, None, None)
            counts = ", ".join(f"{name} {_layers(n)}" for name, n in f.verdict.merged(null).items())
            why = f"of {_parts(f.verdict)}: {counts}" if counts else "no rows"
            least = smallest_ratio([f], null)
            if "cannot tell" in f.verdict.merged(null) and least is not None:
                why += f"; found in 80 % of repetitions: an odds ratio of {least}"
            if f.outcome(null) == "not measured" and null in f.reasons:
                why = f.reasons[null]
            nodes.append(Node(null, f.outcome(null), value, low, high, why))
        tags = {"model": f.subject.label, "view": f.view, **one.tags}
        tracks.append(Track(f.label, tags, f.verdict.last, nodes))
    return tracks


def _told_before(f: LadderFinding) -> bool:
    return f.window == "before" and f.verdict is not None


def _last(f: LadderFinding) -> str:
    assert f.verdict is not None
    return f"`{f.verdict.last}`"


def _parts(v: Verdict) -> str:
    """How many layers, or modules, there are."""
    return f"{_layers(v.total)} {v.parts.removesuffix('s') if v.total == 1 else v.parts}"


def _layers(count: float) -> str:
    return f"{count:.0f}" if abs(count - round(count)) < 0.05 else f"{count:.1f}"


def _steps(f: LadderFinding) -> str:
    assert f.steps is not None
    return f"step {f.steps[0]:,}" if f.steps[0] == f.steps[1] else f"steps {f.steps[0]:,} to {f.steps[1]:,}"
