"""A study goes on with what it began with, or not at all: the same text, model, checkpoints, recipe and scale."""

import contextlib
import shutil

import pytest

from anisoscope import open_run
from anisoscope.errors import AnisoscopeError
from anisoscope.jobs.job_pool import JobResources
from anisoscope.study.ablate import removal_study as ablate
from anisoscope.study.ablate.ablate_settings import AblateSettings
from anisoscope.study.checkpoints import history_study as checkpoints
from anisoscope.study.checkpoints.history_plan import build_plan
from anisoscope.study.intervene import intervention_study as intervene
from anisoscope.study.intervene.intervene_settings import InterveneSettings
from anisoscope.study.model_settings import Examination, HistoryPlan, ProfileSettings
from anisoscope.study.profile import profile_study as profile
from anisoscope.study.resume_checks import model_digest
from anisoscope.study.setting_fields import made_of
from faults.test_errors import said
from models.snapshots import letters, save, tiny

READ = {"length": 32, "sequences": 16, "chunk": 6, "threads": 1, "device": "cpu"}
SMALL = {"rank": 2, "resamples": 19, "proxies": ("pca",)}
PLAN = {"steps": 2, "layers": 1, "width": 16, "heads": 2, "vocabulary": 300, "length": 16, "rank": 2, "resamples": 19}
ARM = {"name": "istar", "kind": "istar", "doses": [0.1]}


class Stopped:
    """An overseer who stops a study as soon as there are jobs; ``reasons`` are of those that failed."""

    def __init__(self, *, stop=True):
        self.stop, self.reasons = stop, []

    def begun(self, names):
        if self.stop and list(names) != ["integrity"]:
            raise KeyboardInterrupt

    def started(self, name):
        pass

    def progressed(self, name, share, text):
        pass

    def failed_once(self, name, why):
        pass

    def ended(self, outcome):
        self.reasons += [outcome.error] if outcome.error else []


@pytest.fixture
def place(tmp_path):
    """A text, a model and a history; each kind of study, begun there and stopped before its first job."""
    text = letters(tmp_path)
    for step in (0, 10):
        save(tiny("gpt2", seed=step), tmp_path / "history" / f"checkpoint-{step}")
    shutil.copytree(tmp_path / "history" / "checkpoint-10", tmp_path / "model")
    return tmp_path, text


def begin(kind, folder, text):
    model, out, stopped = str(folder / "model"), folder / "run", Stopped()
    with contextlib.suppress(KeyboardInterrupt):
        if kind == "profile":
            given = made_of(ProfileSettings, READ | SMALL | {"text": text, "batches": 1, "gradients": False})
            profile.profile(model, given, stopped, out=out)
        elif kind == "ablate":
            given = made_of(AblateSettings, READ | {"text": text, "ranks": (2,), "draws": 1, "layers": (1,)})
            ablate.begun(ablate.planned([model], given), given, JobResources(), stopped, out=out)
        elif kind == "checkpoints":
            given, plan = made_of(Examination, READ | SMALL | {"text": text}), HistoryPlan(probe=0)
            course = build_plan([str(folder / "history")], given, plan, stopped)
            checkpoints.begun(course, given, plan, JobResources(), stopped, out=out)
        else:
            given = made_of(InterveneSettings, PLAN | {"corpus": text, "arms": [ARM], "seeds": 1})
            intervene.begun(given, JobResources(), stopped, out=out)
    assert open_run(out).manifest["status"] == "interrupted"
    return out


def go_on(kind, out):
    """What a resume says against going on: its error, or that of its first job."""
    watch = Stopped(stop=kind in ("profile", "intervene"))  # the others look when a job begins
    try:
        if kind == "profile":
            profile.resume(out, watch)
        else:
            {"ablate": ablate, "checkpoints": checkpoints, "intervene": intervene}[kind].resumed(
                out, JobResources(), watch
            )
    except KeyboardInterrupt:
        return None
    except AnisoscopeError as error:
        return str(error)
    return watch.reasons[0] if watch.reasons else None


def changed(path, old, new):
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))
    return content


WHAT = {
    "profile": {"text": "text", "weights": "model", "config": "model"},
    "ablate": {"text": "text", "weights": "model", "config": "model"},
    "checkpoints": {"weights": "history/checkpoint-0", "config": "history/checkpoint-0"},
    "intervene": {"text": "text"},
}


@pytest.mark.parametrize("kind", WHAT)
def test_a_study_does_not_go_on_with_another_text_or_model(place, kind):
    folder, text = place
    out = begin(kind, folder, text)
    if kind in ("profile", "intervene"):  # as it was, it goes on: the others would do their jobs
        assert go_on(kind, out) is None
    for what, where in WHAT[kind].items():
        if what == "text":
            file = next(folder.glob("*.txt"))
            before = file.read_bytes()
            file.write_bytes(before[1:] + b"q")
        elif what == "weights":
            file = folder / where / "model.safetensors"
            before = file.read_bytes()
            file.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        else:
            file = folder / where / "config.json"
            before = changed(file, b'"layer_norm_epsilon": 1e-05', b'"layer_norm_epsilon": 1e-03')
        why = go_on(kind, out)
        assert why is not None, (kind, what)
        assert "has changed since" in why, (kind, what, why)
        assert {"text": "text", "weights": "checkpoint", "config": "checkpoint"}[what] in why or "model" in why
        file.write_bytes(before)
    assert {row["measure"] for row in open_run(out).table().to_pylist()} <= {"skipped"}


def test_a_study_whose_model_came_back_goes_on(place):
    folder, text = place
    out = begin("ablate", folder, text)
    whole = begin_whole(folder, text)
    kept = changed(folder / "model" / "config.json", b"1e-05", b"1e-03")
    assert "has changed since" in go_on("ablate", out)
    (folder / "model" / "config.json").write_bytes(kept)
    assert go_on("ablate", out) is None
    rows = [[row | {"run": ""} for row in open_run(run).table().to_pylist()] for run in (out, whole)]
    assert rows[0]
    assert repr(rows[0]) == repr(rows[1])


def begin_whole(folder, text):
    given = made_of(AblateSettings, READ | {"text": text, "ranks": (2,), "draws": 1, "layers": (1,)})
    plan = ablate.planned([str(folder / "model")], given)
    return ablate.begun(plan, given, JobResources(), Stopped(stop=False), out=folder / "whole").path


def test_a_profile_of_a_model_in_the_home_folder_goes_on(place, monkeypatch):
    """A manifest tells paths without the home folder, so the path cannot be what a model is known by."""
    folder, text = place
    monkeypatch.setenv("HOME", str(folder))
    out = begin("profile", folder, text)
    assert str(folder) not in open_run(out).manifest["model"]["path"]
    assert go_on("profile", out) is None


def test_every_file_that_decides_a_number_is_in_the_hash_of_a_model(place):
    model, found = place[0] / "model", []
    found.append(model_digest(model))
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        content = (model / name).read_bytes()
        (model / name).write_bytes(content + b" ")
        found.append(model_digest(model))
        (model / name).write_bytes(content)
    (model / "own.py").write_text("x = 1\n")
    found.append(model_digest(model))
    (model / "own.py").unlink()
    (model / "README.md").write_text("of no number")
    assert model_digest(model) == found[0]
    assert len(set(found)) == 5


RECIPE = """
title = "Mine"
paper = "none"
source = "made up"
[[scales.tiny.runs]]
name = "model"
study = "profile"
model = "MODEL"
[scales.tiny.runs.settings]
text = "TEXT"
length = 32
sequences = 16
batches = 1
gradients = false
device = "cpu"
measures = "usual"
rank = 2
[[scales.small.runs]]
name = "model"
study = "profile"
model = "MODEL"
[scales.small.runs.settings]
text = "TEXT"
length = 32
sequences = 16
batches = 1
gradients = false
device = "cpu"
measures = "usual"
rank = 2
[[claims]]
name = "c"
says = "c"
source = "nowhere"
rule = "above"
where = { measure = "two_nn" }
"""


def test_a_recipe_goes_on_as_it_began(place, monkeypatch):
    folder, text = place
    recipe = folder / "mine.toml"
    recipe.write_text(RECIPE.replace("MODEL", str(folder / "model")).replace("TEXT", text))
    out = folder / "out"
    arguments = ["reproduce", str(recipe), "--threads", "1", "--no-report", "--out", str(out)]
    monkeypatch.setattr(profile, "vectors_of", stopping)
    assert said(arguments)[0] == 130
    monkeypatch.undo()
    shutil.copytree(folder / "model", folder / "again")
    other = str(folder / "history" / "checkpoint-0")
    for extra, what in (
        (["--scale", "small"], "another scale, tiny"),
        (["--model", f"model={other}"], "another model for model"),
        (["--text", "kjv"], "another text or setting for model"),
    ):
        code, err = said([*arguments, *extra])
        assert (code, what in err) == (1, True), err
    whole = recipe.read_text()
    recipe.write_text(whole.replace('name = "c"', 'name = "d"'))
    assert "another recipe" in said(arguments)[1]
    recipe.write_text(whole)
    kept = changed(folder / "model" / "config.json", b"1e-05", b"1e-03")
    assert "has changed since" in said(arguments)[1]
    (folder / "model" / "config.json").write_bytes(kept)
    code, err = said(arguments)
    assert code == 0, err
    assert open_run(out / "model").finished
    (out / "recipe.json").write_text("[")
    assert said(arguments)[0] == 1
    (out / "recipe.json").unlink()
    assert "does not say of which recipe" in said(arguments)[1]


def stopping(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize("kind", ["ablate", "intervene", "checkpoints"])
def test_a_study_goes_on_with_its_threads_and_says_what_bits_it_cannot_promise(tmp_path, monkeypatch, kind):
    from anisoscope.store.run import create_run

    run, given = tmp_path / "run", []
    create_run(run, kind=kind, config={"threads": 3}, versions={"torch": "0.1"}).close("interrupted")

    def seen(path, means, listener, **_):
        given.append(means.threads)
        raise AnisoscopeError("far enough")

    rooms = {"ablate": "removal_study", "intervene": "intervention_study", "checkpoints": "history_study"}
    monkeypatch.setattr(f"anisoscope.study.{kind}.{rooms[kind]}.resumed", seen)
    code, err = said([kind, "--resume", str(run)])
    assert (code, given) == (1, [3])
    assert "warning: results may differ in their last bits from an uninterrupted run: torch was 0.1" in err


@pytest.mark.parametrize("kind", ["ablate", "intervene", "profile", "checkpoints", "pair"])
def test_a_run_of_another_kind_or_none_is_told_in_a_line(place, kind, tmp_path):
    from anisoscope.store.run import create_run

    create_run(tmp_path / "other", kind="theory").close("interrupted")
    create_run(tmp_path / "hollow", kind=kind, config={"threads": "many"}).close("interrupted")
    with create_run(tmp_path / "flat", kind=kind) as run:
        run.update(config=[1], plan=3, done=None)
        run.close("interrupted")
    for name in ("other", "hollow", "flat", "nothing"):
        code, err = said([kind, "--resume", str(tmp_path / name)])
        assert code in (1, 2), (kind, name)
        assert len([line for line in err.splitlines() if line.startswith("error: ")]) == 1, err
        assert "fault of anisoscope" not in err, (kind, name, err)


@pytest.mark.parametrize("kind", ["ablate", "intervene", "verify", "profile", "reproduce"])
def test_a_folder_that_cannot_be_one_is_told_in_a_line(place, kind):
    folder, text = place
    (folder / "file").write_text("")
    (folder / "plan.toml").write_text(
        f"corpus = {text!r}\nsteps = 2\n[[arms]]\nname = 'i'\nkind = 'istar'\ndoses = [0.1]\n"
    )
    (folder / "mine.toml").write_text(RECIPE.replace("MODEL", str(folder / "model")).replace("TEXT", text))
    what = {"intervene": folder / "plan.toml", "reproduce": folder / "mine.toml"}.get(kind, folder / "model")
    own = [] if kind in ("intervene", "reproduce") else ["--text", text]
    for out in (folder / "file", folder / "file" / "below", folder / ("x" * 300), "/proc/none"):
        code, err = said([kind, str(what), *own, "--out", str(out)])
        assert code in (1, 2), (kind, out)
        assert "fault of anisoscope" not in err, (kind, out, err)
        assert len([line for line in err.splitlines() if line.startswith("error: ")]) == 1, err


@pytest.mark.parametrize("odd", [["--ranks", "0"], ["--ranks", "2,2"], ["--ranks", "2", "--layers", "1,1"]])
def test_removals_that_would_be_none_or_twice_the_same_are_refused(place, odd):
    code, err = said(["ablate", str(place[0] / "model"), *odd, "--dry-run"])
    assert (code, "must be different" in err) == (2, True), err


def test_an_address_that_is_none_is_told_in_a_line():
    code, err = said(["watch", "http://[", "--once"])
    assert code == 1
    assert err.startswith("error: http://[ is not the address of a run")


def test_models_of_one_name_do_not_share_rows(place):
    folder, text = place
    shutil.copytree(folder / "model", folder / "b" / "model")
    own = ["--text", text, "--rank", "2", "--length", "32", "--dry-run"]
    code, err = said(["verify", str(folder / "model"), "--held-out", str(folder / "b" / "model"), *own])
    assert (code, "must differ in name" in err) == (2, True), err
    shutil.copytree(folder / "model", folder / "a b")
    shutil.copytree(folder / "model", folder / "a-b")
    code, err = said(["ablate", str(folder / "a b"), str(folder / "a-b"), *own[:2], "--ranks", "2", *own[4:]])
    assert (code, "must differ in name" in err) == (2, True), err
