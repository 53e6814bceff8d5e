import pytest

from anisoscope.verdict import Rung, climb, ladder, majority, rung, window
from anisoscope.vocabulary import VIEWS, ladder_of


def rows(*statuses, layer=0, view="representation"):
    numbers = {
        "p": (4.0, 2.0, 8.0, 0.01),
        "d": (0.3, 0.1, 0.6, 0.01),
        "n": (1.5, 0.8, 3.0, 0.01),
        "q": (4.0, 2.0, 8.0, 0.2),
        "u": (4.0, None, None, 0.01),
    }
    return [
        dict(zip(("value", "low", "high", "q"), numbers[s], strict=True)) | {"layer": layer, "null": null}
        for s, null in zip(statuses, ladder_of(view), strict=False)
    ]


@pytest.mark.parametrize(
    ("numbers", "status"),
    [
        ((4.0, 2.0, 8.0, 0.05), "passed"),
        ((4.0, 2.0, 8.0, 0.051), "not passed"),
        ((4.0, 1.0, 8.0, 0.01), "not passed"),
        ((0.5, 0.2, 0.9, 0.01), "depleted"),
        ((0.5, 0.2, 1.1, 0.01), "not passed"),
        ((float("nan"), 0.2, 1.1, 0.01), "undetermined"),
        ((None, None, None, None), "undetermined"),
        ((4.0, None, 8.0, 0.01), "undetermined"),
        ((4.0, 2.0, 8.0, None), "undetermined"),
        ((4.0, 2.0, 8.0, float("nan")), "undetermined"),
    ],
)
def test_a_rung_by_value_interval_and_q(numbers, status):
    assert rung("haar", *numbers).status == status


def test_the_verdict_is_the_last_of_the_unbroken_run():
    verdict = ladder(rows("p", "p", "n", "p", "p"), view="representation").model
    assert (verdict.last, verdict.first_not_passed) == ("axes", "init")
    assert [r.status for r in verdict.rungs] == ["passed", "passed", "not passed", "passed", "passed"]
    assert ladder(rows("p", "p", "p", "p", "p"), view="representation").model.first_not_passed is None
    nothing = ladder(rows("q"), view="weight").model
    assert nothing.last is None
    assert str(nothing).startswith("not supported; haar: not passed")
    assert ladder(rows("d", "p"), view="representation").model.why.startswith("depleted")


def test_an_undetermined_rung_ends_the_run():
    assert ladder(rows("p", "u", "p"), view="representation").model.last == "haar"
    assert ladder(rows("p"), view="representation").model.why.startswith("undetermined")


def test_a_model_needs_more_than_half_of_its_layers():
    half = rows("p") + rows("n", layer=1)
    assert ladder(half, view="representation").model.last is None
    most = half + rows("p", layer=2)
    found = ladder(most, view="representation")
    assert found.model.last == "haar"
    assert [found.layers[i].last for i in range(3)] == ["haar", None, "haar"]
    unclear = rows("p") + rows("u", layer=1)
    assert ladder(unclear, view="representation").model.rungs[0].status == "undetermined"


def test_a_window_needs_more_than_half_of_its_observations():
    good = ladder(rows("p", "p"), view="representation").model
    bad = ladder(rows("p", "n"), view="representation").model
    assert window([good, good, bad]).last == "axes"
    assert window([good, bad]).last == "haar"
    assert "1 of 2 observations" in window([good, bad]).why


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
        window([])
    with pytest.raises(ValueError, match="at least one"):
        majority([], of="layers")
    assert majority([Rung("haar", "depleted", "")] * 3, of="layers").status == "depleted"
