"""A plan of interventions: arms × doses × seeds as jobs, and their effects against the control of the same seed."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from anisoscope.data.tokens import Tokenised, prepare
from anisoscope.errors import AnisoscopeError, broken
from anisoscope.evidence.inference import adjust
from anisoscope.intervene.contrasts import FEWEST, Contrast, contrast, smallest_effect, trend
from anisoscope.observe.gathering import RESERVOIR_ROWS
from anisoscope.observe.provenance import provenance
from anisoscope.observe.rows import Row, row
from anisoscope.store.run import Run, create_run, open_run
from anisoscope.study.arm_training import Job, trained
from anisoscope.study.ending import closing
from anisoscope.study.intervene_settings import InterveneSettings
from anisoscope.study.noting import Noting
from anisoscope.study.pool import Means, Overseer, Task, session
from anisoscope.study.pool import run as run_all
from anisoscope.study.resuming import require_progress, settings_in
from anisoscope.study.unchanged import require_same_text
from anisoscope.verdict import MARGIN, outcome_of_difference
from anisoscope.vocabulary import EFFECTS, HEADLINES, added, headline_values

KIND = "intervene"
_FIXED = 8.0  # seconds of a job beside its steps: reading, building, four small evaluations
_SCOPE_FACTOR = 1.6  # of bare training, with the four observations that a job makes
Values = dict[str, dict[tuple[str, float], dict[int, float]]]  # by outcome, arm and dose, seed


@dataclass(frozen=True, slots=True)
class Cost:
    """What a plan takes: seconds are a guess from the operations of a training."""

    jobs: int
    seconds: float
    bytes: int


def jobs_of(settings: InterveneSettings, run: str) -> list[Job]:
    """Controls first, then arms by dose, each under every seed."""
    given = settings.model_dump(mode="json")
    arms = [(arm.name, dose) for arm in settings.every_arm for dose in arm.every_dose]
    return [Job(run, seed, given, name, dose) for name, dose in [(None, 0.0), *arms] for seed in settings.every_seed]


def cost_of(settings: InterveneSettings, rate: float) -> Cost:
    """Estimated before anything starts."""
    jobs = len(jobs_of(settings, ""))
    parameters = 12 * settings.layers * settings.width**2 + 2 * settings.vocabulary * settings.width
    operations = 6.0 * parameters * settings.steps * settings.batch * settings.length
    return Cost(jobs, jobs * (_SCOPE_FACTOR * operations / rate + _FIXED), jobs * (1 << 18))


def power_of(settings: InterveneSettings, pilot: str | None) -> dict[str, float]:
    """The smallest effect that the plan could find, by outcome, from the spread of paired differences in a pilot."""
    if pilot is None or settings.seeds < FEWEST:
        return {}
    run = open_run(pilot)
    if run.manifest.get("kind") != KIND:
        raise broken("a pilot must be an earlier run of intervene", pilot, "leave --pilot out for a first plan")
    spreads: dict[str, list[float]] = {}
    for found in run.table().to_pylist():
        if found["measure"] == "effect" and found["se"]:
            spreads.setdefault(found["variant"], []).append(found["se"] * math.sqrt(found["n"]))
    if not spreads:
        raise broken("a pilot must have effects with an error, of at least 3 seeds", pilot, "name another run")
    return {
        outcome: smallest or math.nan
        for outcome, each in spreads.items()
        for smallest in [smallest_effect(statistics.median(each), settings.seeds, family=len(EFFECTS))]
    }


def begun(settings: InterveneSettings, means: Means, overseer: Overseer, *, out: str | Path | None = None) -> Run:
    """Train a plan into a new run, by default ``runs/<date-time>-intervene``."""
    folder = out if out is not None else Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-intervene"
    data = _prepared(settings)
    run = create_run(
        folder,
        config=settings.model_dump(mode="json"),
        kind=KIND,
        steps=settings.steps,
        seeds=list(settings.every_seed),
        corpus=data.about,
        vocabulary=added(),
        **provenance(reservoir_rows=RESERVOIR_ROWS),
        hashes={"corpus": data.fingerprint},
        units="sequence",
        done=[],
        failed={},
        seconds=0.0,
    )
    return _go_on(run, settings, means, overseer)


def resumed(path: str | Path, means: Means, overseer: Overseer) -> Run:
    """Go on with a plan that was stopped or killed; a training that was under way begins anew."""
    run = open_run(path, write=True)
    try:
        if run.manifest.get("kind") != KIND:
            raise AnisoscopeError(f"{path} is a run of kind {run.manifest.get('kind')!r}, and none of intervene")
        run.require_current()
        settings = settings_in(run.manifest, InterveneSettings)
        require_progress(run.manifest)
        if run.finished and not run.manifest.get("failed"):
            run.close()
            return run
        require_same_text(run.manifest, "corpus", _prepared(settings).fingerprint, settings.corpus)
    except BaseException:
        run.close()
        raise
    return _go_on(run, settings, means, overseer)


def _prepared(settings: InterveneSettings) -> Tokenised:
    return prepare(
        settings.corpus,
        length=settings.length,
        vocabulary=settings.vocabulary,
        tokeniser=settings.tokeniser,
        seed=settings.first_seed,
    )


def _go_on(run: Run, settings: InterveneSettings, means: Means, overseer: Overseer) -> Run:
    with closing(run) as ending, contextlib.suppress(KeyboardInterrupt):
        jobs = jobs_of(settings, run.path)
        run.update(status="running", failed={}, reason=None)
        left = [Task(job.writer, trained, (job,)) for job in jobs if job.writer not in run.manifest["done"]]
        with session(means):
            run_all(left, means, Noting(run, overseer))
        rows = effect_rows(run.table().to_pylist(), settings)
        run.write("effects", rows)
        ending.status = "finished"
    return run


def effect_rows(rows: Iterable[Mapping[str, Any]], settings: InterveneSettings) -> list[Row]:
    """Effects of every arm and dose on every outcome at the end of training, with q over the outcomes of an arm."""
    values = outcome_values(rows, settings)
    family = len(values)
    found: list[Row] = []
    for arm in settings.every_arm:
        trends: list[Row] = []
        for dose in arm.every_dose:
            of_dose = []
            for outcome, cells in values.items():
                control = cells.get(("control", 0.0), {})
                effect = contrast(cells.get((arm.name, dose), {}), control, family=family)
                of_dose.append(_row("effect", outcome, effect, control) | {"model": arm.label(dose), "parameter": dose})
            found += _judged(of_dose, settings, values)
        start = settings.control_dose.get(arm.name, 0.0)
        if len({*arm.doses, start}) > 2:
            for outcome, cells in values.items():
                control = cells.get(("control", 0.0), {})
                doses = {start: control} | {dose: cells.get((arm.name, dose), {}) for dose in arm.doses}
                trends.append(_row("trend", outcome, trend(doses, family=family), control) | {"model": arm.name})
            found += _judged(trends, settings, values)
    return [one | {"role": settings.role, "step": settings.steps} for one in found]


def outcome_values(rows: Iterable[Mapping[str, Any]], settings: InterveneSettings) -> Values:
    """The last value of every outcome, by arm, dose and seed; ratios as logarithms."""
    names = {"control": ("control", 0.0)}
    names |= {arm.label(dose): (arm.name, dose) for arm in settings.every_arm for dose in arm.every_dose}
    by_model: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for one in rows:
        if one["model"] in names and one["seed"] is not None:
            by_model.setdefault((one["model"], one["seed"]), []).append(one)
    found: Values = {outcome: {} for outcome in EFFECTS}
    for (model, seed), own in by_model.items():
        for outcome in EFFECTS:
            last = _last(own, outcome)
            if last is not None:
                found[outcome].setdefault(names[model], {})[seed] = last
    return {outcome: cells for outcome, cells in found.items() if cells}


def _last(rows: list[Mapping[str, Any]], outcome: str) -> float | None:
    where = HEADLINES[outcome].where
    own = [r for r in rows if all(r[column] == wanted for column, wanted in where.items()) and r["step"] is not None]
    if not own:
        return None
    last = max(r["step"] for r in own)
    values = headline_values((r for r in own if r["step"] == last), outcome)
    if not values:
        return None
    middle = statistics.median(values)
    return math.log(middle) if _is_ratio(outcome) and middle > 0 else middle


def _is_ratio(outcome: str) -> bool:
    return outcome.startswith("enrichment")


def _row(measure: str, outcome: str, found: Contrast, control: Mapping[int, float]) -> Row:
    numbers = {name: value for name, value in asdict(found).items() if value is not None}
    mean = statistics.fmean(control.values()) if control else None
    note = found.note or ("difference of logarithms" if _is_ratio(outcome) else None)
    return row(**(numbers | {"measure": measure, "variant": outcome, "floor": mean, "note": note, "subset": None}))


def _judged(rows: list[Row], settings: InterveneSettings, values: Values) -> list[Row]:
    known = [one for one in rows if one["p"] is not None]
    for one, q in zip(known, adjust([one["p"] for one in known]), strict=True):
        one["q"] = float(q)
    for one in rows:
        mean = one["floor"]
        size = math.log(MARGIN) if _is_ratio(one["variant"]) else settings.margin * abs(mean or 0.0)
        one["outcome"] = outcome_of_difference(one, size)
    return rows
