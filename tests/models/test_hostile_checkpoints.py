"""Damaged and hostile checkpoints are marked unreadable; nothing outside of their folder is read."""

import json
import os
import random
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

from anisoscope.errors import AnisoscopeError
from anisoscope.models.fingerprints import fingerprint, weight_files
from anisoscope.study.checkpoints.histories import checked, origins_of


def planted(folder, seed):
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    tensors = {name: rng.normal(size=(8, 9)).astype(np.float32) for name in ("a.weight", "b.weight")}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture
def history(tmp_path):
    for step in (1, 2, 3):
        planted(tmp_path / f"checkpoint-{step}", step)
    return tmp_path


def test_every_damaged_checkpoint_is_marked_and_the_others_are_read(history):
    """Bytes changed, cut off and added: never an exception, and always three checkpoints."""
    file = history / "checkpoint-2" / "model.safetensors"
    content, chance = file.read_bytes(), random.Random(0)
    unreadable = 0
    for number in range(170):
        damaged = bytearray(content)
        for _ in range(chance.choice((1, 1, 4, 30))):
            damaged[chance.randrange(200 if number % 2 else len(damaged))] = chance.randrange(256)
        if number % 5 == 0:
            damaged = damaged[: chance.randrange(len(damaged))]
        file.write_bytes(damaged)
        origins, expected = origins_of([str(history)])
        found = checked(origins, expected=expected)
        assert [one.label for one in found.checkpoints] == ["checkpoint-1", "checkpoint-2", "checkpoint-3"]
        assert found.checkpoints[0].weights is not None
        unreadable += found.checkpoints[1].weights is None
    assert unreadable > 60


HEADERS = {
    "negative": {"a": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}},
    "backwards": {"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}},
    "fraction": {"a": {"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8.0]}},
    "truth": {"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}},
    "other size": {"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}},
    "huge": {"a": {"dtype": "F32", "shape": [10**30], "data_offsets": [0, 8]}},
    "no dtype": {"a": {"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]}},
    "list": [1, 2],
    "empty name": {"": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}},
}


@pytest.mark.parametrize("kind", HEADERS)
def test_headers_that_say_what_cannot_be_are_damaged(tmp_path, kind):
    header = json.dumps(HEADERS[kind]).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(AnisoscopeError, match="damaged header"):
        fingerprint(tmp_path)


@pytest.mark.parametrize(
    "name", ["../secret.safetensors", "{outside}/secret.safetensors", "a/../../secret.safetensors", 3]
)
def test_an_index_that_leads_out_of_its_folder_is_refused(tmp_path, name):
    planted(tmp_path / "outside", 0).joinpath("model.safetensors").rename(tmp_path / "secret.safetensors")
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    name = name.format(outside=tmp_path) if isinstance(name, str) else name
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(AnisoscopeError, match=r"names .*, which is not a file of weights in its folder|is damaged"):
        weight_files(folder)


@pytest.mark.parametrize("what", ["link", "pipe", "device", "index pipe"])
def test_links_out_of_the_folder_pipes_and_devices_are_refused(tmp_path, what):
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    file = folder / "model.safetensors"
    if what == "link":
        file.symlink_to(planted(tmp_path / "outside", 0) / "model.safetensors")
    elif what == "device":
        file.symlink_to("/dev/zero")
    else:
        os.mkfifo(file if what == "pipe" else folder / "model.safetensors.index.json")
    with pytest.raises(AnisoscopeError, match=r"leads out of its folder|is not a regular file"):
        fingerprint(folder)


def test_a_snapshot_of_the_hub_is_links_to_its_own_blobs(tmp_path):
    repository = tmp_path / "models--someone--something"
    planted(repository / "made", 0)
    (repository / "blobs").mkdir()
    shutil.move(repository / "made" / "model.safetensors", repository / "blobs" / "0123")
    snapshot = repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to("../../blobs/0123")
    assert len(fingerprint(snapshot).tensors) == 2
