"""Blocks watched in turn where memory is bounded: every layer as if it had been watched alone, and no bit changed."""

import logging

import pytest
import torch
from torch import nn

from anisoscope.budget.block_rotation import Rounds
from anisoscope.budget.footprint import embedding_bytes, layer_bytes
from anisoscope.capture.sites import find_sites
from anisoscope.errors import AnisoscopeError, ScopeWarning
from anisoscope.evaluate import evaluator as judging
from anisoscope.machine_capacity import parse_bytes
from capture.families import batch, build
from observe.test_scope import small, train

VIEWS = ("representation", "weight", "embedding")
ROWS = 512


def two_rounds(model, **options):
    """As much memory as the larger half of the layers needs."""
    given = {"schedule": [0, 4], "capture_rows": ROWS, **options}
    return small(
        model, memory=half(model, 2 * given.get("targets", False)), reservoir_rows=given.pop("capture_rows"), **given
    )


def half(model, label_nulls=0):
    sites, options = find_sites(model), {"rows": ROWS, "label_nulls": label_nulls}
    sizes = layer_bytes(sites, VIEWS, **options)
    return embedding_bytes(sites, VIEWS, **options) + sum(sizes.values()) - sizes[0]


def values(rows, measures=("energy", "top_share", "isoscore", "enrichment")):
    """Values of rows of one place by what they are, of nulls that compare with nothing before."""
    wanted = [r for r in rows if r["measure"] in measures and r["null"] in (None, "haar", "axes", "pairing")]
    keys = ("view", "layer", "site", "tensor", "subset", "proxy", "rank", "timing", "measure", "variant", "null")
    return {tuple(r[k] for k in keys): (r["value"], r["low"], r["p"]) for r in wanted if r["layer"] is not None}


def test_training_is_bit_identical_with_blocks_in_turn():
    bare = train("gpt_neox", steps=8)
    observed = train("gpt_neox", lambda m: two_rounds(m, targets=True, steps=8), steps=8)
    assert torch.equal(bare[0], observed[0])
    assert all(torch.equal(a, b) for a, b in zip(bare[1], observed[1], strict=True))


def test_each_layer_is_that_of_a_scope_that_watches_all_at_its_step():
    options = {"steps": 8, "anchor": 100, "targets": True}
    turns = train("gpt_neox", lambda m: two_rounds(m, **options), steps=8)[2]
    whole = train("gpt_neox", lambda m: small(m, schedule=[0, 1, 4, 5], reservoir_rows=ROWS, **options), steps=8)[2]
    rounds, rows = turns._turns.rounds.layers, turns.rows()
    assert len(rounds) == 2
    assert {r["step"] for r in rows} == {0, 4}
    assert not [r["note"] for r in rows if r["measure"] == "skipped"]
    compared = [0, 0]
    for step in (0, 4):
        own = values([r for r in rows if r["step"] == step])
        for offset, layers in enumerate(rounds):
            there = values([r for r in whole.rows() if r["step"] == step + offset])
            for key, (value, low, p) in own.items():
                view, layer = key[:2]
                if layer not in layers or (view == "embedding" and offset == 0):
                    continue
                expected = there[key]
                assert value == pytest.approx(expected[0], rel=1e-9, nan_ok=True)
                assert (low is None) == (expected[1] is None)
                assert p == expected[2]
                compared[offset] += 1
    assert min(compared) > 10
    nulls = {(r["layer"], r["null"]) for r in rows if r["measure"] == "enrichment" and r["view"] == "weight"}
    assert {(layer, null) for layer in (1, 2) for null in ("targets", "targets-uniform")} <= nulls


def test_a_scope_goes_on_from_the_middle_of_an_observation():
    options = {"steps": 8, "resumable": True, "targets": True}
    whole = train("gpt2", lambda m: two_rounds(m, **options), steps=8, configure=nn.Module.eval)[2]
    torch.manual_seed(1)
    model = build("gpt2").eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def go(scope, steps):
        for step in steps:
            with scope.step():
                model(**batch(seed=7 * step, sequences=12)).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    first = two_rounds(model, **options)
    go(first, range(5))  # the observation of step 4 has had the first of its two steps
    state, before = first.state(), first.rows()
    second = two_rounds(model, first_step=5, **options)
    second.restore(state)
    go(second, range(5, 8))

    def told(rows):
        return [{k: repr(v) for k, v in r.items()} for r in rows if r["measure"] != "cost"]

    assert told([*before, *second.rows()]) == told(whole.rows())


def test_the_middle_of_an_observation_does_not_go_on_with_other_rounds():
    scope = train("gpt_neox", lambda m: two_rounds(m, steps=8), steps=1)[2]
    assert scope._turns.under_way
    state = scope.state()
    model = build("gpt_neox")
    for other in (small(model, steps=8), small(model, steps=8, memory="1GiB")):
        with pytest.raises(AnisoscopeError, match="give the memory= that the training began with"):
            other.restore(state)
        other.close()
    same = two_rounds(model, steps=8)
    same.restore(state)
    assert same._turns.done == 1
    same.close()
    scope.close()


def test_statistics_take_no_more_than_was_planned(monkeypatch):
    seen = []
    original = judging.Evaluator.judged
    monkeypatch.setattr(judging.Evaluator, "judged", lambda self, o: seen.append(o) or original(self, o))
    for nulls in (False, True):
        scope = train("gpt_neox", lambda m, n=nulls: small(m, schedule=[0], reservoir_rows=ROWS, targets=n), steps=1)[2]
        scope.wait()
        options = {"rows": ROWS, "label_nulls": 2 * nulls}
        planned = sum(layer_bytes(scope.sites, VIEWS, **options).values())
        planned += embedding_bytes(scope.sites, VIEWS, **options)
        assert planned / 8 < seen[-1].bytes < planned
        scope.close()


def test_layers_are_dealt_to_as_few_rounds_as_fit():
    sites = find_sites(build("gpt_neox"))
    options = {"rows": ROWS, "label_nulls": 0}
    sizes, table = layer_bytes(sites, VIEWS, **options), embedding_bytes(sites, VIEWS, **options)
    everything = sum(sizes.values()) + table
    assert [len(x) for x in Rounds.of(everything, sites, VIEWS, **options).layers] == [len(sizes)]
    assert len(Rounds.of(everything - 1, sites, VIEWS, **options).layers) == 2
    fewest = max(*sizes.values(), sizes[max(sizes)] + table)
    rounds = Rounds.of(fewest, sites, VIEWS, **options)
    assert sorted(layer for group in rounds.layers for layer in group) == sorted(sizes)
    assert rounds.bytes <= fewest
    with pytest.raises(ValueError, match=r"allow at least .* MiB .*lower reservoir_rows"):
        Rounds.of(fewest - 1, sites, VIEWS, **options)


def test_what_will_be_watched_is_said_before_training(caplog):
    with caplog.at_level(logging.WARNING, "anisoscope"):
        scope = two_rounds(build("gpt_neox"))
    assert "watched in turn" in caplog.text
    assert "takes 2 consecutive steps" in caplog.text
    assert any("watched in turn" in note for note in scope.notes)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"memory": "plenty"}, "memory must be a size such as"),
        ({"memory": "0GiB"}, "memory must be a size such as"),
        ({"memory": -1}, "memory must be a size such as"),
        ({"memory": "1KiB"}, "memory must hold the statistics of one block"),
        ({"memory": "1GiB", "schedule": "always"}, "observed one by one"),
    ],
)
def test_impossible_memory_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        small(build("gpt_neox"), **options)


def test_an_observation_that_was_not_completed_is_a_row():
    scope = train("gpt_neox", lambda m: two_rounds(m, steps=5), steps=5)[2]
    scope.close()
    skipped = [r for r in scope.rows() if r["measure"] == "skipped"]
    assert [r["step"] for r in skipped] == [4]
    assert "after 1 of the 2 steps" in skipped[0]["note"]


def test_shared_blocks_are_refused_with_the_reason():
    model = build("albert")
    if model is None:
        pytest.skip("this transformers has no albert")
    scope = small(model, memory="1GiB", schedule=[0], strict=False)
    with pytest.warns(ScopeWarning, match="called once"), scope.step():
        model(**batch(sequences=12)).loss.backward()
    assert "called once" in next(r["note"] for r in scope.rows() if r["measure"] == "skipped")


def test_sizes_are_read():
    assert parse_bytes("2 MiB") == 2**21
