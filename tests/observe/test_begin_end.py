"""Steps without a ``with`` block, and values that the training logs."""

import numpy as np
import pytest
import torch

from anisoscope import Scope, ScopeWarning, SessionOptions, open_run
from observe.nano import NanoGPT, text, train

SMALL = {"rank": 4, "resamples": 19, "schedule": 2, "strict": True}


def plain(rows):
    return [{name: repr(value) for name, value in row.items()} for row in rows if row["measure"] != "cost"]


def test_begin_and_end_give_the_rows_and_weights_of_a_with_block():
    def trained(by):
        model = NanoGPT()
        scope = Scope(model, **SMALL, steps=4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        by(model, scope, optimizer)
        scope.close()
        return plain(scope.rows()), [p.detach().clone() for p in model.parameters()]

    def events(model, scope, optimizer):
        """As accelerate calls it: begin before every micro-batch, end behind the last of a step."""
        for number in range(8):
            scope.begin()
            model(*text(number))[1].backward()
            if number % 2:
                scope.end()
                optimizer.step()
                optimizer.zero_grad()

    rows, weights = trained(events)
    expected, same = trained(
        lambda model, scope, optimizer: train(model, scope, range(4), micro=2, optimizer=optimizer)
    )
    assert rows == expected
    assert {row["step"] for row in rows} == {"0", "2"}
    assert all(torch.equal(a, b) for a, b in zip(weights, same, strict=True))


def test_an_end_without_a_beginning_is_an_error_and_a_step_left_open_is_told():
    model = NanoGPT()
    scope = Scope(model, **SMALL)
    with pytest.raises(ValueError, match=r"end\(\) without begin\(\)"):
        scope.end()
    scope.begin()
    with pytest.raises(ValueError, match="must not be nested"), scope.step():
        pass
    with pytest.warns(ScopeWarning, match="closed inside a step"):
        scope.close()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    with pytest.raises(ValueError, match="must be open"):
        scope.begin()


def test_documents_that_do_not_fit_skip_the_observation_and_not_the_training():
    model = NanoGPT()
    scope = Scope(model, **(SMALL | {"strict": False, "schedule": 1}))
    scope.begin(documents=np.array(["no", "numbers"]))
    model(*text(0))[1].backward()
    with pytest.warns(ScopeWarning, match="the observation of step 0 was skipped"):
        scope.end()
    train(model, scope, [1])
    assert {row["step"] for row in scope.rows() if row["measure"] == "energy"} == {1}
    scope.close()


def test_logged_values_are_rows_thinned_with_first_and_last(tmp_path):
    model = NanoGPT()
    scope = Scope(model, **(SMALL | {"schedule": [0]}), steps=1000, store=tmp_path / "run")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = []
    for step in range(43):
        with scope.step():
            loss = model(*text(step))[1]
            loss.backward()
            scope.log(loss=loss, lr=0.1 * step)
            given.append(float(loss.detach()))
        optimizer.step()
        optimizer.zero_grad()
    scope.log(eval_loss=2.5)
    scope.close()
    rows = open_run(tmp_path / "run").table().to_pylist()
    losses = {row["step"]: row["value"] for row in rows if row["measure"] == "loss" and row["variant"] == "train"}
    assert list(losses) == [0, 5, 10, 15, 20, 25, 30, 35, 40, 42]  # every 5th of 1 000 steps, and the last
    assert losses[42] == pytest.approx(given[42])
    assert [row["value"] for row in rows if row["variant"] == "held-out"] == [2.5]
    assert [row["value"] for row in rows if row["measure"] == "logged" and row["variant"] == "lr"][-1] == 0.1 * 42
    assert {row["step"] for row in rows if row["measure"] == "energy"} == {0}  # none took another's place
    assert {row["model"] for row in rows} == {"NanoGPT"}


def test_a_value_that_is_no_number_is_an_error():
    scope = Scope(NanoGPT(), **SMALL)
    with pytest.raises(ValueError, match="loss must be a number"):
        scope.log(loss="high")
    with pytest.raises(ValueError, match="name of letters"):
        scope.log(**{"a b": 1})
    scope.log(loss=torch.tensor(float("nan")))
    (row,) = scope.rows()
    assert row["value"] != row["value"]
    assert "nan" in row["note"]
    scope.close()


@pytest.mark.slow
def test_config_is_in_the_manifest_and_compare_shows_the_difference(tmp_path):
    from anisoscope.report.comparing import differences, subjects

    for name, rate in (("a", 0.1), ("b", 0.2)):
        model = NanoGPT()
        scope = Scope(model, **SMALL, steps=2, store=tmp_path / name, config={"lr": rate, "batch": 12})
        train(model, scope, range(2))
        scope.close()
    found = differences(subjects([open_run(tmp_path / "a"), open_run(tmp_path / "b")]))
    assert [(each.key, each.values) for each in found] == [("training.lr", {"a": 0.1, "b": 0.2})]


def test_without_a_store_logged_values_go_to_the_sink():
    class Sink:
        def __init__(self):
            self.rows = []

        def write(self, rows):
            self.rows += rows

    sink = Sink()
    scope = Scope(NanoGPT(), **SMALL, session=SessionOptions(sink=sink))
    scope.log(loss=1.0)
    assert [row["value"] for row in sink.rows] == [row["value"] for row in scope.rows()] == [1.0]
    scope.close()
