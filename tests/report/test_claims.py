"""Verdicts in words: every sentence can be wrong, so each is planted once."""

import math
from dataclasses import replace

import pytest

from anisoscope.report.claims import headline, sentence, tone
from anisoscope.report.expected import expectations
from anisoscope.report.findings import findings
from anisoscope.report.reading import read
from anisoscope.report.tree import LadderFigure
from anisoscope.report.view import view
from anisoscope.store.run import create_run
from anisoscope.vocabulary import ladder_of

PASS, FLAT, LOW = (3.0, 2.5, 3.5, 0.01), (1.0, 0.9, 1.1, 0.7), (0.6, 0.5, 0.7, 0.01)
OPEN = (3.0, None, None, None)


def finding_of(tmp_path, **given):
    """A run of one model with three layers and these numbers at steps 10 and 90 of 100."""
    run = create_run(tmp_path / "run", steps=100)
    for step in (10, 90):
        common = {"step": step, "view": "representation", "tensor": "gradients", "subset": "all", "proxy": "pca"}
        common |= {"rank": 8, "timing": "rolling", "measure": "enrichment", "role": "decoder", "seed": 0}
        rows = []
        for null, (value, low, high, q) in given.items():
            name = null.replace("_", "-")
            rows += [
                common | {"layer": i, "null": name, "value": value, "low": low, "high": high, "q": q} for i in range(3)
            ]
        run.write("w", rows)
    run.close("finished")
    return findings(read([str(tmp_path / "run")]), "representation")


def everything(status):
    return dict.fromkeys([null.replace("-", "_") for null in ladder_of("representation")], status)


def test_a_claim_that_stops_at_targets_says_why(tmp_path):
    found = finding_of(tmp_path, **everything(PASS) | {"targets": (0.9, 0.8, 1.02, 0.3)})
    text = sentence(found[0])
    assert "3 [2.5, 3.5] times as much as in random directions (`haar`)" in text
    assert "climbs to `init`; it does not pass `targets` (0.9 [0.8, 1.02])" in text
    assert "any error signal with the same unigram law lands there as well" in text
    assert tone(found[0]) == "part"
    assert headline(found).head == "Supported in part."


def test_the_highest_observation_is_named_beside_the_median(planted):
    (found, *_) = findings(read([str(planted / "good")]), "representation")
    assert found.label == "Decoder, early"
    assert found.peak.x == 80
    assert f"at most {found.peak.y:.3g} at step 80" in sentence(found)


@pytest.mark.parametrize(("numbers", "words"), [(FLAT, "no more than"), (LOW, "significantly less than")])
def test_a_claim_without_support_is_called_so(tmp_path, numbers, words):
    found = finding_of(tmp_path, **everything(numbers))
    assert sentence(found[0]).startswith("Not supported.")
    assert words in sentence(found[0])
    assert tone(found[0]) == "no"
    assert headline(found).head == "Not supported."


def test_a_claim_that_passes_everything_is_supported(tmp_path):
    found = finding_of(tmp_path, **everything(PASS))
    assert "passes every rung, up to `targets-uniform`" in sentence(found[0])
    assert headline(found).head == "Supported."


def test_without_intervals_nothing_is_claimed(tmp_path):
    found = finding_of(tmp_path, **everything(OPEN))
    assert sentence(found[0]).startswith("Undetermined")
    assert headline(found).head == "Undetermined."


def test_a_missing_rung_ends_the_climb_as_undetermined(tmp_path):
    found = finding_of(tmp_path, haar=PASS, axes=PASS)
    assert "`init` is undetermined" in sentence(found[0])


def test_depletion_over_targets_is_named(tmp_path):
    found = finding_of(tmp_path, **everything(PASS) | {"targets": LOW})
    assert "over `targets` it is depleted (0.6 [0.5, 0.7])" in sentence(found[0])
    wide = found[0].enrichment["targets"]._replace(high=1.03)
    mixed = replace(found[0], enrichment=found[0].enrichment | {"targets": wide})
    assert "depleted (1 of 1 observation" in sentence(mixed)  # the majority, not the median row
    assert "median 0.6 [0.5, 1.03]" in sentence(mixed)


def test_a_median_above_one_that_fails_is_not_explained_away(tmp_path):
    found = finding_of(tmp_path, **everything(PASS) | {"init": (1.4, 1.2, 1.6, 0.2)})
    text = sentence(found[0])
    assert "the median row is above 1, but none of 1 observations passed" in text


def test_the_planted_runs_get_their_verdicts(planted):
    good, bad = (view(read([str(planted / name)])).sections[0].blocks for name in ("good", "bad"))
    assert good[0].head == "Supported in part."
    assert bad[0].head == "Not supported."
    tracks = next(b for b in good if isinstance(b, LadderFigure)).tracks
    reached = {(t.label, t.tags["view"]): t.last for t in tracks}
    assert reached["Decoder, early", "representation"] == "init"
    assert reached["Encoder, late", "weight"] == "haar"


def test_an_expectation_that_fails_is_said_by_the_report(planted):
    (good,), (bad,) = (expectations(read([str(planted / name)])) for name in ("good", "bad"))
    rises = next(i for i, row in enumerate(good.rows) if row[0].text.startswith("In training it rises"))
    assert [cell.text for cell in good.rows[rises][1:]] == ["holds", "holds"]
    assert [cell.text for cell in bad.rows[rises][1:]] == ["does not hold", "does not hold"]
    assert "worth a look" in bad.caption


def one_layer(tmp_path, name, changed):
    """A run of one decoder with one row a view, all expectations met but where ``changed`` says otherwise."""
    usual = {
        ("representation", "pca", "haar", 0): 1.0,
        ("representation", "pca", "haar", 40): 6.0,
        ("weight", "svd", "haar", 0): 9.0,
        ("weight", "svd", "haar", 40): 90.0,
        ("weight", "svd", "pairing", 40): 1.2,
        ("representation", "pca", "targets", 20): 1.0,
    } | changed
    run = create_run(tmp_path / name, config={"rank": 4}, kind="pair", steps=100)
    common = {"role": "decoder", "model": "m", "seed": 0, "layer": 1, "tensor": "gradients", "subset": "all"}
    common |= {"timing": "rolling", "rank": 4, "low": 0.01, "high": 99.0}
    for (where, proxy, null, step), value in usual.items():
        found = {"view": where, "proxy": proxy, "null": null, "step": step, "measure": "enrichment", "value": value}
        run.write(f"{where}-{null}", [common | found])
    run.close("finished")
    (table,) = expectations(read([str(tmp_path / name)]))
    return [row[1].text for row in table.rows]


MET = ["holds", "holds", "holds", "holds", "holds", "not measured", "not measured"]


@pytest.mark.parametrize(
    ("changed", "which"),
    [
        ({}, None),
        ({("representation", "pca", "haar", 0): 1.2}, 0),
        ({("representation", "pca", "haar", 40): 4.9}, 1),
        ({("representation", "pca", "haar", 40): 1.0, ("representation", "pca", "haar", 60): 9.0}, 1),  # too late
        ({("representation", "pca", "targets", 20): 1.3}, 2),
        ({("weight", "svd", "haar", 0): 4.9}, 3),
        ({("weight", "svd", "pairing", 40): 21.0}, 4),
        ({("weight", "svd", "pairing", 40): math.nan}, 4),
    ],
)
def test_every_expectation_can_fail_and_fails_alone(tmp_path, changed, which):
    expected = ["does not hold" if i == which else text for i, text in enumerate(MET)]
    assert one_layer(tmp_path, "run", changed) == expected


def test_values_that_are_not_numbers_are_no_medians(tmp_path):
    found = finding_of(tmp_path, haar=(math.nan, None, None, None))
    assert found[0].enrichment == {}
    assert "not measured" in sentence(found[0])
