"""Frequency and the small scale on the page: both sides of every fork, and what is said when a claim fails."""

import pytest

from anisoscope.report.make import make_report
from anisoscope.report.reading import read
from anisoscope.report.sections.frequency_section import frequency_section
from anisoscope.report.sections.small_scale import local_section
from anisoscope.report.tree import Figure, Table, Text
from anisoscope.report.view import view
from anisoscope.store.run import create_run

COMMON = {"model": "m", "role": "decoder", "seed": 0, "subset": "all"}


def correlation(variant, value, tensor="output", step=10, half=0.05, **rest):
    where = {"view": "embedding", "tensor": tensor, "layer": 0} | rest
    numbers = {"value": value, "low": value - half, "high": value + half, "n": 500}
    return COMMON | where | numbers | {"step": step, "measure": "frequency_correlation", "variant": variant}


def binned(measure, cloud, value, step=10, layer=1, **rest):
    where = {"view": "representation", "tensor": "gradients", "layer": layer, "subset": cloud, "step": step}
    numbers = {"value": value, "low": 0.9 * value, "high": 1.1 * value, "n": 100}
    return COMMON | where | numbers | {"measure": measure} | rest


def rows(*, pinned=-0.4, slope=0.3):
    found = [correlation("distance, plain, spearman", 0.55), correlation("distance, weighted, spearman", -0.55)]
    found += [correlation("trajectory, spearman", pinned), correlation("distance, weighted, spearman", -0.5, step=0)]
    for k in range(1, 6):
        for step in (0, 10):
            found.append(binned("bin_enrichment", f"target tokens {k}/5", 2.0**k, step=step, null="haar"))
        found.append(binned("bin_visible_curvature", f"input tokens {k}/5", 0.1 * k, variant="local tangents"))
    trend = {"value": slope, "low": slope - 0.1, "high": slope + 0.1, "measure": "bin_enrichment_trend"}
    found.append(binned("", "target tokens", 1.0) | trend)
    for k, count in enumerate((1, 10, 100, 1000)):
        place = {
            "measure": "type_place",
            "variant": "distance, plain",
            "item": k,
            "value": count**0.1,
            "n": count,
            "token": "the",
        }
        found.append(COMMON | place | {"view": "embedding", "tensor": "output", "layer": 0, "step": 10})
    return found


def small(*, inside=0.9, clear=(True, False), q=(0.01, 0.01), control="elliptical", outcome=None):
    found = []
    for layer, fine in enumerate(clear):
        where = COMMON | {"view": "representation", "layer": layer, "step": 10, "tensor": "activations"}
        for variant, value in ((None, inside), ("normal part", 0.4), (control, 0.5), ("random proxy", 0.1)):
            numbers = {"value": value, "low": value - 0.05, "high": value + 0.05, "n": 64}
            found.append(where | numbers | {"measure": "tangent_overlap", "variant": variant})
        if control == "elliptical":
            tested = {"variant": "over elliptical", "value": inside - 0.5, "p": q[layer], "q": q[layer]}
            found.append(where | tested | {"measure": "tangent_overlap", "n": 64, "outcome": outcome})
        premise = where | {"view": "weight", "tensor": "gradients", "measure": "non_cancellation"}
        numbers = {"value": 1.3, "low": 1.1, "high": 1.6, "outcome": "above" if fine else "cannot tell"}
        found.append(premise | numbers | {"variant": "tangent over normal"})
        found.append(premise | {"value": 0.3, "low": 0.2, "high": 0.4})
        found.append(
            where | {"measure": "curvature", "variant": "rms", "value": float("nan"), "note": "cannot tell: few"}
        )
    return found


def context(folder, *parts):
    run = create_run(folder / "run", kind="scope", steps=12)
    every = [row for part in parts for row in part]
    for step in sorted({row["step"] for row in every}):
        run.write("scope", [row for row in every if row["step"] == step])
    run.close("finished")
    return read([run.path])


def words(section):
    return " ".join(block.text for block in section.blocks if isinstance(block, Text))


def test_both_sides_of_every_fork_are_shown(tmp_path):
    section = frequency_section(context(tmp_path, rows()))
    said = words(section)
    assert "0.55 [0.5, 0.6] to the plain centroid and −0.55 [−0.6, −0.5] to the weighted" in said
    assert "as pinning predicts" in said
    figures = {block.id: block for block in section.blocks if isinstance(block, Figure)}
    assert set(figures) == {"frequency-scatter", "frequency-bins", "frequency-correlations"}
    dots, line = figures["frequency-scatter"].series
    assert dots.scattered
    assert [point.x for point in dots.points] == [1, 10, 100, 1000]
    assert [point.x for point in line.points] == [1, 1000]
    assert {s.tags["measure"] for s in figures["frequency-bins"].series} == {
        "enrichment over haar",
        "visible curvature, local tangents",
    }
    (table,) = (block for block in section.blocks if isinstance(block, Table))
    assert [cell.text for cell in table.rows[0]][1:3] == ["enrichment over haar", "by target token, equal tokens"]
    assert table.rows[0][-1].text == "1 rise, 0 fall"


@pytest.mark.parametrize(("value", "said"), [(0.4, "the opposite of pinning"), (0.01, "neither pinning nor")])
def test_a_claim_that_fails_is_said_to(value, said, tmp_path):
    assert said in words(frequency_section(context(tmp_path, rows(pinned=value))))


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        ("above", "It holds more of them than in those clouds at layer 0 and 1 (2 of 2 layers"),
        ("below", "At layer 0 and 1, it holds less of them"),
        ("cannot tell", "tangency itself is not shown"),
        (None, "It holds more of them than in those clouds at layer 0 and 1"),
    ],
)
def test_tangency_follows_its_outcome(tmp_path, outcome, told):
    """Rows of an earlier release have none: their q decides."""
    assert told in words(local_section(context(tmp_path, small(outcome=outcome))))


def test_tangency_and_the_premise_in_words(tmp_path):
    said = words(local_section(context(tmp_path, small())))
    assert "0.5 [0.45, 0.55] of the same in clouds of equal covariance and radii, which have no tangents. " in said
    assert "It holds more of them than in those clouds at layer 0 and 1 (2 of 2 layers, q ≤ 0.05)." in said
    assert "holds at layer 0; is undecided at layer 1." in said
    assert "curvature is undecided at every layer: few." in said


def test_a_curvature_that_is_told_no_longer_says_when_it_was(tmp_path):
    told = COMMON | {"view": "representation", "layer": 1, "step": 5, "tensor": "activations", "measure": "curvature"}
    told |= {"variant": "rms", "value": 0.2, "low": 0.1, "high": 0.3}
    said = words(local_section(context(tmp_path, small(), [told])))
    assert "curvature (rms, median) 0.2 [0.1, 0.3] at 1 layer that allows a number at step 5, and none later." in said


def test_curvature_along_the_proxy_is_compared_with_random_directions_not_with_the_mean(tmp_path):
    where = COMMON | {"view": "representation", "layer": 1, "step": 10, "tensor": "activations", "measure": "curvature"}
    told = where | {"variant": "rms", "value": 0.2, "low": 0.1, "high": 0.3}
    ratio = where | {"variant": "along proxy over random", "value": 1.1, "low": 0.8, "high": 1.4}
    said = words(local_section(context(tmp_path, small(), [told, ratio])))
    assert "along the proxy 1.1 [0.8, 1.4] times that along random tangent directions." in said


def test_tangency_is_said_of_the_layers_alone_where_the_test_rejects(tmp_path):
    said = words(local_section(context(tmp_path, small(q=(0.2, 0.03)))))
    assert "in those clouds at layer 1 (1 of 2 layers, q ≤ 0.05)." in said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"q": (0.06, 0.9)}, "No layer is shown to hold more than those clouds do, so tangency itself is not shown."),
        (
            {"inside": 0.3},
            "tangency itself is not shown. At layer 0 and 1, it holds less of them than in those clouds.",
        ),
        ({"control": "gaussian"}, "The difference was not tested, so tangency itself is not shown."),  # an older run
    ],
)
def test_a_larger_share_is_not_called_tangent_without_the_test(given, said, tmp_path):
    found = words(local_section(context(tmp_path, small(**given))))
    assert said in found
    assert "more tangent than variance" not in found


def test_tangency_that_is_not_shown_is_said(tmp_path):
    said = words(local_section(context(tmp_path, small(inside=0.52, clear=(False, False), q=(0.4, 0.7)))))
    assert "tangency itself is not shown" in said
    assert "normal ones) is undecided at layer 0 and 1." in said


def test_a_run_without_such_rows_has_no_such_sections(tmp_path):
    plain = context(tmp_path, [COMMON | {"step": 0, "layer": 0, "measure": "energy", "value": 0.1}])
    assert frequency_section(plain) is None
    assert local_section(plain) is None
    assert not {"frequency", "local"} & {section.id for section in view(plain).sections}


def test_the_page_holds_both(tmp_path):
    context(tmp_path, rows(), small())
    page = make_report([str(tmp_path / "run")])
    assert 'id="frequency"' in page
    assert 'id="local"' in page
