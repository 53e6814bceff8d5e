"""What a resume relies on is on the disk, file and name, before anything says that it is there."""

import os
from pathlib import Path

import pytest

from anisoscope.store.files import Folder
from anisoscope.store.run import create_run
from anisoscope.study.saved_checkpoints import is_whole, seal


@pytest.fixture
def forced(monkeypatch):
    """What happens to files, in order: ``fsync PATH`` and ``rename TARGET``."""
    events = []
    fsync, replace = os.fsync, os.replace

    def forcing(descriptor):
        events.append(f"fsync {os.readlink(f'/proc/self/fd/{descriptor}')}")
        return fsync(descriptor)

    def renaming(source, target, **kwargs):
        events.append(f"rename {target}")
        return replace(source, target, **kwargs)

    monkeypatch.setattr(os, "fsync", forcing)
    monkeypatch.setattr(os, "replace", renaming)
    return events


def test_a_file_and_its_name_are_forced_to_the_disk(tmp_path, forced):
    Folder(tmp_path / "a" / "b").write("x.bin", b"content")
    made, renamed = forced.index(f"fsync {tmp_path}"), forced.index(f"rename {tmp_path / 'a' / 'b' / 'x.bin'}")
    assert made < renamed  # new folders have their entries on the disk
    assert forced.index(f"fsync {tmp_path / 'a'}") < renamed
    assert any(event.startswith(f"fsync {tmp_path}") and event.endswith("x.bin") for event in forced[:renamed])
    assert forced[renamed + 1] == f"fsync {tmp_path / 'a' / 'b'}"


def test_a_new_run_has_its_folder_on_the_disk(tmp_path, forced):
    create_run(tmp_path / "runs" / "mine").close()
    assert {f"fsync {tmp_path}", f"fsync {tmp_path / 'runs'}"} <= set(forced)


def test_a_checkpoint_is_on_the_disk_before_its_list_is(tmp_path, forced):
    checkpoint = tmp_path / "run" / "checkpoints" / "decoder-0" / "checkpoint-3"
    (checkpoint / "inner").mkdir(parents=True)
    for name in ("model.safetensors", "inner/more.bin"):
        (checkpoint / name).write_bytes(b"weights")
    seal(checkpoint)
    assert is_whole(checkpoint)
    renamed = forced.index(f"rename {checkpoint / 'complete.json'}")
    for path in (checkpoint / "model.safetensors", checkpoint / "inner" / "more.bin", checkpoint / "inner", checkpoint):
        assert f"fsync {path}" in forced[:renamed]
    above = [f"fsync {folder}" for folder in list(checkpoint.parents)[:3]]
    assert set(above) <= set(forced[renamed:])
    assert above[-1] == f"fsync {tmp_path / 'run'}"


def test_weights_are_on_the_disk_when_they_are_called_saved(tmp_path, forced):
    from anisoscope.study.pair.trainer_run import _save

    class Model:
        def save_pretrained(self, folder):
            (Path(folder) / "model.safetensors").write_bytes(b"weights")

    folder = tmp_path / "models" / "decoder-0"
    _save(Model(), "{}", folder)
    expected = (folder / "model.safetensors", folder / "tokenizer.json", folder, folder.parent)
    assert {f"fsync {path}" for path in expected} <= set(forced)
