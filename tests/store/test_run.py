"""Runs on disk: what was written is read, whole or not at all, and nothing is ever overwritten by mistake."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from anisoscope import AnisoscopeError, open_run
from anisoscope.store.files import Folder
from anisoscope.store.run import create_run
from anisoscope.store.schema import COLUMNS, as_table

ROWS = [
    {"step": 3, "layer": 1, "measure": "energy", "value": 0.25, "note": "</script> \u202e x\0y"},
    {"step": 3, "layer": 2, "measure": "energy", "value": math.nan, "note": "undefined"},
    {"step": 3, "measure": "loss", "value": 1e-300, "low": -math.inf},
]


@pytest.fixture(params=["local", "memory"])
def place(request, tmp_path):
    return str(tmp_path / "run") if request.param == "local" else f"memory://{tmp_path.name}-{os.getpid()}/run"


def test_what_was_written_is_read_and_null_is_not_nan(place):
    with create_run(place, config={"rank": 8}) as run:
        run.sink("decoder-0", model="twin", role="decoder", seed=0).write(ROWS)
        run.write("encoder-0", [{"step": 1, "role": "encoder", "measure": "energy", "value": 0.5}])
    found = open_run(place)
    table = found.table()
    assert table.column_names == list(COLUMNS)
    back = [row for row in table.to_pylist() if row["role"] == "decoder"]
    for given, row in zip(ROWS, back, strict=True):
        for name in COLUMNS:
            expected = {"run": "run", "model": "twin", "role": "decoder", "seed": 0}.get(name, given.get(name))
            same = row[name] == expected or (
                isinstance(expected, float) and math.isnan(expected) and math.isnan(row[name])
            )
            assert same, name
    frame = found.rows()
    assert frame["value"].isna().sum() == 0 or frame["low"].isna().sum() == 3  # NaN is a value, null is none
    assert list(frame["low"].isna()) == [True, True, False, True]
    assert found.manifest["config"] == {"rank": 8}
    assert found.damaged == []


def test_an_observation_written_again_takes_the_place_of_the_first(place):
    with create_run(place) as run:
        run.write("a", [{"step": 5, "value": 1.0}])
        run.write("a", [{"step": 5, "value": 2.0}])
        run.write("b", [{"step": 5, "value": 3.0}])
    assert open_run(place).table()["value"].to_pylist() == [2.0, 3.0]


def test_other_tools_read_the_parts(tmp_path):
    import pyarrow.dataset as ds

    with create_run(tmp_path / "run") as run:
        run.write("a", ROWS)
    assert ds.dataset(str(tmp_path / "run"), format="parquet", exclude_invalid_files=True).count_rows() == 3


def test_tensors_come_back(place):
    with create_run(place) as run:
        run.write_tensors("proxies-3", {"layer-1": np.eye(3, dtype=np.float32)}, method="pca")
        assert np.array_equal(open_run(place).tensors("proxies-3")["layer-1"], np.eye(3))
        with pytest.raises(ValueError, match="there are proxies-3"):
            run.tensors("proxies-4")


@pytest.mark.parametrize("keep", [0, 3, 100, -1])
def test_a_torn_part_is_named_and_the_rest_is_read(tmp_path, keep):
    with create_run(tmp_path / "run") as run:
        run.write("a", [{"step": 1, "value": 1.0}])
        run.write("a", [{"step": 2, "value": 2.0}])
    part = tmp_path / "run" / "rows-a-000000002.parquet"
    part.write_bytes(part.read_bytes()[:keep])
    found = open_run(tmp_path / "run")
    assert found.table()["value"].to_pylist() == [1.0]
    assert found.damaged == [part.name]
    with pytest.raises(AnisoscopeError, match=rf"cannot read {part.name} in .*anisoscope verify-run"):
        open_run(tmp_path / "run").whole_table()  # what is computed from rows is computed from all of them


def test_a_second_process_is_kept_out_and_a_dead_one_is_not_waited_for(tmp_path):
    code = f"""
    import os, sys, time
    from anisoscope.store.run import create_run
    run = create_run({str(tmp_path / "run")!r})
    print("held", flush=True)
    time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline().strip() == "held"
        with pytest.raises(AnisoscopeError, match=f"being written by process {other.pid}"):
            open_run(tmp_path / "run", write=True)
        assert open_run(tmp_path / "run").manifest["status"] == "running"  # reading is free
        other.send_signal(signal.SIGKILL)
    with open_run(tmp_path / "run", write=True) as run:
        run.write("a", ROWS)


def test_killed_at_any_instant_every_finished_observation_is_there(tmp_path):
    """The writer says what it has finished; killed at many instants, all of that is readable and nothing is torn."""
    code = """
    import sys
    from anisoscope.store.run import create_run
    run = create_run(sys.argv[1])
    for step in range(10**6):
        run.write("a", [{"step": step, "layer": i, "value": float(step)} for i in range(50)])
        print(step, flush=True)
    """
    for trial in range(6):
        folder = tmp_path / str(trial)
        command = [sys.executable, "-c", textwrap.dedent(code), str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
            other.stdout.readline()
            time.sleep(0.013 * trial)
            other.send_signal(signal.SIGKILL)
            said = [0, *(int(line) for line in other.stdout.read().split("\n")[:-1])]
        found = open_run(folder)
        steps = found.table()["step"].to_pylist()
        assert found.damaged == []
        assert set(said) <= set(steps)
        assert all(steps.count(step) == 50 for step in set(steps))


def test_nothing_is_overwritten(tmp_path):
    create_run(tmp_path / "run").close()
    with pytest.raises(AnisoscopeError, match="holds a run already"):
        create_run(tmp_path / "run")
    manifest = tmp_path / "run" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"schema_version": 99}))
    with pytest.raises(AnisoscopeError, match="schema_version 99"):
        open_run(tmp_path / "run")
    manifest.write_text("{")
    with pytest.raises(AnisoscopeError, match="damaged"):
        open_run(tmp_path / "run", write=True)
    with pytest.raises(AnisoscopeError, match="no run"):
        open_run(tmp_path / "nowhere")


def test_a_full_disk_is_a_clear_error_and_leaves_what_was_there(tmp_path, monkeypatch):
    run = create_run(tmp_path / "run")
    run.write("a", [{"step": 1, "value": 1.0}])

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(AnisoscopeError, match="No space left on device; nothing was overwritten"):
        run.write("a", [{"step": 1, "value": 2.0}])
    monkeypatch.undo()
    assert open_run(tmp_path / "run").table()["value"].to_pylist() == [1.0]
    assert not [name for name in os.listdir(tmp_path / "run") if name.startswith(".tmp-")]


def test_a_directory_that_cannot_be_written_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AnisoscopeError, match="cannot"):
        create_run(tmp_path / "file" / "run")


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda run: run.write("a", [{"step": 1, "colour": "red"}]), "columns of the schema"),
        (lambda run: run.write("a", [{"step": 1}, {"step": 2}]), "rows of one step"),
        (lambda run: run.write("../a", [{"step": 1}]), "plain name"),
        (lambda run: run.write("a", [{"step": "one"}]), "types"),
        (lambda run: run.sink("a", colour="red"), "of the schema"),
    ],
)
def test_wrong_rows_are_named(tmp_path, act, message):
    with create_run(tmp_path / "run") as run, pytest.raises(ValueError, match=message):
        act(run)


def test_an_empty_run_has_all_columns(tmp_path):
    with create_run(tmp_path / "run") as run:
        assert run.table().column_names == list(COLUMNS)
        assert len(run.rows()) == 0
    assert as_table([]).num_rows == 0
    assert Folder(tmp_path / "none").names() == []


@pytest.mark.parametrize("replaced", [False, True])
def test_a_run_that_was_removed_is_not_made_again_by_the_next_write(tmp_path, replaced):
    run = create_run(tmp_path / "run")
    run.write("a", [{"step": 0, "value": 1.0}])
    shutil.rmtree(tmp_path / "run")
    if replaced:
        (tmp_path / "run").mkdir()
    acts = (
        lambda: run.write("a", [{"step": 1, "value": 2.0}]),
        lambda: run.update(steps=3),
        lambda: run.write_tensors("t", {"x": np.eye(2)}),
        lambda: run.write_file("report.html", b"page"),
        lambda: run.close("finished"),
    )
    for act in acts:
        with pytest.raises(AnisoscopeError, match="was removed or replaced while it was written"):
            act()
    assert list(tmp_path.rglob("*.*")) == []


def test_nothing_is_written_into_another_run_that_took_the_place_of_this_one(tmp_path):
    run = create_run(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    other = create_run(tmp_path / "run")  # within the same second
    with pytest.raises(AnisoscopeError, match="was removed or replaced while it was written"):
        run.write("a", [{"step": 1, "value": 2.0}])
    other.write("a", [{"step": 0, "value": 1.0}])
    assert other.table()["value"].to_pylist() == [1.0]
    other.close("finished")


def test_no_file_is_put_in_the_place_of_a_pipe_or_a_device(tmp_path):
    with create_run(tmp_path / "run") as run:
        os.mkfifo(tmp_path / "run" / "made.bin")
        (tmp_path / "run" / "nothing.bin").symlink_to(os.devnull)
        for name in ("made.bin", "nothing.bin"):
            with pytest.raises(AnisoscopeError, match=f"{name} in .* is not a regular file"):
                run.write_file(name, b"content")
    assert (tmp_path / "run" / "made.bin").is_fifo()
    assert (tmp_path / "run" / "nothing.bin").is_symlink()
    assert not list((tmp_path / "run").glob(".tmp*"))
