"""Killed between any two file operations, a run resumes to the same rows and weights, or is refused in one line."""

import shutil

import numpy as np
import pytest

from anisoscope import AnisoscopeError, open_run
from anisoscope.store.run import create_run
from anisoscope.study.pair.pair_study import pair, resume
from anisoscope.study.saved_checkpoints import whole_checkpoints
from faults.conftest import ALL
from faults.shim import every_state
from study.jobs import Quiet, assert_same, settings

SAMPLE, TURNS = 2, 4 if ALL else 1
STEPS = (0, 1, 2)


def written(path):
    """All of a small run, from wherever it is: begun, gone on with, closed."""
    run = open_run(path, write=True) if (path / "manifest.json").exists() else create_run(path)
    for writer in ("decoder-0", "decoder-0-loss"):
        for step in STEPS:
            run.write(writer, [{"step": step, "measure": writer, "value": step / 3}])
    run.write_tensors("spectra-decoder-0", {"x": np.arange(3.0)})
    run.close("finished")


def rows(path):
    return [row for row in open_run(path).table().to_pylist() if row.pop("run")]


def test_a_run_that_is_written_survives_a_kill_at_every_operation(tmp_path, counted):
    with every_state(tmp_path / "run", tmp_path / "states") as states:
        written(tmp_path / "run")
        written(tmp_path / "run")  # gone on with: what was put together is taken apart, and put together again
    whole = rows(tmp_path / "run")
    assert len(states) > 40
    states = states if ALL else states[:: len(states) // 15]
    for state in states:
        if (state / "manifest.json").exists():
            found = open_run(state)
            assert all(row in whole for row in rows(state))
            assert found.damaged == found.strays == []
        written(state)
        assert rows(state) == whole, state
        assert open_run(state).faults() == ([], []), state
    counted("a store killed at any file operation keeps its rows and goes on", len(states))


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A tiny pair, and its folder before every operation."""
    where = tmp_path_factory.mktemp("killed")
    small = {"steps": 4, "layers": 1, "checkpoints": 2, "evaluations": 1, "proxies": ("pca",), "ranks": ()}
    with every_state(where / "run", where / "states") as states:
        pair(settings(where, **small), Quiet(), out=where / "run")
    return where, states


def test_in_every_state_a_training_that_was_saved_can_go_on_or_is_done(killed):
    """Checkpoints give way to newer ones that are whole, and go only once the run says that the training is done."""
    saved, seen = set(), 0
    for state in killed[1]:
        if not (state / "manifest.json").exists():
            continue
        done = open_run(state).manifest.get("done", [])
        whole = {name for name in ("decoder-0", "encoder-0") if any(whole_checkpoints(state / "checkpoints" / name))}
        assert saved - whole <= set(done), state
        saved |= whole
        seen += bool(whole)
    assert saved == {"decoder-0", "encoder-0"}
    assert seen > 20


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_that_cannot_be_loaded_costs_no_other(killed, tmp_path, monkeypatch):
    """Others are removed once the training has begun from the newest, not while it is only being tried."""

    def kept(state):
        return sorted(path.name for path in (state / "checkpoints" / "decoder-0").glob("checkpoint-*"))

    state = max(killed[1], key=lambda state: (len(kept(state)), (state / "manifest.json").exists()))
    assert len(kept(state)) > 1
    copy = shutil.copytree(state, tmp_path / "run")

    def broken(*args, **kwargs):
        raise AnisoscopeError("cannot be loaded")

    monkeypatch.setattr("transformers.Trainer.train", broken)
    with pytest.raises(AnisoscopeError, match="cannot be loaded"):
        resume(copy, Quiet())
    assert kept(copy) == kept(state)
    monkeypatch.undo()
    torn, there = copy / "checkpoints" / "decoder-0" / "checkpoint-99", []
    torn.mkdir()
    resume(copy, Quiet(at_step=lambda step: there.append(torn.exists())))
    assert there
    assert not any(there)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("turn", range(TURNS))
def test_a_pair_that_is_killed_at_every_operation_resumes_to_the_same_bits(killed, tmp_path, counted, turn):
    where, states = killed
    assert len(states) > 40
    chosen = states[turn::TURNS] if ALL else [states[len(states) * (2 * k + 1) // (2 * SAMPLE)] for k in range(SAMPLE)]
    refused = 0
    for state in chosen:
        copy = shutil.copytree(state, tmp_path / state.parent.name / "run")
        if not (copy / "manifest.json").exists():  # before there was a manifest there was nothing to lose
            with pytest.raises(AnisoscopeError, match="is no run"):
                resume(copy, Quiet())
            refused += 1
            continue
        assert resume(copy, Quiet()).finished
        assert_same(copy, where / "run")
        assert open_run(copy).faults() == ([], []), state
        shutil.rmtree(copy.parent)
    assert refused <= 3
    counted("a pair killed at any file operation resumes to the same bits", len(chosen))
