"""Other labels: an extra pass that changes nothing and differs from the first in its labels only."""

import pytest
import torch

from anisoscope import EvidenceOptions, Scope, ScopeWarning
from anisoscope.observe.label_passes import other_labels
from capture.families import batch, build
from observe.test_scope import chosen, small, train


def test_training_is_bit_identical_with_targets_and_probe():
    probe = torch.randint(3, 40, (512, 9), generator=torch.Generator().manual_seed(0))

    def scope_of(model):
        return small(model, targets=True, probe=probe, schedule=3)

    for name in ("gpt2", "albert", "plain"):
        bare, observed = train(name, steps=7), train(name, scope_of, steps=7)
        assert torch.equal(bare[0], observed[0])
        assert all(torch.equal(a, b) for a, b in zip(bare[1], observed[1], strict=True))
        rows = observed[2].rows()
        assert not [r["note"] for r in rows if r["measure"] == "skipped"]
        nulls = {(r["view"], r["null"]) for r in rows if r["measure"] == "enrichment" and r["value"] is not None}
        for view in ("representation", "weight", "embedding"):
            assert {(view, "targets"), (view, "targets-uniform")} <= nulls
        for r in rows:
            if r["null"] == "targets" and r["tensor"] == "gradients":
                assert r["units"] < 8 or r["low"] < r["value"] < r["high"]
                assert (r["p"] is None) == (r["n"] < 16)
        assert {r["layer"] for r in rows if r["measure"] == "two_nn"} == {0, 1, 2, 3}


def test_with_the_same_labels_the_extra_pass_gives_the_same_gradients(monkeypatch):
    """Dropout is on: only the random state of the first pass can make them equal."""
    monkeypatch.setattr("anisoscope.observe.label_passes.other_labels", lambda labels, *_: labels)
    model = build("gpt2").train()
    scope = small(model, targets=True, schedule=[0])
    with scope.step():
        for i in range(2):
            model(**batch(seed=i, sequences=12)).loss.backward()
    rows = scope.rows()
    for view in ("representation", "weight", "embedding"):
        for r in rows:
            if r["view"] == view and r["null"] == "targets":
                assert r["value"] == pytest.approx(1, abs=1e-6)


def test_every_number_under_other_labels_is_that_of_a_slow_reference(monkeypatch):
    seen = []

    def recorded(labels, tokens, null, ids, generator):
        seen.append((null, other_labels(labels, tokens, null, ids, generator)))
        return seen[-1][1]

    monkeypatch.setattr("anisoscope.observe.label_passes.other_labels", recorded)
    model = build("gpt_neox").eval()
    scope = small(model, targets=True, schedule=[0], views=("representation",))
    with scope.step():
        model(**batch(sequences=12)).loss.backward()
    rows = scope.rows()
    for null, labels in seen:
        twin = build("gpt_neox").eval()
        plain = small(twin, schedule=[0], views=("representation",))
        with plain.step():
            twin(**(batch(sequences=12) | {"labels": labels})).loss.backward()
        key = {"view": "representation", "proxy": "pca"}
        for layer in range(4):
            other = chosen(plain.rows(), **key, layer=layer, measure="energy")["value"]
            own = chosen(rows, **key, layer=layer, measure="energy")["value"]
            found = chosen(rows, **key, layer=layer, measure="enrichment", null=null)["value"]
            assert found == pytest.approx(own / (1 - own) / (other / (1 - other)), rel=1e-4)


def test_labels_are_permuted_where_they_are_asked_for_and_nowhere_else():
    g = torch.Generator().manual_seed(0)
    b = batch(sequences=12)
    permuted = other_labels(b["labels"], b["input_ids"], "targets", 40, g)
    assert torch.equal(permuted == -100, b["labels"] == -100)
    assert torch.equal(permuted[:, 0], b["labels"][:, 0])
    assert torch.equal(permuted.flatten().sort().values, b["labels"].flatten().sort().values)
    assert not torch.equal(permuted, b["labels"])
    masked = torch.where(torch.rand(12, 9, generator=g) < 0.3, (b["input_ids"] + 1) % 40, -100)
    again = other_labels(masked, b["input_ids"], "targets", 40, g)
    assert torch.equal(again.flatten().sort().values, masked.flatten().sort().values)
    uniform = other_labels(masked, b["input_ids"], "targets-uniform", 1000, g)
    assert torch.equal(uniform == -100, masked == -100)
    assert 40 < uniform.max() < 1000


@pytest.mark.parametrize(
    ("configure", "reason"),
    [
        (lambda model: model.gradient_checkpointing_enable({"use_reentrant": True}), "reentrant"),
        (lambda model: None, "no labels"),
    ],
)
def test_where_it_is_impossible_the_rung_is_undetermined_with_the_reason(configure, reason):
    model = build("gpt2").train()
    configure(model)
    scope = small(model, targets=True, schedule=[0])
    inputs = batch(sequences=12)
    scope.begin()
    if reason == "no labels":
        labels = inputs.pop("labels")
        logits = model(**inputs).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
    else:
        model(**inputs).loss.backward()
    with pytest.warns(ScopeWarning, match=f"not measured at step 0: targets and targets-uniform: .*{reason}"):
        scope.end()
    rows = [r for r in scope.rows() if (r["null"] or "").startswith("targets")]
    assert {r["null"] for r in rows} == {"targets", "targets-uniform"}
    assert all(r["value"] != r["value"] and reason in r["note"] for r in rows)
    assert [r for r in scope.rows() if r["measure"] == "energy"]


def test_a_loss_function_takes_the_place_of_labels():
    model = build("gpt2").eval()

    def loss_fn(output, labels):
        return torch.nn.functional.cross_entropy(output.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

    ids = batch(sequences=16, padded=False)["input_ids"]
    scope = Scope(
        model, rank=4, resamples=19, schedule=[0], targets=True, strict=True, evidence=EvidenceOptions(loss_fn=loss_fn)
    )
    with scope.step():
        loss_fn(model(input_ids=ids), ids).backward()
    rows = [r for r in scope.rows() if r["null"] == "targets" and r["view"] == "representation"]
    found = [r for r in rows if r["measure"] == "enrichment"]
    assert len(found) == 4
    assert len(rows) == 5  # one more over all layers
    assert all(r["p"] is not None for r in found)


def test_a_probe_must_be_large_enough_and_is_measured_layer_by_layer():
    model = build("gpt2")
    with pytest.raises(ValueError, match="at least 4096 tokens"):
        small(model, probe=torch.zeros(4, 9, dtype=torch.long))
    with pytest.raises(ValueError, match="input_ids of shape"):
        small(model, probe=torch.zeros(4096, dtype=torch.long))


def test_the_probe_is_the_dimension_of_the_held_out_states():
    from anisoscope import two_nn
    from anisoscope.geometry.controls import gaussian_like

    ids = torch.randint(3, 40, (500, 9), generator=torch.Generator().manual_seed(3))
    model = build("llama").train()
    scope = small(model, probe=ids, schedule=[0])
    with scope.step():
        model(**batch(sequences=12)).loss.backward()
    assert model.training
    with torch.no_grad():
        states = model.eval()(input_ids=ids, output_hidden_states=True).hidden_states
    for layer in (1, 2):
        expected = two_nn(states[layer].flatten(0, 1))
        found = chosen(scope.rows(), measure="two_nn", layer=layer, subset="all")
        assert found["value"] == pytest.approx(expected.value, rel=1e-3)
        assert found["n"] == expected.n
        control = two_nn(gaussian_like(states[layer].flatten(0, 1)))
        assert control.low < found["floor"] < control.high  # of another draw: rows come in another order
    assert "fewer than 4096" in chosen(scope.rows(), measure="two_nn", layer=0, subset="all")["note"]
