"""`profile` and `checkpoints` as a user types them."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

from anisoscope import cli
from anisoscope.store.run import open_run
from models.snapshots import cache_model, letters, offline, save, tiny

FAST = ["--length", "32", "--sequences", "16", "--rank", "4", "--resamples", "19", "--device", "cpu", "--threads", "1"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return letters(tmp_path_factory.mktemp("text"))


def moved(model, share, seed):
    """The same model a little further on."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(share * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "mine"
    model = tiny("gpt_neox")
    for number, step in enumerate((0, 10, 20, 40)):
        save(moved(model, 0.01, number), folder / f"checkpoint-{step}")
    return folder


@pytest.fixture
def said(capsys):
    class Said:
        """What a command writes; ``err`` is what the last one wrote to stderr."""

        err = ""

        def __call__(self, *arguments):
            capsys.readouterr()
            cli.main(list(map(str, arguments)))
            out, self.err = capsys.readouterr()
            return out

    return Said()


def refused(capsys, *arguments):
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        cli.main(list(map(str, arguments)))
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return stopped.value.code, err + out


def test_a_profile_ends_with_its_shapes_a_page_and_rows(said, text, tmp_path):
    path = save(tiny("bert"), tmp_path / "bert")
    out = said("profile", path, "--text", text, *FAST, "--batches", "2", "--out", tmp_path / "run")
    assert "masked, 2 layers of width 16" in out
    assert "memory:" in out
    assert "prominence" in out
    assert "report:" in out
    assert (tmp_path / "run" / "report.html").stat().st_size > 50_000
    assert open_run(tmp_path / "run").finished


def test_a_quick_profile_takes_fewer_measures_and_says_so(said, text, tmp_path):
    path = save(tiny("llama"), tmp_path / "model")
    (tmp_path / "mine.toml").write_text("vectors = 4200\n")
    given = ["--text", text, *FAST[:2], "--rank", "4", "--device", "cpu", "--threads", "2"]
    said(
        "profile",
        path,
        *given,
        "--quick",
        "--config",
        tmp_path / "mine.toml",
        "--resamples",
        19,
        "--out",
        tmp_path / "run",
    )
    run = open_run(tmp_path / "run")
    config = run.manifest["config"]
    assert config["quick"]
    # The file and the flags count before what --quick sets.
    assert (config["vectors"], config["resamples"], config["batches"], config["measures"]) == (4200, 19, 1, "usual")
    rows = run.table().to_pylist()
    layers = [r for r in rows if r["tensor"] == "activations" and r["proxy"] is None and r["view"] == "representation"]
    assert {"two_nn", "top_share", "spectral_decay", "local_isotropy"} <= {r["measure"] for r in layers}
    assert not {"levina_bickel", "partition_ratio", "gride"} & {r["measure"] for r in layers}
    assert {r["subset"] for r in layers} == {"all", "no-first"}
    assert {r["view"] for r in rows if r["measure"] == "energy"} == {"representation"}
    assert "config.quick" in (tmp_path / "run" / "report.html").read_text()


def test_a_dry_run_does_nothing(said, text, tmp_path, monkeypatch, history):
    monkeypatch.chdir(tmp_path)
    path = save(tiny("bert"), tmp_path / "bert")
    out = said("profile", path, "--text", text, *FAST, "--dry-run")
    assert "beyond it" in out
    out = said("checkpoints", history, "--text", text, *FAST, "--dry-run", "--shards", "2")
    assert "4 checkpoints: checkpoint-0, checkpoint-10, checkpoint-20, checkpoint-40" in out
    assert "8 jobs (4 × 2 parts of the text)" in out
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_study_is_resumed_after_a_kill(text, history, tmp_path, said):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    common = ["checkpoints", str(history), "--text", text, *FAST, "--probe", "0"]
    said(*common, "--out", whole)
    job = subprocess.Popen(
        [sys.executable, "-m", "anisoscope.cli", *common, "--out", str(killed)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    manifest, deadline = killed / "manifest.json", time.monotonic() + 120
    while time.monotonic() < deadline and job.poll() is None:
        if manifest.exists() and len(json.loads(manifest.read_text()).get("done", [])) >= 2:
            break
        time.sleep(0.02)
    job.send_signal(signal.SIGKILL)
    job.wait()
    again = shutil.copytree(killed, tmp_path / "again")
    said("checkpoints", "--resume", again, "--no-report", "--threads", "2")
    assert "results may differ in their last bits from an uninterrupted run: threads were 1 and are 2" in said.err
    said("checkpoints", "--resume", killed, "--no-report")
    assert "may differ in their last bits" not in said.err
    a, b = (open_run(path).table().drop_columns(["run"]).to_pylist() for path in (whole, killed))
    assert [json.dumps(row) for row in a] == [json.dumps(row) for row in b]
    assert "nothing left to do" in said("checkpoints", "--resume", killed, "--no-report")


def test_wrong_use_is_told_in_one_line(capsys, text, history, tmp_path):
    run = tmp_path / "run"
    cases = [
        (["checkpoints"], 2, "checkpoints needs checkpoints"),
        (["checkpoints", "--resume", "x", "--rank", "3"], 2, "must keep its own settings"),
        (["checkpoints", "--resume", tmp_path / "none"], 1, "is no run"),
        (["checkpoints", tmp_path / "none", tmp_path / "nowhere"], 2, "must exist"),
        (["checkpoints", history, "--text", text, *FAST, "--ray", "127.0.0.1:1", "--out", run], 1, "127.0.0.1:1"),
        (["checkpoints", history, "--text", text, *FAST, "--precision", "half"], 2, "--precision"),
        (["checkpoints", history, "--text", text, *FAST, "--retries", "-1"], 2, "--retries must be at least 0"),
        (["profile", tmp_path / "none"], 2, "none"),
        (["profile"], 2, "MODEL"),
    ]
    for arguments, code, message in cases:
        found, said = refused(capsys, *arguments)
        assert found == code, (arguments, said)
        assert message in said


def test_a_truncated_file_and_another_architecture_are_left_out_by_name(said, text, history, tmp_path):
    for step in (0, 10, 20, 40):
        shutil.copytree(history / f"checkpoint-{step}", tmp_path / "mine" / f"checkpoint-{step}")
    torn = tmp_path / "mine/checkpoint-10/model.safetensors"
    torn.write_bytes(torn.read_bytes()[:-100])
    shutil.rmtree(tmp_path / "mine/checkpoint-20")
    save(tiny("gpt2"), tmp_path / "mine/checkpoint-20")
    said("checkpoints", tmp_path / "mine", "--text", text, *FAST, "--probe", "0", "--out", tmp_path / "run")
    run = open_run(tmp_path / "run")
    assert set(run.manifest["integrity"]["left_out"]) == {"checkpoint-10", "checkpoint-20"}
    assert {r["step"] for r in run.table().to_pylist()} == {0, 40}
    page = (tmp_path / "run/report.html").read_text()
    assert "2 of 4 checkpoints are left out of every curve" in page
    assert "Integrity of the checkpoints" in page


@pytest.mark.slow
def test_a_model_of_the_literature_by_its_short_name_from_the_cache(said, capsys, text, tmp_path, monkeypatch):
    cache = tmp_path / "hub"
    offline(monkeypatch, cache)
    model = tiny("gpt_neox")
    for number, step in enumerate(("step0", "step512", "step1000")):
        cache_model(cache, "EleutherAI/pythia-160m", moved(model, 0.01, number), revision=step)
    given = ["--text", text, *FAST, "--probe", "0"]
    said("checkpoints", "pythia-160m", "--revisions", "step0,step512,step1000", *given, "--out", tmp_path / "run")
    assert {r["step"] for r in open_run(tmp_path / "run").table().to_pylist()} == {0, 512, 1000}
    said("checkpoints", "pythia-160m", "--revisions", "auto", *given, "--out", tmp_path / "auto")
    assert {r["step"] for r in open_run(tmp_path / "auto").table().to_pylist()} == {0, 512, 1000}
    code, message = refused(capsys, "profile", "pythia-160m@step511", *given[:2], *FAST)
    assert code == 1
    assert "step512" in message


def test_nothing_is_imported_for_help():
    code = "import sys; from anisoscope import cli\ntry: cli.main(['checkpoints', '--help'])\nexcept SystemExit: pass\n"
    code += "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'ray')))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_weights_as_pickles_are_read_only_if_asked(said, capsys, text, tmp_path):
    path = save(tiny("llama"), tmp_path / "old", pickle=True)
    code, message = refused(capsys, "profile", path, "--text", text, *FAST)
    assert code in (1, 2)
    assert "--allow-pickle" in message
    with pytest.warns(UserWarning, match="weights_only=True"):
        said("profile", path, "--text", text, *FAST, "--batches", "1", "--allow-pickle", "--out", tmp_path / "run")
    assert open_run(tmp_path / "run").finished


def test_a_worker_that_is_poisoned_costs_its_own_checkpoint(capsys, text, history, tmp_path):
    for step in (0, 10, 20, 40):
        shutil.copytree(history / f"checkpoint-{step}", tmp_path / "mine" / f"checkpoint-{step}")
    file = tmp_path / "mine/checkpoint-20/model.safetensors"
    tensors = load_file(file)
    tensors["gpt_neox.layers.0.mlp.dense_h_to_4h.weight"][:] = float("inf")
    save_file(tensors, file, {"format": "pt"})
    given = ("--text", text, *FAST, "--probe", "0", "--out", tmp_path / "run")
    code, out = refused(capsys, "checkpoints", tmp_path / "mine", *given)
    assert code == 1
    assert "failed: checkpoint-20-0" in out
    assert "error: 1 job(s) failed; everything else was done without them. Resume with: anisoscope checkpoints" in out
    rows = open_run(tmp_path / "run").table().to_pylist()
    assert [r["step"] for r in rows if r["measure"] == "skipped"] == [20]
    assert {r["step"] for r in rows if r["measure"] == "energy"} == {0, 10, 40}
    assert "failed and are missing from curves: " in (tmp_path / "run/report.html").read_text()


def test_progress_is_one_line_a_job(said, text, history, tmp_path):
    out = said("checkpoints", history, "--text", text, *FAST, "--probe", "0", "--out", tmp_path / "run")
    assert "4 of 4 done: checkpoint-40-0" in out
    assert io.StringIO(out).readline()
