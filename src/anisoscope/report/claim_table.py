"""Every claim that a run can judge, for every proxy and timing in its rows, by one rule."""

from __future__ import annotations

from collections.abc import Sequence

from anisoscope.report.findings import Finding, finding, windows_of
from anisoscope.report.reading import Context, Row, Subject
from anisoscope.report.summary import defined
from anisoscope.report.tree import Cell, Table, Tone
from anisoscope.report.words import number
from anisoscope.verdict import outcome_over, weights_of
from anisoscope.vocabulary import PROXIES, TIMINGS, WINDOWS, window_bounds

ENERGY = "energy beyond chance"
CAPTURED = "share of the gradient's anisotropy"
CAPTION = (
    "Each claim for each proxy and timing (anchored: fitted on the first 30 % of training, then frozen, the paper's "
    "protocol). Energy: the last null that more than half of the layers pass in a row, how many layers pass it, and "
    "the pooled odds ratio over haar. Anisotropy: the part of what the gradient lacks to isotropy (1 − IsoScore*) that "
    "goes with the proxy; above where more than half of the layers have an interval above what random directions give "
    "and q ≤ 0.05. Equality is not told of it: no margin was declared for it."
)


def claim_table(context: Context, view: str) -> Table | None:
    """One row a model, claim, proxy and timing; one column a window."""
    profiles = context.of_profiles
    windows = ["late"] if profiles else list(WINDOWS)
    rows = []
    for subject in context.subjects:
        for proxy, timing in _combinations(subject, view):
            found = {
                name: finding(subject, view, name, proxy=proxy, timing=timing)
                for name in windows
                if name in windows_of(subject)
            }
            who = f"{proxy}, {timing}"
            rows.append([Cell(subject.label), Cell(ENERGY, who), *(_energy(found.get(name)) for name in windows)])
            captured = subject.main("captured", view=view, proxy=proxy, timing=timing)
            if captured:
                cells = [_captured(subject, captured, name) for name in windows]
                rows.append([Cell(subject.label), Cell(CAPTURED, who), *cells])
    if not rows:
        return None
    columns = ["model", "claim", *(["the model"] if profiles else windows)]
    title = f"Every claim, proxy and timing: {view} view"
    return Table(f"claims-{view}", title, CAPTION, columns, rows, heads=2)


def _combinations(subject: Subject, view: str) -> list[tuple[str, str]]:
    rows = subject.by_measure.get("enrichment", [])
    present = {(row["proxy"], row["timing"]) for row in rows if row["view"] == view and row["rank"] == subject.rank}
    proxies = [*PROXIES, *sorted({proxy for proxy, _ in present if proxy and proxy not in PROXIES})]
    return [(proxy, timing) for proxy in proxies for timing in TIMINGS if (proxy, timing) in present]


def _energy(f: Finding | None) -> Cell:
    if f is None or f.verdict is None:
        return Cell("–", "no observation")
    v = f.verdict
    pooled = f.effects.get("haar")
    over = f"odds ratio {pooled}" if pooled is not None else ""
    if v.last is None:
        outcome = f.outcome("haar")
        tone: Tone = "no" if outcome in ("equal", "below") else "open"
        return Cell(f"{outcome} (haar)", over or None, tone=tone)
    count = f"{v.reached[v.last]:.3g} of {v.total:.3g} layers"
    return Cell(f"up to {v.last}", f"{count}\n{over}".strip(), tone="yes" if v.first_not_passed is None else "part")


def _captured(subject: Subject, rows: Sequence[Row], window: str) -> Cell:
    found = defined(subject.window(rows, window))
    if not found:
        return Cell("–", "no observation")
    steps = sorted({row["step"] for row in found})
    weight = dict(zip(steps, weights_of(steps, *window_bounds(window, subject.source.steps)), strict=True))
    total = sum(weight[row["step"]] for row in found)
    outcomes: dict[str, float] = {}
    for row in found:
        outcome = outcome_over(row, row["floor"]) or "not measured"
        outcomes[outcome] = outcomes.get(outcome, 0.0) + weight[row["step"]] / total
    word = next((name for name in ("above", "below") if outcomes.get(name, 0.0) > 0.5), "cannot tell")
    share = sum(weight[row["step"]] * row["value"] for row in found) / total
    floors = [(weight[row["step"]], row["floor"]) for row in found if row["floor"] is not None]
    chance = sum(w * floor for w, floor in floors) / sum(w for w, _ in floors) if floors else None
    numbers = number(share) if chance is None else f"{number(share)} where {number(chance)} is chance"
    tones: dict[str, Tone] = {"above": "yes", "below": "no"}
    part = f"{100 * outcomes.get(word, 0.0):.0f} % of layers and observations"
    return Cell(word, f"{numbers}\n{part}", tone=tones.get(word, "open"))
