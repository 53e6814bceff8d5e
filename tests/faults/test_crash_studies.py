"""Studies that go on with --resume, killed before any file operation: the same rows in the end, or a refusal."""

import shutil

import pytest

from anisoscope import open_run
from anisoscope.cli import main
from faults.conftest import ALL
from faults.shim import every_state
from faults.test_errors import said
from models.snapshots import letters, save, tiny
from study.jobs import comparable

READ = ["--length", "16", "--sequences", "8", "--device", "cpu", "--threads", "1"]
JUDGED = [*READ, "--rank", "2", "--resamples", "19", "--proxies", "pca", "--views", "representation"]
JUDGED += ["--no-targets", "--no-frequency"]
CHECKED = ["--length", "16", "--sequences", "16", "--device", "cpu", "--threads", "1", "--rank", "2", "--layers", "2"]
CHECKED += ["--resamples", "19", "--proxies", "pca"]
PLAN = """
corpus = "TEXT"
seeds = 1
steps = 2
layers = 1
width = 16
heads = 2
vocabulary = 300
length = 16
rank = 2
resamples = 19
[[arms]]
name = "istar"
kind = "istar"
doses = [0.1]
"""
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
length = 16
sequences = 8
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
KINDS = ("profile", "ablate", "checkpoints", "intervene", "verify", "reproduce")
SAMPLE = 2  # states in `make test`


def begun(kind, folder, text):
    """The command that begins a study."""
    history = [str(folder / "history" / f"checkpoint-{step}") for step in (0, 10)]
    if kind == "profile":
        own = [history[1], "--text", text, *JUDGED, "--batches", "1", "--measures", "usual", "--no-gradients"]
    elif kind == "ablate":
        own = [*history, "--text", text, *READ, "--ranks", "2", "--draws", "1", "--layers", "1"]
    elif kind == "verify":
        own = [history[1], "--held-out", history[0], "--text", text, *CHECKED]
    elif kind == "checkpoints":
        own = [*history, "--text", text, *JUDGED, "--probe", "0"]
    else:
        name = {"intervene": "plan.toml", "reproduce": "recipe.toml"}[kind]
        own = [str(folder / name)] + (["--threads", "1"] if kind == "reproduce" else [])
    return [kind, *own, "--no-report", "--out", str(folder / "run")]


def went_on(kind, folder, run):
    """The command that goes on with a copy of it."""
    if kind == "reproduce":
        return [*begun(kind, folder, "")[:-1], str(run)]
    return [kind, "--resume", str(run), "--no-report"]


def results(kind, run):
    return comparable(open_run(run / "model" if kind == "reproduce" else run))


@pytest.fixture(scope="module", params=KINDS)
def killed(request, tmp_path_factory):
    """A tiny study, and its folder before every file operation."""
    where = tmp_path_factory.mktemp("killed")
    text = letters(where)
    for step in (0, 10):
        save(tiny("gpt2", seed=step), where / "history" / f"checkpoint-{step}")
    (where / "plan.toml").write_text(PLAN.replace("TEXT", text))
    model = str(where / "history" / "checkpoint-10")
    (where / "recipe.toml").write_text(RECIPE.replace("TEXT", text).replace("MODEL", model))
    with every_state(where / "run", where / "states") as states:
        main(begun(request.param, where, text))
    return request.param, where, states


@pytest.mark.filterwarnings("ignore")
def test_a_study_killed_at_every_operation_goes_on_to_the_same_rows(killed, tmp_path, counted):
    kind, where, states = killed
    whole = results(kind, where / "run")
    assert len(whole) > 3
    assert len(states) > 15
    chosen = states if ALL else [states[len(states) * (2 * k + 1) // (2 * SAMPLE)] for k in range(SAMPLE)]
    refused = 0
    for number, state in enumerate(chosen):
        copy = shutil.copytree(state, tmp_path / f"{number}" / "run")
        code, err = said(went_on(kind, where, copy))
        if code != 0 and kind != "reproduce" and not (copy / "manifest.json").exists():
            assert "is no run" in err, (state, err)  # before there was a manifest there was nothing to lose
            refused += 1
            continue
        assert code == 0, (state, err)
        assert results(kind, copy) == whole, state
        run = open_run(copy / "model" if kind == "reproduce" else copy)
        assert run.faults() == ([], []), state
        assert run.finished, state
        shutil.rmtree(copy.parent)
    assert refused <= 4
    counted("a study of models (profile, ablate, …) killed at any file operation resumes to the same rows", len(chosen))
