"""A plan of interventions: what is refused, effects from planted rows, and one that is trained."""

import contextlib
import io
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy import stats

from anisoscope import cli
from anisoscope.errors import BrokenRuleError
from anisoscope.evaluate.row_builders import row
from anisoscope.jobs.job_pool import JobResources
from anisoscope.jobs.progress_display import JobLines
from anisoscope.report.make import make_report
from anisoscope.study.intervene import arm_training
from anisoscope.study.intervene.arm_training import ArmJob, _Training
from anisoscope.study.intervene.causal_sentences import pairs_of
from anisoscope.study.intervene.intervene_settings import InterveneSettings, example
from anisoscope.study.intervene.intervention_study import begun, cost_of, effect_rows, jobs_of, power_of, resumed
from anisoscope.study.setting_fields import made_of
from anisoscope.vocabulary import SENTENCES
from study.jobs import corpus

SMALL = {
    "steps": 4,
    "layers": 2,
    "width": 16,
    "heads": 2,
    "vocabulary": 300,
    "length": 16,
    "rank": 2,
    "resamples": 19,
    "corpus": "zipf:1",
}
ISTAR = {"name": "istar", "kind": "istar", "doses": [0.1]}


def plan(*arms, **changed):
    return made_of(InterveneSettings, SMALL | {"arms": [*arms] or [ISTAR]} | changed)


@pytest.mark.parametrize(
    ("arm", "changed", "message"),
    [
        ({"name": "x", "kind": "magic", "doses": [1]}, {}, "must be one of null cos istar"),
        ({"name": "x", "kind": "istar"}, {}, "must have different doses"),
        ({"name": "x", "kind": "istar", "doses": [1, 1]}, {}, "must have different doses"),
        ({"name": "x", "kind": "istar", "doses": ["much"]}, {}, "must be a number"),
        ({"name": "x", "kind": "istar", "doses": [math.nan]}, {}, "must lie in"),
        ({"name": "x", "kind": "updates", "doses": [2.0]}, {}, r"must lie in 0…1, got 2"),
        ({"name": "x", "kind": "updates", "doses": [1.0], "rank": 9}, {}, "must be at most 8, got 9"),
        ({"name": "x", "kind": "loss-weights", "doses": [9]}, {}, r"must lie in -2…2"),
        ({"name": "x", "kind": "mask-rates", "doses": [0.5]}, {}, "are for the encoder, got decoder"),
        ({"name": "x", "kind": "zipf", "doses": [0.5]}, {"corpus": "kjv"}, "the corpus must be zipf:s"),
        ({"name": "x", "kind": "istar", "doses": [1], "layers": [3]}, {}, r"must lie in 1…2"),
        ({"name": "control", "kind": "istar", "doses": [1]}, {}, "other than control"),
        ({"name": "x", "kind": "istar", "doses": [1], "dosis": 2}, {}, "--arms is not a setting"),
        ({"name": "x", "kind": "cell", "doses": [1]}, {}, "must name attention or objective"),
        ({"name": "x", "kind": "cell", "attention": "none", "doses": [1]}, {}, "which has no doses"),
        ({"name": "x", "kind": "cell", "attention": "both"}, {}, "attention must be one of causal"),
        ({"name": "x", "kind": "cell", "attention": "bidirectional"}, {}, "must not see it.*use attention prefix"),
        ({"name": "x", "kind": "cell", "objective": "next-token"}, {"role": "encoder"}, "must not see it"),
        ({"name": "x", "kind": "cell", "attention": "causal"}, {}, "must differ from the control"),
        ({"name": "x", "kind": "istar", "doses": [1], "attention": "none"}, {}, "are for arms of kind cell"),
        ({"name": "x", "kind": "istar", "doses": [0.1234567, 0.1234568]}, {}, "differ in six digits"),
        (ISTAR, {"heads": 3}, "multiple of heads"),
        (ISTAR, {"seeds": 400}, "at most 500 trainings, got 1200"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_before_anything_starts(arm, changed, message):
    with pytest.raises(BrokenRuleError, match=message.replace("…", ".")):
        plan(arm, **changed)


def test_arms_whose_rows_would_go_by_one_name_are_refused():
    with pytest.raises(BrokenRuleError, match="x_1 twice"):
        plan({"name": "x", "kind": "istar", "doses": [1.0]}, {"name": "x_1", "kind": "null"})


def test_a_null_arm_is_in_every_plan():
    settings = plan(ISTAR, seeds=2)
    labels = [(job.label, job.seed) for job in jobs_of(settings, "")]
    assert labels == [(label, seed) for label in ("control", "istar 0.1", "null") for seed in (0, 1)]
    assert len(plan({"name": "same", "kind": "null"}).every_arm) == 1


def test_the_default_plan_is_estimated_below_25_minutes_at_40_billion_operations_a_second():
    settings = made_of(InterveneSettings, example())
    assert cost_of(settings, rate=4e10).seconds < 25 * 60


def planted(settings, shift, noise=0.1, seed=0):
    """Rows of all jobs: the loss of an arm differs by ``shift`` times its dose."""
    rng, rows = np.random.default_rng(seed), []
    base = {s: rng.standard_normal() for s in settings.every_seed}
    for job in jobs_of(settings, ""):
        moved = shift * job.dose + noise * rng.standard_normal() * (job.arm not in (None, "null"))
        own = row(step=settings.steps, measure="loss", variant="held-out", value=5 + base[job.seed] + moved)
        rows.append(own | {"model": job.label, "seed": job.seed})
    return rows


def test_effects_are_paired_and_the_null_arm_shows_nothing():
    settings = plan({"name": "istar", "kind": "istar", "doses": [-1.0, 1.0, 2.0]}, seeds=6)
    rows = planted(settings, shift=2.0)
    found = {(r["measure"], r["model"]): r for r in effect_rows(rows, settings) if r["layer"] is None}
    values = {r["model"]: {} for r in rows}
    for r in rows:
        values[r["model"]][r["seed"]] = r["value"]
    pairs = [values["istar 1"][s] - values["control"][s] for s in range(6)]
    effect = found["effect", "istar 1"]
    assert effect["value"] == pytest.approx(np.mean(pairs))
    assert effect["p"] == pytest.approx(stats.ttest_1samp(pairs, 0)[1])
    assert (effect["outcome"], found["effect", "istar -1"]["outcome"]) == ("above", "below")
    assert found["effect", "null"]["value"] == 0
    assert found["effect", "null"]["outcome"] == "equal"
    assert found["trend", "istar"]["value"] == pytest.approx(2.0, abs=0.15)
    assert found["trend", "istar"]["outcome"] == "above"


def test_what_was_seen_of_a_training_before_it_diverged_is_no_effect():
    settings = plan(ISTAR, seeds=3)
    rows = planted(settings, shift=1.0)
    for one in rows:
        if one["model"] == "istar 0.1" and one["seed"] == 2:
            one["step"] = settings.steps - 1
    found = {r["model"]: r for r in effect_rows(rows, settings)}
    assert found["istar 0.1"]["n"] == 2


def test_seeds_that_diverged_are_left_out_of_the_comparison():
    settings = plan(ISTAR, seeds=4)
    rows = [r for r in planted(settings, shift=1.0) if not (r["model"] == "istar 0.1" and r["seed"] == 2)]
    found = {r["model"]: r for r in effect_rows(rows, settings)}
    assert found["istar 0.1"]["n"] == 3
    gone = effect_rows([r for r in rows if r["model"] != "istar 0.1"], settings)
    assert next(r for r in gone if r["model"] == "istar 0.1")["outcome"] == "not measured"


def test_the_default_plan_tests_every_sentence():
    settings = made_of(InterveneSettings, example())
    tested = {name for name, sentence in SENTENCES.items() if not sentence.outcomes or list(pairs_of(name, settings))}
    assert tested == set(SENTENCES)


DOSE_0 = [
    ("istar", {}),
    ("cos", {}),
    ("curvature", {}),
    ("decay", {}),
    ("updates", {}),
    ("loss-weights", {}),
    ("documents", {}),
    ("mask-rates", {"role": "encoder"}),
]


@pytest.mark.parametrize(("kind", "changed"), DOSE_0)
def test_dose_0_of_every_arm_is_the_control_to_the_last_bit(kind, changed, tiny_corpus):
    settings = plan({"name": "x", "kind": kind, "doses": [0.0, 0.5]}, corpus=tiny_corpus, probes=False, **changed)
    given = settings.model_dump(mode="json")
    ends = [stepped(_Training.of(ArmJob("", 0, given, *arm))) for arm in ((None, 0.0), ("x", 0.0))]
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def stepped(training):
    """Its weights after three steps as a job takes them."""
    optimizer = torch.optim.AdamW(training.model.parameters(), lr=1e-2)
    with contextlib.ExitStack() as attached:
        penalty = arm_training._attached(training, optimizer, attached)
        for step in range(3):
            loss = training.loss(training.batch(step))
            (loss if penalty is None else loss + penalty()).backward()
            optimizer.step()
            optimizer.zero_grad()
    return list(training.model.parameters())


@pytest.fixture(scope="module")
def tiny_corpus(tmp_path_factory):
    return corpus(tmp_path_factory.mktemp("texts"))


@pytest.mark.parametrize(
    ("lines", "flags", "message"),
    [
        (['arms = [{ name = "x", kind = "magic", doses = [1] }]'], [], "must be one of null"),
        (['arms = [{ name = "x", kind = "istar", doses = ["much"] }]'], [], "must be a number"),
        (['arms = [{ name = "x", kind = "istar", doses = [1e400] }]'], [], "must lie in"),
        (['arms = [{ name = "x", kind = "loss-weights", doses = [9] }]'], [], "must lie in"),
        (['arms = [{ name = "x", kind = "istar", doses = [1] }]'], ["--out", "OCCUPIED"], "holds|exist|empty"),
        (['arms = [{ name = "x", kind = "istar", doses = [1] }]'], ["--probe-data", "LABELS"], "line 3"),
        (['corpus = "nowhere.txt"', 'arms = [{ name = "x", kind = "istar", doses = [1] }]'], [], "nowhere"),
    ],
)
def test_bad_input_is_one_line_before_anything_starts(lines, flags, message, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "anisoscope.study.intervene.intervention_study.begun", lambda *args, **kwargs: pytest.fail("it started")
    )
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text("{}")
    (tmp_path / "labels.csv").write_text("text,label\na,b\nonly text\n")
    (tmp_path / "plan.toml").write_text("\n".join(lines))
    known = {"OCCUPIED": str(tmp_path / "run"), "LABELS": str(tmp_path / "labels.csv")}
    with pytest.raises(SystemExit) as ended:
        cli.main(["intervene", str(tmp_path / "plan.toml"), *(known.get(flag, flag) for flag in flags)])
    assert ended.value.code in (1, 2)
    told = capsys.readouterr().err.strip()
    assert len(told.splitlines()) == 1
    assert re.search(message, told), told


@pytest.mark.slow
def test_masking_rates_are_those_of_types():
    settings = plan({"name": "rare", "kind": "mask-rates", "doses": [1.0]}, role="encoder", mask_rate=0.3, steps=40)
    given = settings.model_dump(mode="json")
    changed, control = (_Training.of(ArmJob("", 0, given, *arm)) for arm in (("rare", 1.0), (None, 0.0)))
    counts = torch.from_numpy(changed.data.counts())

    def law(training):
        labels = torch.cat([training.batch(step)["labels"].flatten() for step in range(40)])
        return torch.bincount(labels[labels >= 0], minlength=len(counts))

    asked, plain = law(changed), law(control)
    frequent = counts > counts.float().quantile(0.9)
    assert asked[frequent].sum() / asked.sum() < 0.8 * plain[frequent].sum() / plain.sum()
    assert changed.law is not None
    assert changed.law.realised < 0.7


@pytest.fixture
def quiet():
    return JobLines(Console(file=io.StringIO()))


@pytest.mark.parametrize(
    ("dose", "penalty", "what"),
    [(3e38, None, "norm of the gradient of (inf|nan)"), (1.0, math.nan, "loss of nan"), (1e39, None, "1e.39; use 0")],
)
def test_a_dose_without_a_finite_first_step_is_told_before_anything_is_written(
    tmp_path, quiet, monkeypatch, dose, penalty, what
):
    if penalty is not None:
        monkeypatch.setattr(arm_training, "_attached", lambda *given: lambda: torch.tensor(penalty))
    settings = plan({"name": "much", "kind": "istar", "doses": [dose]}, seeds=1)
    with pytest.raises(BrokenRuleError, match=what):
        begun(settings, JobResources(), quiet, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_plan_is_trained_resumed_and_reported(tmp_path, quiet, monkeypatch):
    arms = [ISTAR, {"name": "off", "kind": "updates", "doses": [1.0], "rank": 2, "every": 2}]
    settings = plan(*arms, {"name": "bad", "kind": "curvature", "doses": [1.0]}, seeds=3)
    real = arm_training._attached

    def broken(training, *rest):
        if training.job.arm == "bad":  # a penalty that makes the loss NaN after the first step
            values = iter([0.0])
            return lambda: torch.tensor(next(values, math.nan))
        return real(training, *rest)

    monkeypatch.setattr(arm_training, "_attached", broken)
    run = begun(settings, JobResources(), quiet, out=tmp_path / "run")
    assert {name.split("-")[0] for name in run.manifest["failed"]} == {"bad_1"}
    assert all("diverged" in why for why in run.manifest["failed"].values())
    rows = run.table().to_pylist()
    effects = {(r["model"], r["variant"]): r for r in rows if r["measure"] == "effect" and r["layer"] is None}
    assert {"loss", "loss_rarest", "isoscore_activations", "enrichment_weight_pairing", "spectral_decay"} & {
        outcome for _, outcome in effects
    } == {"loss", "loss_rarest", "isoscore_activations", "enrichment_weight_pairing"}  # too narrow for a decay
    for (model, _), found in effects.items():
        if model == "null":
            assert (found["value"], found["p"]) == (0.0, 1.0)
        if model == "bad 1":  # although its held-out loss was taken before it diverged
            assert found["outcome"] == "not measured"
        else:
            assert math.isfinite(found["value"]) or found["note"] == "no seed has both"
    for outcome in ("loss", "loss_rarest", "isoscore_activations", "enrichment_haar"):
        assert math.isfinite(effects["off 1", outcome]["value"])
    assert effects["istar 0.1", "isoscore_activations"]["value"] != 0
    page = make_report([str(tmp_path / "run")])
    assert "to the last bit" in page
    assert "did not finish." in page
    monkeypatch.setattr(arm_training, "_attached", real)
    again = resumed(tmp_path / "run", JobResources(), quiet)
    assert again.manifest["failed"] == {}
    table = [r for r in again.table().to_pylist() if r["measure"] == "effect" and r["layer"] is None]
    after = {(r["model"], r["variant"]): r["value"] for r in table}
    same = [(after[key], found["value"]) for key, found in effects.items() if key[0] != "bad 1"]
    assert all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in same)
    assert math.isfinite(after["bad 1", "loss"])
    assert power_of(settings, str(tmp_path / "run"))["loss"] > 0


def test_a_dry_run_names_arms_jobs_time_disk_and_what_is_not_known(capsys, tmp_path):
    lines = [f"{name} = {value!r}" for name, value in SMALL.items()]
    file = tmp_path / "plan.toml"
    file.write_text("\n".join([*lines, "[[arms]]", 'name = "istar"', 'kind = "istar"', "doses = [0.1, 0.2]"]))
    cli.main(["intervene", str(file), "--dry-run", "--seeds", "2"])
    out = capsys.readouterr().out
    for words in ("weight of IStar", "8 training runs of 4 steps", "of disk", "--pilot RUN"):
        assert words in out
    assert not list(Path(tmp_path).glob("*run*"))


@pytest.mark.slow
def test_a_plan_does_not_write_over_a_run(capsys, tmp_path, quiet):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text("{}")
    with pytest.raises(Exception, match="holds"):
        begun(plan(), JobResources(), quiet, out=tmp_path / "run")
