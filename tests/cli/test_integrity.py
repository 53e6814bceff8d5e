"""The command ``integrity`` on planted histories."""

import json

import pytest
from safetensors.numpy import save_file

from anisoscope.cli import main
from models.test_integrity import walk


@pytest.fixture
def history(tmp_path):
    for step, tensors in walk().items():
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        save_file(tensors, folder / "model.safetensors")
    return tmp_path


def test_a_clean_history_is_trusted(history, capsys):
    main(["integrity", str(history)])
    out = capsys.readouterr().out
    assert "10 of 10 checkpoints have nothing found against them" in out
    assert out.index("checkpoint-8") < out.index("checkpoint-100 ")


def test_a_served_final_is_told_and_the_exit_status_says_so(history, capsys):
    final = (history / "checkpoint-4000" / "model.safetensors").read_bytes()
    (history / "checkpoint-8" / "model.safetensors").write_bytes(final)
    whole = (history / "checkpoint-2" / "model.safetensors").read_bytes()
    (history / "checkpoint-2" / "model.safetensors").write_bytes(whole[:-5])
    with pytest.raises(SystemExit) as left:
        main(["integrity", str(history / "checkpoint-*"), "--format", "json"])
    assert left.value.code == 1
    found = json.loads(capsys.readouterr().out)
    assert {(f["kind"], f["label"]) for f in found["findings"]} == {
        ("duplicate", "checkpoint-8"),
        ("unreadable", "checkpoint-2"),
    }
    assert len(found["checkpoints"]) == 10
    assert [one["hash"] is None for one in found["checkpoints"]].count(True) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "needs checkpoints"),
        (["nowhere"], "must exist"),
        (["a/b", "--revisions", "step0"], "at least two"),
        (["a/b@main", "--revisions", "step0,step1"], "without one"),
        (["a/b", "c/d", "--revisions", "auto"], "one model"),
    ],
)
def test_wrong_use_is_told(arguments, message, capsys):
    with pytest.raises(SystemExit) as left:
        main(["integrity", *arguments])
    assert left.value.code == 2
    assert message in capsys.readouterr().err
