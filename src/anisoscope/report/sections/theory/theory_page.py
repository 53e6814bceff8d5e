"""The theory laboratory as a page: which claims hold, the scalings, the counter-example to try, and the two bounds."""

from __future__ import annotations

import math

from anisoscope.report.formatting import counted, interval, number
from anisoscope.report.reading import Context, Row
from anisoscope.report.sections.provenance_section import provenance_section
from anisoscope.report.sections.theory.counter_example import counter_example_blocks
from anisoscope.report.sections.theory.laboratory import (
    BOUNDS,
    CLAIMS,
    FAILS,
    HOLDS,
    LIMITS,
    MISSING,
    OPEN,
    OPEN_CLAIM,
    THEORY,
    LaboratoryRows,
    precise,
)
from anisoscope.report.sections.theory.scalings import (
    attenuation_blocks,
    chord_blocks,
    gradient_blocks,
    variance_blocks,
)
from anisoscope.report.tree import (
    Axis,
    Block,
    Cell,
    Control,
    Figure,
    Point,
    Section,
    Series,
    Table,
    Text,
    Tone,
)
from anisoscope.verdict import FIT_MARGIN
from anisoscope.vocabulary import SAMPLINGS

RULE = (
    f"The rule: a claim holds (outcome: equal) if the interval includes the theory's number and lies inside the margin "
    f"around it, {FIT_MARGIN:g} to each side ({100 * FIT_MARGIN:.0f} % of a number below 1); it does not hold (above "
    "or below) if the interval excludes the number; else the simulation cannot tell. Intervals are Student's t over "
    "replicates, simultaneous over all claims with 95 %, and widened by twice the amount by which the fit moves when "
    "only the smaller half of the radii is used (half the radius, where two laws are compared), for the claims are "
    "exact only in the limit."
)
CONDITION = (
    "Per token, the normal part of the gradient is at most βt times the tangent part. Both bounds are upper bounds, "
    "and a batch adds tokens up: if their tangent parts cancel, nothing bounds the ratio of the sums. The missing "
    "condition is that they do not. With γ = ‖Σ tangent parts‖ / Σ‖tangent parts‖, the ratio is at most βt/γ."
)

_TONES: dict[str, Tone] = {HOLDS: "yes", FAILS: "no", OPEN: "open", MISSING: "open"}


def theory_sections(context: Context, at_most: int | None) -> list[Section]:
    """Everything the page says about one laboratory."""
    lab = LaboratoryRows(context.sources[0].rows)
    return [
        verdict_section(lab),
        Section("scalings", "Small patches", [*chord_blocks(lab), *variance_blocks(lab)] or [_nothing()]),
        Section("frequency", "The law of frequency", attenuation_blocks(lab) or [_nothing()]),
        Section("gradients", "Gradients", gradient_blocks(lab) or [_nothing()]),
        Section("counter-example", "The counter-example", counter_example_blocks(lab) or [_nothing()]),
        Section("bounds", "Two bounds", bounds_blocks(lab) or [_nothing()]),
        provenance_section(context, at_most),
    ]


def subtitle(context: Context) -> str:
    """What was simulated, in a line."""
    source = context.sources[0]
    config = source.manifest.get("config")
    draws = config.get("draws") if isinstance(config, dict) else None
    cases = f", {counted(draws, 'random case')}" if isinstance(draws, int) else ""
    what = f"manifolds of known curvature, a law of frequency, a linear layer{cases}"
    return f"The theory laboratory: {what}; {source.status}"


def verdict_section(lab: LaboratoryRows) -> Section:
    """The verdict in words, then claim by claim."""
    blocks: list[Block] = [headline(lab)]
    plain = [key for key in CLAIMS if key != OPEN_CLAIM and key in lab.fits]
    for word in (FAILS, OPEN, MISSING):
        names = [f"{CLAIMS[key]}{_would_have_been_seen(lab, key)}" for key in plain if lab.said(key) == word]
        if names:
            blocks.append(Text(f"{'; '.join(names)}.", f"{word.capitalize()}:", _TONES[word]))
    if OPEN_CLAIM in lab.fits:
        blocks.append(_ratio_words(lab))
    blocks.append(Text(CONDITION, "The missing condition:", "plain"))
    if lab.fits:
        blocks += [_claims(lab), Text(RULE, small=True)]
    return Section("verdict", "Verdict", blocks, open=True)


def headline(lab: LaboratoryRows) -> Text:
    """One sentence over all claims."""
    plain = [lab.said(key) for key in CLAIMS if key != OPEN_CLAIM and key in lab.fits]
    if not plain:
        return Text("The run has no fits yet.", "Nothing to judge.", "open")
    ratio = lab.said(OPEN_CLAIM) if OPEN_CLAIM in lab.fits else None
    every = [*plain, *([ratio] if ratio is not None else [])]
    text = f"{every.count(HOLDS)} of {counted(len(every), 'claim')} {'holds' if every.count(HOLDS) == 1 else 'hold'}."
    if ratio is not None and ratio != HOLDS:
        word = {FAILS: "does not hold", OPEN: "is undecided"}.get(ratio, "was not measured")
        text += f" The published ratio of gradients with tokens all round a point {word}."
    published, corrected = lab.bounds.get("published"), lab.bounds.get("corrected")
    if published is None or corrected is None:
        return Text(f"{text} The bounds on gradients were not tried.", "Unfinished.", "open")
    text += (
        f" The published bound on normal/tangent gradients, βt (Bernas et al. 2026), holds in "
        f"{published['note']} random cases; the corrected one, βt/γ, in {corrected['note']}."
    )
    if HOLDS not in every:
        return Text(text, "Not supported.", "no") if FAILS in every else Text(text, "Undecided.", "open")
    if corrected["value"] < 1 or FAILS in plain:
        return Text(text, "Supported in part, with failures.", "no" if corrected["value"] < 1 else "part")
    whole = published["value"] == 1 and every.count(HOLDS) == len(every)
    return Text(text, "Supported.", "yes") if whole else Text(text, "Supported in part.", "part")


def _would_have_been_seen(lab: LaboratoryRows, claim: str) -> str:
    """What a claim that cannot be told would have had to be off by; nothing where the run does not know."""
    least = lab.fits[claim].get("detectable")
    if lab.said(claim) != OPEN or least is None or not math.isfinite(least):
        return ""
    return f" (about {number(least)} off theory would have been seen in 80 % of repetitions)"


def _ratio_words(lab: LaboratoryRows) -> Text:
    alone, off = lab.fits[OPEN_CLAIM], lab.fits.get("gradient-ratio")
    text = f"with tokens all round a point, normal/tangent gradient goes as t to the power {precise(alone)}"
    if off is not None:
        text += f"; with tokens off centre, {precise(off)}"
    seen = _would_have_been_seen(lab, OPEN_CLAIM)
    text += f". The published proposition says 1 for both; with tokens all round: {lab.said(OPEN_CLAIM)}{seen}."
    return Text(text, "The ratio of gradients:", _TONES[lab.said(OPEN_CLAIM)])


def _claims(lab: LaboratoryRows) -> Table:
    rows = []
    for key, words in CLAIMS.items():
        if key not in lab.fits:
            continue
        fit, r2 = lab.fits[key], lab.r2.get(key)
        small = "a number, not an exponent" if key in LIMITS else None
        rows.append(
            [
                Cell(words, small),
                Cell(number(lab.expected[key]["value"]), "as published" if key == OPEN_CLAIM else None),
                Cell(precise(fit)),
                Cell("–" if r2 is None else f"{r2['value']:.5f}"),
                Cell(lab.said(key), lab.outcome(key), tone=_TONES[lab.said(key)]),
            ]
        )
    caption = (
        f"Exponents are fitted to simulated data, over radii (or arcs) that span a factor of 30{_span(lab)}; R² is "
        "that of a straight line through the mean curve in logarithms; it means nothing where the exponent is 0."
    )
    return Table("claims", "Claim by claim", caption, ["claim", "theory", "fitted", "R²", "verdict"], rows)


def _span(lab: LaboratoryRows) -> str:
    """How far the effective radii of the mixture reach, which is less than the others do."""
    found = [row["value"] for row in lab.by_measure.get("effective_radius", [])]
    return f", that of the mixture over a factor of {number(max(found) / min(found))}" if found else ""


def bounds_blocks(lab: LaboratoryRows) -> list[Block]:
    """In how many random cases the bounds hold, and every case."""
    blocks: list[Block] = []
    rows = []
    for key, (name, small) in BOUNDS.items():
        row = lab.bounds.get(key)
        if row is not None:
            # No theorem promises the one from other sequences in every case, so a miss is no refutation.
            tone: Tone = "yes" if row["value"] == 1 else "part" if key == "held-out" else "no"
            rows.append(
                [
                    Cell(name, small),
                    Cell(row["note"] or "–", tone=tone),
                    Cell(interval(row["value"], row["low"], row["high"])),
                ]
            )
    if rows:
        caption = (
            "Cases differ in manifold, dimension, curvature, radius, loss, size of the weights, number of tokens and "
            "how the tokens lie. Shares have exact binomial 95 % intervals. What is published is an order, t; it is "
            "taken literally here, with the constant of its two upper bounds. No other constant would do: in the "
            f"counter-example the ratio has no bound at any radius.{_unbounded(lab)}"
        )
        blocks.append(
            Table("bounds", "In how many random cases each bound holds", caption, ["bound", "holds in", "share"], rows)
        )
    figure = _scatter(lab)
    return [*blocks, figure] if figure is not None else blocks


def _unbounded(lab: LaboratoryRows) -> str:
    tried, held = (row["n"] if (row := lab.bounds.get(key)) else None for key in ("corrected", "held-out"))
    if tried is None or tried == (held or 0):
        return ""
    return f" In {counted(tried - (held or 0), 'case')} γ is not clearly above noise: other sequences give no bound."


def _scatter(lab: LaboratoryRows) -> Figure | None:
    ratios, published, gammas = (_draws(lab, f"draw_{name}") for name in ("ratio", "published", "gamma"))
    points: dict[str, list[Point]] = {}
    for draw, row in ratios.items():
        if draw in published and draw in gammas and gammas[draw]["value"]:
            excess = row["value"] / published[draw]["value"]
            # Runs from before it was called so have "all round", which elsewhere on the page means mirrored.
            lie = "uniform" if row["subset"] == "all round" else row["subset"]
            points.setdefault(lie, []).append(Point(gammas[draw]["value"], excess, n=row["n"]))
    if not points:
        return None
    least = min(p.x for members in points.values() for p in members)
    order = [name for name in SAMPLINGS if name in points]
    series = [Series(f"tokens {name}", {"tokens": name}, points[name], scattered=True) for name in order]
    limit = [Point(least ** (k / 40), least ** (-k / 40)) for k in range(41)]
    series.append(Series("corrected bound, 1/γ", THEORY, limit, null=True))
    series.append(Series("published bound", THEORY, [Point(least, 1.0), Point(1.0, 1.0)], null=True))
    return Figure(
        "draws",
        "Every random case: the ratio in units of the published bound, against γ",
        "A point is a case. Above the level dashed line the published bound fails; above the sloping one, 1/γ, the "
        "corrected one would. Uniform: tokens drawn from the whole ball, so that only noise keeps them from "
        "cancelling. Mirrored: every token with its mirror image (above: all round). Off centre: more tokens on one "
        "side.",
        "Ratio of gradients over the published bound against the constant of non-cancellation.",
        Axis("γ", log=True),
        Axis("ratio / published bound", log=True),
        series,
        colour="tokens",
        toggle=[Control("tokens", "Tokens", order)],
    )


def _draws(lab: LaboratoryRows, measure: str) -> dict[int, Row]:
    return {row["item"]: row for row in lab.by_measure.get(measure, [])}


def _nothing() -> Text:
    return Text("The run did not come this far.", tone="open")
