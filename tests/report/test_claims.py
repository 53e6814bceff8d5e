"""Verdicts in words: every sentence can be wrong, so each outcome is planted and the true sentence is asked for."""

import math
from dataclasses import replace

import pytest
from tests.test_verdict import PLANTED

from anisoscope.report.claim_table import claim_table
from anisoscope.report.ladder_findings import finding, findings
from anisoscope.report.reading import read
from anisoscope.report.sections.expectations import EXPECTED, expectations
from anisoscope.report.sections.verdict_section import (
    headline,
    missed,
    other_view,
    rule,
    sentence,
    tone,
    verdict_section,
)
from anisoscope.report.tree import LadderFigure, Table, Text
from anisoscope.report.view import view
from anisoscope.store.run import create_run
from anisoscope.vocabulary import ladder_of
from report.blocks import the

LAYERS = 5
STEPS = (0, 10, 50, 90)
NULLS = ladder_of("representation")


def numbers(outcome):
    names = ("value", "low", "high", "low90", "high90", "p", "q")
    return dict(zip(names, PLANTED[outcome], strict=True))


def pooled(outcome):
    """A pooled row with the same odds ratio, its interval from an error of a tenth with many degrees of freedom."""
    value = PLANTED[outcome][0]
    if math.isnan(value):
        return None
    ends = {"low": value * math.exp(-0.2), "high": value * math.exp(0.2)}
    return {"value": value, "se": 0.1, "df": 1e6, **ends}


def plant_run(
    folder,
    given,
    *,
    steps=STEPS,
    seeds=(0,),
    config=None,
    kind="pair",
    detectable=2.2,
    factors=None,
    view="representation",
):
    """A run of one decoder; ``given`` maps a null to the outcome of all layers, or to one outcome a layer."""
    run = create_run(folder, steps=100, config=config or {}, kind=kind)
    for seed in seeds:
        for step in steps:
            common = {"step": step, "view": view, "tensor": "gradients", "subset": "all", "proxy": "pca"}
            common |= {"rank": 8, "timing": "rolling", "role": "decoder", "seed": seed, "width": 32}
            rows = [common | {"layer": i, "measure": "energy", "value": 0.81, "floor": 0.25} for i in range(LAYERS)]
            for null, outcomes in given.items():
                each = [outcomes] * LAYERS if isinstance(outcomes, str) else outcomes
                for layer, outcome in enumerate(each):
                    found = numbers(outcome) | {"measure": "enrichment", "null": null, "detectable": detectable}
                    rows.append(common | found | {"layer": layer})
                together = pooled(each[0])
                if together is not None:
                    factor = (factors or {}).get(seed, 1.0)
                    together["value"] *= factor
                    rows.append(common | together | {"measure": "pooled_enrichment", "null": null})
            run.write(f"w{seed}", rows)
    run.close("finished")
    return read([str(folder)])


def passing(**changed):
    return dict.fromkeys(NULLS, "above") | {name.replace("_", "-"): outcome for name, outcome in changed.items()}


def of(context, window="late"):
    return next(f for f in findings(context, "representation") if f.window == window)


def test_shares_come_first_and_the_odds_ratio_is_named(tmp_path):
    text = sentence(of(plant_run(tmp_path / "run", passing())))
    assert (
        "holds 0.81 of the gradient's energy, 3.24 times the 0.25 expected by chance (odds ratio 4 [3.29, 4.87])."
        in text
    )
    assert "times as much" not in text


@pytest.mark.parametrize("null", NULLS)
@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ("equal", "it is equal within the margin 1.25 in 5 of 5 layers"),
        ("below", "it is below the null in 5 of 5 layers"),
        ("equal, below 1", "it is below the null in 5 of 5 layers"),
        ("cannot tell", "the rows cannot tell in 5 of 5 layers"),
        ("not measured", "nothing was measured"),
    ],
)
def test_the_sentence_follows_the_outcome_at_every_null(tmp_path, null, outcome, words):
    f = of(plant_run(tmp_path / "run", passing() | {null: outcome}))
    text, place = sentence(f), NULLS.index(null)
    assert f.height == place
    assert words in text
    assert f"`{null}`" in missed(f)
    if outcome == "cannot tell":
        assert "an odds ratio of about 2.2 would have been found in 80 % of repetitions" in text
    for other in ("equal within", "below the null", "cannot tell", "not measured"):
        assert (other in text) == (other in words), other


def test_what_is_above_and_equal_passes(tmp_path):
    f = of(plant_run(tmp_path / "run", passing(init="equal, above 1")))
    assert f.verdict.first_not_passed is None


def test_only_equality_is_explained_by_the_null(tmp_path):
    meaning = "permuted labels, with the same unigram law, put as much energy there"
    texts = {
        outcome: sentence(of(plant_run(tmp_path / outcome.replace(" ", "-"), passing(targets=outcome))))
        for outcome in ("equal", "cannot tell", "below")
    }
    assert [meaning in texts[outcome] for outcome in texts] == [True, False, False]


def test_counts_at_every_height_are_printed(tmp_path):
    given = passing(axes=["above", "above", "above", "cannot tell", "equal"], init=["above", *["equal"] * 4])
    f = of(plant_run(tmp_path / "run", given))
    assert (
        "It passes the nulls up to `axes`. Of 5 layers, the number that pass each null and all before it: `haar` 5, "
        "`axes` 3, `init` 1"
    ) in sentence(f)
    assert "Over `init`, it is equal within the margin 1.25 in 4 of 5 layers" in sentence(f)


def test_the_pattern_that_votes_would_pass(tmp_path):
    patterns = ["10101", "11010", "01101", "10110", "01011"]
    given = {
        null: ["above" if pattern[place] == "1" else "cannot tell" for pattern in patterns]
        for place, null in enumerate(NULLS)
    }
    f = of(plant_run(tmp_path / "run", given))
    assert f.verdict.last == "haar"
    assert "`haar` 3, `axes` 1, `init` 0" in sentence(f)
    assert "Over `axes`, 3 of 5 layers are above" in sentence(f)
    assert "but only 1 pass every earlier null too" in sentence(f)


def test_layers_on_both_sides_are_called_mixed(tmp_path):
    f = of(plant_run(tmp_path / "run", passing(targets=["above", "below", *["cannot tell"] * 3])))
    assert "cannot tell in 3 of 5 layers" in sentence(f)
    assert "Mixed: some are above the null and some below." in sentence(f)


def test_layers_below_a_null_that_most_pass_are_told_in_sentence_and_headline(tmp_path):
    most = ["above"] * 3 + ["below"] * 2
    given = dict.fromkeys(NULLS, most)
    f = of(plant_run(tmp_path / "run", given))
    assert "Mixed: of 5 layers, over `haar` 3 above and 2 below" in sentence(f)
    told = headline([f])
    assert told.head == "Supported."
    assert "Mixed: in Decoder late, some layers lie below a null that most pass." in told.text
    assert "Mixed" not in headline([of(plant_run(tmp_path / "other", passing()))]).text


def test_a_certain_effect_within_the_margin_is_said_to_be_small(tmp_path):
    given = dict.fromkeys(NULLS, "equal, above 1")
    told = headline([of(plant_run(tmp_path / "run", given, config={"margin": 1.5}))])
    assert told.head == "Supported."
    assert "In Decoder late, the pooled odds ratio over `haar` lies within the margin." in told.text
    assert "within the margin" not in headline([of(plant_run(tmp_path / "other", passing()))]).text


def test_a_pooled_effect_that_single_layers_do_not_show_is_said(tmp_path):
    context = plant_run(tmp_path / "run", passing(targets="cannot tell"))
    assert "Pooled over layers, the effect is above the null" in sentence(of(context))


@pytest.mark.parametrize(
    ("given", "head", "colour"),
    [
        (passing(), "Supported.", "yes"),
        (passing(targets="equal"), "Supported in part.", "part"),
        (passing(haar="equal"), "Not supported.", "no"),
        (passing(haar="below"), "Not supported.", "no"),
        (passing(haar="cannot tell"), "Undecided.", "open"),
        (passing(haar="not measured"), "Undecided.", "open"),
    ],
)
def test_the_headline_follows_the_outcomes(tmp_path, given, head, colour):
    context = plant_run(tmp_path / "run", given)
    found = findings(context, "representation")
    assert headline(found).head == head
    assert tone(of(context)) == colour


def test_step_0_is_apart_and_decides_no_headline(tmp_path):
    run = tmp_path / "run"
    plant_run(run, passing(), steps=(10, 50, 90))
    found = findings(read([str(run)]), "representation")
    assert headline(found).head == "Supported."
    context = plant_run(tmp_path / "only", passing(), steps=(0,))
    assert headline(findings(context, "representation")).head == "Nothing to judge."


def test_an_empty_window_says_which_steps_it_has(tmp_path):
    f = of(plant_run(tmp_path / "run", passing(), steps=(10, 90)), "middle")
    assert sentence(f) == "There are no observations in this window (steps 30 to 70)."


def test_the_margin_of_the_run_counts_and_is_printed(tmp_path):
    wide = plant_run(tmp_path / "wide", passing(haar="cannot tell"), config={"margin": 3.0})
    assert of(wide).outcome("haar") == "equal"  # 0.9 to 2.6
    rule = verdict_section(wide).blocks
    assert any("m = 3 in odds, declared before the run" in getattr(block, "text", "") for block in rule)


def test_seeds_have_an_interval_from_three_on_and_points_below(tmp_path):
    two = of(plant_run(tmp_path / "two", passing(), seeds=(0, 1), factors={1: 1.5}))
    assert two.effects["haar"].low is None
    assert "(odds ratio 4.9 (seeds: 4 and 6))" in sentence(two)
    factors = {0: 1.0, 1: 1.5, 2: 0.8}
    three = of(plant_run(tmp_path / "three", passing(), seeds=(0, 1, 2), factors=factors)).effects["haar"]
    logs = [math.log(4 * factor) for factor in factors.values()]
    mean = sum(logs) / 3
    half = 4.302653 * math.sqrt(sum((x - mean) ** 2 for x in logs) / 2 / 3)  # t, 2 degrees of freedom
    assert three.low == pytest.approx(math.exp(mean - half), rel=1e-5)
    assert three.high == pytest.approx(math.exp(mean + half), rel=1e-5)
    assert "over 3 seeds" in str(three)


def test_effects_of_a_window_weigh_observations_by_the_steps_they_stand_for(tmp_path):
    context = plant_run(tmp_path / "run", passing(), steps=(71, 99))
    planted = context.subjects[0]
    pooled = {"pooled_enrichment": {71: 2.0, 99: 8.0}}
    rows = [
        {**row, "value": pooled[row["measure"]][row["step"]]} if row["measure"] in pooled else row
        for row in planted.rows
    ]
    found = finding(replace(planted, rows=rows), "representation", "late").effects["haar"]
    # from step 70 to 85 the first is nearer, from 85 to 100 the second
    assert found.value == pytest.approx(4.0)
    error = math.hypot(0.5 * 0.1, 0.5 * 0.1)
    assert math.log(found.high / found.low) / 2 == pytest.approx(1.96 * error, rel=1e-3)


def test_the_planted_get_their_verdicts(planted):
    made = {name: view(read([str(planted / name)])) for name in ("good", "bad")}
    good, bad = (next(s.blocks for s in report.sections if s.id == "verdict") for report in made.values())
    assert the(Text, good[0]).head == "Supported in part."
    assert the(Text, bad[0]).head == "Not supported."
    tracks = next(b for b in good if isinstance(b, LadderFigure)).tracks
    reached = {(t.label, t.tags["view"]): t.last for t in tracks}
    assert reached["Decoder, early", "representation"] == "init"
    assert reached["Encoder, late", "weight"] == "haar"


def test_every_proxy_and_timing_gets_an_outcome_for_both_claims(planted):
    table = claim_table(read([str(planted / "good")]), "representation")
    assert table.columns == ["model", "claim", "before", "early", "middle", "late"]
    said = {(row[0].text, row[1].text, row[1].small): [cell.text for cell in row[2:]] for row in table.rows}
    assert said["Decoder", "energy beyond chance", "PCA, anchored"] == [
        "–",
        "–",
        "up to the untrained network",
        "up to the untrained network",
    ]
    captured = "share of the gradient's anisotropy"
    assert said["Decoder", captured, "semi-NMF, rolling"][1:] == ["above", "above", "above"]
    assert said["Decoder", captured, "PCA, rolling"][0] == "cannot tell"


def test_expectations_are_for_pairs_alone_and_each_can_fail(tmp_path):
    assert expectations(plant_run(tmp_path / "scope", passing(), kind="scope")) == []
    texts = {}
    for name, given in {
        "met": passing(haar="equal", targets="equal"),
        "fails": passing(haar="above", init="below"),
        "open": passing(haar="cannot tell", init="cannot tell", targets="cannot tell"),
    }.items():
        (block,) = expectations(plant_run(tmp_path / name, given))
        texts[name] = [row[1].text for row in the(Table, block).rows]
    assert texts["met"][:3] == ["holds", "holds", "holds"]
    assert texts["fails"][:3] == ["does not hold", "does not hold", "does not hold"]
    assert texts["open"][:3] == ["cannot tell", "cannot tell", "cannot tell"]
    assert all(text == "not measured" for text in texts["met"][3:])
    assert len(EXPECTED) == 7


def test_a_rise_that_is_lost_again_is_no_rise(tmp_path):
    run = create_run(tmp_path / "run", steps=100, kind="pair")
    for step, outcome in ((10, "above"), (90, "equal")):
        common = {"step": step, "view": "representation", "tensor": "gradients", "subset": "all", "proxy": "pca"}
        common |= {"rank": 8, "timing": "rolling", "role": "decoder", "seed": 0}
        rows = [
            common | numbers(outcome) | {"layer": i, "measure": "enrichment", "null": "init"} for i in range(LAYERS)
        ]
        run.write("w", [*rows, common | pooled(outcome) | {"measure": "pooled_enrichment", "null": "init"}])
    run.close("finished")
    (block,) = expectations(read([str(tmp_path / "run")]))
    cell = the(Table, block).rows[1][1]
    assert cell.text == "does not hold"
    assert cell.small.startswith("early 4 [")
    assert "late 1.02 [" in cell.small


def test_rows_of_older_runs_without_pooled_effects_are_read(tmp_path):
    context = plant_run(tmp_path / "run", passing())
    subject = context.subjects[0]
    subject.by_measure.pop("pooled_enrichment")
    f = finding(subject, "representation", "late")
    assert f.effects["haar"].value == pytest.approx(4.0)
    assert f.effects["haar"].low is None


def test_a_plurality_is_no_majority(tmp_path):
    """Two layers equal, two above, one open: nothing is said of most of them."""
    context = plant_run(tmp_path / "run", passing(haar=["equal", "equal", "above", "above", "cannot tell"]))
    found = findings(context, "representation")
    assert headline(found).head == "Undecided."
    text = sentence(of(context))
    assert "layers disagree: of 5 layers, above 2, equal 2, cannot tell 1" in text
    assert "hold as much" not in text


def test_counts_and_verdict_of_a_window_cannot_contradict_one_another(tmp_path):
    """Two of three observations have a majority; on average two of five layers pass."""
    run = create_run(tmp_path / "run", steps=100)
    for step, letters in ((75, "AAACC"), (85, "AAACC"), (95, "CCCCC")):
        common = {"step": step, "view": "representation", "tensor": "gradients", "subset": "all", "proxy": "pca"}
        common |= {"rank": 8, "timing": "rolling", "measure": "enrichment", "seed": 0, "null": "haar"}
        rows = [
            common | numbers("above" if letter == "A" else "cannot tell") | {"layer": i}
            for i, letter in enumerate(letters)
        ]
        run.write("w", rows)
    run.close("finished")
    f = of(read([str(tmp_path / "run")]))
    assert f.verdict.reached["haar"] < 2.5
    assert f.verdict.last is None


def test_errors_over_init_are_not_averaged_away(tmp_path):
    """Every observation is compared with one step 0: twelve of them are hardly more certain than one."""
    one = of(plant_run(tmp_path / "one", passing(), steps=(85,))).effects["init"]
    many = of(plant_run(tmp_path / "many", passing(), steps=tuple(range(72, 96, 2)))).effects
    assert math.log(many["init"].high / many["init"].low) == pytest.approx(math.log(one.high / one.low), rel=1e-6)
    assert math.log(many["axes"].high / many["axes"].low) < 0.5 * math.log(one.high / one.low)


def test_means_go_seed_by_seed_and_layer_by_layer(tmp_path):
    """Shares of two seeds, one of which was observed five times as often, are two numbers of equal weight."""
    context = plant_run(tmp_path / "run", passing(), steps=(75, 80, 85, 90, 95), seeds=(0, 1))
    subject = context.subjects[0]
    rows = subject.by_measure["energy"]
    subject.by_measure["energy"] = [{**r, "value": 0.9} for r in rows if r["seed"] == 0] + [
        {**r, "value": 0.3} for r in rows if r["seed"] == 1 and r["step"] == 85
    ]
    assert finding(subject, "representation", "late").shares.share == pytest.approx(0.6)


def test_layers_without_a_number_stay_in_the_denominator(tmp_path):
    context = plant_run(tmp_path / "run", passing())
    subject = context.subjects[0]
    energy = [r for r in subject.by_measure["energy"] if r["step"] == 90]
    values = [0.5, *[math.nan] * 4]
    subject.by_measure["captured"] = [
        {**r, "measure": "captured", "value": v, "low": 0.4, "high": 0.6, "q": 0.01, "floor": 0.1}
        for r, v in zip(energy, values, strict=True)
    ]
    table = claim_table(context, "representation")
    cell = table.rows[1][-1]
    assert cell.text == "cannot tell"
    assert "above 20 %, not measured 80 %" in cell.small


def test_a_pooled_effect_outside_the_margin_is_not_called_small(tmp_path):
    context = plant_run(tmp_path / "run", passing(haar="equal"))
    subject = context.subjects[0]
    rows = subject.by_measure["pooled_enrichment"]

    def over_haar(**more):
        subject.by_measure["pooled_enrichment"] = [{**r, **more} if r["null"] == "haar" else r for r in rows]
        subject._indexes.clear()
        subject.kept.clear()

    over_haar(value=1.5, se=0.05)
    assert headline(findings(context, "representation")).head == "Undecided."
    over_haar(value=1.1, se=0.02)
    assert headline(findings(context, "representation")).head == "Within the margin."


def test_extreme_rows_break_no_report(tmp_path):
    context = plant_run(tmp_path / "run", passing(haar="cannot tell"), detectable=math.inf)
    found = context.subjects[0].by_measure
    errors = {"haar": 1e-100, "axes": 60.0, "init": math.nan}
    found["pooled_enrichment"] = [
        {**row, "se": errors.get(row["null"], 0.1), "df": 1.0} for row in found["pooled_enrichment"]
    ]
    texts = [getattr(block, "text", "") for block in verdict_section(context).blocks]
    assert any("No effect of a plausible size would have been found" in text for text in texts)
    assert not any("∞" in text and "80 %" in text for text in texts)


SMALLEST = "In a single layer, an odds ratio of about 2.2 would have been found in 80 % of repetitions."


def other(folder, given, **more):
    nulls = dict.fromkeys(ladder_of("weight"), "above") | given
    return other_view(findings(plant_run(folder, nulls, view="weight", **more), "weight"))


def test_other_views_give_shares_first_and_name_the_odds_ratio(tmp_path):
    text = other(tmp_path / "run", {}, steps=(90,))
    assert text == (
        "Decoder late passes the nulls up to `targets-uniform` (0.81 of the gradient's energy, 3.24 times the 0.25 "
        "expected by chance; odds ratio 4 over `haar`): every null is passed."
    )


def test_shares_of_several_windows_are_a_span(tmp_path):
    nulls = dict.fromkeys(ladder_of("weight"), "above")
    context = plant_run(tmp_path / "run", nulls, view="weight", steps=(50, 90))
    found = context.subjects[0].by_measure
    found["energy"] = [{**row, "value": 0.5 if row["step"] == 50 else 0.75} for row in found["energy"]]
    text = other_view(findings(context, "weight"))
    assert "(0.5 to 0.75 of the gradient's energy, 2 to 3 times the 0.25 expected by chance; odds ratio 4 over" in text


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ("cannot tell", True),
        (["above", "above", "cannot tell", "equal", "equal"], True),
        (["above", "above", "below", "equal", "equal"], False),
        ("equal", False),
        ("below", False),
        ("not measured", False),
    ],
)
def test_other_views_say_the_smallest_effect_where_rows_cannot_tell(tmp_path, outcome, said):
    text = other(tmp_path / "run", {"pairing": outcome})
    assert text.endswith(SMALLEST) == said
    assert ("80 %" in text) == said


def test_other_views_have_no_smallest_effect_that_rows_do_not_have(tmp_path):
    text = other(tmp_path / "run", {"pairing": "cannot tell"}, detectable=None)
    assert text.endswith("over `pairing`, the rows cannot tell (1.5).")


def test_a_headline_that_cannot_tell_says_the_smallest_effect_once(tmp_path):
    for name, steps, given in (
        ("one", (90,), passing(haar="cannot tell")),
        ("all", STEPS, passing(haar="cannot tell")),
        ("later", STEPS, passing(init="cannot tell")),
    ):
        text = headline(findings(plant_run(tmp_path / name, given, steps=steps), "representation")).text
        assert text.count(SMALLEST) == 1, name
    text = headline(findings(plant_run(tmp_path / "equal", passing(init="equal")), "representation")).text
    assert "80 %" not in text


def test_layers_that_cannot_tell_beside_unmeasured_ones_have_their_smallest_effect(tmp_path):
    given = passing(targets=[*["not measured"] * 3, "cannot tell", "cannot tell"])
    text = missed(of(plant_run(tmp_path / "run", given)))
    assert "Over `targets`, nothing was measured in 3 of 5 layers" in text
    assert text.endswith(SMALLEST)


def test_the_ladder_says_the_smallest_effect_where_it_cannot_tell(tmp_path):
    blocks = verdict_section(plant_run(tmp_path / "run", passing(init="cannot tell"))).blocks
    nodes = {n.null: n.why for n in next(b for b in blocks if isinstance(b, LadderFigure)).tracks[-1].nodes}
    assert "found in 80 % of repetitions: an odds ratio of about 2.2" in nodes["init"]
    assert "80 %" not in nodes["haar"]


def captured_rows(subject, **more):
    energy = [r for r in subject.by_measure["energy"] if r["step"] == 90]
    open_row = {"measure": "captured", "value": 0.2, "low": 0.0, "high": 0.4, "q": 0.5, "floor": 0.1}
    subject.by_measure["captured"] = [{**r, **open_row, **more} for r in energy]


def test_cells_of_claims_have_shares_and_the_smallest_effect_or_the_caption_says_that_rows_do_not(tmp_path):
    context = plant_run(tmp_path / "run", passing(haar="cannot tell"), steps=(90,))
    captured_rows(context.subjects[0])
    table = claim_table(context, "representation")
    energy, captured = table.rows[0][-1], table.rows[1][-1]
    assert energy.text == "cannot tell (random directions)"
    assert "0.81, 3.24 times the chance level 0.25\nodds ratio 1.5 [" in energy.small
    assert energy.small.endswith("found in 80 %: odds ratio of about 2.2")
    assert captured.text == "cannot tell"
    assert "80 %" not in captured.small
    assert table.caption.endswith("Rows of the share of anisotropy do not have it.")


def test_cells_of_claims_use_what_rows_of_the_captured_share_say(tmp_path):
    context = plant_run(tmp_path / "run", passing(), steps=(90,))
    captured_rows(context.subjects[0], detectable=0.33)
    table = claim_table(context, "representation")
    assert table.rows[0][-1].small.startswith("5 of 5 layers\n0.81, 3.24 times the chance level 0.25\nodds ratio 4 [")
    assert "80 %" not in table.rows[0][-1].small
    assert table.rows[1][-1].small.endswith("found in 80 %: 0.33")
    assert "do not have it" not in table.caption


def test_expectations_without_an_interval_or_a_margin_have_no_verdict(planted):
    (block,) = expectations(read([str(planted / "good")]))
    table = the(Table, block)
    radial, loss = table.rows[-2:]
    assert [(c.text, c.small, c.tone) for c in radial[1:]] == [("0.01; chance is 0.00391", "no verdict", None)] * 2
    assert loss[1].text == "4.02 nats; unigram entropy 5.9 nats"
    assert loss[1].small == "no verdict"
    assert "no interval" in radial[0].small
    assert "no margin" in loss[0].small
    assert "numbers without a verdict" in table.caption
    assert "against step 0" not in table.caption


def test_expectations_that_cannot_be_told_have_the_smallest_effect(tmp_path):
    given = passing(haar="cannot tell", init="cannot tell", targets="cannot tell")
    (block,) = expectations(plant_run(tmp_path / "run", given))
    for row in the(Table, block).rows[:3]:
        assert row[1].text == "cannot tell"
        assert row[1].small.endswith("found in 80 % of repetitions: an odds ratio of about 2.2")


def test_the_rule_says_what_q_is_not_adjusted_over(tmp_path):
    text = rule(plant_run(tmp_path / "run", passing()))
    assert "The headline takes models and windows together" in text
    assert "not again over models and windows" in text
