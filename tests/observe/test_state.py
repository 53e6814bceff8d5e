"""A scope that was saved goes on to the rows of one that was not interrupted; what it keeps is no pickle."""

import pytest
import torch

from anisoscope import Scope
from anisoscope.errors import AnisoscopeError
from anisoscope.observe.state import ScopeState
from capture.families import batch, build
from observe.grouped import grouped

pytestmark = pytest.mark.filterwarnings("ignore:not measured at step")  # weights are changed by hand

OPTIONS = {
    "steps": 12,
    "rank": 4,
    "resamples": 19,
    "schedule": [0, 1, 3, 5, 7, 10],
    "proxies": ("pca", "semi_nmf"),
    "ranks": (2, 6),
    "resumable": True,
    "strict": True,
}


def train(scope, model, steps):
    for step in steps:
        with scope.step(tokens=100 + step):
            model(**batch(seed=step, sequences=16)).loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.05 * parameter.grad
                parameter.grad = None


def plain(rows):
    return [{name: repr(value) for name, value in row.items()} for row in rows if row["measure"] != "cost"]


@pytest.mark.parametrize("stopped_after", [4, 9, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 2, 6))])
def test_a_restored_scope_goes_on_to_the_same_rows(stopped_after):
    """Stopped before and after the anchor (step 3), and between observations."""
    torch.manual_seed(0)
    model = build("gpt2").eval()  # no dropout: both trainings are to be the same
    whole = Scope(model, **grouped(**OPTIONS))
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    train(whole, model, range(12))
    expected = plain(whole.rows())
    assert {"rolling", "anchored"} <= {r["timing"] for r in whole.rows()}

    model.load_state_dict(start)
    first = Scope(model, **grouped(**OPTIONS))
    train(first, model, range(stopped_after))
    state = first.state()
    before = first.rows()
    second = Scope(model, **grouped(first_step=stopped_after, **OPTIONS))
    second.restore(state)
    train(second, model, range(stopped_after, 12))
    assert plain([*before, *second.rows()]) == expected


def test_other_ranks_are_shown_beside():
    model = build("gpt2")
    scope = Scope(model, **grouped(**OPTIONS))
    train(scope, model, range(1))
    rows = [r for r in scope.rows() if r["measure"] == "energy" and r["view"] == "representation" and r["layer"] == 1]
    by_rank = {r["rank"]: r["value"] for r in rows if r["proxy"] == "pca"}
    assert by_rank.keys() == {2, 4, 6}
    assert by_rank[2] < by_rank[4] < by_rank[6]  # nested subspaces hold more and more
    haar = {
        r["rank"]: r
        for r in scope.rows()
        if r["null"] == "haar" and r["layer"] == 1 and r["proxy"] == "pca" and r["view"] == "representation"
    }
    for rank, found in haar.items():
        energy, chance = by_rank[rank], rank / model.config.n_embd
        assert found["value"] == pytest.approx(energy / (1 - energy) / (chance / (1 - chance)), rel=1e-9)


def test_semi_nmf_is_in_every_view_it_is_asked_for_with_its_loss():
    model = build("gpt2")
    scope = Scope(model, **grouped(**OPTIONS))
    train(scope, model, range(1))
    rows = [r for r in scope.rows() if r["proxy"] == "semi_nmf"]
    assert {r["view"] for r in rows if r["measure"] == "enrichment"} == {"representation", "weight", "embedding"}
    losses = [r for r in rows if r["measure"] == "semi_nmf_loss"]
    places = {(r["view"], r["layer"]) for r in rows if r["measure"] == "energy"}
    assert {(r["view"], r["layer"]) for r in losses} == places
    assert all(0 < r["floor"] <= r["value"] + 1e-6 < 1 for r in losses)  # codes of either sign leave less
    assert {r["value"] for r in rows if r["measure"] == "semi_nmf_converged"} <= {0.0, 0.5, 1.0}


def test_concepts_name_tokens_that_were_there():
    model = build("gpt2")
    scope = Scope(model, **grouped(**OPTIONS))
    train(scope, model, range(1))
    rows = [r for r in scope.rows() if r["measure"] == "concept"]
    assert rows
    seen = set(batch(seed=0, sequences=16)["input_ids"].flatten().tolist())
    assert {r["token_id"] for r in rows} <= seen
    assert all(0 < r["value"] <= 1 for r in rows)
    for layer in {r["layer"] for r in rows}:
        first = [r["value"] for r in rows if r["layer"] == layer and r["item"] == 0]
        assert first == sorted(first, reverse=True)


def test_a_damaged_state_is_named_and_of_another_version_refused():
    scope = Scope(build("gpt2"), **grouped(**OPTIONS))
    state = scope.state()
    for broken in (b"", state[:40], state[: len(state) // 2], b"x" * 100):
        with pytest.raises(AnisoscopeError, match="damaged"):
            ScopeState.from_bytes(broken)
    with pytest.raises(AnisoscopeError, match="version 9"):
        ScopeState.from_bytes(state.replace(b'\\"version\\": 2', b'\\"version\\": 9'))
    assert ScopeState.from_bytes(state).tokens == 0
