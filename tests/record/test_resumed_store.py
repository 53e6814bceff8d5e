"""A resumed training goes on in its own store, to the rows of an uninterrupted one; others are refused."""

import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from anisoscope import AnisoscopeError, Scope, ScopeWarning, SessionOptions, open_run
from observe.nano import NanoGPT, train

STEPS = 8
SMALL = {"rank": 4, "resamples": 19, "schedule": [0, 2, 3, 5, 7], "steps": STEPS, "views": ["weight"]}
RESUMABLE = SessionOptions(resumable=True)


def plain(path):
    rows = [row for row in open_run(path).table().to_pylist() if row["measure"] != "cost"]
    said = [{name: repr(value) for name, value in row.items() if name != "run"} for row in rows]
    return sorted(said, key=lambda row: json.dumps(row, sort_keys=True))


def kept(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(Path(folder).rglob("*.*")) if path.is_file()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    model = NanoGPT()
    scope = Scope(model, **SMALL, store=folder)
    train(model, scope, range(STEPS))
    scope.close()
    return plain(folder)


KILLED = """
import os, signal, sys, torch
from anisoscope import Scope, SessionOptions
from observe.nano import NanoGPT, train
folder = sys.argv[1]
model = NanoGPT()
scope = Scope(model, rank=4, resamples=19, schedule=[0, 2, 3, 5, 7], steps=8, views=["weight"], store=folder + "/run",
              session=SessionOptions(resumable=True))
train(model, scope, range(4))
torch.save(model.state_dict(), folder + "/weights.pt")
with open(folder + "/scope.safetensors", "wb") as file:
    file.write(scope.state())
train(model, scope, range(4, 6))
scope.wait()
with scope.step():
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(os.name != "posix", reason="killed by a signal")
def test_a_killed_training_goes_on_in_its_store_to_the_same_rows(tmp_path, whole):
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], cwd="tests", env=os.environ | {"PYTHONPATH": "."}, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    assert {row["step"] for row in plain(tmp_path / "run")} == {"0", "2", "3", "5"}
    assert open_run(tmp_path / "run").manifest["status"] == "running"

    model = NanoGPT()
    model.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    scope = Scope(model, **SMALL, store=tmp_path / "run", session=RESUMABLE)
    scope.restore((tmp_path / "scope.safetensors").read_bytes())
    with pytest.warns(ScopeWarning, match="observations of step 4 and later, .* put aside"):
        train(model, scope, range(4, STEPS))
    scope.close()
    assert plain(tmp_path / "run") == whole
    run = open_run(tmp_path / "run", write=True)  # every file is what the manifest says, those aside too
    assert run.manifest["resumed"][0]["step"] == 4
    run.close()
    assert [path.name for path in (tmp_path / "run").glob("superseded-1/*.parquet")] == ["rows-scope-000000005.parquet"]


def stopped(folder, until=4, **options):
    model = NanoGPT()
    scope = Scope(model, **(SMALL | options), store=folder, session=RESUMABLE)
    train(model, scope, range(until))
    state = scope.state()
    scope.close_interrupted()
    return model, state


@pytest.mark.slow
def test_a_run_that_was_left_in_order_goes_on_without_a_word(tmp_path, whole):
    model, state = stopped(tmp_path / "run")
    assert open_run(tmp_path / "run").manifest["status"] == "interrupted"
    scope = Scope(model, **SMALL, store=tmp_path / "run", session=RESUMABLE)
    scope.restore(state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, scope, range(4, STEPS))
        scope.close()
    assert plain(tmp_path / "run") == whole
    assert open_run(tmp_path / "run").manifest["status"] == "finished"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"session": None}, "holds a run already, of the same settings; .*resumable=True"),
        ({"rank": 5}, "holds a different training run \\(rank 4, here 5\\)"),
        ({"nulls": ("haar",)}, "different training run \\(nulls"),
        ({"layers": 3}, "the model's blocks 2, here 3"),
    ],
)
def test_a_store_of_another_training_is_refused_and_stays_as_it_was(tmp_path, options, said):
    stopped(tmp_path / "run", until=1)
    before = kept(tmp_path / "run")
    options = SMALL | {"session": RESUMABLE} | options
    with pytest.raises(AnisoscopeError, match=said):
        Scope(NanoGPT(layers=options.pop("layers", 2)), **options, store=tmp_path / "run")
    assert kept(tmp_path / "run") == before
    open_run(tmp_path / "run", write=True).release()  # and nobody holds it


def test_a_run_that_was_opened_and_not_gone_on_with_stays_as_it_was(tmp_path):
    stopped(tmp_path / "run", until=1)
    before = kept(tmp_path / "run")
    Scope(NanoGPT(), **SMALL, store=tmp_path / "run", session=RESUMABLE).close()
    assert kept(tmp_path / "run") == before


@pytest.mark.slow
def test_a_training_that_begins_again_keeps_what_the_first_one_saw(tmp_path, whole):
    """Killed before its first checkpoint and started by the same command: from step 0, in the same store."""
    stopped(tmp_path / "run", until=3)
    model = NanoGPT()
    scope = Scope(model, **SMALL, store=tmp_path / "run", session=RESUMABLE)
    with pytest.warns(ScopeWarning, match="of step 0 and later, which this training takes again"):
        train(model, scope, range(STEPS))
    scope.close()
    assert plain(tmp_path / "run") == whole
    assert len(list((tmp_path / "run").glob("superseded-1/*.parquet"))) == 2


def test_another_length_is_allowed_and_said(tmp_path):
    model, state = stopped(tmp_path / "run")
    scope = Scope(model, **(SMALL | {"steps": 12}), store=tmp_path / "run", session=RESUMABLE, config={"lr": 1})
    scope.restore(state)
    with pytest.warns(ScopeWarning) as caught:
        train(model, scope, range(4, 6))
    said = [str(each.message) for each in caught]
    assert any("begun with another steps" in text for text in said)
    assert not any("training:" in text for text in said)
    scope.close()
    manifest = open_run(tmp_path / "run").manifest
    assert manifest["steps"] == manifest["config"]["steps"] == 12
    assert manifest["resumed"][0]["config_before"]["steps"] == STEPS


def test_going_on_without_a_state_says_what_is_not_known(tmp_path):
    model = NanoGPT()
    scope = Scope(model, **SMALL, store=tmp_path / "run", session=SessionOptions(first_step=5))
    with pytest.warns(ScopeWarning, match="resumes at step 5, but the scope starts afresh: .*no null init"):
        train(model, scope, range(5, 6))
    scope.close()
