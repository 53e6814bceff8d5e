"""Outcomes, ladders and windows: every rule by planted numbers."""

import math

import numpy as np
import pytest

from anisoscope.verdict import climb, counted, ladder, outcome_of, outcome_over, over_observations, weights_of
from anisoscope.vocabulary import OUTCOMES, VIEWS, ladder_of

# value, low, high, low90, high90, p, q
PLANTED = {
    "above": (4.0, 2.0, 8.0, 2.2, 7.0, 0.001, 0.01),
    "below": (0.3, 0.1, 0.6, 0.12, 0.5, 0.001, 0.01),
    "equal": (1.02, 0.9, 1.15, 0.92, 1.13, 0.7, 0.8),
    "equal, above 1": (1.1, 1.02, 1.19, 1.03, 1.17, 0.001, 0.01),
    "equal, below 1": (0.9, 0.84, 0.97, 0.85, 0.95, 0.001, 0.01),
    "cannot tell": (1.5, 0.8, 3.0, 0.9, 2.6, 0.2, 0.3),
    "not measured": (math.nan, None, None, None, None, None, None),
}


def numbers(outcome, **given):
    names = ("value", "low", "high", "low90", "high90", "p", "q")
    return dict(zip(names, PLANTED[outcome], strict=True)) | given


def rows(*outcomes, layer=0, view="representation"):
    return [numbers(o) | {"layer": layer, "null": null} for o, null in zip(outcomes, ladder_of(view), strict=False)]


def test_every_outcome_can_be_planted():
    assert set(PLANTED) == set(OUTCOMES)
    for outcome in PLANTED:
        assert outcome_of(numbers(outcome) | {"null": "axes"}).outcome == outcome


@pytest.mark.parametrize(
    ("given", "outcome"),
    [
        ({"q": 0.051}, "cannot tell"),
        ({"low": 1.0}, "cannot tell"),
        ({"low": None}, "cannot tell"),
        ({"q": None}, "cannot tell"),
        ({"q": math.nan}, "cannot tell"),
        ({"value": None}, "not measured"),
    ],
)
def test_above_needs_interval_and_q(given, outcome):
    assert outcome_of(numbers("above", **given) | {"null": "haar"}).outcome == outcome


def test_what_is_not_significant_is_not_equal():
    """1.21 [1.08, 1.37] with q above 0.05 is neither above nor equal: the 90 % interval leaves the margin."""
    row = {"null": "haar", "value": 1.21, "low": 1.08, "high": 1.37, "low90": 1.1, "high90": 1.34, "p": 0.04, "q": 0.2}
    assert outcome_of(row).outcome == "cannot tell"
    assert outcome_of(row, margin=1.5).outcome == "cannot tell"  # over haar equality needs p > 0.05 too
    assert outcome_of(row | {"null": "axes"}, margin=1.5).outcome == "equal"


@pytest.mark.parametrize("null", ["haar", "axes", "init", "targets"])
def test_without_a_p_nothing_is_told(null):
    """A swap test has none below 16 units a side."""
    for missing in (None, math.nan):
        found = outcome_of(numbers("equal", p=missing, q=missing) | {"null": null})
        assert (found.outcome, "without a p-value" in found.why) == ("cannot tell", True)


def test_too_few_arrangements_are_named():
    row = numbers("above", q=0.25, q_floor=0.25) | {"null": "init"}
    assert "too few arrangements" in outcome_of(row).why


def test_the_captured_share_is_judged_against_chance():
    row = {"value": 0.4, "low": 0.3, "high": 0.5, "q": 0.01}
    assert [outcome_over(row, floor) for floor in (0.2, 0.35, 0.6, None)] == [
        "above",
        "cannot tell",
        "below",
        "not measured",
    ]
    assert outcome_over(row | {"q": 0.2}, 0.2) == "cannot tell"


def test_a_layer_climbs_as_far_as_its_unbroken_run():
    found = ladder(rows("above", "equal, above 1", "equal", "above", "above"), view="representation")
    assert found.layers[0].last == "axes"
    assert found.model.last == "axes"
    assert found.model.first_not_passed == "init"
    assert found.model.commonest("init") == "equal"
    assert ladder(rows(*["above"] * 5), view="representation").model.first_not_passed is None
    assert ladder(rows("cannot tell"), view="weight").model.last is None


def test_five_layers_of_which_none_passes_are_not_passed_by_votes():
    """Null by null each has a majority; yet no layer gets beyond the second."""
    patterns = ["10101", "11010", "01101", "10110", "01011"]
    given = [
        row
        for layer, pattern in enumerate(patterns)
        for row in rows(*("above" if bit == "1" else "cannot tell" for bit in pattern), layer=layer)
    ]
    found = ladder(given, view="representation").model
    by_vote = [found.merged(null)["above"] for null in ladder_of("representation")]
    assert all(votes == 3 for votes in by_vote)
    assert found.last == "haar"
    assert [found.reached[null] for null in ladder_of("representation")] == [3, 1, 0, 0, 0]


def test_a_model_needs_more_than_half_of_its_layers():
    half = rows("above") + rows("equal", layer=1)
    assert ladder(half, view="representation").model.last is None
    found = ladder(half + rows("above", layer=2), view="representation").model
    assert found.last == "haar"
    assert "of 3 layers: haar 2, axes 0" in str(found)


def test_layers_on_both_sides_are_mixed():
    given = [row for k in range(8) for row in rows("cannot tell", layer=k)]
    given += rows("above", layer=8) + rows("below", layer=9)
    found = ladder(given, view="representation").model
    assert found.is_mixed("haar")
    assert "haar: cannot tell, mixed" in str(found)
    assert not ladder(given[:-1], view="representation").model.is_mixed("haar")


def test_layers_below_a_null_that_most_pass_are_said():
    given = [row for k in range(4) for row in rows("above", layer=k)] + rows("below", layer=4)
    found = ladder(given, view="representation").model
    assert (found.last, found.mixed_and_passed) == ("haar", ["haar"])
    assert "mixed over haar" in str(found)
    assert "mixed" not in str(ladder(given[:-1], view="representation").model)


def test_a_window_does_not_depend_on_how_densely_it_was_observed():
    passing = ladder(rows("above", "above"), view="representation").model
    failing = ladder(rows("cannot tell"), view="representation").model
    steps = [1, 2, 4, 7, 14, 27, 51, 99]
    verdicts = [failing] * 4 + [passing] * 4
    assert over_observations(verdicts, weights_of(steps, 1, 120)).last == "axes"
    more = sorted({*range(1, 8), *steps})
    verdicts = [failing if step <= 7 else passing for step in more]
    assert over_observations(verdicts, weights_of(more, 1, 120)).last == "axes"


def test_weights_are_the_steps_nearest_to_each_observation():
    steps, first, last = [3, 10, 11, 40], 1, 60
    found = weights_of(steps, first, last)
    fine = np.linspace(first, last, 200_001)
    nearest = np.abs(fine[:, None] - np.array(steps)).argmin(1)
    expected = np.bincount(nearest, minlength=4) / len(fine)
    assert np.array(found) / sum(found) == pytest.approx(expected, abs=1e-4)
    assert weights_of([0], 0, 0) == [1.0]


def test_seeds_and_windows_average_counts():
    a = ladder(rows("above") + rows("above", layer=1), view="representation").model
    b = ladder(rows("above") + rows("equal", layer=1), view="representation").model
    found = over_observations([a, b], [3.0, 1.0])
    assert found.total == 2
    assert found.reached["haar"] == pytest.approx(1.75)
    assert found.outcomes["haar"]["equal"] == pytest.approx(0.25)


def test_under_the_complete_null_a_model_hardly_ever_passes():
    """Twelve layers of pure noise, independent or nearly one: intervals and q at their nominal levels."""
    rng = np.random.default_rng(0)
    for share in (0.0, 0.99):
        passed = 0
        for _ in range(400):
            common = rng.standard_normal()
            z = math.sqrt(share) * common + math.sqrt(1 - share) * rng.standard_normal(12)
            given = []
            for layer, value in enumerate(z):
                p = math.erfc(abs(value) / math.sqrt(2))
                ends = {"low": math.exp(value - 1.96), "high": math.exp(value + 1.96)}
                given.append({"layer": layer, "null": "haar", "value": math.exp(value), "p": p, "q": p} | ends)
            passed += ladder(given, view="representation").model.last is not None
        assert passed <= 0.05 * 400, (share, passed)


def test_orders_of_the_views():
    assert ladder_of("weight")[:3] == ("haar", "pairing", "axes")
    assert "pairing" not in ladder_of("representation")
    assert all("normal" not in rungs and "pairing-token" not in rungs for rungs in map(ladder_of, VIEWS))


def test_guards():
    with pytest.raises(ValueError, match="at least one layer"):
        ladder([], view="weight")
    with pytest.raises(ValueError, match="view must be one of"):
        climb([], view="attention")
    with pytest.raises(ValueError, match="at least one observation"):
        over_observations([], [])
    assert counted([climb([], view="weight")], view="weight").commonest("haar") == "not measured"


def test_rows_that_cannot_be_are_not_judged():
    for given in ({"value": 0.5}, {"value": math.inf}, {"value": -2.0}, {"value": 0.0}):
        assert outcome_of(numbers("above", **given) | {"null": "haar"}).outcome == "cannot tell"
    assert outcome_over({"value": 0.4, "low": 0.3, "high": 0.5, "q": math.nan}, 0.2) == "cannot tell"


def test_two_rows_of_one_layer_and_null_decide_nothing_in_any_order():
    a, b = ({**numbers(o), "layer": 0, "null": "haar"} for o in ("above", "equal"))
    for given in ([a, b], [b, a]):
        assert ladder(given, view="representation").layers[0].rungs[0].outcome == "cannot tell"


def test_ties_are_not_decided_by_the_order_of_words():
    found = ladder(rows("above") + rows("equal", layer=1), view="representation").model
    assert found.commonest("haar") == "cannot tell"
    assert found.majority("haar") is None


def test_modules_are_not_called_layers():
    given = [row | {"site": site} for layer in (0, 1) for site in "ab" for row in rows("above", layer=layer)]
    assert "of 4 modules" in str(ladder(given, view="representation").model)
