"""A finished model profiled: tiny ones made here, from the folder a user has, into a run and a page."""

import io
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from anisoscope.capture.sites import find_sites
from anisoscope.data.tokens import Sequences
from anisoscope.errors import AnisoscopeError, BrokenRuleError
from anisoscope.evaluate.evaluator import Evaluator, EvaluatorSettings
from anisoscope.geometry.dimension import two_nn
from anisoscope.geometry.isotropy import top_share
from anisoscope.jobs.progress_display import JobLines
from anisoscope.models.catalogue import CATALOGUE
from anisoscope.models.loading import describe, load, locate, untrained
from anisoscope.observe.finalize import finalize
from anisoscope.observe.offline import observe_model
from anisoscope.observe.site_selection import choose
from anisoscope.report.make import make_report
from anisoscope.store.run import open_run
from anisoscope.study.estimates import statistics_bytes
from anisoscope.study.model_settings import ProfileSettings
from anisoscope.study.profile.layer_measures import Profile, draw, sequences_needed, vectors_of
from anisoscope.study.profile.profile_study import planned, profile
from anisoscope.study.setting_fields import made_of
from anisoscope.study.tokenized_text import loaded, read_text, twin
from models.snapshots import WIDTH, letters, save, tiny


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return letters(tmp_path_factory.mktemp("text"))


def quiet():
    return JobLines(Console(file=io.StringIO()))


def settings(text, **changed):
    given = {"text": text, "length": 32, "sequences": 16, "chunk": 6, "rank": 4, "resamples": 19, "batches": 2}
    return made_of(ProfileSettings, given | {"threads": 1, "device": "cpu", "proxies": ("pca",)} | changed)


@pytest.mark.parametrize("model_type", sorted({entry.model_type for entry in CATALOGUE}))
def test_every_architecture_of_the_literature_can_be_examined(model_type, text, tmp_path):
    card = describe(locate(str(save(tiny(model_type), tmp_path / "model"))))
    given = settings(text)
    reading = read_text(card, given, sequences=16)
    judge = Evaluator(EvaluatorSettings(given.request(), None))
    rows = []
    for step, model in enumerate((twin(card, given), loaded(card, given))):
        seen = observe_model(
            model, choose(model, None, None), reading.chunks(given), step=step, seed=reading.seed, targets=True
        )
        rows = judge.judged(finalize(seen, rows=8192, seed=reading.seed)).rows
    views = {r["view"] for r in rows if r["measure"] == "energy"}
    assert views == {"representation", "weight", "embedding"}
    nulls = {r["null"] for r in rows if r["measure"] == "enrichment" and r["view"] == "representation"}
    assert nulls == {"haar", "normal", "axes", "init", "targets", "targets-uniform"}
    assert all(np.isfinite(r["value"]) for r in rows if r["measure"] == "energy")


@pytest.fixture(scope="module")
def runs(text, tmp_path_factory):
    """Profiles of a decoder and of an encoder."""
    folder, found = tmp_path_factory.mktemp("runs"), {}
    for kind in ("llama", "bert"):
        path = save(tiny(kind), folder / kind)
        found[kind] = profile(str(path), settings(text), quiet(), out=folder / f"run-{kind}"), path
    return found


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_a_profile_has_every_layer_and_selection(runs, kind):
    run, _ = runs[kind]
    rows = open_run(run.path).table().to_pylist()
    profiled = [r for r in rows if r["measure"] == "two_nn" and r["variant"] is None]
    assert {r["layer"] for r in profiled} == {0, 1, 2}
    assert {r["step"] for r in profiled} == {0, 1}
    assert {r["subset"] for r in profiled} == {"all", "no-first"}
    assert all(r["floor"] > 0 for r in profiled if r["value"] == r["value"])  # a Gaussian of equal covariance
    measures = {r["measure"] for r in rows}
    assert measures >= {"top_share", "average_cosine", "isoscore", "isoscore_star", "local_isotropy", "partition_ratio"}
    shares = {r["variant"] for r in rows if r["measure"] == "top_share" and r["tensor"] == "activations"}
    assert shares == {None, "power=1, centred", "power=2, uncentred", "power=1, uncentred"}
    final = [r for r in rows if r["step"] == 1 and r["measure"] == "top_share" and r["tensor"] == "activations"]
    assert all(r["low"] <= r["value"] <= r["high"] and "over 2 batches" in r["note"] for r in final)
    assert {r["measure"] for r in rows} >= {"prominence", "peak_layer", "rankme", "spectral_decay"}
    assert "top_share, power=1, uncentred" in {r["variant"] for r in rows if r["measure"] == "peak_layer"}
    pairs = {(r["layer"], r["item"]) for r in rows if r["measure"] == "cka" and r["step"] == 1}
    assert pairs == {(0, 1), (0, 2), (1, 2)}
    assert {r["variant"] for r in rows if r["measure"] == "neighbourhood_overlap"} >= {None, "layers, across"}
    assert {r["role"] for r in rows} == {"decoder" if kind == "llama" else "encoder"}
    keys = [tuple(r[k] for k in r if k not in ("value", "low", "high", "p", "q", "n", "note")) for r in rows]
    concept_free = [key for key, r in zip(keys, rows, strict=True) if r["measure"] != "concept"]
    assert len(concept_free) == len(set(concept_free))


def test_the_numbers_are_those_of_the_hidden_states(runs, text):
    """Against transformers' own hidden states, measured directly."""
    run, path = runs["llama"]
    given = settings(text)
    card = describe(locate(str(path)))
    each = sequences_needed(given.vectors, given.length, 0)
    reading = read_text(card, given, sequences=each * 2)
    model, values = load(card), {"top_share": [], "two_nn": []}
    for batch in range(2):
        part = reading.data.train.rows(slice(batch * each, (batch + 1) * each))
        drawn = draw(part, reading.data.special_ids, vectors=given.vectors, seed=batch)
        with torch.no_grad():
            ids = torch.from_numpy(part.ids.astype(np.int64))
            hidden = model(ids, output_hidden_states=True).hidden_states[1]
        x = hidden[torch.from_numpy(drawn.chosen["no-first"])]
        assert len(x) == given.vectors
        values["top_share"].append(float(top_share(x)))
        values["two_nn"].append(float(two_nn(x)))
    rows = run.table().to_pylist()
    for measure, expected in values.items():
        wanted = {
            "measure": measure,
            "layer": 1,
            "subset": "no-first",
            "step": 1,
            "variant": None,
            "tensor": "activations",
        }
        (row,) = [r for r in rows if all(r[k] == v for k, v in wanted.items())]
        assert row["value"] == pytest.approx(np.mean(expected), rel=1e-5)
        assert row["high"] - row["value"] == pytest.approx(12.706 * np.std(expected, ddof=1) / 2**0.5, rel=1e-3)


def test_without_its_untrained_twin_a_model_has_the_same_numbers_and_no_init(runs, text, tmp_path):
    whole, path = runs["llama"]
    asked = settings(text, untrained=False, frequency=False, targets=False)
    alone = profile(str(path), asked, quiet(), out=tmp_path / "run").table().to_pylist()
    assert {r["step"] for r in alone} == {1}
    assert "init" not in {r["null"] for r in alone}
    assert "haar" in {r["null"] for r in alone}
    keys = ("layer", "view", "tensor", "subset", "measure", "variant", "item")
    found, beside = (
        {
            tuple(r[key] for key in keys): r["value"]
            for r in rows
            if r["step"] == 1 and r["measure"] in ("top_share", "two_nn")
        }
        for rows in (alone, whole.table().to_pylist())
    )
    assert found
    assert all(np.isclose(value, beside[key], equal_nan=True) for key, value in found.items())


def test_another_attention_is_another_model_from_the_first_block_on(runs, text, tmp_path):
    usual, path = runs["llama"]
    asked = settings(text, untrained=False, attention="none", measures="usual", batches=1)
    run = profile(str(path), asked, quiet(), out=tmp_path / "run")
    assert run.manifest["model"]["attention"] == "none"
    rows = run.table().to_pylist()
    assert {r["model"] for r in rows} == {"llama, attention none"}
    assert {r["view"] for r in rows if r["measure"] == "energy"} == {"representation", "weight", "embedding"}

    def shares(rows):
        return {
            r["layer"]: r["value"]
            for r in rows
            if (r["measure"], r["subset"], r["step"], r["variant"]) == ("top_share", "all", 1, "power=1, centred")
            and r["tensor"] == "activations"
        }

    found, before = shares(rows), shares(usual.table().to_pylist())
    assert found[0] == pytest.approx(before[0], rel=0.1)  # another batch of the same embedding
    assert abs(found[2] - before[2]) > 0.2 * before[2]


def test_draws_are_of_equal_size_and_leave_out_what_they_say():
    ids = np.arange(40 * 12).reshape(40, 12).astype(np.int32) % 50
    part = Sequences(ids, np.full(40, 10, np.int32))
    drawn = draw(part, (7, 8), vectors=200, seed=0)
    assert {cloud: int(chosen.sum()) for cloud, chosen in drawn.chosen.items()} == dict.fromkeys(
        ("all", "no-first", "no-special"), 200
    )
    assert not drawn.chosen["no-first"][:, 0].any()
    assert not np.isin(ids[drawn.chosen["no-special"]], (7, 8)).any()
    assert all(not chosen[:, 10:].any() for chosen in drawn.chosen.values())


def test_an_outlying_first_position_shows_in_one_curve_alone(text, tmp_path):
    """A planted sink: the first position gets a huge vector, and only the selection that holds it is anisotropic."""
    card = describe(locate(str(save(tiny("llama"), tmp_path / "model"))))
    given = settings(text)
    reading = read_text(card, given, sequences=200)
    model: Any = load(card)

    def sink(module, args, output):
        hidden = (output[0] if isinstance(output, tuple) else output).clone()
        hidden[:, 0] += 1e3 * torch.arange(1.0, 1 + WIDTH)
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

    model.model.layers[0].register_forward_hook(sink)
    part = reading.data.train.rows(slice(0, 160))
    drawn = draw(part, reading.data.special_ids, vectors=4096, seed=0)
    found = Profile()
    found.add(vectors_of(model, find_sites(model), part, drawn, chunk=8), seed=0)
    share = {
        r["subset"]: r["value"]
        for r in found.rows()
        if r["measure"] == "top_share" and r["layer"] == 1 and not r["variant"]
    }
    assert share["all"] > 0.999
    assert share["no-first"] < 0.6


def test_activations_that_are_not_finite_are_told(text, tmp_path):
    model = tiny("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 0] = torch.nan
    path = save(model, tmp_path / "model")
    with pytest.raises(AnisoscopeError, match="layer 2 has activations that are not finite"):
        profile(str(path), settings(text), quiet(), out=tmp_path / "run")
    assert open_run(tmp_path / "run").manifest["status"] == "failed"


def test_the_page_of_a_profile_shows_both_curves_and_says_what_they_mean(runs):
    page = make_report([runs["llama"][0].path])
    assert "without first positions" in page
    assert "The shape of the profile, measured" in page
    assert "Enrichment by layer" in page
    assert "untrained twin" in page
    assert "How enrichment emerges" not in page


def test_wrong_input_is_told_before_long_work(text, tmp_path):
    path = str(save(tiny("bert"), tmp_path / "bert"))
    cases = [
        ({"rank": 12}, "at most half of the width, 8"),
        ({"length": 128}, "takes up to 66 tokens"),
        ({"text": str(tmp_path / "none.txt")}, "none.txt"),
    ]
    for changed, message in cases:
        with pytest.raises((AnisoscopeError, BrokenRuleError), match=message):
            profile(path, settings(changed.pop("text", text), **changed), quiet(), out=tmp_path / "run")
    with pytest.raises(BrokenRuleError, match="--batches must be at least 1"):
        settings(text, batches=0)
    assert not (tmp_path / "run").exists()
    large = save(tiny("gpt2"), tmp_path / "gpt2")
    words = save(tiny("bert"), tmp_path / "words")
    more = (words / "tokenizer.json").read_text().replace('"z":', '"zz":999,"z":')
    (words / "tokenizer.json").write_text(more)
    with pytest.raises(BrokenRuleError, match="must not be larger than the embedding"):
        profile(str(large), settings(text, tokeniser=str(words)), quiet(), out=tmp_path / "run")


def test_the_estimate_bounds_what_is_kept(text, tmp_path):
    path = str(save(tiny("llama"), tmp_path / "model"))
    given = settings(text, sequences=64)
    card, size = planned(path, given)
    reading = read_text(card, given, sequences=64)
    model = untrained(card)
    seen = observe_model(
        model, choose(model, None, None), reading.chunks(given), step=0, seed=reading.seed, targets=True
    )
    kept = finalize(seen, rows=8192, seed=reading.seed).bytes
    assert 0.4 * statistics_bytes(card, given) < kept < 1.5 * statistics_bytes(card, given)
    assert size.total > kept


@pytest.mark.slow
def test_half_precision_is_measured_too(text, tmp_path):
    path = str(save(tiny("llama"), tmp_path / "model"))
    run = profile(path, settings(text, precision="bf16", batches=1), quiet(), out=tmp_path / "run")
    rows = run.table().to_pylist()
    assert all(np.isfinite(r["value"]) for r in rows if r["measure"] in ("energy", "top_share"))
    assert ProfileSettings(**run.manifest["config"]).precision == "bf16"


def test_a_model_spread_by_accelerate_gives_the_same_numbers(text, tmp_path):
    """Here it is spread over one device; gradients pass accelerate's hooks all the same."""
    pytest.importorskip("accelerate")
    card = describe(locate(str(save(tiny("llama"), tmp_path / "model"))))
    given = settings(text)
    reading = read_text(card, given, sequences=16)
    found = []
    for device_map in (None, "auto"):
        model = loaded(card, settings(text, device_map=device_map))
        seen = observe_model(model, choose(model, None, None), reading.chunks(given), step=0, seed=reading.seed)
        rows = (
            Evaluator(EvaluatorSettings(given.request(), None))
            .judged(finalize(seen, rows=8192, seed=reading.seed))
            .rows
        )
        found.append([(r["measure"], r["layer"], r["value"]) for r in rows if r["measure"] == "energy"])
    assert found[0] == found[1]
