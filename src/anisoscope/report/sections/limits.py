"""What a run cannot say: seeds, the smallest effect it could have seen, nulls that were not run, windows it lacks."""

from __future__ import annotations

from collections.abc import Sequence

from anisoscope.report.about import corpus_of
from anisoscope.report.formatting import listed
from anisoscope.report.ladder_findings import JUDGED, NO_SIZE, LadderFinding, smallest_ratio, windows_of
from anisoscope.report.plain_words import gives, hides
from anisoscope.report.reading import Context
from anisoscope.report.window_effects import FEWEST_SEEDS
from anisoscope.vocabulary import ladder_of


def limits(context: Context, found: Sequence[LadderFinding]) -> list[str]:
    """One sentence each, the most important first."""
    judged = [f for f in found if f.verdict is not None and f.window in JUDGED]
    said = [_seeds(judged), _smallest(judged), _not_run(judged), _windows(found), _scope(context)]
    return [text for text in said if text]


def _seeds(judged: Sequence[LadderFinding]) -> str:
    if not judged or all(f.subject.source.is_profile for f in judged):
        return ""
    fewest = min(len(f.seeds) for f in judged)
    if fewest == 1:
        return "How much results vary between training runs: there is only one seed."
    if fewest < FEWEST_SEEDS:
        return f"How much results vary between training runs: {fewest} seeds give no interval ({FEWEST_SEEDS} would)."
    return f"How an unusual training run behaves: intervals are over {fewest} seeds."


def _smallest(judged: Sequence[LadderFinding]) -> str:
    """Where rows cannot tell, which effect they would have seen; else what that is over random directions."""
    nulls = list(dict.fromkeys(null for f in judged for null in ladder_of(f.view)))
    parts = []
    for null in nulls:
        those = [f for f in judged if f.outcome(null) == "cannot tell"]
        ratio = smallest_ratio([f for f in those if f.verdict and "cannot tell" in f.verdict.merged(null)], null)
        if ratio is not None:
            parts.append(f"{'no plausible size' if ratio == NO_SIZE else ratio} over {gives(null)}")
    if parts:
        return (
            "Whether there are effects smaller than those that a single layer shows in 80 % of repetitions (odds ratio "
            f"{listed(parts)})."
        )
    least = smallest_ratio(list(judged), nulls[0]) if nulls else None
    if least == NO_SIZE:
        return "Whether there is an effect: none of a plausible size would have been found in a single layer."
    if least is not None:
        return (
            f"Whether there are effects below an odds ratio of {least}, the smallest that a single layer shows in 80 % "
            "of repetitions."
        )
    return "How small an effect it could have detected: its rows do not say." if judged else ""


def _not_run(judged: Sequence[LadderFinding]) -> str:
    """Nulls that no layer of any window has a number for."""
    missing: dict[str, set[str]] = {}
    for f in judged:
        for null in ladder_of(f.view):
            assert f.verdict is not None
            measured = any(o.verdict.merged(null).keys() - {"not measured"} for o in judged if o.verdict is not None)
            if not measured:
                missing.setdefault(null, set()).update(filter(None, [f.reasons.get(null)]))
    if not missing:
        return ""
    parts = [f"{hides(null)}{f' ({min(why)})' if why else ''}" for null, why in missing.items()]
    return f"What the nulls that were not run would give: {listed(parts)}."


def _windows(found: Sequence[LadderFinding]) -> str:
    """Windows of training that nothing was observed in."""
    missing: dict[str, list[str]] = {}
    for f in found:
        if f.window in JUDGED and f.verdict is None and f.window in windows_of(f.subject):
            missing.setdefault(f.subject.label, []).append(f.window)
    parts = [f"{who} {listed(windows)}" for who, windows in missing.items()]
    return f"What happens in windows without observations: {'; '.join(parts)}." if parts else ""


def _scope(context: Context) -> str:
    """Text and size: nothing follows for others."""
    known = sorted({text for text in map(corpus_of, context.sources) if text})
    widths = sorted({s.width for s in context.subjects if s.width})
    if not known and not widths:
        return ""
    about = [*known, *(f"width {width}" for width in widths)]
    return f"How other text or larger models behave: this run covers {listed(about)} only."
