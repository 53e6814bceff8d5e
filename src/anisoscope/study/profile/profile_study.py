"""One model that exists already: every layer measured, and its gradients on a text judged against all nulls."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from anisoscope.data.passages import frame_of
from anisoscope.errors import AnisoscopeError
from anisoscope.evaluate.evaluation import Evaluation
from anisoscope.evaluate.evaluator import Evaluator, EvaluatorSettings
from anisoscope.evaluate.judge_sites import each_in_turn
from anisoscope.evaluate.row_builders import Row, with_token_texts
from anisoscope.intervene.attention import attention_changed
from anisoscope.intervene.removal import ablate
from anisoscope.jobs.job_pool import JobListener, JobOutcome, Task
from anisoscope.jobs.side_by_side import Apply, side_by_side
from anisoscope.models.cards import Card, describe
from anisoscope.models.located import Located, locate
from anisoscope.observe.collector import RESERVOIR_ROWS
from anisoscope.observe.finalize import finalize
from anisoscope.observe.offline import observe_model
from anisoscope.observe.site_selection import SiteChoice, choose
from anisoscope.record.run_provenance import provenance
from anisoscope.store.run import Run, create_run, open_run
from anisoscope.study.estimates import Size, rate_of, size_of
from anisoscope.study.model_settings import ProfileSettings
from anisoscope.study.profile.layer_measures import Profile, draw, sequences_needed, vectors_of
from anisoscope.study.profile.profile_shape import shape_rows
from anisoscope.study.relations import aligned_vectors, layer_rows
from anisoscope.study.resume_checks import model_digest, require_same_model, require_same_text
from anisoscope.study.resume_state import recorded, require_progress, settings_in
from anisoscope.study.run_closing import closing
from anisoscope.study.tokenized_text import (
    TokenizedText,
    loaded,
    read_text,
    require_fitting,
    tokeniser_of,
    twin,
)
from anisoscope.vocabulary import added

TWIN, TRAINED = 0, 1
"""The steps under which a profile keeps the untrained twin and the model: before training and after it."""
_DRAWS = 4  # of each random control of removals


def planned(model: str, settings: ProfileSettings) -> tuple[Card, Size]:
    """What would be done, from the configuration alone; the tokeniser and the text are checked too."""
    card = described(locate(model, allow_pickle=settings.allow_pickle), settings)
    return card, size_of(card, settings, rate=rate_of(settings), sequences=_sequences(card, settings))


def described(located: Located, settings: ProfileSettings) -> Card:
    """The model's card, once it is known that the settings fit it."""
    card = describe(located, objective=settings.objective, trust_remote_code=settings.trust_remote_code)
    require_fitting(card, settings, settings.rank)
    return card


def profile(
    model: str, settings: ProfileSettings, listener: JobListener, *, out: str | Path | None = None, page: bool = False
) -> Run:
    """Profile a model into a new run, by default ``runs/<date-time>-profile``."""
    located = locate(model, allow_pickle=settings.allow_pickle)
    card = described(located, settings)
    each = _sequences(card, settings)
    reading = read_text(card, settings, sequences=each * settings.batches)
    folder = out if out is not None else Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-profile"
    run = create_run(
        folder,
        config=settings.model_dump(mode="json"),
        kind="profile",
        steps=TRAINED,
        model=_about(card, settings),
        corpus=reading.data.about,
        vocabulary=added(),
        **provenance(reservoir_rows=RESERVOIR_ROWS, fold_seed=reading.seed),
        hashes={
            "text": reading.data.fingerprint,
            "model": model_digest(located.path, allow_pickle=settings.allow_pickle),
        },
        units=reading.units,
        notes=list(card.notes),
        asked=model,
        done=[],
    )
    return _go_on(run, card, settings, reading, each, listener, page=page)


def resume(path: str | Path, listener: JobListener, *, page: bool = False) -> Run:
    """Go on with a profile that was stopped or killed: stages that are done are not done again."""
    run = open_run(path, write=True)
    try:
        if run.manifest.get("kind") != "profile":
            raise AnisoscopeError(f"{path} is a run of kind {run.manifest.get('kind')!r}, not a profile")
        run.require_current()
        settings = settings_in(run.manifest, ProfileSettings)
        require_progress(run.manifest)
        if run.finished:
            run.close()
            return run
        located = locate(str(recorded(run.manifest, "asked")), allow_pickle=settings.allow_pickle)
        card = described(located, settings)
        each = _sequences(card, settings)
        reading = read_text(card, settings, sequences=each * settings.batches)
        require_same_text(run.manifest, "text", reading.data.fingerprint, settings.text)
        then, now = recorded(run.manifest, "model"), _about(card, settings)
        if not isinstance(then, dict) or any(
            then.get(name) != now[name] for name in now.keys() - {"path"}
        ):  # there it is told without the home
            raise AnisoscopeError(f"the model has changed since {path} began; restore it, or begin a new run")
        require_same_model(run.manifest, "model", located.path, allow_pickle=settings.allow_pickle)
    except BaseException:
        run.close()
        raise
    run.update(status="running", reason=None)
    return _go_on(run, card, settings, reading, each, listener, page=page)


def _go_on(
    run: Run,
    card: Card,
    settings: ProfileSettings,
    reading: TokenizedText,
    each: int,
    listener: JobListener,
    *,
    page: bool,
) -> Run:
    """Do the stages that are not done yet."""
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        with closing(run, page=page) as ending, side_by_side(settings.threads) as apply:
            _Profiling(run, card, settings, reading, each, listener, apply).all()
            ending.status = "finished"
    finally:
        torch.set_num_threads(threads)
    return run


def about(card: Card) -> dict[str, Any]:
    """A model for the manifest."""
    return {
        "name": card.located.name,
        "revision": card.located.revision,
        "path": str(card.located.path),
        "architecture": type(card.config).__name__.removesuffix("Config"),
        "objective": card.objective,
        "layers": card.layers,
        "width": card.width,
        "vocabulary": card.vocabulary,
        "parameters": card.parameters,
    }


def _about(card: Card, settings: ProfileSettings) -> dict[str, Any]:
    """The same, under a name that tells another attention."""
    known = about(card)
    if settings.attention == "usual":
        return known
    return known | {"name": f"{known['name']}, attention {settings.attention}", "attention": settings.attention}


def _sequences(card: Card, settings: ProfileSettings) -> int:
    """Sequences of one batch of vectors."""
    return sequences_needed(settings.vectors, settings.length, frame_of(tokeniser_of(card, settings)).size)


class _Profiling:
    """The stages of a profile, each of which ends with its rows in the run."""

    def __init__(
        self,
        run: Run,
        card: Card,
        settings: ProfileSettings,
        reading: TokenizedText,
        each: int,
        listener: JobListener,
        apply: Apply,
    ) -> None:
        self._run, self._card, self._settings, self._reading = run, card, settings, reading
        self._each, self._overseer, self._apply = each, listener, apply
        self._skip: set[str] = set()
        on_cpu = torch.device(settings.judging_place).type == "cpu"  # a GPU does one thing at a time anyway
        in_turn = (lambda act, items: list(apply(act, items))) if on_cpu else each_in_turn
        self._judge = Evaluator(
            EvaluatorSettings(settings.request(), None, keep=True, measured=("gradients",)), in_turn
        )
        name = _about(card, settings)["name"]
        self._about = {"model": name, "role": reading.role, "seed": settings.seed}

    def all(self) -> None:
        """First the untrained twin, which is the null, then the model."""
        settings = self._settings
        done = set(self._run.manifest["done"])
        if {"model-gradients", "twin-layers"} <= done or not settings.gradients or not settings.untrained:
            self._skip = done
        else:  # what the model's gradients are judged beside is in memory only
            self._skip = done - {"twin-gradients"}
        names = [f"{who}: {what}" for who in ("twin", "model") for what in self._stages(who)]
        names += ["model: removals"] if settings.ablate and "model-removals" not in done else []
        self._overseer.begun(names)
        if self._stages("twin"):
            model = twin(self._card, settings)
            self._examined(model, "twin", TWIN, batches=1)
            del model
        removals = settings.ablate and "model-removals" not in done
        if not self._stages("model") and not removals:
            return
        model = loaded(self._card, settings)
        self._examined(model, "model", TRAINED, batches=settings.batches)
        if removals:
            choice = choose(model, None, settings.views, settings.maps)
            with attention_changed(model, choice.sites, settings.attention):
                self._ablated(model)

    def _stages(self, who: str) -> list[str]:
        """Those of the twin or the model that are not done yet."""
        if who == "twin" and not self._settings.untrained:
            return []
        every = ["layers", "gradients"] if self._settings.gradients else ["layers"]
        return [what for what in every if f"{who}-{what}" not in self._skip]

    def _ablated(self, model: torch.nn.Module) -> None:
        """The proxy that gradients were judged against, removed: what it costs beside what it holds."""
        settings, reading, rank = self._settings, self._reading, self._settings.rank
        assert isinstance(rank, int), "settings allow removals at a number only"
        with _Stage(self._overseer, "model: removals") as stage:
            found = ablate(
                model,
                reading.chunks(settings),
                proxy=settings.proxies[0],
                ranks=(rank,),
                draws=_DRAWS,
                seed=reading.seed,
                progress=stage.told,
            )
            self._write("model-removals", found.rows, TRAINED)

    def _examined(self, model: torch.nn.Module, who: str, step: int, *, batches: int) -> None:
        choice = choose(model, None, self._settings.views, self._settings.maps)
        with attention_changed(model, choice.sites, self._settings.attention):
            self._passed(model, choice, who, step, batches=batches)

    def _passed(self, model: torch.nn.Module, choice: SiteChoice, who: str, step: int, *, batches: int) -> None:
        if "layers" in self._stages(who):
            with _Stage(self._overseer, f"{who}: layers") as stage:
                rows = self._layers(model, choice, stage, batches)
                if self._settings.measures == "all":
                    stage.told(0.99, "comparing layers")
                    part = self._reading.data.train.rows(slice(0, self._each))
                    rows += layer_rows(aligned_vectors(model, choice.sites, part, chunk=self._settings.chunk))
                self._write(f"{who}-layers", rows, step)
        if "gradients" in self._stages(who):
            with _Stage(self._overseer, f"{who}: gradients") as stage:
                seen = observe_model(
                    model,
                    choice,
                    self._reading.chunks(self._settings),
                    step=step,
                    rows=RESERVOIR_ROWS,
                    seed=self._reading.seed,
                    targets=self._settings.targets,
                    frequency=self._reading.frequency(choice.sites) if self._settings.frequency else None,
                    progress=lambda share: stage.told(0.7 * share, "forward and backward"),
                )
                stage.told(0.7, "judging")
                options = {"rows": RESERVOIR_ROWS, "seed": self._reading.seed, "device": self._settings.judging_place}
                found = self._judge.judged(finalize(seen, **options))
                rows = found.rows
                self._write_arrays(who, found)
                self._write(f"{who}-gradients", [row for row in rows if _belongs(row)], step)

    def _layers(self, model: torch.nn.Module, choice: SiteChoice, stage: _Stage, batches: int) -> list[Row]:
        found, data = Profile(), self._reading.data
        for batch in range(batches):
            part = data.train.rows(slice(batch * self._each, (batch + 1) * self._each))
            seed = self._settings.seed + batch
            drawn = draw(part, data.special_ids, vectors=self._settings.vectors, seed=seed)

            def told(share: float, what: str, batch: int = batch) -> None:
                stage.told((batch + share) / batches, f"batch {batch + 1} of {batches}, {what}")

            vectors = vectors_of(
                model, choice.sites, part, drawn, chunk=self._settings.chunk, told=lambda s, w: told(0.2 * s, w)
            )
            options = {"seed": self._settings.seed, "which": self._settings.measures, "apply": self._apply}
            found.add(vectors, **options, told=lambda s, w: told(0.2 + 0.8 * s, w))
        return found.rows() + shape_rows(found)

    def _write(self, writer: str, rows: list[Row], step: int) -> None:
        rows = with_token_texts(rows, self._reading.data.tokeniser.text)
        self._run.write(writer, [row | {"step": step, "tokens": None} | self._about for row in rows])
        done = self._run.manifest["done"]
        self._run.update(done=done if writer in done else [*done, writer])

    def _write_arrays(self, who: str, found: Evaluation) -> None:
        self._run.write_tensors(f"spectra-{who}", found.spectra)
        if self._settings.keep_bases:
            for timing, bases in found.bases.items():
                self._run.write_tensors(f"subspaces-{who}-{timing}", bases)


def _belongs(row: Row) -> bool:
    """Of a judgement all but what the layers say better, and angles to the twin: the two never shared a training."""
    if row["measure"].startswith(("frequency_", "bin_")):
        return True
    return row["measure"] != "angle" and (row["tensor"] != "activations" or row["proxy"] is not None)


class _Stage:
    """One stage as the display sees it."""

    def __init__(self, listener: JobListener, name: str) -> None:
        self._overseer, self._task, self._began = listener, Task(name, _Stage), time.monotonic()

    def __enter__(self) -> _Stage:
        self._overseer.started(self._task.name)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KeyboardInterrupt):
            return
        seconds = time.monotonic() - self._began
        why = None if error is None else str(error) or type(error).__name__
        self._overseer.ended(JobOutcome(self._task, error=why, seconds=seconds))

    def told(self, share: float, what: str) -> None:
        """How far it is."""
        self._overseer.progressed(self._task.name, share, what)
