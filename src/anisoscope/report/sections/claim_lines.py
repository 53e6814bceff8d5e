"""Every claim that a run can judge, a line each: what is claimed, and the outcome for each model by one rule."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anisoscope.report.formatting import interval, listed, number
from anisoscope.report.ladder_findings import LadderFinding, finding, smallest_ratio, window_means
from anisoscope.report.plain_words import percent, short
from anisoscope.report.reading import Context, Row, Subject
from anisoscope.report.summary import BellShape, comparable, curve, defined, shape
from anisoscope.report.tree import Cell, Mark, MarkTable, Point, Section
from anisoscope.report.window_effects import FEWEST_SEEDS, window_effect
from anisoscope.verdict import ABOVE, ALPHA, BELOW, outcome_of_quotient, outcome_over
from anisoscope.vocabulary import OUTCOMES, bin_subset

LEGEND = (
    "✓ shown; ✗ the opposite is shown; = no effect, within the margin; ? cannot tell; – not measured. One rule: a "
    "layer counts as above or below if its 95 % interval excludes the null and q ≤ 0.05; a model has the outcome of "
    "more than half of its layers. Hover over a sign for its numbers; it links to the evidence. Outcomes of a window "
    "are averages over its observations; frequency and tangency are those of the last observation with rows. Shapes "
    "(phases, profile) follow the rule of docs/report.md: ✓ is the claimed shape, ✗ a clear rise or fall or the "
    "opposite shape, = flat within 5 %."
)


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a claim for one model, a number to print beside it, and the numbers in words."""

    outcome: str
    number: str = ""
    detail: str = ""


MISSING = Result("not measured", "", "the run has no such rows")


Evaluator = Callable[[Subject, str], Result]


@dataclass(frozen=True, slots=True)
class ClaimLine:
    """A claim, what passing it means, where its evidence is, and how it is judged."""

    name: str
    says: str
    link: str
    judge: Evaluator


def claims_section(context: Context, view: str = "representation") -> Section | None:
    """The table of claims, open; a claim that no model has rows of has no line."""
    table = claim_marks(context, view)
    if table is None:
        return None
    shown = sum(m.outcome == "above" for _, marks in table.rows for m in marks if isinstance(m, Mark))
    total = sum(isinstance(m, Mark) and m.outcome != "not measured" for _, marks in table.rows for m in marks)
    return Section("claims", "Every claim", [table], f"{shown} of {total} outcomes show what is claimed.", open=True)


def claim_marks(context: Context, view: str = "representation") -> MarkTable | None:
    """A row a claim, a column a model; what is said of energy is said of this view."""
    rows: list[tuple[Cell, list[Mark | Cell]]] = []
    for claim in _claims(context):
        results = [claim.judge(subject, view) for subject in context.subjects]
        if all(result.outcome == "not measured" for result in results):
            continue
        marks: list[Mark | Cell] = [
            Mark(r.outcome, r.number, f"{s.label}: {r.outcome}. {r.detail}".strip(), claim.link)
            for s, r in zip(context.subjects, results, strict=True)
        ]
        rows.append((Cell(claim.name, claim.says), marks))
    columns = [(subject.label, "") for subject in context.subjects]
    return MarkTable("claims", "Claims and their outcomes", LEGEND, columns, rows) if rows else None


def _claims(context: Context) -> list[ClaimLine]:
    return [claim for claim in CLAIMS if not (context.of_profiles and claim.name in _OF_TRAINING)]


def _over(window: str, null: str) -> Evaluator:
    """Energy in a view over one null."""

    def judge(subject: Subject, view: str) -> Result:
        f = finding(subject, view, window)
        return _of_finding(f, null)

    return judge


def _of_finding(f: LadderFinding, null: str) -> Result:
    if f.verdict is None or not f.verdict.merged(null):
        return MISSING
    counts = f.verdict.merged(null)
    outcome = f.verdict.majority(null) or "cannot tell"
    if outcome == "not measured":
        return MISSING
    effect = f.effects.get(null)
    shares = f"{f.shares}. " if f.shares is not None and null == "haar" else ""
    said = ", ".join(f"{short(count)} {name}" for name, count in counts.items())
    detail = f"{shares}Pooled odds ratio {effect}. Of {short(f.verdict.total)} {f.verdict.parts}: {said}."
    least = smallest_ratio([f], null) if "cannot tell" in counts else None
    detail += f" Found in 80 % of repetitions: odds ratio {least}." if least else ""
    return Result(outcome, number(effect.value) if effect else "", detail)


def _captured(subject: Subject, view: str) -> Result:
    """The share of the gradient's anisotropy, late, over what random frames give."""
    return captured(subject, "late", view)


def captured(subject: Subject, window: str, view: str = "representation") -> Result:
    """Late or in another window: the outcome of most layers, averaged over observations as all counts are."""
    found = subject.window(subject.main("captured", view=view), window)
    if not defined(found):
        return MISSING
    shares: dict[str, float] = {}
    for name in dict.fromkeys(map(_merged, OUTCOMES)):
        given = [(row, float(_merged(outcome_over(row, row["floor"])) == name), 0.0) for row in found]
        means = window_means(subject, window, given)
        if means is not None and means[0] > 0:
            shares[name] = means[0]
    outcome = next((name for name, share in shares.items() if share > 0.5), "cannot tell")
    means = window_means(subject, window, [(row, row["value"], row["floor"]) for row in defined(found)])
    said = "no chance level is known" if means is None else f"{percent(means[0])}; chance level {percent(means[1])}"
    parts = ", ".join(f"{name} in {100 * share:.0f} %" for name, share in shares.items())
    return Result(outcome, "" if means is None else percent(means[0]), f"{said}; of layers and observations {parts}.")


def _updates(subject: Subject, view: str) -> Result:
    """The real update of the embedding over random directions, late; an interval is over seeds alone."""
    rows = subject.pick(
        "enrichment",
        view="embedding",
        null="haar",
        tensor="update",
        timing=subject.timing,
        subset=subject.subset,
        proxy=subject.proxy,
        rank=subject.rank,
    )
    rows: list[Row] = [{**row, "se": None, "df": None} for row in rows if row["step"] is not None]
    effect = window_effect(subject, rows, "late")
    if effect is None:
        return MISSING
    seeds = len(effect.points) or 1
    if seeds < FEWEST_SEEDS:
        why = f"intervals are over seeds and need {FEWEST_SEEDS}; there {'is' if seeds == 1 else 'are'} {seeds}"
        return Result("cannot tell", number(effect.value), f"Odds ratio {number(effect.value)}: {why}.")
    outcome = _merged(outcome_of_quotient(effect.low, effect.high, subject.margin))
    return Result(outcome, number(effect.value), f"Odds ratio {effect}.")


def _frequency(subject: Subject, view: str) -> Result:
    """Whether enrichment rises from one fifth of frequency to the next, by the token that is asked for."""
    subset = bin_subset("target", "tokens")
    rows = _last(
        [
            r
            for r in subject.pick("bin_enrichment_trend", view="representation", subset=subset)
            if r["layer"] is not None
        ]
    )
    votes = [_side(row, 0.0) for row in rows]
    if not votes:
        return MISSING
    factors = sorted(math.exp(row["value"]) for row in defined(rows))
    middle = factors[(len(factors) - 1) // 2] if factors else None
    return _voted(votes, number(middle), f"Factor from one fifth to the next, median layer: {number(middle)}.")


def _tangency(subject: Subject, view: str) -> Result:
    """Whether the proxy holds more local tangents than of a cloud of equal covariance that has none."""
    rows = _last(subject.pick("tangent_overlap", variant="over elliptical"))
    votes = [_merged(row["outcome"]) if row["outcome"] else _side(row, 0.0) for row in defined(rows)]
    if not votes:
        return MISSING
    middle = sorted(row["value"] for row in defined(rows))[(len(votes) - 1) // 2]
    return _voted(
        votes, number(middle), f"Share of local tangents inside, minus the control, median layer: {number(middle)}."
    )


def _phases(subject: Subject, view: str) -> Result:
    rows = [row for row in subject.pick("two_nn", subset="all") if row["layer"] is not None]
    found = shape(curve(comparable(rows), lambda row: row["step"]))
    if found is None:
        return MISSING
    line = f"Median over layers: {_point(found.first)} first, {_point(found.peak)} at most, {_point(found.last)} last."
    return _shaped(found, {"bell", "valley"}, line)


def _profile(measure: str) -> Evaluator:
    """Whether the profile over layers of the last observation is a bell."""

    def judge(subject: Subject, view: str) -> Result:
        rows = [r for r in subject.pick(measure, subset="all", tensor="activations") if r["step"] is not None]
        rows = [row for row in rows if row["variant"] in (None, "probe")]
        rows = _last(comparable(rows) if measure == "two_nn" else rows)
        found = shape(curve(rows, lambda row: row["layer"]))
        if found is None:
            return MISSING
        line = f"{_point(found.first)} at the first layer, {_point(found.peak)} at layer {number(found.peak.x)}, "
        return _shaped(found, {"bell"}, f"{line}{_point(found.last)} at the last.")

    return judge


def _shaped(found: BellShape, claimed: set[str], line: str) -> Result:
    outcome = "above" if found.word in claimed else {"flat": "equal", "cannot tell": "cannot tell"}.get(found.word)
    return Result(outcome or "below", found.word if found.word != "cannot tell" else "", f"Shape: {found.word}. {line}")


def _point(point: Point) -> str:
    return interval(point.y, point.low, point.high)


def _last(rows: Sequence[Row]) -> list[Row]:
    """Rows of the last observation that has a number."""
    last = max((row["step"] for row in defined(rows) if row["step"] is not None), default=None)
    return [row for row in rows if row["step"] == last]


def _side(row: Row, null: float) -> str:
    """The outcome of one layer from its interval and q; rows without a q have none."""
    low, high, q = row["low"], row["high"], row["q"] if row["q"] is not None else row["p"]
    if row["value"] is None or math.isnan(row["value"]):
        return "not measured"
    if low is None or high is None or q is None or not q <= ALPHA:
        return "cannot tell"
    return "above" if low > null else "below" if high < null else "cannot tell"


def _merged(outcome: str | None) -> str:
    return "above" if outcome in ABOVE else "below" if outcome in BELOW else outcome or "not measured"


def _voted(votes: list[str], shown: str, line: str) -> Result:
    """What more than half of the layers (of all seeds) say; else the rows cannot tell."""
    counts = Counter(votes)
    name, most = counts.most_common(1)[0]
    outcome = name if 2 * most > len(votes) else "cannot tell"
    said = listed([f"{count} {word}" for word, count in counts.items()])
    return Result(outcome, shown, f"{line} Of {len(votes)} layers: {said}.")


CLAIMS = (
    ClaimLine(
        "Energy beyond chance",
        "late, the proxy holds more of the gradient's energy than random directions",
        "figure-emergence",
        _over("late", "haar"),
    ),
    ClaimLine(
        "Anisotropy captured",
        "late, removing the proxy makes the gradient more isotropic than removing random directions",
        "claims-representation",
        _captured,
    ),
    ClaimLine(
        "Emerges early",
        "in the first 30 % of training, more than before training",
        "figure-emergence",
        _over("early", "init"),
    ),
    ClaimLine(
        "Persists",
        "from 70 % of training on, still more than before training",
        "figure-emergence",
        _over("late", "init"),
    ),
    ClaimLine(
        "Embedding updates",
        "late, the optimiser's updates of the embedding lie in its main directions",
        "numbers",
        _updates,
    ),
    ClaimLine(
        "Frequency",
        "the more frequent the target, the more of the gradient lies in the proxy",
        "figure-frequency-bins",
        _frequency,
    ),
    ClaimLine(
        "Tangency",
        "the proxy holds more local tangents than in a cloud of equal covariance without tangents",
        "figure-tangent-overlap",
        _tangency,
    ),
    ClaimLine("Two phases", "the intrinsic dimension turns once during training", "figure-dimension", _phases),
    ClaimLine(
        "Bell of anisotropy",
        "the top share over layers peaks at an inner layer, at the last observation",
        "figure-isotropy",
        _profile("top_share"),
    ),
    ClaimLine(
        "Bell of dimension",
        "the intrinsic dimension over layers peaks at an inner layer, at the last observation",
        "figure-dimension-layers",
        _profile("two_nn"),
    ),
)
_OF_TRAINING = {"Emerges early", "Two phases", "Embedding updates"}
