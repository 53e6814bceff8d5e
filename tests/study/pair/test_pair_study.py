"""The main job: two models into one run, which survives whatever kills it and goes on to the same rows and weights."""

import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from anisoscope import open_run
from anisoscope.errors import AnisoscopeError
from anisoscope.store.files import Folder
from anisoscope.study import saved_checkpoints as saved
from anisoscope.study.pair.pair_study import pair, resume
from study.jobs import Quiet, assert_same, settings

pytestmark = pytest.mark.filterwarnings("ignore")  # what transformers and accelerate have to say is theirs

SCRIPT = """
import sys
from pathlib import Path
from anisoscope.study.pair.pair_study import pair, resume
from study.jobs import Quiet, settings
where, out = Path(sys.argv[1]), Path(sys.argv[2])
print("ready", flush=True)
run = resume(out, Quiet()) if out.exists() else pair(settings(where), Quiet(), out=out)
"""


def test_both_models_of_every_seed_are_in_one_run(whole):
    where, run, display = whole
    frame = open_run(where / "run").rows()
    assert run.finished
    assert set(frame["role"].dropna()) == {"decoder", "encoder"}
    assert set(frame["view"].dropna()) == {"representation", "weight", "embedding"}
    assert {"haar", "pairing", "axes", "init", "targets", "targets-uniform"} <= set(frame["null"].dropna())
    assert set(frame[frame["measure"] == "enrichment"]["rank"]) == {2, 4}
    concepts = frame[frame["measure"] == "concept"]
    assert len(concepts)
    assert not concepts["token"].str.fullmatch(r"\d+").all()  # texts of tokens, not their ids
    assert frame[frame["measure"] == "skipped"]["note"].to_list() == []
    assert len(display.steps) == 24
    sites = frame[(frame["role"] == "decoder") & (frame["layer"] == 1)].groupby("view")["site"].first().to_dict()
    assert sites["representation"] == "gpt_neox.layers.0"
    assert sites["weight"] == "gpt_neox.layers.0.mlp.dense_h_to_4h"
    assert set(run.manifest["done"]) == {"decoder-0", "encoder-0"}
    assert {"corpus", "decoder-0", "encoder-0"} == set(run.manifest["hashes"])


def test_the_last_proxies_are_kept_as_orthonormal_bases(whole):
    where, *_ = whole
    run = open_run(where / "run")
    for timing in ("rolling", "anchored"):
        kept = run.tensors(f"subspaces-encoder-0-{timing}")
        basis = kept["representation/1/gpt_neox.layers.0/all/pca/0"].astype(np.float64)
        assert basis.shape == (16, 4)
        assert np.abs(basis.T @ basis - np.eye(4)).max() < 1e-6
    counts = run.tensors("counts-decoder-0")["counts"]
    assert counts.sum() == sum(tokens for _, _, tokens in whole[2].steps[:12])


@pytest.mark.slow
def test_a_full_disk_ends_the_job_and_it_goes_on_when_there_is_room(whole, tmp_path, monkeypatch):
    where, *_ = whole
    out, write = tmp_path / "run", Folder.write
    full = {"now": True}

    def fails(self, name, content):
        if full["now"] and name == "rows-decoder-0-000000006.parquet":
            raise AnisoscopeError(f"cannot write {name}: No space left on device; nothing was overwritten")
        return write(self, name, content)

    monkeypatch.setattr(Folder, "write", fails)
    with pytest.raises(AnisoscopeError, match="No space left"):
        pair(settings(where), Quiet(), out=out)
    assert open_run(out).manifest["status"] == "failed"
    assert "No space left" in open_run(out).manifest["reason"]
    full["now"] = False
    assert resume(out, Quiet()).finished
    assert_same(where / "run", out)


def test_losses_begin_at_the_logarithm_of_the_vocabulary_and_fall(whole):
    where, *_ = whole
    frame = open_run(where / "run").rows()
    held = frame[(frame["measure"] == "loss") & (frame["variant"] == "held-out")]
    for role in ("decoder", "encoder"):
        curve = held[held["role"] == role].sort_values("step")
        assert curve["step"].to_list() == [0, 4, 8, 12]
        assert curve["value"].iloc[0] == pytest.approx(np.log(320), abs=0.2)
        assert curve["value"].iloc[-1] < curve["value"].iloc[0]


def test_twins_start_from_the_same_weights_and_differ_in_mask_and_objective_alone():
    import torch

    from anisoscope.models.twins import ModelShape, build

    shape = ModelShape(2, 16, 2, 50, 8)
    decoder, encoder = (build("twin", role, shape, seed=3).eval() for role in ("decoder", "encoder"))
    a, b = dict(decoder.named_parameters()), dict(encoder.named_parameters())
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    ids = torch.randint(0, 50, (2, 8), generator=torch.Generator().manual_seed(0))
    later = ids.clone()
    later[:, -1] = (later[:, -1] + 1) % 50
    with torch.no_grad():
        assert torch.equal(decoder(ids).logits[:, :-1], decoder(later).logits[:, :-1])
        assert not torch.allclose(encoder(ids).logits[:, :-1], encoder(later).logits[:, :-1])
        last = torch.ones_like(ids)
        last[:, -1] = 0  # padded: then even the encoder does not see it
        seen = [encoder(x, attention_mask=last).logits[:, :-1] for x in (ids, later)]
        assert torch.equal(*seen)
        loss = decoder(ids, labels=ids).loss
        logits = decoder(ids).logits[:, :-1].double().log_softmax(-1)
        expected = -logits.gather(-1, ids[:, 1:, None]).mean()
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.slow
def test_two_runs_with_one_seed_give_identical_rows(whole, tmp_path):
    where, *_ = whole
    pair(settings(where), Quiet(), out=tmp_path / "again")
    assert_same(where / "run", tmp_path / "again")


def test_ctrl_c_saves_and_resume_gives_what_would_have_been(whole, tmp_path):
    where, *_ = whole
    interrupt = {"left": 1}

    def at(step):
        if step == 7 and interrupt["left"]:
            interrupt["left"] = 0
            os.kill(os.getpid(), signal.SIGINT)

    out = tmp_path / "run"
    run = pair(settings(where), Quiet(at), out=out)
    assert not run.finished
    assert open_run(out).manifest["status"] == "interrupted"
    display = Quiet()
    assert resume(out, display).finished
    assert "decoder-0 from 7" in display.lines
    assert_same(where / "run", out)


@pytest.mark.slow
@pytest.mark.parametrize(
    "at",
    [
        "rows-decoder-0-000000005",
        pytest.param("checkpoint-6", marks=pytest.mark.slow),
        pytest.param("rows-encoder-0-000000007", marks=pytest.mark.slow),
        pytest.param("checkpoint-9", marks=pytest.mark.slow),
    ],
)
def test_killed_at_any_instant_it_goes_on_to_the_same_rows_and_weights(whole, tmp_path, at):
    where, *_ = whole
    out, role = tmp_path / "run", "encoder-0" if at == "checkpoint-9" else "decoder-0"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(where), str(out)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    patterns = (f"{at}*", f"checkpoints/{role}/{at}*")
    until = time.monotonic() + 120
    while not any(True for pattern in patterns for _ in out.glob(pattern)):
        assert process.poll() is None, process.stderr.read().decode()[-2000:]
        assert time.monotonic() < until, "it never came so far"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = open_run(out)
    assert left.table().num_rows > 0
    assert left.damaged == []
    assert resume(out, Quiet()).finished
    assert_same(where / "run", out)


def test_a_run_that_cannot_go_on_says_why(whole, tmp_path):
    where, run, _ = whole
    display = Quiet()
    resume(where / "run", display)
    assert any("nothing left to do" in line for line in display.lines)
    with pytest.raises(AnisoscopeError, match="holds a run already"):
        pair(settings(where), Quiet(), out=where / "run")
    with pytest.raises(AnisoscopeError, match="is no run"):
        resume(tmp_path / "nowhere", Quiet())

    def at(step):
        os.kill(os.getpid(), signal.SIGINT)

    other = tmp_path / "other"
    changed = settings(tmp_path)
    pair(changed, Quiet(at), out=other)
    (tmp_path / "texts" / "000.txt").write_text("something else entirely, of a certain length " * 9, encoding="utf-8")
    with pytest.raises(AnisoscopeError, match="has changed since"):
        resume(other, Quiet())
    assert run.path


@pytest.mark.slow
def test_half_precision_trains_where_there_is_no_gpu_too(tmp_path):
    """The preset pythia-160m asks for it."""
    run = pair(settings(tmp_path, precision="bf16", device="auto", steps=3, evaluations=1), Quiet(), out=tmp_path / "r")
    assert run.finished
    assert {row["role"] for row in run.table().to_pylist() if row["measure"] == "enrichment"} == {"decoder", "encoder"}


@pytest.mark.parametrize(
    "harm", ["optimizer.pt gone", *(pytest.param(harm, marks=pytest.mark.slow) for harm in ("model cut", "not sealed"))]
)
def test_a_training_goes_on_from_the_one_before_a_damaged_one_to_the_same_end(whole, tmp_path, harm):
    where, *_ = whole
    out, display = tmp_path / "run", Quiet()

    def at(step):
        if step == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pair(settings(where), Quiet(at), out=out)
    (newest, older) = saved.whole_checkpoints(out / "checkpoints" / "decoder-0")
    if harm == "optimizer.pt gone":
        (newest / "optimizer.pt").unlink()
    elif harm == "model cut":
        path = newest / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-4])
    else:
        (newest / saved.LIST).unlink()
    assert resume(out, display).finished
    assert f"decoder-0 from {saved.step_of(older)}" in display.lines
    assert not (out / "checkpoints").exists()
    assert_same(where / "run", out)


def test_killed_before_the_checkpoints_of_a_model_are_gone_it_is_not_trained_again(whole, tmp_path):
    where, *_ = whole
    out, display = tmp_path / "run", Quiet()
    shutil.copytree(where / "run", out)
    with open_run(out, write=True) as run:
        run.close("interrupted")
    whole_one = out / "checkpoints" / "decoder-0" / "checkpoint-9"
    whole_one.mkdir(parents=True)
    (whole_one / "optimizer.pt").write_bytes(b"moments")
    saved.seal(whole_one)
    (out / "checkpoints" / "encoder-0" / "checkpoint-9").mkdir(parents=True)  # torn while it went
    assert resume(out, display).finished
    assert not [line for line in display.lines if " from " in line]
    assert not (out / "checkpoints").exists()
    assert_same(where / "run", out)
