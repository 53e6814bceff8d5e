"""`verify` as a user types it: stopped, killed and gone on with, to the same rows as one that was not."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from anisoscope import cli
from anisoscope.jobs.progress_display import JobLines
from anisoscope.store.recorded import manifest_to_bytes
from anisoscope.store.run import open_run
from anisoscope.study.reproduce.recipe import RecipeRun
from anisoscope.study.reproduce.recipe_run import _carried_out
from anisoscope.study.verify import verify_study
from models.snapshots import letters, save, tiny
from study.jobs import comparable

FAST = ["--length", "24", "--sequences", "16", "--rank", "2", "--layers", "3", "--resamples", "19"]
FAST += ["--proxies", "pca,semi_nmf", "--device", "cpu", "--threads", "1"]


def ended(*arguments):
    """Exit status of a command."""
    try:
        cli.main(list(map(str, arguments)))
    except SystemExit as stop:
        return stop.code
    return 0


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """The command, and a run that was not stopped: a decoder, and an encoder without a head as the held-out model."""
    where = tmp_path_factory.mktemp("checked")
    models = save(tiny("llama"), where / "llama"), save(tiny("bert", head=False), where / "bert")
    common = ["verify", models[0], "--held-out", models[1], "--text", letters(where), *FAST]
    assert ended(*common, "--out", where / "whole", "--no-report") == 0
    return common, where / "whole"


def stopped_after(monkeypatch, writers):
    """`verify` is interrupted when so many parts are written; returns those that were."""
    write, seen = verify_study._write, []

    def stopping(run, writer, rows):
        write(run, writer, rows)
        seen.append(writer)
        if len(seen) == writers:
            raise KeyboardInterrupt

    monkeypatch.setattr(verify_study, "_write", stopping)
    return seen


@pytest.mark.parametrize("after", [1, 3, 4, 6])  # a layer, the last layer, all of the first model, a layer of the other
def test_checks_that_were_stopped_go_on_to_the_same_rows(checked, tmp_path, monkeypatch, capsys, after):
    common, whole = checked
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        before = stopped_after(patch, after)
        assert ended(*common, "--out", run) == 130
    out, err = capsys.readouterr()
    assert f"Completed layers are kept. Resume with: anisoscope verify --resume {run}" in err.replace("\n", "")
    assert "failed" not in out + err
    assert open_run(run).manifest["status"] == "interrupted"
    assert 0 < open_run(run).table().num_rows < open_run(whole).table().num_rows
    with monkeypatch.context() as patch:
        now = stopped_after(patch, -1)
        assert ended("verify", "--resume", run) == 0
    assert not set(before) & set(now)  # what is done is not done again
    assert len(before) + len(now) == 2 * (3 + 1)
    assert comparable(open_run(run)) == comparable(open_run(whole))
    assert open_run(run).finished
    assert open_run(run).faults() == ([], [])
    assert "bert (held out)" in (run / "report.html").read_text()
    assert "took " in capsys.readouterr().out


def test_checks_that_were_killed_go_on_to_the_same_rows(checked, tmp_path):
    common, whole = checked
    run = tmp_path / "run"
    job = subprocess.Popen(
        [sys.executable, "-m", "anisoscope.cli", *map(str, common), "--no-report", "--out", str(run)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    until = time.monotonic() + 120
    while time.monotonic() < until and job.poll() is None:
        if (run / "manifest.json").exists() and json.loads((run / "manifest.json").read_text()).get("done"):
            break
        time.sleep(0.01)
    job.send_signal(signal.SIGKILL)
    assert job.wait() == -signal.SIGKILL
    assert open_run(run).manifest["status"] == "running"
    assert open_run(run).manifest["done"]
    assert ended("verify", "--resume", run, "--no-report") == 0
    assert comparable(open_run(run)) == comparable(open_run(whole))
    assert open_run(run).finished


def test_a_recipe_goes_on_with_checks_that_were_stopped(checked, tmp_path, monkeypatch):
    common, whole = checked
    settings = {"text": common[5], "length": 24, "sequences": 16, "rank": 2, "layers": 3, "resamples": 19}
    settings |= {"proxies": ["pca", "semi_nmf"], "device": "cpu"}
    run = RecipeRun(name="a", study="verify", model=str(common[1]), held_out=(str(common[3]),), settings=settings)
    display = JobLines(Console(file=io.StringIO()))
    with monkeypatch.context() as patch:
        before = stopped_after(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            _carried_out(run, tmp_path / "run", 1, (None, display))
    with monkeypatch.context() as patch:
        now = stopped_after(patch, -1)
        made = _carried_out(run, tmp_path / "run", 1, (None, display))
    assert not set(before) & set(now)
    assert comparable(made) == comparable(open_run(whole))


def test_a_layer_whose_rows_are_gone_is_an_error_and_not_left_out(checked, tmp_path, monkeypatch, capsys):
    common, _ = checked
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        stopped_after(patch, 3)
        assert ended(*common, "--no-report", "--out", run) == 130
    manifest = open_run(run).manifest | {"files": None}  # as a kill leaves it
    (run / "manifest.json").write_bytes(manifest_to_bytes(manifest))
    (part,) = run.glob("rows-*-layer-001-*.parquet")
    kept = part.read_bytes()
    for content, said in (
        (kept[:100], f"{part.name} in {run} is damaged"),
        (None, "the rows of layer 1 of llama were"),
    ):
        part.unlink(missing_ok=True)
        if content is not None:
            part.write_bytes(content)
        assert ended("verify", "--resume", run, "--no-report") == 1
        assert said in capsys.readouterr().err.replace("\n", "")
    assert not open_run(run).finished


def test_finished_checks_have_nothing_left_and_keep_their_settings(checked, tmp_path, capsys):
    common, whole = checked
    there = {path.name: path.read_bytes() for path in Path(whole).iterdir() if path.name != "writer.lock"}
    assert ended("verify", "--resume", whole, "--no-report") == 0
    assert "nothing left to do" in capsys.readouterr().out
    assert {name: (Path(whole) / name).read_bytes() for name in there}.keys() == there.keys()
    for extra, named in (
        (["--rank", "4"], "rank"),
        (["--held-out", common[1]], "held_out"),
        (["--dry-run"], "dry_run"),
    ):
        assert ended("verify", "--resume", whole, *extra) == 2
        assert f"must keep its own settings, got --resume with {named}" in capsys.readouterr().err
    assert ended("verify", common[1], "--resume", whole) == 2
    assert "got --resume with MODEL" in capsys.readouterr().err
    assert ended("verify") == 2
    assert "verify needs a MODEL" in capsys.readouterr().err


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Checks that were interrupted, with the model and text that they are of."""
    where = tmp_path_factory.mktemp("begun")
    save(tiny("llama"), where / "llama")
    (where / "text").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        stopped_after(patch, 1)
        text = letters(where / "text")
        assert ended("verify", where / "llama", "--text", text, *FAST, "--no-report", "--out", where / "run") == 130
    return where, text


def other_model(where, text):
    save(tiny("llama", seed=1), where / "llama")
    return f"the model in {where / 'llama'} has changed since"


def other_kind(where, text):
    shutil.rmtree(where / "llama")
    save(tiny("bert"), where / "llama")
    return f"the model {where / 'llama'} has changed since"


def other_text(where, text):
    for path in Path(text).parent.glob("*.txt"):
        path.write_text(path.read_text() + "Something else was added to the end of it. " * 40)
    return f"the text {text} has changed since"


def other_settings(where, text):
    run = open_run(where / "run")
    config = run.manifest["config"] | {"rank": "id"}
    (where / "run" / "manifest.json").write_bytes(manifest_to_bytes(run.manifest | {"config": config}))
    return "holds invalid settings"


def no_hash_of_the_model(where, text):
    run = open_run(where / "run")
    hashes = {name: value for name, value in run.manifest["hashes"].items() if not name.startswith("model")}
    (where / "run" / "manifest.json").write_bytes(manifest_to_bytes(run.manifest | {"hashes": hashes}))
    return "lacks hashes.model-0: it cannot be resumed"


@pytest.mark.parametrize("change", [other_model, other_kind, other_text, other_settings, no_hash_of_the_model])
def test_checks_of_something_else_are_refused_and_left_as_they_are(begun, tmp_path, capsys, change):
    where, text = begun
    kept = shutil.copytree(where, tmp_path / "kept")
    try:
        said = change(where, text)
        manifest, rows = (where / "run" / "manifest.json").read_bytes(), comparable(open_run(where / "run"))
        capsys.readouterr()
        assert ended("verify", "--resume", where / "run", "--no-report") == 1
        err = capsys.readouterr().err
        assert said in err.replace("\n", ""), err
        assert err.count("error: ") == 1
        assert comparable(open_run(where / "run")) == rows
        assert json.loads(manifest)["done"] == open_run(where / "run").manifest["done"]
        open_run(where / "run", write=True).close()  # nobody holds it
    finally:
        shutil.rmtree(where)
        shutil.copytree(kept, where)
