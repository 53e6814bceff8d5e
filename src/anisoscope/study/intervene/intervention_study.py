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
from anisoscope.errors import broken
from anisoscope.evaluate.row_builders import Row, row
from anisoscope.evidence.inference import adjust
from anisoscope.intervene.contrasts import FEWEST, Contrast, contrast, smallest_effect, trend
from anisoscope.jobs import distributed_job as company
from anisoscope.jobs.job_log import JobLog
from anisoscope.jobs.job_pool import JobListener, JobResources, Task, session
from anisoscope.jobs.job_pool import run as run_all
from anisoscope.observe.collector import RESERVOIR_ROWS
from anisoscope.record.run_provenance import provenance
from anisoscope.store.run import Run, create_run, open_run
from anisoscope.study.intervene.arm_training import OBSERVED, ArmJob, require_finite_first_step, trained
from anisoscope.study.intervene.causal_sentences import sentence_rows
from anisoscope.study.intervene.intervene_settings import InterveneSettings
from anisoscope.study.intervene.probe_tasks import read_labels
from anisoscope.study.resume_checks import require_same_text
from anisoscope.study.resume_state import is_done, require_progress, resume_study, settings_in
from anisoscope.study.run_closing import closing
from anisoscope.verdict import MARGIN, outcome_of_difference
from anisoscope.vocabulary import EFFECTS, Effect, added, matches

KIND = "intervene"
# CPU seconds of a job beside its steps, measured on one core at 4 × 128 with both views, frequency and probes: 38 in
# all, of which bare training took 3.
_FIXED = 5.0  # reading, building, held-out text
_JUDGED = {"representation": 0.6, "weight": 0.4}  # of a layer and observation, by view
_PROBED = 0.4  # of a layer and observation
_SCOPE_FACTOR = 2.0  # of bare training, with what watching costs its thread
_BYTES = 1 << 20  # of a job, rows and all
Values = dict[tuple[str, int | None], dict[tuple[str, float], dict[int, float]]]  # by outcome and layer, arm, seed


@dataclass(frozen=True, slots=True)
class PlanCost:
    """What a plan takes: seconds are a guess from the operations of a training."""

    jobs: int
    seconds: float
    bytes: int


def jobs_of(settings: InterveneSettings, run: str) -> list[ArmJob]:
    """Controls first, then arms by dose, each under every seed."""
    given = settings.model_dump(mode="json")
    arms = [(arm.name, dose) for arm in settings.every_arm for dose in arm.every_dose]
    return [ArmJob(run, seed, given, name, dose) for name, dose in [(None, 0.0), *arms] for seed in settings.every_seed]


def cost_of(settings: InterveneSettings, rate: float) -> PlanCost:
    """Estimated before anything starts."""
    jobs = len(jobs_of(settings, ""))
    parameters = 12 * settings.layers * settings.width**2 + settings.vocabulary * settings.width  # that are multiplied
    operations = 6.0 * parameters * settings.steps * settings.batch * settings.length
    places = (settings.layers + 1) * len(OBSERVED)
    each = sum(_JUDGED[view] for view in settings.views) + (_PROBED if settings.probes else 0.0)
    return PlanCost(jobs, jobs * (_SCOPE_FACTOR * operations / rate + _FIXED + places * each), jobs * _BYTES)


def power_of(settings: InterveneSettings, pilot: str | None) -> dict[str, float]:
    """The smallest effect that the plan could find, by outcome, from the spread of paired differences in a pilot."""
    if pilot is None or settings.seeds < FEWEST:
        return {}
    run = open_run(pilot)
    if run.manifest.get("kind") != KIND:
        raise broken("a pilot must be an earlier run of intervene", pilot, "leave --pilot out for a first plan")
    spreads: dict[str, list[float]] = {}
    for found in run.whole_table().to_pylist():
        if found["measure"] == "effect" and found["se"] and found["layer"] is None:
            spreads.setdefault(found["variant"], []).append(found["se"] * math.sqrt(found["n"]))
    if not spreads:
        raise broken("a pilot must have effects with an error, of at least 3 seeds", pilot, "name another run")
    return {
        outcome: smallest or math.nan
        for outcome, each in spreads.items()
        for smallest in [smallest_effect(statistics.median(each), settings.seeds, family=len(EFFECTS))]
    }


def require_labels(settings: InterveneSettings) -> None:
    """Raise for a file of labels that no probe could be fitted on."""
    if settings.probe_data is not None:
        read_labels(settings.probe_data)


def require_first_steps(settings: InterveneSettings) -> None:
    """Raise for a dose at which the first step of a training has no finite loss or gradient.

    Under torchrun it is left to the training itself, for penalties take sums over processes that do not listen yet.
    """
    if company.processes() > 1:
        return
    for job in jobs_of(settings, ""):
        if job.seed == settings.first_seed and job.of_arm is not None:
            require_finite_first_step(job)


def begun(
    settings: InterveneSettings,
    means: JobResources,
    listener: JobListener,
    *,
    out: str | Path | None = None,
    page: bool = False,
) -> Run:
    """Train a plan into a new run, by default ``runs/<date-time>-intervene``."""
    require_labels(settings)
    require_first_steps(settings)
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
    return _go_on(run, settings, means, listener, page=page)


def resumed(path: str | Path, means: JobResources, listener: JobListener, *, page: bool = False) -> Run:
    """Go on with a plan that was stopped or killed; a training that was under way begins anew."""

    def read(run: Run) -> InterveneSettings:
        settings = settings_in(run.manifest, InterveneSettings)
        require_progress(run.manifest)
        if not is_done(run):
            require_same_text(run.manifest, "corpus", _prepared(settings).fingerprint, settings.corpus)
        return settings

    return resume_study(path, KIND, read, lambda run, settings: _go_on(run, settings, means, listener, page=page))


def _prepared(settings: InterveneSettings) -> Tokenised:
    return prepare(
        settings.corpus,
        length=settings.length,
        vocabulary=settings.vocabulary,
        tokeniser=settings.tokeniser,
        seed=settings.first_seed,
    )


def _go_on(run: Run, settings: InterveneSettings, means: JobResources, listener: JobListener, *, page: bool) -> Run:
    with closing(run, page=page) as ending, contextlib.suppress(KeyboardInterrupt):
        jobs = jobs_of(settings, run.path)
        run.update(status="running", failed={}, reason=None)
        left = [Task(job.writer, trained, (job,)) for job in jobs if job.writer not in run.manifest["done"]]
        with session(means):
            run_all(left, means, JobLog(run, listener))
        rows = run.whole_table().to_pylist()
        run.write("effects", effect_rows(rows, settings))
        run.write("sentences", sentence_rows(rows, outcome_values(rows, settings), settings))
        ending.status = "finished"
    return run


def effect_rows(rows: Iterable[Mapping[str, Any]], settings: InterveneSettings) -> list[Row]:
    """Effects of every arm and dose on every outcome at the end of training, with q over the outcomes of an arm.

    Those that have layers are told layer by layer too, with q over outcomes and layers of an arm and dose.
    """
    rows = list(rows)
    values = outcome_values(rows, settings)
    found = _effects(values, settings)
    found += _effects(outcome_values(rows, settings, by_layer=True), settings, trends=False)
    return [one | {"role": settings.role, "step": settings.steps} for one in found]


def _effects(values: Values, settings: InterveneSettings, *, trends: bool = True) -> list[Row]:
    family = len(values)
    found: list[Row] = []
    for arm in settings.every_arm:
        for dose in arm.every_dose:
            of_dose = []
            for (outcome, layer), cells in values.items():
                control = cells.get(("control", 0.0), {})
                effect = contrast(cells.get((arm.name, dose), {}), control, family=family)
                about = {"model": arm.label(dose), "parameter": dose, "layer": layer}
                of_dose.append(_row("effect", outcome, effect, control) | about)
            found += _judged(of_dose, settings)
        start = settings.control_dose.get(arm.name, 0.0)
        if trends and len({*arm.doses, start}) > 2:
            of_arm = []
            for (outcome, layer), cells in values.items():
                control = cells.get(("control", 0.0), {})
                doses = {start: control} | {dose: cells.get((arm.name, dose), {}) for dose in arm.doses}
                about = {"model": arm.name, "layer": layer}
                of_arm.append(_row("trend", outcome, trend(doses, family=family), control) | about)
            found += _judged(of_arm, settings)
    return found


def outcome_values(rows: Iterable[Mapping[str, Any]], settings: InterveneSettings, *, by_layer: bool = False) -> Values:
    """The last value of every outcome (and layer), by arm, dose and seed; ratios as logarithms.

    A training that did not come to its end has none, whatever was observed of it before.
    """
    names = {"control": ("control", 0.0)}
    names |= {arm.label(dose): (arm.name, dose) for arm in settings.every_arm for dose in arm.every_dose}
    wanted = {effect.where["measure"] for effect in EFFECTS.values()}
    by_model: dict[tuple[str, int], dict[Any, list[Mapping[str, Any]]]] = {}
    for one in rows:
        if one["model"] in names and one["seed"] is not None and one["step"] is not None and one["measure"] in wanted:
            by_model.setdefault((one["model"], one["seed"]), {}).setdefault(one["measure"], []).append(one)
    over = {
        key: own
        for key, own in by_model.items()
        if any(one["step"] >= settings.steps for each in own.values() for one in each)
    }
    found: Values = {}
    for effect in EFFECTS.values():
        if by_layer and (not effect.layers or effect.over == "bell"):
            continue
        for (model, seed), own in over.items():
            for layer, value in _last(own.get(str(effect.where["measure"]), []), effect, by_layer).items():
                found.setdefault((effect.name, layer), {}).setdefault(names[model], {})[seed] = value
    return found


def _last(rows: list[Mapping[str, Any]], effect: Effect, by_layer: bool) -> dict[int | None, float]:
    own = [one for one in rows if matches(one, effect.where)]
    last = max((one["step"] for one in own), default=None)
    at_end = [
        (one["layer"], one["value"])
        for one in own
        if one["step"] == last and one["value"] is not None and math.isfinite(one["value"])
    ]
    parts: dict[int | None, list[tuple[int | None, float]]] = {}
    for layer, value in at_end:
        parts.setdefault(layer if by_layer else None, []).append((layer, value))
    found = {layer: _one(values, effect) for layer, values in parts.items()}
    return {layer: value for layer, value in found.items() if math.isfinite(value)}


def _one(values: list[tuple[int | None, float]], effect: Effect) -> float:
    if effect.over == "bell":
        profile = [value for _, value in sorted((layer or 0, value) for layer, value in values)]
        return max(profile[1:-1]) - max(profile[0], profile[-1]) if len(profile) > 2 else math.nan
    middle = statistics.median(value for _, value in values)
    if not effect.ratio:
        return middle
    return math.log(middle) if middle > 0 else math.nan


def _row(measure: str, outcome: str, found: Contrast, control: Mapping[int, float]) -> Row:
    numbers = {name: value for name, value in asdict(found).items() if value is not None}
    mean = statistics.fmean(control.values()) if control else None
    note = found.note or ("difference of logarithms" if EFFECTS[outcome].ratio else None)
    return row(**(numbers | {"measure": measure, "variant": outcome, "floor": mean, "note": note, "subset": None}))


def _judged(rows: list[Row], settings: InterveneSettings) -> list[Row]:
    known = [one for one in rows if one["p"] is not None]
    for one, q in zip(known, adjust([one["p"] for one in known]), strict=True):
        one["q"] = float(q)
    for one in rows:
        mean = one["floor"]
        size = math.log(MARGIN) if EFFECTS[one["variant"]].ratio else settings.margin * abs(mean or 0.0)
        one["outcome"] = outcome_of_difference(one, size)
    return rows
