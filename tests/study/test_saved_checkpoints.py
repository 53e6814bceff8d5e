"""Checkpoints of a training: damaged in any way they are not loaded, and none goes before a better one is there."""

import os

import pytest

from anisoscope.study import saved_checkpoints as saved

FILES = {"model.safetensors": b"weights" * 99, "optimizer.pt": b"moments" * 50, "sub/state": b"x", "empty": b""}


def made(folder, step, *, sealed=True):
    checkpoint = folder / f"checkpoint-{step}"
    for name, content in FILES.items():
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_bytes(content + str(step).encode())
    if sealed:
        saved.seal(checkpoint)
    return checkpoint


def damages():
    def flipped(path):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    acts = {
        "gone": lambda path: path.unlink(),
        "flipped": flipped,
        "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
        "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
        "nothing": lambda path: path.write_bytes(b""),
    }
    return [pytest.param(name, act, id=f"{name} {kind}") for name in (*FILES, saved.LIST) for kind, act in acts.items()]


@pytest.mark.parametrize(("name", "act"), damages())
def test_damaged_in_any_way_a_checkpoint_is_not_whole(tmp_path, name, act):
    older, newer = made(tmp_path, 9), made(tmp_path, 10)
    assert list(saved.whole_checkpoints(tmp_path)) == [newer, older]
    act(newer / name)
    assert list(saved.whole_checkpoints(tmp_path)) == [older]


def test_nonsense_in_the_list_is_no_checkpoint(tmp_path):
    checkpoint = made(tmp_path, 1)
    for nonsense in ("[]", "{}", "3", "null", '{"../../etc": "x"}', "{" * 5000, "\x00"):
        (checkpoint / saved.LIST).write_text(nonsense)
        assert not saved.is_whole(checkpoint)


def test_the_newest_is_that_of_the_highest_step_whatever_the_clock_says(tmp_path):
    """A clock that was set back makes the newest the oldest by its time."""
    for step in (9, 10, 100):
        checkpoint = made(tmp_path, step)
        for path in (checkpoint, *checkpoint.rglob("*")):
            os.utime(path, (10_000 - step, 10_000 - step))
    saved.discard_older(tmp_path, tmp_path / "checkpoint-100")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-100"]


def test_one_that_is_torn_is_not_kept_in_place_of_a_whole_one(tmp_path):
    made(tmp_path, 3)
    made(tmp_path, 6, sealed=False)
    saved.discard_older(tmp_path, made(tmp_path, 9))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-3", "checkpoint-9"]


def test_what_was_being_taken_away_when_the_process_was_killed_is_not_seen(tmp_path, monkeypatch):
    made(tmp_path, 3)
    monkeypatch.setattr(saved.shutil, "rmtree", lambda *args, **kwargs: None)
    saved.discard(tmp_path / "checkpoint-3")
    assert list(saved.whole_checkpoints(tmp_path)) == []
    monkeypatch.undo()
    saved.discard_newer(tmp_path, None)
    assert list(tmp_path.iterdir()) == []
