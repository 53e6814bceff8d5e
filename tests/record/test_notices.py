"""Nothing silent: impossible settings are errors at once, skipped observations are warned of once, and summed up."""

import logging
import warnings

import pytest
import torch

from anisoscope import CaptureOptions, EvidenceOptions, Scope, ScopeWarning, SessionOptions
from observe.nano import NanoGPT, text, train

SMALL = {"rank": 4, "resamples": 19, "schedule": 1}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rank": 16}, "rank must be below the width of what is observed, 16 .* got 16; pass rank=4"),
        ({"rank": 4, "evidence": EvidenceOptions(ranks=(2, 40))}, "rank must be below the width"),
        ({"rank": 0}, "rank must be a whole number of at least 1, .*got 0"),
        ({"rank": True}, "rank must be a whole number"),
        ({"resamples": 0}, "resamples must be a whole number of at least 1, got 0"),
        ({"steps": 0}, "steps must be a whole number of at least 1"),
        ({"nulls": ("harr",)}, "got 'harr'; did you mean 'haar'?"),
        ({"nulls": "haar"}, r"nulls must be a list of words, got 'haar'; write \['haar'\]"),
        ({"proxies": "pca"}, "proxies must be a list of words"),
        ({"proxies": ("pac",)}, "did you mean 'pca'?"),
        ({"views": ("wieght",)}, "did you mean 'weight'?"),
        ({"schedule": "lgo"}, "did you mean 'log'?"),
        ({"evaluate": "hots"}, "did you mean 'host'?"),
        ({"evidence": EvidenceOptions(subsets=("no_first",))}, "did you mean 'no-first'?"),
        ({"session": SessionOptions(report=True)}, "report=True without store="),
    ],
)
def test_what_cannot_work_is_an_error_of_the_constructor(options, said):
    with pytest.raises(ValueError, match=said):
        Scope(NanoGPT(), **(SMALL | options))


def test_the_default_rank_on_a_narrow_model_is_an_error_too():
    with pytest.raises(ValueError, match=r"32 in the weight view .* got 32; pass rank=8"):
        Scope(NanoGPT(width=32))


def test_a_rank_that_a_fold_of_types_cannot_have_names_the_view():
    with pytest.raises(
        ValueError, match=r"in the embedding view, for 65 types in two folds, got 32; .*views="
    ) as error:
        Scope(NanoGPT(width=64), rank=32)
    most = int(str(error.value).split("at most ")[1].split()[0])
    with pytest.raises(ValueError, match="at most"):
        Scope(NanoGPT(width=64), rank=most + 1)
    scope = Scope(NanoGPT(width=64), rank=most, schedule=[0], resamples=19)  # the bound is no lower than it must be
    everything = torch.arange(65).repeat(8)[: 8 * 64].reshape(32, 16)
    with scope.step():
        scope._model(everything, everything.flip(0))[1].backward()
    assert not [row for row in scope.rows() if row["measure"] == "skipped"]
    scope.close()


def test_a_batch_of_one_is_warned_of_once_and_summed_up(caplog):
    model = NanoGPT()
    scope = Scope(model, **SMALL)
    with warnings.catch_warnings(record=True) as caught, caplog.at_level(logging.INFO, "anisoscope"):
        warnings.simplefilter("always")
        train(model, scope, range(5), sequences=1)
        scope.close()
    ours = [each for each in caught if issubclass(each.category, ScopeWarning)]
    assert len(ours) == 1
    assert "the observation of step 0 was skipped: each fold must hold at least 2" in str(ours[0].message)
    assert "/tests/" in ours[0].filename  # the line of the user's own loop
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "0 observations judged, 5 skipped" in caplog.records[-1].getMessage()
    assert "skipped 5 (step 0, 1, 2, 3 …)" in scope.summary()


def test_two_reasons_are_two_warnings():
    model = NanoGPT()
    scope = Scope(model, **SMALL)
    train(model, scope, [0], sequences=1)
    with pytest.warns(ScopeWarning, match="skipped: each fold"):
        scope.wait()
    scope.begin()
    with pytest.warns(ScopeWarning, match="was backward called inside the step") as caught:
        scope.end()
    scope.begin()
    scope.end()
    assert len(caught) == 1
    assert [len(each.steps) for each in scope._notices.skipped] == [1, 2]
    scope.close()


def test_a_model_whose_blocks_are_frozen_is_warned_of_before_the_first_step():
    model = NanoGPT()
    model.requires_grad_(False)
    model.head = torch.nn.Linear(16, 65)
    scope = Scope(model, **SMALL)
    with pytest.warns(ScopeWarning, match="no block and no embedding of this model is trained"):
        scope.begin()
    scope.abandon()
    scope.close()
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="must have parameters that require gradients"):
        Scope(model, **SMALL)


def test_the_scope_says_what_it_watches_and_what_it_cost():
    model = NanoGPT()
    scope = Scope(model, **SMALL, steps=3)
    assert repr(scope) == (
        "Scope(NanoGPT with 2 blocks: representation weight embedding; pca of rank 4, nulls haar normal pairing axes "
        "init; schedule 1; at step 0 of 3, 0 observed, 0 skipped)"
    )
    train(model, scope, range(3))
    scope.close()
    assert "closed, 3 observed, 0 skipped" in repr(scope)
    costs = [row["value"] for row in scope.rows() if row["measure"] == "cost" and row["variant"] == "watched"]
    assert f"{sum(costs):.3g} s in the training thread" in scope.summary()


def test_steps_beyond_the_end_are_warned_of():
    model = NanoGPT()
    scope = Scope(model, **(SMALL | {"schedule": [0]}), steps=2)
    with pytest.warns(ScopeWarning, match=r"step 2 is past steps=2: .*scope.begin\(\) and scope.end\(\)") as caught:
        train(model, scope, range(5))
    assert len(caught) == 1
    scope.close()


def test_micro_batches_counted_as_steps_are_warned_of():
    model = NanoGPT()
    scope = Scope(model, **SMALL)
    with scope.step():
        model(*text(0))[1].backward()
    with pytest.warns(ScopeWarning, match="no optimiser step was seen .* Is every micro-batch counted as a step"):
        scope.begin()
    scope.abandon()
    scope.close()


def test_labels_are_found_under_their_usual_names_and_by_place():
    model = NanoGPT()
    scope = Scope(model, **SMALL, targets=True, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, scope, range(1))
        rows = scope.rows()
    values = [row["value"] for row in rows if row["null"] == "targets"]
    assert len(values) > 2
    assert all(value == value for value in values)
    scope.close()


def test_labels_of_another_name_are_named():
    class Odd(NanoGPT):
        def forward(self, idx, answers=None):  # pyright: ignore[reportIncompatibleMethodOverride]
            return super().forward(idx, answers)

    def measured(**options):
        model = Odd()
        scope = Scope(model, **SMALL, targets=True, **options)
        train(model, scope, range(1))
        rows = [row for row in scope.rows() if row["null"] == "targets"]
        scope.close()
        return rows

    with pytest.warns(ScopeWarning, match=r"targets and targets-uniform: no labels .*CaptureOptions\(labels='y'\)"):
        assert all(row["value"] != row["value"] for row in measured())
    assert all(row["value"] == row["value"] for row in measured(capture=CaptureOptions(labels="answers")))


def test_positions_with_a_negative_label_stay_unasked():
    """nanoGPT ignores −1: the extra pass under other labels must not ask there either."""
    model = NanoGPT()
    inputs, targets = text(0)
    targets = targets.clone()
    targets[:, :6] = -1
    scope = Scope(model, **SMALL, targets=True, strict=True)
    with scope.step():
        model(inputs, targets)[1].backward()
    (found,) = [
        row["value"]
        for row in scope.rows()
        if row["null"] == "targets" and row["view"] == "representation" and row["layer"] == 2
    ]
    assert found == found
    scope.close()


def seen_of(model, *, steps=3, change=lambda model: None, views=None):
    """Rows, warnings and the summary of a small training; ``change`` comes after the scope was made."""
    scope = Scope(model, **SMALL, views=views)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        change(model)
        for step in range(steps):
            with scope.step():
                model(*text(step))[1].backward()
        scope.close()
    ours = [str(each.message) for each in caught if issubclass(each.category, ScopeWarning)]
    return scope, scope.rows(), ours


def test_a_frozen_embedding_is_named_before_the_first_step_and_in_the_summary():
    model = NanoGPT()
    model.wte.requires_grad_(False)
    scope, rows, warned = seen_of(model)
    said = "the embedding wte is frozen (requires_grad is False), so the embedding view is left out"
    assert said in scope.notes
    assert said in warned
    assert f"left out: {said}" in scope.summary()
    assert {row["view"] for row in rows if row["measure"] == "energy"} == {"representation", "weight"}
    with pytest.raises(ValueError, match="an embedding must be trained to be observed, got the embedding wte is froz"):
        Scope(model, **SMALL, views=["embedding"])
    assert not [note for note in Scope(model, **SMALL, views=["weight"]).notes if "embedding" in note]  # not asked for


def frozen_later(model):
    model.wte.requires_grad_(False)


def detached(model):
    model.h[0].register_forward_pre_hook(lambda module, inputs: (inputs[0].detach(),))


@pytest.mark.parametrize(
    ("change", "why"), [(frozen_later, "it was frozen after"), (detached, "its output is detached")]
)
def test_an_embedding_that_gets_no_gradient_loses_its_view_with_a_note(change, why):
    scope, rows, warned = seen_of(NanoGPT(), change=change)
    about = [text for text in warned if "no gradient came back to the embedding wte" in text]
    assert len(about) == 1  # of three observations
    assert why in about[0]
    notes = [row for row in rows if row["view"] == "embedding"]
    assert [(row["step"], row["measure"], row["tensor"]) for row in notes] == [
        (step, "note", "gradients") for step in range(3)
    ]
    assert "not measured 3 (step 0, 1, 2): the embedding: no gradient" in scope.summary()
    assert "3 observations judged, 0 skipped" in scope.summary()


def test_layers_below_all_that_is_trained_are_named():
    model = NanoGPT()
    model.wte.requires_grad_(False)
    model.h[0].requires_grad_(False)
    scope, rows, warned = seen_of(model)
    assert [text for text in warned if "gradients at layer 0 1: no gradient reaches it" in text]
    assert "not measured 3 (step 0, 1, 2): gradients at layer 0 1" in scope.summary()
    noted = [(row["step"], row["layer"]) for row in rows if row["measure"] == "note" and "no gradient" in row["note"]]
    assert noted == [(step, layer) for step in range(3) for layer in (0, 1)]
    assert {row["layer"] for row in rows if row["measure"] == "energy" and row["view"] == "representation"} == {2}
