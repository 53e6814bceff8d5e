"""Judging in a process of its own: the same rows, and nothing that happens to it stops a training."""

import multiprocessing
import signal
import sys

import numpy as np
import pytest
import torch

from anisoscope.evaluate.evaluator import EvaluatorSettings
from anisoscope.evaluate.judge_sites import Request
from anisoscope.evaluate.remote import auto as beside
from anisoscope.evaluate.remote import evaluator_pool as judges
from anisoscope.evaluate.remote import subprocess_evaluator as remote
from anisoscope.evaluate.remote.serialization import receive, send
from capture.families import batch, build
from observe.test_scope import small

pytestmark = pytest.mark.filterwarnings("ignore::anisoscope.errors.ScopeWarning")  # test_notices.py is about them


@pytest.fixture
def elsewhere(request, monkeypatch):
    """As on a GPU with cores to spare; gives the judges that were started."""
    started = []

    class Known(remote.SubprocessEvaluator):
        def __init__(self, brief, plugins=()):
            super().__init__(brief, plugins)
            started.append(self)

    monkeypatch.setattr(beside, "cores_are_spare", lambda: True)
    monkeypatch.setattr(judges, "SubprocessEvaluator", Known)
    monkeypatch.setattr(judges, "evaluators_for_cores", lambda: request.param if hasattr(request, "param") else 1)
    yield started
    for judge in started:
        judge.process.kill()
        judge.process.wait()


def trained(steps=12, **options):
    torch.manual_seed(0)
    model = build("gpt_neox")
    scope = small(model, steps=steps, schedule=[0, 2, 6, 9], **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        with scope.step():
            model(**batch(seed=step, sequences=12)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, scope


def same(first, second):
    first, second = ([row for row in rows if row["measure"] != "cost"] for rows in (first, second))
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_equal(a[name], b[name])


@pytest.mark.parametrize("elsewhere", [1, 3], indirect=True)
def test_rows_are_those_of_a_judge_in_the_same_process(elsewhere, monkeypatch):
    _, scope = trained()
    found = scope.rows()
    assert len(elsewhere) in (1, 3)
    scope.close()
    assert all(judge.process.poll() is not None for judge in elsewhere)  # gone with the scope
    monkeypatch.setattr(beside, "cores_are_spare", lambda: False)
    _, scope = trained()
    assert {row["timing"] for row in found} >= {"rolling", "anchored"}
    same(found, scope.rows())
    scope.close()


@pytest.mark.slow
@pytest.mark.parametrize("elsewhere", [1, 3], indirect=True)
def test_a_scope_goes_on_from_its_state_with_a_judge_elsewhere(elsewhere):
    _, whole = trained(resumable=True)
    state = whole.state()
    whole.close()
    again = small(build("gpt_neox"), steps=12, schedule=[0, 2, 6, 9], resumable=True)
    again.restore(state)
    assert again.state() == state
    again.close()
    assert len(elsewhere) in (2, 6)


def test_a_judge_that_is_killed_costs_rows_and_no_training(elsewhere, monkeypatch):
    monkeypatch.setattr(beside, "cores_are_spare", lambda: False)
    bare, _ = trained()
    monkeypatch.setattr(beside, "cores_are_spare", lambda: True)
    torch.manual_seed(0)
    model = build("gpt_neox")
    scope = small(model, steps=12, schedule=[0, 2, 6, 9], strict=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(12):
        if step == 4:
            scope.rows()
            elsewhere[0].process.send_signal(signal.SIGKILL)
        with scope.step():
            model(**batch(seed=step, sequences=12)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    rows = scope.rows()
    scope.close()
    skipped = {row["step"]: row["note"] for row in rows if row["measure"] == "skipped"}
    assert skipped.keys() == {6, 9}
    assert "ended by signal 9" in skipped[6]
    assert {row["step"] for row in rows if row["measure"] == "enrichment"} == {0, 2}
    for a, b in zip(bare.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_what_cannot_be_judged_is_told_in_the_words_of_the_rule(elsewhere):
    model = build("gpt2")
    scope = small(model, steps=4, schedule=[0, 1], strict=False)
    for step, sequences in enumerate((1, 12)):
        with scope.step():
            model(**batch(seed=step, sequences=sequences, padded=False)).loss.backward()
    rows = scope.rows()
    scope.close()
    assert [row["note"] for row in rows if row["measure"] == "skipped"] == [
        next(row["note"] for row in rows if row["step"] == 0)
    ]
    assert "at least 2 sequences" in rows[0]["note"]
    assert any(row["measure"] == "enrichment" and row["step"] == 1 for row in rows)


def test_ctrl_c_is_left_to_the_training(elsewhere):
    model = build("gpt2")
    scope = small(model, steps=4, schedule=[0, 1])
    for step in range(2):
        with scope.step():
            model(**batch(seed=step, sequences=12)).loss.backward()
        scope.rows()
        elsewhere[0].process.send_signal(signal.SIGINT)
    assert {row["step"] for row in scope.rows()} == {0, 1}
    scope.close()


def test_the_process_ends_when_the_training_is_killed(elsewhere):
    judge = remote.SubprocessEvaluator(EvaluatorSettings(Request(("pca",), 4, ("all",), ("haar",), 9, 0), None))
    judge._connection.close()  # all that a killed process leaves behind
    assert judge.process.wait(60) == 0


def test_a_timeout_dismisses_a_judge_that_is_still_at_work(elsewhere):
    model = build("gpt2")
    scope = small(model, steps=4, schedule=[0, 1], strict=False)
    for step in range(2):
        with scope.step():
            model(**batch(seed=step, sequences=12)).loss.backward()
        if step == 0:
            scope.rows()
            elsewhere[0].process.send_signal(signal.SIGSTOP)
    with pytest.warns(UserWarning, match="not judged within"):
        assert scope.close(timeout=0.1) == [1]
    assert elsewhere[0].process.poll() is not None


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3.5, dtype=torch.float64),
        torch.zeros(0, 4, dtype=torch.int64),
        torch.arange(6).reshape(2, 3).T,
        torch.tensor([True, False]),
        torch.randn(5, 7).bfloat16(),
    ],
)
def test_tensors_cross_the_wire_as_they_are(tensor):
    ours, theirs = multiprocessing.Pipe()
    send(ours, {"x": [tensor, "word"], "y": (None, float("nan"))})
    found = receive(theirs)
    assert found["x"][0].dtype == tensor.dtype
    assert found["x"][0].shape == tensor.shape
    assert torch.equal(found["x"][0], tensor)
    assert found["x"][1] == "word"
    np.testing.assert_equal(found["y"], (None, float("nan")))


def test_no_file_of_the_working_directory_is_run_in_place_of_a_module(elsewhere, monkeypatch, tmp_path):
    for name in ("random", "torch", "anisoscope"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'planted')!r}, 'a').write({name!r})")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [path for path in sys.path if path not in ("", str(tmp_path))])
    _, scope = trained(steps=3)
    assert not [r["note"] for r in scope.rows() if r["measure"] == "skipped"]
    scope.close()
    assert len(elsewhere) == 1
    assert not (tmp_path / "planted").exists()
