"""The first section: the verdict in words, and the ladder drawn."""

from __future__ import annotations

from anisoscope.report.expected import expectations
from anisoscope.report.findings import Finding, findings
from anisoscope.report.reading import Context
from anisoscope.report.tree import Block, Control, LadderFigure, Node, Section, Text, Tone, Track
from anisoscope.report.words import counted, interval, listed, number
from anisoscope.verdict import ALPHA, Rung
from anisoscope.vocabulary import EARLY, LATE, NULLS, VIEWS, ladder_of

MEANING = {null.name: null.otherwise for null in NULLS.values() if null.ladder}
RULE = (
    "The rule: a layer passes a rung if its enrichment over that null is above 1, its 95 % interval excludes 1 and q "
    f"≤ {ALPHA} (Benjamini-Hochberg over layers). A model passes when more than half of its layers do, a window of "
    f"training when more than half of its observations do (early: the first {100 * EARLY:.0f} %; late: the last "
    f"{100 - 100 * LATE:.0f} %; observations of all seeds count alike). The verdict is the last rung of the unbroken "
    "run of passes; later rungs are shown, not counted. A rung without interval or p is undetermined and ends the "
    "run. Numbers in brackets are those of the median row over layers and observations of the window; of several "
    "seeds, mean and range. The headline is about the representation view: supported if every model and window "
    "passes every rung, not supported if none passes the first, else in part."
)
CLAIM = (
    "The claim under test: low-rank directions fitted on activations (the tangent proxy) hold more of the true "
    "gradient's energy than they must. Enrichment is an odds ratio; 1 is what the null predicts."
)


def verdict_section(context: Context) -> Section:
    """The verdict in words, then as ladders, then what was expected."""
    found = {view: findings(context, view) for view in VIEWS}
    blocks: list[Block] = [headline(found["representation"]), Text(CLAIM)]
    blocks += [Text(sentence(f), f"{f.label}:", tone(f)) for f in found["representation"]]
    for view in [view for view in VIEWS if view != "representation"]:
        if found[view]:
            blocks.append(Text(other_view(found[view]), f"{view.capitalize()} view:", "plain"))
    everything = [f for view in VIEWS for f in found[view] if f.verdict is not None]
    if everything:
        blocks.append(ladders(context, everything))
    blocks.append(Text(RULE, small=True))
    if not context.of_profiles:  # expectations are about a training
        blocks += expectations(context)
    return Section("verdict", "Verdict", blocks)


def headline(found: list[Finding]) -> Text:
    """One sentence over all models and windows of the representation view."""
    judged = [f for f in found if f.verdict is not None]
    if not judged:
        return Text(
            "The run holds no evidence in the representation view yet, so the claim is neither supported nor refuted.",
            "Nothing to judge.",
            "open",
        )
    best, worst = max(judged, key=lambda f: f.height), min(judged, key=lambda f: f.height)
    top = len(ladder_of("representation"))
    if best.height == 0:
        if all(_first(f) == "undetermined" for f in judged):
            text = "In no model and no window of training do the rows settle even the first null."
            return Text(text, "Undetermined.", "open")
        text = "In no model and window do gradients concentrate in the proxy more than in random directions."
        return Text(text, "Not supported.", "no")
    if worst.height == top:
        return Text("In every model and window the claim passes every null of the ladder.", "Supported.", "yes")
    if worst.height == best.height:
        where = "in every model and window that was judged"
        text = f"The claim climbs to {_rung(best)} {where}, and no further: {_stop(best)}."
    else:
        text = (
            f"At best ({best.label}) the claim climbs to {_rung(best)}; {_stop(best)}. At worst ({worst.label}) it "
            f"{'reaches ' + _rung(worst) if worst.height else 'passes no rung at all'}."
        )
    # Signals of the data are the last two rungs: below them nothing says that the data's signal is what counts.
    return Text(text, "Supported in part.", "part")


def sentence(f: Finding) -> str:
    """What one window of one model says."""
    if f.verdict is None:
        return f"There are no observations in this window ({_window_words(f)})."
    haar, first, missed = f.enrichment.get("haar"), f.verdict.rungs[0], f.verdict.first_not_passed
    shown = f"{interval(haar.y, haar.low, haar.high)}" if haar is not None else "not measured"
    seeds = f" of {len(f.subject.seeds)} seeds" if len(f.subject.seeds) > 1 else ""
    seen = (
        "" if f.subject.source.is_profile else f" Seen at {counted(f.observations, 'observation')}{seeds}, {_steps(f)}."
    )
    if first.status == "undetermined":
        return f"Undetermined: {_why(f, first)}; enrichment over random directions is {shown}.{seen}"
    if f.verdict.last is None:
        less = " significantly less than" if first.status == "depleted" else " no more than"
        return f"Not supported. The proxy holds{less} random directions do (`haar`: {shown}; {_why(f, first)}).{seen}"
    highest = f.peak if f.observations > 1 else None
    peak = f", at most {number(highest.y)} at step {number(highest.x)}" if highest is not None else ""
    start = f"Gradients concentrate in the tangent proxy {shown} times as much as in random directions (`haar`{peak})"
    if missed is None:
        return f"{start}, and the claim passes every rung, up to `{f.verdict.last}`.{seen}"
    return f"{start}, and the claim climbs to `{f.verdict.last}`; {_stop(f)}.{seen}"


def tone(f: Finding) -> Tone:
    """How far up, as a colour."""
    if f.verdict is None or _first(f) == "undetermined":
        return "open"
    return "no" if f.height == 0 else "yes" if f.verdict.first_not_passed is None else "part"


def other_view(found: list[Finding]) -> str:
    """Another view in a few words: windows that end alike are told together."""
    groups: dict[tuple[str | None, str | None, str], list[Finding]] = {}
    for f in found:
        if f.verdict is not None:
            status = next((r.status for r in f.verdict.rungs if r.null == f.verdict.first_not_passed), "passed")
            groups.setdefault((f.verdict.last, f.verdict.first_not_passed, status), []).append(f)
    parts = [_together(members, *key) for key, members in groups.items()]
    return " ".join(parts) or "There are no observations in the windows."


def _together(members: list[Finding], last: str | None, missed: str | None, status: str) -> str:
    who = listed([f.label.replace(", ", " ") for f in members])
    one = len(members) == 1
    reached = f"{'climbs' if one else 'climb'} to `{last}`" if last else f"{'is' if one else 'are'} not supported"
    text = f"{who} {reached} ({_range(members, 'haar')} over `haar`)"
    if missed is None:
        return f"{text}: every rung is passed."
    if status == "undetermined":
        return f"{text}; `{missed}` is undetermined."
    over = f" ({_range(members, missed)})" if missed != "haar" else ""
    word = {"depleted": "depleted over"}.get(status, "not passing")
    return f"{text}, {word} `{missed}`{over}: {MEANING[missed]}."


def _range(members: list[Finding], null: str) -> str:
    values = [at.y for f in members if (at := f.enrichment.get(null)) is not None and at.y is not None]
    if not values:
        return "not measured"
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"


def ladders(context: Context, found: list[Finding]) -> LadderFigure:
    """The ladders as a figure, a track a model and window."""
    tracks = []
    for f in found:
        assert f.verdict is not None
        nodes = []
        for rung in f.verdict.rungs:
            at = f.enrichment.get(rung.null)
            value, low, high = (at.y, at.low, at.high) if at is not None else (None, None, None)
            nodes.append(Node(rung.null, rung.status, value, low, high, _why(f, rung)))
        tracks.append(Track(f.label, {"view": f.view}, f.verdict.last, nodes))
    views = list(dict.fromkeys(f.view for f in found))
    said = "; ".join(f"{t.label}, {t.tags['view']}: {'up to ' + t.last if t.last else 'no rung'}" for t in tracks)
    return LadderFigure(
        "ladder",
        "The ladder of nulls",
        "Each stop is a null; the number is the enrichment over it (odds ratio of gradient energy inside the proxy; "
        "1 is the null itself), the median over layers and observations of the window. Filled: passed. Ring, thick: "
        "passed, but beyond the verdict and not counted. Hollow: not passed. Triangle: depleted, significantly below "
        f"1. Question mark: undetermined. The thick line ends at the verdict. {_interval_words(context)} Nulls, in "
        f"order: {'; '.join(f'{null} (if not passed, {MEANING[null]})' for null in MEANING)}.",
        f"Ladders of nulls. {said}.",
        tracks,
        [Control("view", "View", views, views[0])] if len(views) > 1 else [],
    )


def _interval_words(context: Context) -> str:
    """What the interval of a number is, as the read-out shows it."""
    if context.seeded > 1:
        return "The read-out gives the range over seeds."
    return "The read-out gives the median row's 95 % interval, over sequences (types in the embedding view)."


def _first(f: Finding) -> str:
    assert f.verdict is not None
    return f.verdict.rungs[0].status


def _rung(f: Finding) -> str:
    assert f.verdict is not None
    return f"`{f.verdict.last}`"


def _stop(f: Finding) -> str:
    """Why the climb ends where it does."""
    assert f.verdict is not None
    missed = f.verdict.first_not_passed
    if missed is None:
        return "no rung is left"
    rung = next(r for r in f.verdict.rungs if r.null == missed)
    at = f.enrichment.get(missed)
    numbers = f" ({interval(at.y, at.low, at.high)})" if at is not None else ""
    if rung.status == "undetermined":
        return f"`{missed}` is undetermined ({_why(f, rung)}), so nothing is shown beyond"
    if rung.status == "depleted" and at is not None and at.high is not None and at.high >= 1:
        # The majority is below 1 though the median row alone does not show it.
        typical = interval(at.y, at.low, at.high)
        return f"over `{missed}` it is depleted ({rung.why}; median {typical}): {MEANING[missed]}, and more so"
    if rung.status == "depleted":
        return f"over `{missed}` it is depleted{numbers}: {MEANING[missed]}, and more so"
    if at is not None and at.low is not None and at.low > 1:
        # The typical row is above 1, yet layers or observations disagree: say so instead of explaining it away.
        return f"it does not pass `{missed}`{numbers}: the median row is above 1, but {_why(f, rung)}"
    return f"it does not pass `{missed}`{numbers}: {MEANING[missed]}"


def _why(f: Finding, rung: Rung) -> str:
    reason, why = f.reasons.get(rung.null), rung.why.replace("only 0 of", "none of")
    return f"{why}: {reason}" if reason and rung.status == "undetermined" else why


def _window_words(f: Finding) -> str:
    total = f.subject.source.steps
    return f"step ≤ {EARLY * total:,.0f}" if f.window == "early" else f"step ≥ {LATE * total:,.0f}"


def _steps(f: Finding) -> str:
    assert f.steps is not None
    return f"step {f.steps[0]:,}" if f.steps[0] == f.steps[1] else f"steps {f.steps[0]:,} to {f.steps[1]:,}"
