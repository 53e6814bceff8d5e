"""The causal sentences: which arms of a plan test them, and what became of them.

Effects are of the end of training, seed by seed; q is over all comparisons of one sentence.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from anisoscope.evaluate.row_builders import Row, row
from anisoscope.evidence.inference import adjust
from anisoscope.intervene.contrasts import contrast, over_seeds
from anisoscope.study.intervene.intervene_settings import Arm, InterveneSettings
from anisoscope.verdict import MARGIN, outcome_of_difference
from anisoscope.vocabulary import EFFECTS, NO_ARM, SENTENCES, Sentence, matches

Cell = tuple[str, float]
Seeds = Mapping[int, float]
Values = Mapping[tuple[str, int | None], Mapping[Cell, Seeds]]
Pair = tuple[str, Cell, Cell, float]  # what it is called, two arms, the dose
CONTROL: Cell = ("control", 0.0)
_FLATTER = ("loss-weights", "mask-rates", "documents")
_CORRELATED = 0.1  # a partial correlation below this in size counts as none
_FEWEST_POINTS = 8


def sentence_rows(rows: Iterable[Mapping[str, Any]], values: Values, settings: InterveneSettings) -> list[Row]:
    """One row a comparison; a sentence that no arm tests has one without a number."""
    found: list[Row] = []
    for sentence in SENTENCES.values():
        own = _correlated(rows, sentence, settings) if not sentence.outcomes else _compared(sentence, values, settings)
        known = [one for one in own if one["p"] is not None]
        for one, q in zip(known, adjust([one["p"] for one in known]), strict=True):
            one["q"] = float(q)
        for one in own:
            one["outcome"] = outcome_of_difference(one, one.pop("margin"))
        found += own or [_untested(sentence)]
    return [one | {"role": settings.role, "step": settings.steps} for one in found]


def pairs_of(sentence: str, settings: InterveneSettings) -> Iterator[Pair]:
    """The comparisons that a plan has for a sentence."""
    arms = settings.arms
    if sentence.startswith("flatter"):
        for arm in arms:
            start = settings.control_dose[arm.name]
            for dose in arm.doses:
                if (arm.kind in _FLATTER and dose > 0) or (arm.kind == "zipf" and dose < start):
                    yield arm.label(dose), (arm.name, dose), CONTROL, dose
    elif sentence == "isotropy-alignment":
        for arm in arms:
            if arm.kind in ("cos", "istar"):
                for dose in arm.doses:
                    if dose:
                        yield arm.label(dose), (arm.name, dose), CONTROL, dose
    elif sentence == "tangent-updates":
        yield from _removals(arms)
    elif sentence == "bell-mask":
        yield from _masks(settings)


def _removals(arms: Iterable[Arm]) -> Iterator[Pair]:
    """Arms without the proxy and arms without other directions, at equal rank or at equal share removed."""
    removing = [arm for arm in arms if arm.kind == "updates"]
    for arm in removing:
        for other in removing:
            if arm.directions != "proxy" or other.directions == "proxy":
                continue
            same = (arm.rank, arm.every, arm.layers) == (other.rank, other.every, other.layers)
            equal_rank = arm.against is None and other.against is None
            equal_share = arm.against == other.directions and other.against == "proxy"
            if same and (equal_rank or equal_share):
                how = "equal rank" if equal_rank else "equal share"
                for dose in sorted(set(arm.doses) & set(other.doses)):
                    if dose:
                        name = f"{arm.label(dose)} − {other.label(dose)}, {how}"
                        yield name, (arm.name, dose), (other.name, dose), dose


def _masks(settings: InterveneSettings) -> Iterator[Pair]:
    cells = [("control", CONTROL, settings.cell_of(None))]
    cells += [(arm.name, (arm.name, 0.0), settings.cell_of(arm)) for arm in settings.arms if arm.kind == "cell"]
    for name, cell, (attention, objective) in cells:
        for other_name, other, (other_attention, other_objective) in cells:
            if (
                attention == "causal"
                and objective == other_objective
                and other_attention in ("bidirectional", "prefix")
            ):
                yield f"{name} − {other_name}, {objective}", cell, other, 0.0


def _compared(sentence: Sentence, values: Values, settings: InterveneSettings) -> list[Row]:
    pairs = list(pairs_of(sentence.name, settings))
    outcomes = [outcome for outcome in sentence.outcomes if (outcome, None) in values]  # what this plan measures
    family = max(1, len(pairs) * len(outcomes))
    found = []
    for name, arm, other, dose in pairs:
        for outcome in outcomes:
            cells = values.get((outcome, None), {})
            effect = contrast(cells.get(arm, {}), cells.get(other, {}), family=family)
            control = cells.get(CONTROL, {})
            mean = statistics.fmean(control.values()) if control else None
            ratio = EFFECTS[outcome].ratio
            margin = math.log(MARGIN) if ratio else settings.margin * abs(mean or 0.0)
            note = effect.note or ("difference of logarithms" if ratio else None)
            about = {"model": name, "parameter": dose, "floor": mean, "note": note}
            found.append(_numbers(effect, f"{sentence.name}/{outcome}") | about | {"margin": margin})
    return found


def _correlated(rows: Iterable[Mapping[str, Any]], sentence: Sentence, settings: InterveneSettings) -> list[Row]:
    """The partial correlation within each seed, over its arms and observations; its mean over seeds.

    Arms with another corpus or objective have another loss and stay out, as does the null arm, which would count the
    control twice.
    """
    out = {arm.name for arm in settings.every_arm if arm.kind in ("null", "zipf")}
    out |= {
        a.name for a in settings.every_arm if a.kind == "cell" and settings.cell_of(a)[1] != settings.cell_of(None)[1]
    }
    models = {"control"} | {
        arm.label(dose) for arm in settings.every_arm if arm.name not in out for dose in arm.every_dose
    }
    points: dict[int, dict[tuple[str, int], dict[str, list[float]]]] = {}
    wanted = {
        "dimension": EFFECTS["two_nn"].where,
        "loss": EFFECTS["loss"].where,
        "probe": {"measure": "probe"},
    }
    for one in rows:
        if one["model"] in models and one["seed"] is not None and one["step"] is not None:
            for name, where in wanted.items():
                if matches(one, where) and one["value"] is not None and math.isfinite(one["value"]):
                    at = points.setdefault(one["seed"], {}).setdefault((one["model"], one["step"]), {})
                    at.setdefault(name, []).append(one["value"])
    correlations = []
    for seed in sorted(points):
        whole = [(step, at) for (_, step), at in points[seed].items() if at.keys() == wanted.keys()]
        at = [step for step, _ in whole]
        columns = [[statistics.fmean(part[name]) for _, part in whole] for name in ("dimension", "probe", "loss")]
        found = partial_correlation(np.asarray(at), *(np.asarray(column) for column in columns))
        if math.isfinite(found):
            correlations.append(found)
    if not correlations:
        return []
    effect = over_seeds(correlations)
    named = {"model": "all arms", "floor": 0.0, "note": effect.note, "margin": _CORRELATED}
    return [_numbers(effect, f"{sentence.name}/correlation") | named]


def partial_correlation(step: np.ndarray, x: np.ndarray, y: np.ndarray, given: np.ndarray) -> float:
    """Pearson's correlation of ``x`` and ``y`` given the step (each its own mean) and ``given``; NaN with too few."""
    columns = [np.asarray(step == one, dtype=float) for one in np.unique(step)]
    if len(x) < len(columns) + 1 + _FEWEST_POINTS:
        return math.nan
    known = np.stack([*columns, given], 1)
    left_x, left_y = (z - known @ np.linalg.lstsq(known, z, rcond=None)[0] for z in (x, y))
    scale = float(np.linalg.norm(left_x) * np.linalg.norm(left_y))
    floor = 1e-9 * max(float(np.linalg.norm(x) * np.linalg.norm(y)), 1e-300)
    return float(left_x @ left_y / scale) if scale > floor else math.nan


def _numbers(effect: Any, variant: str) -> Row:
    names = ("value", "n", "se", "low", "high", "low90", "high90", "p", "detectable")
    return row(measure="sentence", variant=variant, subset=None, **{name: getattr(effect, name) for name in names})


def _untested(sentence: Sentence) -> Row:
    first = sentence.outcomes[0] if sentence.outcomes else "correlation"
    note = "not tested by this plan"
    about = {"variant": f"{sentence.name}/{first}", "note": note, "outcome": "not measured", "subset": None}
    return row(measure="sentence", value=math.nan, n=0, **about) | {"model": NO_ARM}
