"""The embedding view: both sides of a tied table, the real update without decay, types in two folds."""

import pytest
import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from anisoscope import Scope, energy_share, fit_subspace
from anisoscope.stats.hashing import as_key, mix
from capture.families import batch, build
from observe.grouped import grouped

VIEWS = ("embedding",)


def observed(name, optimizer_of, *, steps=1, **options):
    """Train a little; returns the rows, and the table with its gradient before the last step and the table after."""
    model = build(name).eval()
    optimizer = optimizer_of(model.parameters())
    scope = Scope(model, views=VIEWS, rank=4, resamples=19, schedule=1, strict=True, **options)
    before = gradient = after = torch.empty(0)
    for step in range(steps):
        with scope.step():
            model(**batch(seed=step, sequences=12)).loss.backward()
        weight = model.get_input_embeddings().weight
        before, gradient = weight.detach().clone(), weight.grad.clone()
        optimizer.step()
        after = weight.detach().clone()
        optimizer.zero_grad()
    return scope.rows(), model, before, gradient, after


def seen(step=0):
    b = batch(seed=step, sequences=12)
    return torch.unique(b["input_ids"][b["attention_mask"].bool()])


def pooled_share(table, cloud, ids):
    """The slow reference: proxies on the rows of one half of the types, judged on the other half, both ways."""
    side = as_key(mix(ids)) & 1
    inside = total = 0.0
    for fit_on in (0, 1):
        proxy = fit_subspace(table[ids][side == fit_on].double(), method="pca", rank=4)
        share = energy_share(cloud[ids][side != fit_on].double(), proxy)
        inside, total = inside + share.inside, total + share.total
    return inside / total


def value(rows, points, measure="energy", **key):
    (found,) = [
        r
        for r in rows
        if r["view"] == "embedding"
        and r["tensor"] == points
        and r["measure"] == measure
        and all(r[k] == v for k, v in key.items())
    ]
    return found


def test_gradient_and_update_are_those_of_the_real_table():
    rows, _, before, gradient, after = observed("llama", lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=5.0))
    ids = seen()
    assert value(rows, "gradients")["value"] == pytest.approx(pooled_share(before, gradient, ids), rel=1e-5)
    raw = after - before
    assert value(rows, "update-raw")["value"] == pytest.approx(pooled_share(before, raw, ids), rel=1e-5)
    without_decay = after - before * (1 - 1e-2 * 5.0)
    assert value(rows, "update")["value"] == pytest.approx(pooled_share(before, without_decay, ids), rel=1e-4)
    assert value(rows, "update")["value"] != pytest.approx(value(rows, "update-raw")["value"], rel=1e-3)
    assert value(rows, "gradients")["n"] == len(ids)
    assert value(rows, "gradients", "enrichment", null="haar")["n"] == 12  # sequences
    assert value(rows, "update", "enrichment", null="haar")["low"] is None
    assert {r["tensor"] for r in rows if r["proxy"]} == {"gradients", "update", "update-raw"}


def test_both_sides_of_a_tied_table_are_told_apart():
    rows, model, before, total, _ = observed("gpt2", lambda p: torch.optim.SGD(p, lr=0.1))
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    b = batch(seed=0, sequences=12)
    hidden = before[b["input_ids"]].requires_grad_()
    output = torch.nn.Parameter(before.clone())
    twin = build("gpt2").eval()
    states = twin.transformer(inputs_embeds=hidden, attention_mask=b["attention_mask"]).last_hidden_state
    logits = states @ output.T
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), b["labels"][:, 1:].flatten())
    loss.backward()
    inward = torch.zeros_like(before).index_add(0, b["input_ids"].flatten(), hidden.grad.flatten(0, 1))
    torch.testing.assert_close(inward + output.grad, total, rtol=1e-4, atol=1e-6)
    ids = seen()
    assert value(rows, "gradients")["value"] == pytest.approx(pooled_share(before, inward, ids), rel=1e-4)
    assert value(rows, "gradients-out")["value"] == pytest.approx(pooled_share(before, output.grad, ids), rel=1e-4)


def test_coupled_decay_is_part_of_the_gradient_and_a_step_that_never_comes_is_said():
    rows, *_ = observed("llama", lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=5.0))
    assert value(rows, "update")["value"] == value(rows, "update-raw")["value"]
    assert any("part of the gradient" in (r["note"] or "") for r in rows)
    model = build("llama")
    scope = Scope(model, views=VIEWS, rank=4, resamples=9, schedule=1, strict=True)
    with scope.step():
        model(**batch(sequences=12)).loss.backward()
    rows = scope.rows()
    assert {r["tensor"] for r in rows if r["proxy"]} == {"gradients"}
    assert any("no optimiser step was seen" in (r["note"] or "") for r in rows)


def test_optimizer_hooks_go_again():
    def hooks():
        return len(_global_optimizer_pre_hooks) + len(_global_optimizer_post_hooks)

    before = hooks()
    observed("llama", lambda p: torch.optim.AdamW(p), steps=3)
    assert hooks() == before


def test_two_scopes_in_one_process_both_see_their_updates():
    """Their hooks on optimisers meet: torch goes through both in one step, and neither may go meanwhile."""
    hooks_before = set(_global_optimizer_post_hooks)  # a scope that another test never closed may have left one
    models = [build("gpt2"), build("gpt2")]
    scopes = [Scope(model, rank=4, resamples=19, views=VIEWS, schedule=1, strict=True) for model in models]
    optimizers = [torch.optim.SGD(model.parameters(), lr=1.0) for model in models]
    for step in range(2):
        for model, scope in zip(models, scopes, strict=True):
            with scope.step():
                model(**batch(seed=step, sequences=12, padded=False)).loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for scope in scopes:
        seen = {r["step"] for r in scope.rows() if r["tensor"] == "update" and r["measure"] == "energy"}
        assert seen == {0, 1}
        scope.close()
    assert set(_global_optimizer_post_hooks) <= hooks_before


def test_what_goes_wrong_when_the_optimiser_steps_is_a_note(monkeypatch):
    from anisoscope.observe import embedding

    def fails(optimizer, group):
        raise RuntimeError("no such group")

    monkeypatch.setattr(embedding, "_decoupled_decay", fails)
    model = build("gpt2")
    scope = Scope(model, rank=4, resamples=19, views=VIEWS, schedule=[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with scope.step():
        model(**batch(sequences=12, padded=False)).loss.backward()
    optimizer.step()
    (note,) = [r["note"] for r in scope.rows() if r["measure"] == "note"]
    assert note == "the update could not be read: RuntimeError: no such group"
    scope.close()


WARMED = {"views": VIEWS, "rank": 4, "schedule": 1, "strict": True, "resamples": 19, "resumable": True}


def warmed_up(steps, first_step=0, model=None, scope=None):
    """A training whose first two updates are zero, as a warm-up makes them."""
    model = model or build("llama").eval()
    scope = scope or Scope(model, **grouped(**WARMED))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for step in range(first_step, first_step + steps):
        with scope.step():
            model(**batch(seed=step, sequences=12)).loss.backward()
        optimizer.param_groups[0]["lr"] = 0.0 if step < 2 else 0.1
        optimizer.step()
        optimizer.zero_grad()
    return model, scope


def odds(energy):
    return energy / (1 - energy)


def test_init_of_updates_is_the_first_that_is_not_zero():
    _, scope = warmed_up(5)
    rows = scope.rows()
    shares = {r["step"]: r["value"] for r in rows if r["measure"] == "energy" and r["tensor"] == "update"}
    ratios = {
        r["step"]: r["value"]
        for r in rows
        if r["measure"] == "enrichment" and r["null"] == "init" and r["tensor"] == "update"
    }
    assert [step for step, share in shares.items() if share == share] == [2, 3, 4]
    assert {step for step, ratio in ratios.items() if ratio == ratio} == {3, 4}
    for step in (3, 4):
        assert ratios[step] == pytest.approx(odds(shares[step]) / odds(shares[2]), rel=1e-9)
    gradients = {r["step"] for r in rows if r["null"] == "init" and r["tensor"] == "gradients"}
    assert min(gradients) == 1
    scope.close()


def test_a_restored_scope_knows_the_first_update():
    _, whole = warmed_up(6)
    expected = [r["value"] for r in whole.rows() if r["null"] == "init" and r["step"] == 5]
    model, first = warmed_up(4)
    state = first.state()
    second = Scope(model, **grouped(**WARMED, first_step=4))
    second.restore(state)
    warmed_up(2, 4, model, second)
    assert [r["value"] for r in second.rows() if r["null"] == "init" and r["step"] == 5] == pytest.approx(expected)
    assert len(expected) >= 3
