"""Every claim that a run can judge, for every proxy and timing in its rows, by one rule."""

from __future__ import annotations

from collections.abc import Sequence

from anisoscope.report.formatting import number
from anisoscope.report.ladder_findings import LadderFinding, finding, smallest_ratio, window_means, windows_of
from anisoscope.report.names import word_of
from anisoscope.report.reading import Context, Row, Subject
from anisoscope.report.summary import defined
from anisoscope.report.tree import Cell, Table, Tone
from anisoscope.verdict import outcome_over
from anisoscope.vocabulary import OUTCOMES, PROXIES, TIMINGS, WINDOWS, rank_of

ENERGY = "energy beyond chance"
CAPTURED = "share of the gradient's anisotropy"
CAPTION = (
    "Each claim for each proxy and timing (anchored: fitted on the first 30 % of training, then frozen, as in "
    "Bernas et al. 2026). Energy: the last null that more than half of the layers pass together with all before it, "
    "how many layers do (an average over the observations of the window), the share held and the chance level, and the "
    "pooled odds ratio over random directions. Anisotropy: the part of the gradient's anisotropy (1 − IsoScore*) that "
    "is removed with the proxy; above where more than half of the layers have an interval above random directions and "
    "q ≤ 0.05. It is never called equal, because no margin was declared for it. Where layers cannot tell, the smallest "
    "effect that would have been found in a single layer in 80 % of repetitions is given, if the rows have it."
)
SILENT = "Rows of the share of anisotropy do not have it."


def claim_table(context: Context, view: str) -> Table | None:
    """One row a model, claim, proxy and timing; one column a window."""
    profiles = context.of_profiles
    windows = ["late"] if profiles else list(WINDOWS)
    rows, shares = [], []
    for subject in context.subjects:
        key = ("claims", view, subject.subset, subject.rank, tuple(windows))
        if key not in subject.kept:
            subject.kept[key] = _lines(subject, view, windows)
        lines, captured = subject.kept[key]
        rows += lines
        shares += captured
    if not rows:
        return None
    columns = ["model", "claim", *(["the model"] if profiles else windows)]
    title = f"Every claim, proxy and timing: {view} view"
    silent = bool(shares) and all(row["detectable"] is None for row in shares)
    return Table(f"claims-{view}", title, f"{CAPTION} {SILENT}" if silent else CAPTION, columns, rows, heads=2)


def _lines(subject: Subject, view: str, windows: Sequence[str]) -> tuple[list[list[Cell]], list[Row]]:
    """The lines of one model, and its rows of the share of anisotropy."""
    rows, shares = [], []
    for proxy, timing in _combinations(subject, view):
        found = {
            name: finding(subject, view, name, proxy=proxy, timing=timing)
            for name in windows
            if name in windows_of(subject)
        }
        who = f"{word_of(proxy)}, {timing}"
        rows.append([Cell(subject.label), Cell(ENERGY, who), *(_energy(found.get(name)) for name in windows)])
        captured = subject.main("captured", view=view, proxy=proxy, timing=timing)
        shares += captured
        if captured:
            cells = [_captured(subject, captured, name) for name in windows]
            rows.append([Cell(subject.label), Cell(CAPTURED, who), *cells])
    return rows, shares


def _combinations(subject: Subject, view: str) -> list[tuple[str, str]]:
    rows = subject.by_measure.get("enrichment", [])
    ranks = {proxy.name: proxy.rank for proxy in PROXIES.values() if proxy.rank is not None}
    present = {
        (row["proxy"], row["timing"])
        for row in rows
        if row["view"] == view and rank_of(row) == ranks.get(row["proxy"], subject.rank)
    }
    proxies = [*PROXIES, *sorted({proxy for proxy, _ in present if proxy and proxy not in PROXIES})]
    return [(proxy, timing) for proxy in proxies for timing in TIMINGS if (proxy, timing) in present]


def _energy(f: LadderFinding | None) -> Cell:
    if f is None or f.verdict is None:
        return Cell("–", "no observation")
    v = f.verdict
    pooled = f.effects.get("haar")
    over = [] if f.shares is None else [str(f.shares)]
    over += [] if pooled is None else [f"odds ratio {pooled}"]
    if v.last is None:
        outcome = v.majority("haar")
        tone: Tone = "no" if outcome in ("equal", "below") else "open"
        merged = v.merged("haar")
        counts = ", ".join(f"{name} {count:.3g}" for name, count in merged.items())
        least = smallest_ratio([f], "haar") if "cannot tell" in merged else None
        over += [] if least is None else [f"found in 80 %: odds ratio of {least}"]
        return Cell(f"{outcome or f'{v.parts} disagree'} (random directions)", "\n".join([counts, *over]), tone=tone)
    count = f"{v.reached[v.last]:.3g} of {v.total:.3g} {v.parts.removesuffix('s') if v.total == 1 else v.parts}"
    return Cell(
        f"up to {word_of(v.last)}", "\n".join([count, *over]), tone="yes" if v.first_not_passed is None else "part"
    )


def _captured(subject: Subject, rows: Sequence[Row], window: str) -> Cell:
    found = subject.window(rows, window)
    if not defined(found):
        return Cell("–", "no observation")
    shares = {}
    for name in OUTCOMES:
        given = [(row, float((outcome_over(row, row["floor"]) or "not measured") == name), 0.0) for row in found]
        means = window_means(subject, window, given)
        if means is not None and means[0] > 0:
            shares[name] = means[0]
    word = next((name for name in ("above", "below") if shares.get(name, 0.0) > 0.5), "cannot tell")
    numbers = window_means(subject, window, [(row, row["value"], row["floor"]) for row in defined(found)])
    said = "no chance level known" if numbers is None else f"{number(numbers[0])}; chance level {number(numbers[1])}"
    tones: dict[str, Tone] = {"above": "yes", "below": "no"}
    part = ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items())
    least = sorted(row["detectable"] for row in found if row["detectable"] is not None)
    known = [f"found in 80 %: {number(least[len(least) // 2])}"] if least and "cannot tell" in shares else []
    return Cell(word, "\n".join([said, part, *known]), tone=tones.get(word, "open"))
