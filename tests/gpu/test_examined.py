"""Finished models on a GPU: the CPU's numbers, in bfloat16, with layers on several devices, and whole studies."""

import io

import pytest
import torch
from rich.console import Console

from anisoscope.evaluate.evaluator import Evaluator, EvaluatorSettings
from anisoscope.jobs.progress_display import JobLines
from anisoscope.models.loading import describe, locate
from anisoscope.observe.finalize import finalize
from anisoscope.observe.offline import observe_model
from anisoscope.observe.probe import Probe
from anisoscope.observe.site_selection import choose
from anisoscope.study.model_settings import ProfileSettings
from anisoscope.study.profile.layer_measures import draw, vectors_of
from anisoscope.study.setting_fields import made_of
from anisoscope.study.tokenized_text import loaded, read_text, twin
from models.snapshots import letters, save, tiny

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
KEY = ("view", "layer", "tensor", "subset", "proxy", "measure", "variant", "null", "n")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return letters(tmp_path_factory.mktemp("text"))


def settings(text, **changed):
    given = {"text": text, "length": 32, "sequences": 16, "chunk": 6, "rank": 4, "resamples": 19, "batches": 2}
    return made_of(ProfileSettings, given | {"threads": 1, "device": "cpu", "proxies": ("pca",)} | changed)


def quiet():
    return JobLines(Console(file=io.StringIO()))


def described(kind, folder):
    return describe(locate(str(save(tiny(kind), folder / "model"))))


def judged(models, card, given):
    """Rows of the last of some models, each judged after the one before."""
    reading = read_text(card, given, sequences=16)
    judge, rows = Evaluator(EvaluatorSettings(given.request(), None)), []
    for step, model in enumerate(models):
        seen = observe_model(
            model, choose(model, None, None), reading.chunks(given), step=step, seed=reading.seed, targets=True
        )
        rows = judge.judged(finalize(seen, rows=8192, seed=reading.seed, device="cpu")).rows
    return {tuple(r[k] for k in KEY): r["value"] for r in rows if r["view"] and r["measure"] == "energy"}


def agree(found, expected, rel):
    assert found.keys() == expected.keys()
    assert len(expected) > 5
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=rel), name


@pytest.mark.parametrize("kind", ["llama", "bert", "albert"])
def test_a_finished_model_has_the_numbers_of_the_cpu(kind, text, tmp_path):
    card = described(kind, tmp_path)
    found = {}
    for device, precision in (("cpu", "float32"), ("cuda", "float32"), ("cuda", "bf16")):
        given = settings(text, device=device, precision=precision)
        found[device, precision] = judged((twin(card, given), loaded(card, given)), card, given)
    agree(found["cuda", "float32"], found["cpu", "float32"], 2e-3)
    agree(found["cuda", "bf16"], found["cpu", "float32"], 0.1)


@pytest.mark.parametrize("main", ["cpu", 0])
def test_layers_may_lie_on_several_devices(main, text, tmp_path):
    """On ``main`` "cpu" the second layer runs there; on 0 it is kept there and runs on the GPU."""
    accelerate = pytest.importorskip("accelerate")
    card = described("llama", tmp_path)
    given = settings(text)
    expected = judged((twin(card, given), loaded(card, given)), card, given)
    places = {"model.embed_tokens": 0, "model.layers.0": 0, "model.layers.1": "cpu", "model.norm": 0}
    places |= {"model.rotary_emb": 0, "lm_head": 0}
    split = accelerate.dispatch_model(loaded(card, given), device_map=places, main_device=main)
    before = {name: value.clone() for name, value in split.state_dict().items() if not value.is_meta}
    agree(judged((twin(card, given), split), card, given), expected, 2e-3)
    assert all(torch.equal(split.state_dict()[name], value) for name, value in before.items())
    part = read_text(card, given, sequences=16).data.held
    drawn = draw(part, (), vectors=200, seed=0)
    model = loaded(card, given)
    whole = vectors_of(model, choose(model, None, None).sites, part, drawn, chunk=6)
    parted = vectors_of(split, choose(split, None, None).sites, part, drawn, chunk=6)
    for layer, vectors in whole.items():
        torch.testing.assert_close(parted[layer].values, vectors.values, rtol=1e-3, atol=1e-4)
    ids = torch.randint(4, 40, (160, 30), generator=torch.Generator().manual_seed(0))
    probed = [Probe(ids, seed=0).run(each, choose(each, None, None).sites) for each in (model, split)]
    for layer, kept in probed[0].items():
        torch.testing.assert_close(probed[1][layer].sample().values.cpu(), kept.sample().values, rtol=1e-3, atol=1e-4)


def test_a_device_map_places_the_model(text, tmp_path):
    pytest.importorskip("accelerate")
    card = described("llama", tmp_path)
    given = settings(text, device="cuda", device_map="auto")
    model = loaded(card, given)
    assert {p.device.type for p in model.parameters()} == {"cuda"}
    plain = settings(text, device="cuda")
    agree(
        judged((twin(card, given), model), card, given),
        judged((twin(card, plain), loaded(card, plain)), card, plain),
        1e-5,
    )


@pytest.mark.parametrize("changed", [{}, {"precision": "bf16"}, {"device_map": "auto"}])
def test_a_profile_is_made_on_the_gpu(changed, text, tmp_path):
    from anisoscope.store.run import open_run
    from anisoscope.study.profile.profile_study import profile

    path = save(tiny("llama"), tmp_path / "model")
    found = []
    for given in (settings(text), settings(text, device="cuda", **changed)):
        run = profile(str(path), given, quiet(), out=tmp_path / f"run-{len(found)}")
        rows = open_run(run.path).table().to_pylist()
        found.append(
            {
                (r["layer"], r["subset"]): r["value"]
                for r in rows  # step 0 is the twin, whose weights are drawn in the precision given
                if r["measure"] == "top_share" and not r["variant"] and r["step"] == 1
            }
        )
    agree(found[1], found[0], 0.05 if "precision" in changed else 2e-3)


def test_a_history_is_studied_on_the_gpu(text, tmp_path):
    from anisoscope.jobs.job_pool import JobResources
    from anisoscope.store.run import open_run
    from anisoscope.study.checkpoints.history_study import studied
    from anisoscope.study.model_settings import Examination, HistoryPlan
    from anisoscope.study.setting_fields import part_of

    for step in (0, 10, 20):
        save(tiny("llama", seed=step), tmp_path / "history" / f"checkpoint-{step}")
    found = []
    for device in ("cpu", "cuda"):
        given = part_of(settings(text, device=device), Examination)
        out = tmp_path / f"run-{device}"
        run = studied([str(tmp_path / "history")], given, HistoryPlan(probe=0), JobResources(), quiet(), out=out)
        rows = open_run(run.path).table().to_pylist()
        keep = [r for r in rows if r["view"] and r["measure"] == "energy"]
        found.append({(r["step"], r["timing"], *(r[k] for k in KEY)): r["value"] for r in keep})
    agree(found[1], found[0], 2e-3)
