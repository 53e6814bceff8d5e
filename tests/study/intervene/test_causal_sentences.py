"""Causal sentences: which arms test them, verdicts from planted rows, and the page."""

import numpy as np
import pytest
from scipy import stats

from anisoscope.evaluate.row_builders import row
from anisoscope.report.sections.causal_verdicts import verdict_of
from anisoscope.study.intervene.causal_sentences import pairs_of, partial_correlation, sentence_rows
from anisoscope.study.intervene.intervene_settings import InterveneSettings
from anisoscope.study.intervene.intervention_study import effect_rows, outcome_values
from anisoscope.study.setting_fields import made_of
from anisoscope.vocabulary import EFFECTS, SENTENCES

ARMS = [
    {"name": "flat", "kind": "loss-weights", "doses": [-0.5, 0.5]},
    {"name": "istar", "kind": "istar", "doses": [0.1]},
    {"name": "proxy", "kind": "updates", "doses": [1.0], "against": "normal"},
    {"name": "normal", "kind": "updates", "doses": [1.0], "directions": "normal", "against": "proxy"},
    {"name": "plain", "kind": "updates", "doses": [1.0]},
    {"name": "haar", "kind": "updates", "doses": [1.0], "directions": "haar"},
    {"name": "pre", "kind": "cell", "attention": "prefix"},
    {"name": "masked", "kind": "cell", "objective": "masked-token"},
    {"name": "both", "kind": "cell", "attention": "bidirectional", "objective": "masked-token"},
]


def plan(arms=ARMS, seeds=5, corpus="kjv"):
    return made_of(InterveneSettings, {"arms": arms, "seeds": seeds, "steps": 10, "corpus": corpus})


def test_each_sentence_is_tested_by_the_arms_that_can_test_it():
    found = {name: [pair[0] for pair in pairs_of(name, plan())] for name in SENTENCES}
    assert found["flatter-enrichment"] == found["flatter-curvature"] == ["flat 0.5"]
    assert found["isotropy-alignment"] == ["istar 0.1"]
    assert found["tangent-updates"] == ["proxy 1 − normal 1, equal share", "plain 1 − haar 1, equal rank"]
    assert found["bell-mask"] == ["control − pre, next-token", "masked − both, masked-token"]
    languages = plan([{"name": "z", "kind": "zipf", "doses": [0.5, 1.5]}], corpus="zipf:1")
    assert [pair[0] for pair in pairs_of("flatter-curvature", languages)] == ["z 0.5"]


def planted(settings, shifts, seed=1):
    """Rows of all arms: an outcome is noise of size 0.01, and the shift of its arm."""
    rng, rows = np.random.default_rng(seed), []
    models = ["control", *(arm.label(dose) for arm in settings.every_arm for dose in arm.every_dose)]
    for model in models:
        for own in settings.every_seed:
            for name in ("loss", "enrichment_haar", "visible_curvature", "isotropy_gain"):
                value = 3.0 * np.exp(shifts.get((model, name), 0.0) + 0.01 * rng.standard_normal())
                where = EFFECTS[name].where
                rows.append(row(**where, step=10, layer=1, value=value) | {"model": model, "seed": own})
            for layer, height in enumerate((0.1, 0.5, 0.1)):
                if (model, "bell") in shifts and layer == 1:
                    height = shifts[model, "bell"]
                noise = 0.01 * rng.standard_normal()
                where = EFFECTS["bell_cosine"].where
                rows.append(row(**where, step=10, layer=layer, value=height + noise) | {"model": model, "seed": own})
    return rows


def judged(shifts):
    settings = plan()
    rows = planted(settings, shifts)
    found = sentence_rows(rows, outcome_values(rows, settings), settings)
    by_name = {}
    for one in found:
        by_name.setdefault(one["variant"].partition("/")[0], []).append(one)
    return by_name


def test_verdicts_follow_planted_effects():
    found = judged(
        {
            ("flat 0.5", "enrichment_haar"): -0.5,
            ("flat 0.5", "visible_curvature"): -0.5,
            ("istar 0.1", "enrichment_haar"): 0.6,
            ("proxy 1", "loss"): 0.2,
            ("pre", "bell"): 0.1,
            ("both", "bell"): 0.1,
        }
    )
    said = {name: verdict_of(SENTENCES[name], rows) for name, rows in found.items()}
    assert said["flatter-enrichment"] == ("holds: 1 of 1 comparison lie on its side", "yes")
    assert said["flatter-curvature"][0].startswith("does not hold")
    assert said["isotropy-alignment"][0].startswith("holds in part: 1 of 2")
    assert said["tangent-updates"][0].startswith("holds in part: 1 of 2")
    assert said["bell-mask"][0].startswith("holds: 2 of 2")
    assert said["dimension-probes"] == ("not measured", "open")
    control = {r["seed"]: np.log(r["value"]) for r in planted(plan(), {}) if r["model"] == "control"}
    assert len(control) == 5
    effect = found["flatter-enrichment"][0]
    assert effect["value"] == pytest.approx(-0.5, abs=0.03)
    assert effect["low"] < effect["value"] < effect["high"] < 0
    assert effect["detectable"] > 0


def test_without_an_effect_no_sentence_holds():
    for name, rows in judged({}).items():
        words, _ = verdict_of(SENTENCES[name], rows)
        assert words.startswith(("does not hold", "cannot tell", "not measured")), (name, words)


def test_the_bell_is_the_highest_inner_layer_above_the_higher_end():
    settings = plan()
    rows = [
        row(**EFFECTS["bell_cosine"].where, step=10, layer=layer, value=value) | {"model": "control", "seed": 0}
        for layer, value in enumerate((0.2, 0.1, 0.9, 0.4))
    ]
    assert outcome_values(rows, settings)["bell_cosine", None]["control", 0.0][0] == pytest.approx(0.5)


def test_effects_by_layer_are_of_that_layer():
    settings = plan(ARMS[:1], seeds=3)
    rows = [
        row(**EFFECTS["isoscore_activations"].where, step=10, layer=layer, value=value + 0.1 * seed)
        | {"model": model, "seed": seed}
        for model, values in (("control", (0.1, 0.2)), ("flat 0.5", (0.1, 0.7)))
        for layer, value in enumerate(values)
        for seed in range(3)
    ]
    found = {
        r["layer"]: r["value"]
        for r in effect_rows(rows, settings)
        if r["measure"] == "effect" and r["model"] == "flat 0.5"
    }
    assert found == pytest.approx({None: 0.25, 0: 0.0, 1: 0.5})


def test_the_partial_correlation_holds_step_and_loss():
    rng = np.random.default_rng(0)
    step, loss = np.repeat(np.arange(4), 50), rng.standard_normal(200)
    x = 3.0 * step + 2 * loss + rng.standard_normal(200)
    unrelated = -5.0 * step + 4 * loss + rng.standard_normal(200)
    assert abs(partial_correlation(step, x, unrelated, loss)) < 0.2
    related = -x + 7.0 * step + 0.5 * rng.standard_normal(200)
    known = np.stack([*(step == k for k in range(4)), loss], 1).astype(float)
    left = [z - known @ np.linalg.pinv(known) @ z for z in (x, related)]
    assert partial_correlation(step, x, related, loss) == pytest.approx(np.asarray(np.corrcoef(left))[0, 1])
    assert partial_correlation(step, x, related, loss) < -0.8
    assert np.isnan(partial_correlation(step[:9], x[:9], related[:9], loss[:9]))


@pytest.mark.slow
def test_arms_that_change_nothing_are_found_at_the_stated_rate_over_200_plans():
    """Arms are noise of their own: q ≤ 0.05 in an arm and dose, and in a sentence, in about 1 plan of 20 at most."""
    settings = plan(ARMS[:1], seeds=5)
    arms, sentences = 0, dict.fromkeys(SENTENCES, 0)
    for number in range(200):
        rows = planted(settings, {}, seed=number + 100)
        found = [r for r in effect_rows(rows, settings) if r["model"] == "flat 0.5" and r["layer"] is None]
        arms += any(r["q"] is not None and r["q"] <= 0.05 for r in found)
        judged_rows = sentence_rows(rows, outcome_values(rows, settings), settings)
        for name in sentences:
            own = [r for r in judged_rows if r["variant"].startswith(f"{name}/")]
            sentences[name] += any(r["q"] is not None and r["q"] <= 0.05 for r in own)
    assert stats.binomtest(arms, 200).proportion_ci(0.99).low < 0.05
    for name in ("flatter-enrichment", "flatter-curvature"):
        assert stats.binomtest(sentences[name], 200).proportion_ci(0.99).low < 0.05
        assert 0 < sentences[name] < 22
