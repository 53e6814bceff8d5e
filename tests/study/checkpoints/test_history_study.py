"""A real history, studied after the fact: what the scope saw live, and the same rows wherever jobs run."""

import io
import json
import math
import shutil

import pytest
import torch
from rich.console import Console

from anisoscope.data.tokens import prepare
from anisoscope.errors import AnisoscopeError, BrokenRuleError
from anisoscope.evaluate.evaluator import Evaluator, EvaluatorSettings
from anisoscope.evaluate.judge_sites import Request
from anisoscope.jobs.job_pool import JobResources
from anisoscope.jobs.progress_display import JobLines
from anisoscope.models.loading import describe, load, locate
from anisoscope.observe.finalize import finalize
from anisoscope.observe.offline import observe_model
from anisoscope.observe.site_selection import choose
from anisoscope.store.run import open_run
from anisoscope.study.checkpoints import download_cache as kept
from anisoscope.study.checkpoints import history_study as study
from anisoscope.study.checkpoints.histories import Origin
from anisoscope.study.dataset import TrainingDataset, collated
from anisoscope.study.model_settings import Examination, HistoryPlan
from anisoscope.study.pair.pair_study import pair
from anisoscope.study.pair.trainer_run import TrainingJob, _documents, _scope_seed
from anisoscope.study.setting_fields import made_of
from study.jobs import Quiet, corpus, settings

KEYS = ("step", "layer", "view", "tensor", "subset", "proxy", "rank", "timing", "measure", "variant", "null")
ALL = ("model", "role", "seed", *KEYS, "value", "low", "high", "p", "q", "n", "note", "site", "tokens")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A pair of trainings with a dozen checkpoints each."""
    folder = tmp_path_factory.mktemp("history")
    given = settings(
        folder, steps=60, observations=13, history=True, proxies=("pca",), targets=True, length=24, frequency=True
    )
    run = pair(given, Quiet(), out=folder / "run")
    return given, open_run(run.path), folder


def quiet():
    return JobLines(Console(file=io.StringIO()))


def history(trained, role="decoder"):
    return trained[2] / "run" / "history" / f"{role}-0"


def examined(trained, **changed):
    folder = trained[2]
    given = {"text": corpus(folder / "texts"), "tokeniser": str(folder / "run" / "tokeniser.json"), "length": 24}
    given |= {
        "sequences": 12,
        "chunk": 5,
        "rank": 4,
        "proxies": ("pca",),
        "resamples": 19,
        "threads": 1,
        "device": "cpu",
    }
    return made_of(Examination, given | changed)


def plan(**changed):
    return HistoryPlan(**({"probe": 0} | changed))


def by_key(rows):
    return {tuple(row[key] for key in KEYS): row for row in rows}


@pytest.mark.parametrize("role", ["decoder", "encoder"])
def test_the_same_steps_and_batches_give_what_the_scope_saw_live(trained, role):
    given, run, folder = trained
    live = by_key(r for r in run.table().to_pylist() if r["role"] == role and r["view"] is not None)
    data = prepare(given.corpus, length=given.length, vocabulary=given.vocabulary, held_out=given.held_out)
    samples = given.steps * given.batch
    lessons = TrainingDataset(data, role, samples=samples, seed=0, mask_rate=given.mask_rate)
    job = TrainingJob(given, role, 0, folder / "run")
    documents = _documents(job, lessons)
    seed = _scope_seed(job, lessons, documents)
    request = Request(
        given.proxies, given.rank, ("all",), Examination().nulls, given.resamples, seed, given.other_ranks
    )
    judge = Evaluator(EvaluatorSettings(request, int(0.3 * given.steps)))
    assert len(given.observed) >= 12
    compared = 0
    for step in given.observed:
        model = load(describe(locate(str(history(trained, role) / f"checkpoint-{step}"))))
        batch = collated([lessons[k] for k in range(step * given.batch, (step + 1) * given.batch)])
        if documents is not None:
            batch["documents"] = documents(step)
        seen = observe_model(model, choose(model, None, None), [batch], step=step, seed=seed, targets=True)
        for key, row in by_key(judge.judged(finalize(seen, rows=8192, seed=seed)).rows).items():
            if row["view"] is None or row["measure"] == "note":
                continue
            compared += 1
            for column in ("value", "low", "high", "p"):
                a, b = live[key][column], row[column]
                assert (a is None) == (b is None), (key, column)
                same = a is None or (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-9)
                assert same, (key, column, a, b)
    assert compared > 2000


def test_a_history_becomes_a_run_like_any_other(trained, tmp_path):
    run = study.studied(
        [str(history(trained))], examined(trained), plan(probe=5120), JobResources(), quiet(), out=tmp_path / "run"
    )
    rows = open_run(run.path).table().to_pylist()
    steps = sorted({r["step"] for r in rows})
    # The learning rate is 0 at the first step of the warm-up: the second checkpoint is the first one again.
    assert steps == [step for step in trained[0].observed if step != 1]
    assert list(run.manifest["integrity"]["left_out"]) == ["checkpoint-1"]
    assert {r["model"] for r in rows} == {"decoder-0"}
    assert {r["timing"] for r in rows if r["measure"] == "energy"} == {"rolling", "anchored"}
    anchored = {r["step"] for r in rows if r["timing"] == "anchored"}
    assert min(anchored) > 0.3 * run.manifest["steps"] - 1
    assert {r["null"] for r in rows if r["measure"] == "enrichment" and r["step"]} == set(Examination().nulls)
    assert not [r for r in rows if r["null"] == "init" and r["step"] == 0]
    assert {r["variant"] for r in rows if r["measure"] == "angle"} == {"since first", "since previous"}
    start = {r["layer"]: r["value"] for r in rows if r["measure"] == "angle" and r["step"] == steps[1]}
    assert all(angle >= 0 for angle in start.values())
    assert {r["site"] for r in rows if r["view"] == "weight"} >= {"gpt_neox.layers.0.mlp.dense_h_to_4h"}
    related = {(r["step"], r["item"]) for r in rows if r["measure"] == "cka" and r["variant"] == "previous checkpoint"}
    assert related == set(zip(steps[1:], steps[:-1], strict=True))
    last = [r for r in rows if r["measure"] == "neighbourhood_overlap" and r["variant"] == "last checkpoint"]
    assert {(r["step"], r["item"]) for r in last} == {(step, steps[-1]) for step in steps[:-1]}
    assert not list((tmp_path / "run").glob("aligned-*"))
    wandering = {r["step"] for r in rows if r["variant"] == "trajectory, spearman" and r["tensor"] == "input"}
    assert wandering == set(steps[2:])  # of two places nothing can be said
    contextual = [r for r in rows if r["variant"] == "trajectory, spearman" and r["view"] == "representation"]
    assert {(r["step"], r["subset"]) for r in contextual} == {(step, "no-first") for step in steps[2:]}
    gradients = [
        r for r in rows if r["view"] == "representation" and r["tensor"] == "gradients" and r["layer"] is not None
    ]
    assert {(r["layer"], r["site"]) for r in contextual} == {(r["layer"], r["site"]) for r in gradients}
    assert all(r["n"] >= 8 and not math.isnan(r["value"]) for r in contextual)
    changes = [r for r in rows if r["tensor"] == "change" and r["measure"] == "enrichment"]
    assert {r["step"] for r in changes} == set(steps[:-1])
    assert {r["null"] for r in changes if math.isfinite(r["value"])} >= {"haar", "axes"}
    assert not [r for r in changes if r["low"] is not None]  # no function of the observed sequences: no interval
    left = {path.name for path in (tmp_path / "run").iterdir() if path.suffix == ".work" or "places" in path.name}
    assert not left


def rows_of(path):
    return [[row[name] for name in ALL] for row in open_run(path).table().to_pylist()]


def equal(a, b):
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert json.dumps(x) == json.dumps(y)  # NaN equals NaN here, and floats are compared to the last bit


def test_a_study_goes_on_after_it_was_stopped(trained, tmp_path, monkeypatch):
    given = (examined(trained, resamples=9), plan(), JobResources())
    some_of = [str(history(trained) / f"checkpoint-{step}") for step in (0, 3, 5, *trained[0].observed[-3:])]
    whole = study.studied(some_of, *given, quiet(), out=tmp_path / "whole")
    from anisoscope.study.checkpoints import checkpoint_jobs

    taken, real = [], checkpoint_jobs.observe_model

    def some(*args, **kwargs):
        taken.append(kwargs["step"])
        if len(taken) == 4:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(checkpoint_jobs, "observe_model", some)
    assert not study.studied(some_of, *given, quiet(), out=tmp_path / "stopped").finished
    monkeypatch.setattr(checkpoint_jobs, "observe_model", real)
    stopped = open_run(tmp_path / "stopped")
    assert stopped.manifest["status"] == "interrupted"
    assert len(stopped.manifest["done"]) == 3
    again = study.resumed(tmp_path / "stopped", JobResources(), quiet())
    assert again.finished
    equal(rows_of(whole.path), rows_of(again.path))


@pytest.mark.slow
def test_jobs_on_ray_give_the_rows_of_the_serial_study_bit_for_bit(trained, tmp_path):
    pytest.importorskip("ray")
    few = [str(history(trained) / f"checkpoint-{step}") for step in (0, 5, *trained[0].observed[-2:])]
    given = examined(trained, resamples=9), plan(seeds=2)
    serial = study.studied(few, *given, JobResources(), quiet(), out=tmp_path / "serial")
    spread = study.studied(few, *given, JobResources(ray="local"), quiet(), out=tmp_path / "ray")
    assert spread.finished
    assert {row[2] for row in rows_of(spread.path)} == {0, 1}
    equal(rows_of(serial.path), rows_of(spread.path))


def test_parts_of_the_text_add_up_to_the_whole(trained, tmp_path):
    few = [str(history(trained) / f"checkpoint-{step}") for step in (0, *trained[0].observed[-3:])]
    whole = study.studied(few, examined(trained, targets=False), plan(), JobResources(), quiet(), out=tmp_path / "one")
    parts = study.studied(
        few, examined(trained, targets=False), plan(shards=2), JobResources(), quiet(), out=tmp_path / "two"
    )
    a, b = (by_key(open_run(run.path).table().to_pylist()) for run in (whole, parts))
    assert a.keys() == b.keys()
    for key, row in a.items():
        assert row["value"] == pytest.approx(b[key]["value"], rel=1e-4, abs=1e-6, nan_ok=True), key


def test_without_a_step_0_the_untrained_twin_is_the_null(trained, tmp_path):
    few = [str(history(trained) / f"checkpoint-{step}") for step in trained[0].observed[-3:]]
    run = study.studied(few, examined(trained), plan(), JobResources(), quiet(), out=tmp_path / "run")
    rows = run.table().to_pylist()
    assert 0 not in {r["step"] for r in rows}
    assert all(r["value"] > 0 for r in rows if r["null"] == "init")
    assert len({r["step"] for r in rows if r["null"] == "init"}) == 3


def damaged(trained, folder, change):
    """A copy of the history with one checkpoint changed."""
    for step in (0, *trained[0].observed[-4:]):
        shutil.copytree(history(trained) / f"checkpoint-{step}", folder / f"checkpoint-{step}")
    change(folder)
    return str(folder)


def test_a_checkpoint_that_is_another_one_is_left_out_and_named(trained, tmp_path):
    last, other = trained[0].observed[-1], trained[0].observed[-3]

    def served_twice(folder):
        shutil.copy(folder / f"checkpoint-{last}/model.safetensors", folder / f"checkpoint-{other}/model.safetensors")

    where = damaged(trained, tmp_path / "history", served_twice)
    run = study.studied([where], examined(trained), plan(), JobResources(), quiet(), out=tmp_path / "run")
    assert list(run.manifest["integrity"]["left_out"]) == [f"checkpoint-{other}"]
    assert other not in {r["step"] for r in run.table().to_pylist()}
    run = study.studied(
        [where], examined(trained), plan(include_untrusted=True), JobResources(), quiet(), out=tmp_path / "all"
    )
    assert other in {r["step"] for r in run.table().to_pylist()}


def test_a_checkpoint_of_nan_is_reported_and_the_study_goes_on(trained, tmp_path):
    bad = trained[0].observed[-2]

    def poisoned(folder):
        from safetensors.torch import load_file, save_file

        file = folder / f"checkpoint-{bad}/model.safetensors"
        tensors = load_file(file)
        tensors["gpt_neox.layers.1.mlp.dense_h_to_4h.weight"][0, 0] = math.nan
        save_file(tensors, file, {"format": "pt"})

    where = damaged(trained, tmp_path / "history", poisoned)
    run = study.studied([where], examined(trained), plan(), JobResources(), quiet(), out=tmp_path / "run")
    assert run.finished
    assert list(run.manifest["failed"]) == [f"checkpoint-{bad}-0"]
    skipped = [r for r in run.table().to_pylist() if r["measure"] == "skipped"]
    assert [r["step"] for r in skipped] == [bad]
    assert "finite" in skipped[0]["note"]


def test_wrong_input_is_told_before_long_work(trained, tmp_path):
    where = [str(history(trained))]
    cases = [
        (examined(trained, rank=30), plan(), "at most half of the width"),
        (examined(trained, text="zipf:1", sequences=10**6), plan(), "must give 1000000 sequences"),
        (examined(trained, length=4096), plan(), "takes up to"),
    ]
    for given, how, message in cases:
        with pytest.raises((AnisoscopeError, BrokenRuleError), match=message):
            study.studied(where, given, how, JobResources(), quiet(), out=tmp_path / "none")
    assert not (tmp_path / "none").exists()
    bare = damaged(trained, tmp_path / "bare", lambda folder: [f.unlink() for f in folder.glob("*/tokenizer.json")])
    with pytest.raises((AnisoscopeError, BrokenRuleError), match=r"holds no tokeniser .* pass --tokeniser"):
        study.studied([bare], examined(trained, tokeniser=None), plan(), JobResources(), quiet(), out=tmp_path / "none")
    assert not (tmp_path / "none").exists()
    short = tmp_path / "short.txt"
    short.write_text("a few words, and no more " * 40)
    with pytest.raises(BrokenRuleError, match=r"at least 4,096 tokens"):
        study.studied(where, examined(trained, text=str(short)), plan(), JobResources(), quiet(), out=tmp_path / "none")
    with pytest.raises((AnisoscopeError, BrokenRuleError), match="two checkpoints"):
        study.studied([str(history(trained) / "checkpoint-0")], examined(trained), plan(), JobResources(), quiet())


def test_weights_are_not_changed_by_a_study(trained):
    path = history(trained) / "checkpoint-0"
    model = load(describe(locate(str(path))))
    before = [p.detach().clone() for p in model.parameters()]
    lessons = torch.randint(10, 300, (12, 16), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": lessons, "attention_mask": torch.ones_like(lessons), "labels": lessons}
    observe_model(model, choose(model, None, None), [batch], step=0, targets=True)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_no_more_downloads_are_kept_than_asked_and_none_that_was_there(monkeypatch):
    here, gone = {"step0"}, []
    monkeypatch.setattr(kept, "is_here", lambda name, label, **options: label in here)
    monkeypatch.setattr(kept, "forget", lambda name, label: gone.append(label))
    origins = [Origin(f"step{step}", name="owner/tiny") for step in range(6)]
    keeping = kept.Keeping(origins, 2, allow_pickle=False)
    for origin in origins:
        keeping.used(origin)
    assert gone == ["step1", "step2", "step3"]
    everything = kept.Keeping(origins, None, allow_pickle=False)
    for origin in origins:
        everything.used(origin)
    assert len(gone) == 3
