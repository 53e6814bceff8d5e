"""Whatever changes in a run after it was closed is seen: no flipped bit, copy or foreign file becomes a row."""

import json
import os
import random
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anisoscope import open_run
from anisoscope.cli import main
from anisoscope.errors import AnisoscopeError
from anisoscope.report.make import make_report
from anisoscope.store.parquet_parts import part_name
from anisoscope.store.run import create_run

VALUES = [0.8, float("nan"), None, 1.0]


def written(path, status="finished", steps=1):
    with create_run(path, config={"rank": 8}) as run:
        for step in range(steps):
            rows = [{"step": step, "layer": k, "measure": "energy", "value": v, "p": 0.8} for k, v in enumerate(VALUES)]
            run.write("decoder-0", rows)
        run.write_tensors("spectra-decoder-0", {"x": np.arange(4.0)})
        (path / "models" / "decoder-0").mkdir(parents=True)
        (path / "models" / "decoder-0" / "model.safetensors").write_bytes(b"weights")
        if status is None:  # killed: nothing is closed
            run.release()
        else:
            run.close(status)
    return path


def rows_of(path):
    return str(open_run(path).table().to_pylist())


@pytest.mark.parametrize("status", ["finished", None])
def test_no_flipped_bit_changes_a_row_unnoticed(tmp_path, status):
    path = written(tmp_path / "run", status)
    part = path / part_name("decoder-0", 0)
    content, before, chance = part.read_bytes(), rows_of(path), random.Random(0)
    for _ in range(300):
        place = chance.randrange(8 * len(content))
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        part.write_bytes(flipped)
        run = open_run(path)
        found = str(run.table().to_pylist())
        assert found == before or (found == "[]" and [*run.damaged, *run.strays] == [part.name]), place
    part.write_bytes(content)
    assert rows_of(path) == before


@pytest.mark.parametrize("name", ["spectra-decoder-0.safetensors", "models/decoder-0/model.safetensors", "rows"])
@pytest.mark.parametrize("act", ["changed", "removed"])
def test_a_changed_or_removed_file_is_named_on_resume_and_by_the_command(tmp_path, capsys, name, act):
    path = written(tmp_path / "run", "interrupted")
    name = part_name("decoder-0", 0) if name == "rows" else name
    if act == "changed":
        (path / name).write_bytes((path / name).read_bytes()[:-1] + b"!")
    else:
        (path / name).unlink()
    with pytest.raises(AnisoscopeError, match=f"{name} in .* was {act} since the run was closed"):
        open_run(path, write=True)
    with pytest.raises(SystemExit) as ended:
        main(["verify-run", str(path)])
    assert ended.value.code == 1
    out, err = capsys.readouterr()
    assert f"{name}  was {act}" in out
    assert err.startswith("error: 1 file(s)")
    if name.endswith("parquet"):
        with pytest.raises(AnisoscopeError, match=f"{name} in .* was {act} since the run was closed"):
            make_report([str(path)])
        assert name in make_report([str(path)], allow_damaged=True)


def test_a_whole_run_is_said_to_be_whole_and_one_that_was_killed_has_no_hashes(tmp_path, capsys):
    main(["verify-run", str(written(tmp_path / "whole"))])
    assert capsys.readouterr().out == "3 file(s) are unchanged since the run was closed\n"
    main(["verify-run", str(written(tmp_path / "killed", None)), "--format", "json"])
    assert json.loads(capsys.readouterr().out) == {
        "ok": True,
        "checked": 1,
        "recorded": False,
        "faults": [],
        "strays": [],
    }


def test_a_run_gone_on_with_is_hashed_again_when_it_is_closed(tmp_path):
    path = written(tmp_path / "run", "interrupted")
    with open_run(path, write=True) as run:
        assert open_run(path).recorded is None  # killed from here on, nothing is compared with what is out of date
        run.write("decoder-0", [{"step": 9, "value": 2.0}])
        run.close("finished")
    assert open_run(path).faults() == ([], [])
    assert len(open_run(path).recorded) == 3


@pytest.mark.parametrize("status", ["finished", None])
def test_copies_and_files_of_others_are_no_rows(tmp_path, capsys, status):
    path = written(tmp_path / "run", status)
    before, part = rows_of(path), path / part_name("decoder-0", 0)
    copies = ["rows-decoder-0-000000001.parquet", "rows-decoder-0-000000000 (copy).parquet", "old.parquet"]
    for name in copies:
        shutil.copy(part, path / name)
    pq.write_table(pa.table({"x": [1]}), path / "rows.parquet")
    os.mkfifo(path / "rows-pipe-000000001.parquet")
    (path / "rows-folder-000000001.parquet").mkdir()
    assert rows_of(path) == before
    main(["rows", str(path), "--format", "csv"])
    out, err = capsys.readouterr()
    assert out.count("\n") == 1 + len(VALUES)
    assert all(name in err for name in (*copies, "rows.parquet"))


@pytest.mark.parametrize("change", ["renamed", "foreign", "renamed, without metadata"])
def test_a_renamed_or_foreign_column_gives_no_rows(tmp_path, change):
    path = written(tmp_path / "run", None)
    part = path / part_name("decoder-0", 0)
    table = pq.read_table(part)
    if change == "foreign":
        table = table.append_column("colour", pa.array(["red"] * table.num_rows))
    else:
        table = table.rename_columns(["q_value" if name == "q" else name for name in table.column_names])
    pq.write_table(table.replace_schema_metadata(None) if "without" in change else table, part)
    run = open_run(path)
    assert run.table().num_rows == 0
    assert run.damaged == [part.name]


def test_columns_that_changed_places_give_no_rows(tmp_path):
    path = written(tmp_path / "run", None)
    part = path / part_name("decoder-0", 0)
    table = pq.read_table(part)
    swapped = {"p": "q", "q": "p"}
    pq.write_table(table.rename_columns([swapped.get(name, name) for name in table.column_names]), part)
    assert open_run(path).table().num_rows == 0


def test_a_changed_setting_is_seen_and_one_changed_on_purpose_is_allowed(tmp_path):
    path = written(tmp_path / "run")
    manifest = path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"rank": 8', '"rank": 9'))
    with pytest.raises(AnisoscopeError, match=r"manifest.json of .* is damaged: its checksum is of another one"):
        open_run(path)
    changed = json.loads(manifest.read_text())
    del changed["checksum"]
    manifest.write_text(json.dumps(changed))
    assert open_run(path).manifest["config"] == {"rank": 9}


def test_a_manifest_nested_too_deeply_or_leading_out_of_the_folder_is_refused(tmp_path):
    path = written(tmp_path / "run")
    manifest = path / "manifest.json"
    changed = json.loads(manifest.read_text())
    del changed["checksum"]
    manifest.write_text(json.dumps(changed | {"files": {"../other": "0", "/etc/passwd": "0"}}))
    assert open_run(path).faults()[0] == []
    manifest.write_text("[" * 100_000)
    with pytest.raises(AnisoscopeError, match=r"manifest.json of .* is damaged"):
        open_run(path)


def test_a_whole_part_that_came_after_the_run_was_closed_gives_no_rows(tmp_path):
    for name in ("run", "other"):
        with create_run(tmp_path / name) as run:
            run.write("a" if name == "run" else "b", [{"step": 0, "value": 1.0}])
            run.close("finished")
    part = next((tmp_path / "other").glob("rows-b*.parquet"))
    (tmp_path / "run" / part.name).write_bytes(part.read_bytes())
    found = open_run(tmp_path / "run")
    assert found.table().num_rows == 1
    assert found.strays == [part.name]
