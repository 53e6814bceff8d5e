"""Removals from models that exist: one model, a folder of checkpoints, or the models of a run, one job each."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from anisoscope.errors import AnisoscopeError, broken
from anisoscope.intervene.removal import ablate
from anisoscope.jobs.job_log import JobLog
from anisoscope.jobs.job_pool import JobListener, JobResources, Task, report, session
from anisoscope.jobs.job_pool import run as run_all
from anisoscope.models.cards import Card, describe
from anisoscope.models.located import locate
from anisoscope.models.revisions import folders, place
from anisoscope.record.run_provenance import provenance
from anisoscope.store.run import Run, create_run, open_run
from anisoscope.study.ablate.ablate_settings import AblateSettings
from anisoscope.study.estimates import START_SECONDS, rate_of
from anisoscope.study.profile.profile_study import TRAINED, about
from anisoscope.study.resume_checks import model_digest, require_same_corpus, require_same_model, require_same_text
from anisoscope.study.resume_state import incomplete, recorded, require_progress, resume_study, settings_in
from anisoscope.study.run_closing import closing
from anisoscope.study.tokenized_text import loaded, read_text, require_fitting
from anisoscope.vocabulary import added

KIND = "ablate"
_OBJECTIVES = {"decoder": "causal", "encoder": "masked"}


@dataclass(frozen=True, slots=True)
class Model:
    """One model to remove from: what it is loaded by, its name in rows, and its step."""

    source: str
    name: str
    step: int
    objective: str | None = None

    @property
    def key(self) -> str:
        """Its name and step in a plain word."""
        plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in self.name)
        return f"{plain}-{self.step}"


@dataclass(frozen=True, slots=True)
class RemovalJob:
    """One model under the settings of the study."""

    run: str
    model: Model
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def writer(self) -> str:
        """Who writes its rows."""
        return self.model.key


@dataclass(frozen=True, slots=True)
class Plan:
    """Models with their cards, and what they will take."""

    models: tuple[Model, ...]
    cards: tuple[Card, ...]
    passes: int  # of the text, of all models
    seconds: float


def models_of(sources: Sequence[str]) -> tuple[Model, ...]:
    """Models by what was named: a run's own models, checkpoints inside a folder in their order, or each as it is."""
    found: list[Model] = []
    for source in sources:
        path = Path(source).expanduser()
        if (path / "manifest.json").is_file():
            found += _of_run(path)
            continue
        parts = folders([str(path)]) if path.exists() else [None]
        for part in parts:
            label = source if part is None else part.stem if part.is_file() else part.name
            at = place(label)
            many = part is not None and len(parts) > 1
            name = path.resolve().name if many else _short(label)
            found.append(Model(source if part is None else str(part), name, TRAINED if at is None else int(at[1])))
    keys = [model.key for model in found]
    twice = [model for model, key in zip(found, keys, strict=True) if keys.count(key) > 1]
    if twice:
        raise broken("models must differ in name or step", twice[0].source, "name each once, or rename a folder")
    return tuple(found)


def planned(sources: Sequence[str], settings: AblateSettings) -> Plan:
    """What would be done, from configurations alone; settings that a model cannot serve are told."""
    models = models_of(sources)
    cards, passes, seconds = [], 0, START_SECONDS
    rate = rate_of(settings)
    for model in models:
        card = _card(model, settings)
        require_fitting(card, settings, max(settings.ranks), "--ranks")
        layers = settings.places(card.layers)
        if not all(0 <= layer <= card.layers for layer in layers):
            raise broken(f"--layers must lie in 0…{card.layers} for {card.located.name}", layers, "0 enters block 1")
        own = 2 + len(layers) * len(settings.ranks) * _removals(settings)
        # On average a pass replays half of the blocks.
        whole = 2 + sum(1 - layer / (card.layers + 1) for layer in layers) * len(settings.ranks) * _removals(settings)
        cards.append(card)
        passes += own
        seconds += 2.0 * card.parameters * settings.sequences * settings.length * whole / rate
    return Plan(models, tuple(cards), passes, seconds)


def begun(
    plan: Plan,
    settings: AblateSettings,
    means: JobResources,
    listener: JobListener,
    *,
    out: str | Path | None = None,
    page: bool = False,
) -> Run:
    """Remove from every model into a new run, by default ``runs/<date-time>-ablate``."""
    folder = out if out is not None else Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-ablate"
    reading = read_text(plan.cards[0], _own(settings, plan.models[0]), sequences=settings.sequences)
    run = create_run(
        folder,
        config=settings.model_dump(mode="json"),
        kind=KIND,
        steps=max(model.step for model in plan.models),
        model=about(plan.cards[0]),
        plan={"models": [asdict(model) for model in plan.models]},
        corpus=reading.data.about,
        units=reading.units,
        vocabulary=added(),
        **provenance(reservoir_rows=0, fold_seed=reading.seed),
        hashes={"text": reading.data.fingerprint}
        | {
            model.key: model_digest(card.located.path, allow_pickle=settings.allow_pickle)
            for model, card in zip(plan.models, plan.cards, strict=True)
        },
        notes=list(dict.fromkeys(note for card in plan.cards for note in card.notes)),
        done=[],
        failed={},
        seconds=0.0,
    )
    return _go_on(run, settings, plan.models, means, listener, page=page)


def resumed(path: str | Path, means: JobResources, listener: JobListener, *, page: bool = False) -> Run:
    """Go on with a study that was stopped or killed; models that failed are tried again."""

    def read(run: Run) -> tuple[AblateSettings, tuple[Model, ...]]:
        settings = settings_in(run.manifest, AblateSettings)
        require_progress(run.manifest)
        with incomplete(str(path)):
            return settings, tuple(Model(**model) for model in recorded(run.manifest, "plan", "models"))

    return resume_study(path, KIND, read, lambda run, needed: _go_on(run, *needed, means, listener, page=page))


def removed(job: RemovalJob) -> int:
    """The job of one model; returns how many rows there are."""
    settings = AblateSettings(**job.settings)
    report(0.0, "loading")
    own = _own(settings, job.model)
    card = _card(job.model, settings)
    run = open_run(job.run)
    require_same_model(run.manifest, job.model.key, card.located.path, allow_pickle=settings.allow_pickle)
    reading = read_text(card, own, sequences=settings.sequences)
    require_same_corpus(run.manifest, reading.data.about)
    if asdict(job.model) == recorded(run.manifest, "plan", "models")[0]:  # as its tokeniser read it
        require_same_text(run.manifest, "text", reading.data.fingerprint, settings.text)
    found = ablate(
        loaded(card, own),
        reading.chunks(own),
        proxy=settings.proxy,
        ranks=settings.ranks,
        layers=settings.places(card.layers),
        subset=settings.subset,
        draws=settings.draws,
        seed=reading.seed,
        margin=settings.margin,
        progress=report,
    )
    about_rows = {"model": job.model.name, "role": reading.role, "seed": settings.seed, "step": job.model.step}
    run.write(job.writer, [row | about_rows for row in found.rows])
    return len(found.rows)


def _go_on(
    run: Run,
    settings: AblateSettings,
    models: Sequence[Model],
    means: JobResources,
    listener: JobListener,
    *,
    page: bool,
) -> Run:
    """Run what is not done yet; the run is closed whatever happens, and an interrupt leaves what is done."""
    given = settings.model_dump(mode="json")
    with closing(run, page=page) as ending, contextlib.suppress(KeyboardInterrupt):
        jobs = {job.writer: job for job in (RemovalJob(run.path, model, given) for model in models)}
        run.update(status="running", failed={}, reason=None)
        left = [Task(name, removed, (job,)) for name, job in jobs.items() if name not in run.manifest["done"]]
        with session(means):
            run_all(left, means, JobLog(run, listener))
        if run.manifest["failed"] and not run.manifest["done"]:
            name, why = next(iter(run.manifest["failed"].items()))
            raise AnisoscopeError(f"no model could be measured; {name}: {why}")
        ending.status = "finished"
    return run


def _removals(settings: AblateSettings) -> int:
    """Passes of one layer and rank: the whole stream, the proxy and ``next``, random draws, three scaled proxies."""
    return 3 + 2 * settings.draws + 3


def _of_run(path: Path) -> list[Model]:
    """The models of a finished training, with those of its observations where they were kept."""
    steps = open_run(path).manifest.get("steps")
    last = steps if isinstance(steps, int) else TRAINED
    found = []
    for folder in sorted(one for one in (path / "models").glob("*") if (one / "config.json").is_file()):
        objective = _OBJECTIVES.get(folder.name.split("-")[0])
        history = path / "history" / folder.name
        earlier = [(one, place(one.name)) for one in folders([str(history)])] if history.is_dir() else []
        found += [Model(str(one), folder.name, int(at[1]), objective) for one, at in earlier if at and at[1] < last]
        found.append(Model(str(folder), folder.name, last, objective))
    if not found:
        raise broken("a run named here must hold models", str(path), "name the folders of its checkpoints")
    return found


def _own(settings: AblateSettings, model: Model) -> AblateSettings:
    return settings if model.objective is None else settings.model_copy(update={"objective": model.objective})


def _card(model: Model, settings: AblateSettings) -> Card:
    own = _own(settings, model)
    located = locate(model.source, allow_pickle=settings.allow_pickle)
    return describe(located, objective=own.objective, trust_remote_code=settings.trust_remote_code)


def _short(label: str) -> str:
    return label.rpartition("/")[2]
