"""The sentences of the first screen: a planted run of every outcome gets its own true sentence."""

import pytest

from anisoscope.report.answer import answer
from anisoscope.report.choices import combinations
from anisoscope.report.ladder_findings import findings
from anisoscope.report.reading import Choice, read
from anisoscope.report.sections.first_screen import fronts, ladder_table
from anisoscope.report.sections.limits import limits
from anisoscope.report.tree import Mark
from anisoscope.store.run import create_run
from report.test_claims import NULLS, numbers, passing, plant_run, pooled


def said(context, view="representation"):
    return answer(findings(context, view))


def text(context):
    return " ".join(said(context).sentences)


HOLDS = (
    "Late in training, the decoder's 8 main activation directions hold 81 % of the gradient's energy, 3.2 times the 25 "
    "% expected by chance"
)
FIRST = HOLDS + " (above chance in all 5 layers). "
PASSED = {
    "axes": "",
    "init": "That is more than shared coordinate axes give. ",
    "targets": "That is more than shared coordinate axes and the untrained network give. ",
    "targets-uniform": ("That is more than shared coordinate axes, the untrained network and shuffled targets give. "),
}
LARGER = "have a larger share of their energy there, not a smaller one: this null is not passed."
AS_LARGE = "have as large a share of their energy there, within the margin: this null is not passed."
ENDS = {
    (
        "axes",
        "below",
    ): "Coordinate axes shared by activations and gradients give more, not less: this null is not passed.",
    ("axes", "equal"): "Coordinate axes shared by activations and gradients give as much, within the margin: this null",
    ("axes", "cannot tell"): "Whether coordinate axes shared by activations and gradients give less is undecided.",
    (
        "axes",
        "not measured",
    ): "Coordinate axes shared by activations and gradients were not measured, so this null is open.",
    ("init", "below"): "The untrained network shows more, not less: this null is not passed.",
    ("init", "equal"): "The untrained network shows as much, within the margin: this null is not passed.",
    ("init", "cannot tell"): "Whether the untrained network gives less is undecided.",
    ("init", "not measured"): "The untrained network was not measured, so this null is open.",
    ("targets", "below"): f"Gradients computed with shuffled targets {LARGER}",
    ("targets", "equal"): f"Gradients computed with shuffled targets {AS_LARGE}",
    ("targets", "cannot tell"): "Whether gradients computed with shuffled targets give less is undecided.",
    ("targets", "not measured"): "Gradients computed with shuffled targets were not measured, so this null is open.",
    ("targets-uniform", "below"): f"Gradients computed with random targets {LARGER}",
    ("targets-uniform", "equal"): f"Gradients computed with random targets {AS_LARGE}",
    ("targets-uniform", "cannot tell"): "Whether gradients computed with random targets give less is undecided.",
    ("targets-uniform", "not measured"): "Gradients computed with random targets were not measured, so this null is",
}


@pytest.mark.parametrize(("null", "outcome"), ENDS)
def test_each_outcome_at_each_null_has_its_own_sentence(tmp_path, null, outcome):
    found = said(plant_run(tmp_path / "run", passing() | {null: outcome})).sentences
    assert " ".join(found).startswith(FIRST + PASSED[null] + ENDS[null, outcome])
    assert len(found) <= 3


@pytest.mark.parametrize(
    ("outcome", "sentence", "head", "colour"),
    [
        ("below", " (below chance in all 5 layers): less than random directions.", "Not supported.", "no"),
        (
            "equal",
            " (equal to chance in all 5 layers): as much as random directions, within the margin.",
            "Not supported.",
            "no",
        ),
        (
            "cannot tell",
            ". Whether that differs from chance is undecided (cannot tell in all 5 layers).",
            "Undecided.",
            "open",
        ),
        ("not measured", ". Random directions were not measured.", "Undecided.", "open"),
        (
            ["above", "above", "below", "below", "cannot tell"],
            ". Layers disagree on this: of 5 layers, 2 above, 2 below and 1 cannot tell.",
            "Undecided.",
            "open",
        ),
    ],
)
def test_what_is_not_above_random_directions_has_its_own_sentence(tmp_path, outcome, sentence, head, colour):
    found = said(plant_run(tmp_path / "run", passing(haar=outcome)))
    assert found.sentences == (HOLDS + sentence,)
    assert (found.head, found.tone) == (head, colour)


@pytest.mark.parametrize("outcome", ["equal, above 1", "equal, below 1"])
def test_what_is_equal_and_certain_counts_on_its_side(tmp_path, outcome):
    found = text(plant_run(tmp_path / "run", passing(targets=outcome)))
    side = "every null is passed" if outcome.endswith("above 1") else LARGER
    assert side in found


def test_all_nulls_passed_is_said_once(tmp_path):
    found = text(plant_run(tmp_path / "run", passing()))
    assert found == (
        FIRST + "That is more than shared coordinate axes, the untrained network, shuffled targets and random targets "
        "give: every null is passed."
    )


def test_layers_below_a_null_that_most_pass_are_named(tmp_path):
    found = text(plant_run(tmp_path / "run", passing(axes=["above"] * 3 + ["below"] * 2, init="below")))
    assert (
        "That is more than shared coordinate axes give, though 2 of 5 layers lie below coordinate axes shared "
        "by activations and gradients (mixed)."
    ) in found


def test_layers_that_differ_are_counted(tmp_path):
    found = text(plant_run(tmp_path / "run", passing(init=["above", "above", "below", "equal", "cannot tell"])))
    assert (
        "Layers disagree on the untrained network (of 5 layers, 2 above, 1 below, 1 equal and 1 cannot tell): this "
        "null is not passed."
    ) in found


def test_above_a_null_only_where_an_earlier_one_fails_is_not_passed(tmp_path):
    given = passing(haar=["above"] * 4 + ["equal"], axes=["above", "above", "cannot tell", "cannot tell", "above"])
    found = text(plant_run(tmp_path / "run", given))
    assert (
        "3 of 5 layers are above coordinate axes shared by activations and gradients, but too few of them pass every "
        "earlier null too: this null is not passed."
    ) in found


def test_several_seeds_are_named_and_disagreement_is_said(tmp_path):
    assert "(above chance in all 5 layers; mean of 3 seeds)" in text(
        plant_run(tmp_path / "same", passing(), seeds=(0, 1, 2))
    )
    run = create_run(tmp_path / "differ", steps=100, kind="pair")
    for seed, outcome in ((0, "above"), (1, "equal"), (2, "above")):
        common = {"step": 90, "view": "representation", "tensor": "gradients", "subset": "all", "proxy": "pca"}
        common |= {"rank": 8, "timing": "rolling", "role": "decoder", "seed": seed, "width": 32}
        rows = [
            common
            | numbers(outcome if null == "axes" else "above")
            | {"measure": "enrichment", "null": null, "layer": i}
            for null in NULLS
            for i in range(5)
        ]
        run.write(f"w{seed}", rows)
    run.close("finished")
    assert "Seeds disagree: of 5 nulls, they pass the first 5, 1 and 5." in text(read([str(tmp_path / "differ")]))


def two_models(folder, ends, roles=("decoder", "encoder")):
    run = create_run(folder, steps=100, kind="pair")
    for role in roles:
        common = {"step": 90, "view": "representation", "tensor": "gradients", "subset": "all", "proxy": "pca"}
        common |= {"rank": 8, "timing": "rolling", "role": role, "seed": 0, "width": 32}
        share = 0.81 if role == "decoder" else 0.6
        rows = [common | {"measure": "energy", "value": share, "floor": 0.25, "layer": i} for i in range(5)]
        for null in NULLS:
            outcome = ends[role] if null == "targets" else "above"
            rows += [common | numbers(outcome) | {"measure": "enrichment", "null": null, "layer": i} for i in range(5)]
            rows.append(common | pooled(outcome) | {"measure": "pooled_enrichment", "null": null})
        run.write(role, rows)
    run.close("finished")
    return read([str(folder)])


def test_models_that_end_alike_share_the_sentences(tmp_path):
    found = text(two_models(tmp_path / "run", {"decoder": "below", "encoder": "below"}))
    assert found == (
        "Late in training, the decoder's 8 main activation directions hold 81 % of the gradient's energy and the "
        "encoder's 60 %, 3.2 and 2.4 times the 25 % expected by chance (above chance in all 5 layers of each). That is "
        "more than shared coordinate axes and the untrained network give. Gradients computed with shuffled targets "
        f"{LARGER}"
    )


def test_models_that_end_otherwise_are_told_apart(tmp_path):
    found = text(two_models(tmp_path / "run", {"decoder": "below", "encoder": "cannot tell"}))
    assert f"In the decoder, gradients computed with shuffled targets {LARGER}" in found
    assert "In the encoder, whether gradients computed with shuffled targets give less is undecided." in found


def test_an_encoder_alone_is_called_one(tmp_path):
    found = text(two_models(tmp_path / "run", {"encoder": "equal"}, roles=("encoder",)))
    assert found.startswith("Late in training, the encoder's 8 main activation directions hold 60 % of")
    assert "decoder" not in found


def test_other_windows_that_came_to_another_height_are_said(tmp_path):
    run = create_run(tmp_path / "run", steps=100, kind="pair")
    for step, outcome in ((10, "above"), (90, "equal")):
        common = {"step": step, "view": "representation", "tensor": "gradients", "subset": "all", "proxy": "pca"}
        common |= {"rank": 8, "timing": "rolling", "role": "decoder", "seed": 0}
        run.write(
            "w", [common | numbers(outcome) | {"layer": i, "measure": "enrichment", "null": "haar"} for i in (0, 1)]
        )
    run.close("finished")
    found = text(read([str(tmp_path / "run")]))
    assert (
        "Late in training, the decoder's 8 main activation directions hold as much of the gradient's energy as" in found
    )
    assert found.endswith("The decoder passes more nulls early in training (up to random directions).")


def test_a_run_in_progress_says_how_far_it_is(tmp_path):
    context = plant_run(tmp_path / "run", passing(), steps=(0, 10))
    context.sources[0].manifest["status"] = "running"
    assert text(context).startswith("So far (step 10 of 100): Early in training, the decoder's 8 main")


def test_without_judged_windows_there_is_nothing_to_judge(tmp_path):
    found = said(plant_run(tmp_path / "run", passing(), steps=(0,)))
    assert found.head == "Nothing to judge."


@pytest.mark.parametrize(
    ("given", "more", "expected"),
    [
        (passing(), {}, "How much results vary between training runs: there is only one seed."),
        (passing(), {"seeds": (0, 1)}, "2 seeds give no interval"),
        (passing(targets="cannot tell"), {}, "80 % of repetitions (odds ratio about 2.2 over shuffled targets)."),
        (passing(), {}, "effects below an odds ratio of about 2.2"),
        (passing(), {"detectable": None}, "its rows do not say"),
        (
            {"haar": "above", "axes": "above"},
            {},
            "nulls that were not run would give: the untrained network, gradients computed with",
        ),
        (passing(), {"steps": (0, 10, 90)}, "in windows without observations: Decoder middle"),
        (passing(), {}, "How other text or larger models behave: this run covers width 32 only."),
    ],
)
def test_what_a_run_cannot_say(tmp_path, given, more, expected):
    context = plant_run(tmp_path / "run", given, **more)
    assert any(expected in line for line in limits(context, findings(context, "representation")))


def test_nulls_that_were_run_are_not_among_them(tmp_path):
    context = plant_run(tmp_path / "run", passing(targets="cannot tell"))
    assert not any("not run" in line for line in limits(context, findings(context, "representation")))


def test_signs_follow_the_outcomes(tmp_path):
    context = plant_run(tmp_path / "run", passing(init="below"), steps=(90,))
    table = ladder_table(findings(context, "representation"))
    ((name, marks),) = table.rows
    assert name.text == "Decoder, late"
    marks = [mark for mark in marks if isinstance(mark, Mark)]
    assert [(m.outcome, m.beyond) for m in marks] == [
        ("above", False),
        ("above", False),
        ("below", False),
        ("above", True),
        ("above", True),
    ]
    assert "Of 5 layers: 5 below." in marks[2].detail
    assert marks[2].choices == {"null": "init", "view": "representation"}


def test_every_combination_has_its_verdict_and_says_whether_it_differs(planted):
    found = combinations(read([str(planted / "good")]))
    made = fronts(found)
    kept = {tuple(front.choices.values()): front for front in made}
    assert len(kept) == len(made) > 8
    assert made[0].note == ""
    anchored = kept["pca", "anchored", "all tokens", "representation", "all models"]
    assert "fitted on the first 30 % of training" in anchored.answer.text
    weight = kept["pca", "rolling", "all tokens", "weight", "all models"]
    assert "the verdict differs" in weight.note
    svd = kept["svd", "rolling", "all tokens", "representation", "all models"]
    assert "as many nulls are passed" in svd.note
    encoder = kept["pca", "rolling", "all tokens", "representation", "Encoder"]
    assert "encoder's" in encoder.answer.text
    assert "decoder" not in encoder.answer.text
    assert [name.text for name, _ in encoder.ladder.rows] == ["Encoder, early", "Encoder, middle", "Encoder, late"]


def test_the_default_can_be_the_protocol_of_the_paper(planted):
    context = read([str(planted / "good")], wanted=Choice(proxy="svd", timing="anchored"))
    first = fronts(combinations(context))[0]
    assert first.choices["timing"] == "anchored"
    assert "8 main" not in first.answer.text
    assert "32 main activation directions about the origin (fitted on the first 30 % of training)" in first.answer.text


def test_a_choice_that_was_not_judged_is_refused(planted):
    with pytest.raises(
        ValueError, match="the proxy must be one that was judged, got mean; there are pca, semi_nmf, svd"
    ):
        read([str(planted / "good")], wanted=Choice(proxy="mean"))
