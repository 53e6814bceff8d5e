"""Planted faults of training histories are found, each for what it is; clean histories of every kind pass."""

import hashlib
import json

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from anisoscope.errors import AnisoscopeError, DamagedFileError
from anisoscope.models.checkpoint_integrity import Checkpoint, inspect
from anisoscope.models.fingerprints import SKETCH, fingerprint

STEPS = (0, 1, 2, 4, 8, 100, 1000, 2000, 3000, 4000)


def weights(seed):
    rng = np.random.default_rng(seed)
    found = {f"layer.{i}.weight": rng.normal(size=(40, 50)).astype(np.float32) for i in range(4)}
    found |= {f"layer.{i}.bias": np.zeros(40, np.float32) for i in range(4)}
    return found | {"norm.weight": np.ones(50, np.float32), "rotary.inv_freq": rng.random(8).astype(np.float32)}


def walk(seed=0, steps=STEPS):
    """A training: weights drift away from where they began; buffers stay; norms move late."""
    rng = np.random.default_rng(seed + 100)
    now, found, before = weights(seed), {}, 0
    for step in steps:
        moved = (step - before) ** 0.5 * 0.01
        before = step
        now = {
            name: w if name == "rotary.inv_freq" or (w.ndim == 1 and step < 100) else _stepped(w, moved, rng)
            for name, w in now.items()
        }
        found[step] = now
    return found


def _stepped(w, size, rng):
    return (w + size * rng.normal(size=w.shape)).astype(w.dtype)


def saved(folder, history, half=False):
    """Each checkpoint in a folder of its own, then read back."""
    read = []
    for step, tensors in history.items():
        where = folder / f"step{step}"
        where.mkdir(parents=True)
        if half:
            save_torch({k: torch.from_numpy(w).bfloat16() for k, w in tensors.items()}, where / "model.safetensors")
        else:
            save_file(tensors, where / "model.safetensors")
        read.append(Checkpoint(f"step{step}", step, fingerprint(where)))
    return read


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_clean_history_passes(tmp_path, seed, half):
    assert inspect(saved(tmp_path, walk(seed), half)) == []


def test_a_history_with_frozen_layers_and_a_warm_up_passes(tmp_path):
    history = walk()
    for step in STEPS:
        history[step] = history[step] | {"layer.0.weight": history[0]["layer.0.weight"]}  # frozen
        if step <= 2:
            history[step] = history[step] | {"layer.1.weight": history[0]["layer.1.weight"]}  # not yet moving
    assert inspect(saved(tmp_path, history)) == []


def test_labels_that_serve_the_final_weights_are_left_out(tmp_path):
    history = walk()
    for step in (4, 1000):
        history[step] = history[4000]
    found = inspect(saved(tmp_path, history))
    assert [(f.kind, f.label, f.excluded) for f in found] == [
        ("duplicate", "step4", True),
        ("duplicate", "step1000", True),
    ]
    assert "the weights of step4000" in found[0].text


def test_of_equal_steps_the_first_is_kept(tmp_path):
    history = walk()
    history[2] = history[0]
    (found,) = inspect(saved(tmp_path, history))
    assert (found.kind, found.label) == ("duplicate", "step2")


def test_main_is_the_last_step_again_and_the_step_keeps_its_place(tmp_path):
    history = saved(tmp_path, walk())
    (found,) = inspect([*history, Checkpoint("main", None, history[-1].weights)])
    assert (found.kind, found.label) == ("duplicate", "main")


@pytest.mark.parametrize("steps", [(1000, 3000), (1000, 2000), (100, 1000, 2000)])
def test_a_final_shard_among_earlier_ones_is_seen(tmp_path, steps):
    history = walk()
    for step in steps:
        shard = {name: history[4000][name] for name in ("layer.0.weight", "layer.1.weight")}
        history[step] = history[step] | shard
    found = inspect(saved(tmp_path, history))
    assert {f.label for f in found if f.excluded and f.kind == "partly-served"} == {f"step{step}" for step in steps}
    assert "2 of its 10 tensors from step4000" in found[0].text


def test_a_mixture_of_two_checkpoints_accuses_both(tmp_path):
    history = walk()
    history[2000] = history[2000] | {"layer.3.weight": history[100]["layer.3.weight"]}
    found = inspect(saved(tmp_path, history))
    assert {f.label for f in found} == {"step100", "step2000"}
    assert all("one of the two" in f.text for f in found)


def test_a_step_0_of_another_seed_is_not_the_beginning(tmp_path):
    history = walk(0)
    history[0] = weights(77)
    (found,) = inspect(saved(tmp_path, history))
    assert (found.kind, found.label, found.excluded) == ("not-descended", "step0", True)


def test_how_often_an_unrelated_beginning_passes():
    """Two independent sets of weights, many times: the rate at which one is taken for the other's descendant."""
    from anisoscope.models.fingerprints import Fingerprint, TensorPrint

    def made(seed):
        rng = np.random.default_rng(seed)
        return Fingerprint(
            {
                f"w{i}": TensorPrint("F32", (64, 64), f"{seed}.{i}", rng.normal(size=SKETCH).astype(np.float32))
                for i in range(100)
            }
        )

    passed = 0
    for trial in range(50):
        history = [Checkpoint("step0", 0, made(2 * trial)), Checkpoint("step1", 1, made(2 * trial + 1))]
        history.append(Checkpoint("step100", 100, made(10_000 + trial)))
        passed += not any(f.kind == "not-descended" for f in inspect(history))
    assert passed == 0  # 5 σ in 100 tensors: 6e-5 a trial


def test_a_distant_second_step_is_told_and_not_left_out(tmp_path):
    history = {0: weights(1), 3000: weights(2), 4000: weights(3)}
    (found,) = inspect(saved(tmp_path, history))
    assert found.kind == "not-descended"
    assert not found.excluded


def test_other_shapes_are_left_out_and_other_dtypes_are_told(tmp_path):
    history = walk()
    history[8] = {name: w[:30] if name == "layer.2.weight" else w for name, w in history[8].items()}
    history[2000] = {name: w.astype(np.float16) for name, w in history[2000].items()}
    found = {f.label: f for f in inspect(saved(tmp_path, history))}
    assert found.keys() == {"step8", "step2000"}
    assert found["step8"].excluded
    assert "30×50 where most have 40×50" in found["step8"].text
    assert not found["step2000"].excluded
    assert "F16" in found["step2000"].text


def test_what_is_expected_and_not_there_is_listed(tmp_path):
    found = inspect(saved(tmp_path, walk()), expected=[f"step{step}" for step in (*STEPS, 512)])
    assert [(f.kind, f.label) for f in found] == [("missing", "step512")]


def test_an_unreadable_checkpoint_is_left_out_and_the_rest_is_compared(tmp_path):
    history = saved(tmp_path, walk())
    history[3] = Checkpoint("step4", 4, None, "cut off")
    assert [(f.kind, f.text) for f in inspect(history)] == [("unreadable", "cut off")]


def test_prints_are_hashes_and_numbers_of_the_tensors_themselves(tmp_path):
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.random.default_rng(0).normal(size=20_000)}
    save_file(tensors, tmp_path / "model.safetensors")
    found = fingerprint(tmp_path)
    assert found.tensors["a"].digest == hashlib.sha256(tensors["a"].tobytes()).hexdigest()
    assert found.tensors["a"].sketch.tolist() == [0, 1, 2, 3, 4, 5]
    assert len(found.tensors["b"].sketch) == SKETCH
    assert np.isin(found.tensors["b"].sketch, tensors["b"].astype(np.float32)).all()


def test_shards_give_what_one_file_gives(tmp_path):
    tensors = weights(0)
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    save_file(tensors, tmp_path / "one" / "model.safetensors")
    names = sorted(tensors)
    parts = {"model-1.safetensors": names[:4], "model-2.safetensors": names[4:]}
    for file, own in parts.items():
        save_file({name: tensors[name] for name in own}, tmp_path / "two" / file)
    index = {"weight_map": {name: file for file, own in parts.items() for name in own}}
    (tmp_path / "two" / "model.safetensors.index.json").write_text(json.dumps(index))
    read = []
    assert fingerprint(tmp_path / "two", progress=read.append).digest == fingerprint(tmp_path / "one").digest
    assert sum(read) == sum(w.nbytes for w in tensors.values())
    (tmp_path / "two" / "model-2.safetensors").unlink()
    with pytest.raises(DamagedFileError, match=r"lacks model-2\.safetensors"):
        fingerprint(tmp_path / "two")


@pytest.mark.parametrize("keep", [4, 100, -1])
def test_a_file_that_was_cut_off_is_named(tmp_path, keep):
    file = tmp_path / "model.safetensors"
    save_file(weights(0), file)
    whole = file.read_bytes()
    file.write_bytes(whole[:keep])
    with pytest.raises(DamagedFileError, match=r"model\.safetensors"):
        fingerprint(tmp_path)


def test_pickles_are_read_only_if_asked_and_never_run(tmp_path):
    tensors = {name: torch.from_numpy(w) for name, w in weights(0).items()}
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    with pytest.raises(AnisoscopeError, match="--allow-pickle"):
        fingerprint(tmp_path)
    save_file(weights(0), tmp_path / "same.safetensors")
    assert fingerprint(tmp_path, allow_pickle=True).digest == fingerprint(tmp_path / "same.safetensors").digest

    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    torch.save({"w": Evil()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(DamagedFileError, match="weights_only"):
        fingerprint(tmp_path, allow_pickle=True)
    assert not (tmp_path / "ran").exists()


def test_a_gguf_file_is_read(tmp_path):
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(str(tmp_path / "model.gguf"), "llama")
    tensor = np.arange(12, dtype=np.float32).reshape(3, 4)
    writer.add_tensor("blk.0.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = fingerprint(tmp_path / "model.gguf").tensors["blk.0.weight"]
    assert found.shape == (3, 4)
    assert found.digest == hashlib.sha256(tensor.tobytes()).hexdigest()
    assert found.sketch.tolist() == list(range(12))
