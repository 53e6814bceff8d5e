"""A finished run is compact, and its rows are the same at every instant on the way there and back."""

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anisoscope import open_run
from anisoscope.errors import AnisoscopeError
from anisoscope.store import parquet_parts as parts
from anisoscope.store.files import Folder
from anisoscope.store.run import create_run

WRITERS = ("corpus", "decoder-0", "decoder-0-loss-train", "decoder-1", "encoder-0")


def written(path, status):
    with create_run(path) as run:
        for writer in WRITERS:
            for step in (None, 0, 3, 20):
                value = None if step == 3 else float(step or 0)
                run.write(writer, [{"step": step, "measure": writer, "value": value}, {"step": step, "value": 1.0}])
        run.close(status)
    return open_run(path).table()


def files(path):
    return sorted(file.name for file in path.iterdir() if file.suffix == ".parquet")


def test_a_finished_run_has_one_file_a_model_and_seed_and_the_same_rows(tmp_path):
    parted, whole = written(tmp_path / "a" / "run", "interrupted"), written(tmp_path / "b" / "run", "finished")
    assert whole.equals(parted)
    assert len(files(tmp_path / "a" / "run")) == 20
    assert files(tmp_path / "b" / "run") == [
        f"rows-{w}.parquet" for w in ("corpus", "decoder-0", "decoder-1", "encoder-0")
    ]


def test_a_finished_run_can_be_gone_on_with(tmp_path):
    before = written(tmp_path / "run", "finished")
    with open_run(tmp_path / "run", write=True) as run:
        assert len(files(tmp_path / "run")) == 20
        assert run.table().equals(before)
        run.write("decoder-0", [{"step": 3, "measure": "again", "value": 9.0}])
        run.close("finished")
    compacted = files(tmp_path / "run")
    open_run(tmp_path / "run", write=True).close()  # looked at, and nothing was left to do
    assert files(tmp_path / "run") == compacted
    after = open_run(tmp_path / "run").table().to_pylist()
    assert [r["value"] for r in after if r["measure"] == "again"] == [9.0]
    assert len(after) == before.num_rows - 1  # two rows of that step gave way to one


@pytest.mark.parametrize("act", ["compact", "expand"])
def test_killed_between_any_two_files_no_row_is_lost_or_doubled(tmp_path, monkeypatch, act):
    """A copy of the folder after every file operation: each holds the same rows, and can be gone on with."""
    whole = written(tmp_path / "run", "interrupted" if act == "compact" else "finished")
    open_run(tmp_path / "run").update(files=None)  # as a run that is open for writing
    states = []

    def seen(name):
        original = getattr(Folder, name)

        def method(self, *args):
            result = original(self, *args)
            states.append(shutil.copytree(self.url, tmp_path / "states" / str(len(states)) / "run"))
            return result

        return method

    with monkeypatch.context() as patched:
        for name in ("write", "remove"):
            patched.setattr(Folder, name, seen(name))
        getattr(parts, act)(Folder(tmp_path / "run"))
    assert len(states) >= 24
    for state in states:
        assert sorted(map(str, open_run(state).table().to_pylist())) == sorted(map(str, whole.to_pylist()))
        with open_run(state, write=True) as run:
            run.close("finished")
        assert open_run(state).table().equals(whole)


def test_a_torn_part_stays_and_is_named(tmp_path):
    written(tmp_path / "run", "interrupted")
    torn = tmp_path / "run" / "rows-encoder-0-000000003.parquet"
    with open_run(tmp_path / "run", write=True) as run:
        torn.write_bytes(b"PAR1")
        run.close("finished")
    found = open_run(tmp_path / "run")
    assert found.table().num_rows == 38
    assert found.damaged == [torn.name]
    assert torn.exists()


def test_a_full_disk_leaves_the_parts_as_they_are(tmp_path, monkeypatch):
    whole = written(tmp_path / "run", "interrupted")

    def full(self, name, content):
        if name == "rows-decoder-1.parquet":
            raise AnisoscopeError("cannot write: no space left on device")
        return original(self, name, content)

    original = Folder.write
    with open_run(tmp_path / "run", write=True) as run:
        monkeypatch.setattr(Folder, "write", full)
        run.close("finished")
    assert open_run(tmp_path / "run").finished
    assert sorted(map(str, open_run(tmp_path / "run").table().to_pylist())) == sorted(map(str, whole.to_pylist()))


def test_parts_of_an_older_release_lack_columns_and_a_foreign_part_stays(tmp_path):
    run = create_run(tmp_path / "run", digested_parts=False)
    for step in range(3):
        run.write("decoder-0", [{"step": step, "measure": "loss", "value": float(step), "q_floor": 0.5}])
    first, second, third = (tmp_path / "run" / parts.part_name("decoder-0", step) for step in range(3))
    old = pq.read_table(first).drop_columns(["q_floor"])
    pq.write_table(old.replace_schema_metadata(None), first)  # as an older release left it
    foreign = pq.read_table(second).append_column("colour", pa.array(["red"])).replace_schema_metadata(None)
    pq.write_table(foreign, second)
    run.close("finished")
    assert files(tmp_path / "run") == [second.name, "rows-decoder-0.parquet"]
    assert pq.read_table(second).equals(foreign)
    table = open_run(tmp_path / "run").table().to_pydict()
    kept = [(v, q) for s, v, q in zip(table["step"], table["value"], table["q_floor"], strict=True) if s != 1]
    assert kept == list(zip(table["value"], table["q_floor"], strict=True)) == [(0.0, None), (2.0, 0.5)]
    with pytest.raises(AnisoscopeError, match=f"{second.name} in .* is damaged"):
        open_run(tmp_path / "run", write=True)
    second.unlink()
    with pytest.raises(AnisoscopeError, match=f"{second.name} in .* was removed since the run was closed"):
        open_run(tmp_path / "run", write=True)
    open_run(tmp_path / "run").update(files=None)
    with open_run(tmp_path / "run", write=True):
        assert files(tmp_path / "run") == [first.name, third.name]
