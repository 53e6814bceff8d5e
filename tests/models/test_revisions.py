"""Labels of checkpoints in the order of training."""

import pytest

from anisoscope.models.revisions import PYTHIA, folders, in_order, place


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("step0", (0, 0)),
        ("step143000", (0, 143_000)),
        ("checkpoint-500", (0, 500)),
        ("global_step00100", (0, 100)),
        ("iter_0001000", (0, 1000)),
        ("step10k", (0, 10_000)),
        ("step738020-tokens3095B", (0, 738_020)),  # OLMo-1B
        ("stage1-step1000-tokens5B", (1, 1000)),  # OLMo-2
        ("tokens-50B", (0, 50e9)),
        ("1.5T-tokens", (0, 1.5e12)),
        ("main", None),
        ("v2", None),
        ("refs/pr/1", None),
    ],
)
def test_a_label_tells_its_step(label, expected):
    assert place(label) == expected


def test_order_is_that_of_training_and_what_tells_nothing_is_the_end():
    labels = ["main", "step1000", "step512", "stage2-step5", "step0", "step64000"]
    assert in_order(labels) == ["step0", "step512", "step1000", "step64000", "stage2-step5", "main"]


def test_pythia_has_154_steps():
    assert len(PYTHIA) == len(set(PYTHIA)) == 154
    assert PYTHIA[:4] == ("step0", "step1", "step2", "step4")
    assert PYTHIA[-1] == "step143000"


def test_folders_are_found_by_name_by_glob_and_inside(tmp_path):
    for step in (10, 9, 100):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "model.safetensors").write_bytes(b"")
    expected = [tmp_path / f"checkpoint-{step}" for step in (9, 10, 100)]
    assert folders([str(tmp_path)]) == expected
    assert folders([str(tmp_path / "checkpoint-*")]) == expected
    assert folders([str(path) for path in reversed(expected)]) == expected
    with pytest.raises(ValueError, match="must exist"):
        folders([str(tmp_path / "nowhere")])
