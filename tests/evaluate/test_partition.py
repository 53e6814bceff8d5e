"""An observation taken apart by its places."""

from dataclasses import fields

import pytest
import torch

from anisoscope.capture.sites import SiteKey
from anisoscope.evaluate.remote.partition import Partition, memory_of
from anisoscope.observe.embedding_tables import TableReading
from anisoscope.observe.state import ScopeState
from anisoscope.observe.statistics import Name, Observation
from anisoscope.stats.reservoir import Reservoir
from anisoscope.vocabulary import VIEWS

PLACES = [("representation", k, "") for k in range(5)] + [("weight", k, f"h.{k}") for k in range(1, 5)]


def statistics():
    found = {
        Name(view, layer, tensor, fold, part, site): torch.tensor(float(layer))
        for view, layer, site in PLACES
        for tensor in ("activations", "gradients")
        for fold in (0, 1)
        for part in ("rest", "kept")
    }
    found |= {Name("embedding", 0, "gradients", fold, "rest", "wte"): torch.tensor(1.0) for fold in (0, 1)}
    found |= {Name("embedding", 0, "looked-up", fold, "kept"): torch.tensor(1.0) for fold in (0, 1)}
    return found | {Name("tokens", 0, "all", fold, "sum"): torch.tensor(9) for fold in (0, 1)}


def probed():
    return {SiteKey(k, ""): Reservoir.of_rows(torch.zeros(2, 3), rows=2) for k in range(5)}


@pytest.mark.parametrize("most", [1, 3, 8, 40])
def test_every_place_belongs_to_one_judge_and_all_know_the_tokens(most):
    table = TableReading(*(torch.zeros(1) for _ in fields(TableReading)))
    observed = Observation(3, statistics(), missing={"targets": "why"}, tables={"input": table})
    parts = Partition.of(observed.statistics, most).of_observation(observed)
    assert len(parts) == min(most, 10)
    seen = [name for part in parts for name in part.statistics if name.view != "tokens"]
    assert sorted(seen) == sorted(name for name in observed.statistics if name.view != "tokens")
    for part in parts:
        assert {name for name in part.statistics if name.view == "tokens"}
        assert part.families == {view: 5 if view == "representation" else 0 for view in VIEWS}  # others lack tensors
    holders = [number for number, part in enumerate(parts) if any(n.view == "embedding" for n in part.statistics)]
    assert len(holders) == 1  # the table is judged as a whole, and rows of one place come from one judge
    assert [number for number, part in enumerate(parts) if part.tables] == holders
    assert [part.missing for part in parts] == [{"targets": "why"}, *[{}] * (len(parts) - 1)]


def test_work_is_dealt_out_evenly():
    """A layer of the residual stream takes more than twice as long as a weight, whatever their statistics take."""
    observed = Observation(3, statistics(), probe=probed())
    parts = Partition.of(observed.statistics, 3).of_observation(observed)
    layers = [{n.layer for n in part.statistics if n.view == "representation"} for part in parts]
    assert sorted(map(len, layers)) == [1, 2, 2]
    alone = min(range(3), key=lambda number: len(layers[number]))
    assert any(n.view == "embedding" for n in parts[alone].statistics)  # the largest place goes with the fewest layers
    assert sorted(at.layer for part in parts for at in part.probe) == [0, 1, 2, 3, 4]
    assert max(len(part.probe) for part in parts) <= 2


def test_a_probe_is_not_bound_to_the_judge_of_its_layer():
    """With a judge a place the five samples of the probe are elsewhere than the five layers, where there is room."""
    observed = Observation(3, statistics(), probe=probed())
    parts = Partition.of(observed.statistics, 10).of_observation(observed)
    assert not any(part.probe and any(n.view == "representation" for n in part.statistics) for part in parts)


def test_what_is_remembered_comes_apart_and_together_again():
    state = statistics()
    trajectory = {Name("type trajectory", k, "activations", 0, "sum"): torch.tensor(k) for k in range(5)}
    trajectory |= {Name("trajectory", 0, "input", 0, "sum"): torch.tensor(7)}
    whole = ScopeState(5, 100, frozen=True, steps={"first": 0}, occasions={"first": state, "trajectory": trajectory})
    dealt = Partition.of(state, 4)
    parts = dealt.of_memory(whole)
    again = memory_of(parts)
    assert (again.step, again.tokens, again.frozen, again.steps) == (5, 100, True, {"first": 0})
    for occasion, found in whole.occasions.items():
        assert again.occasions[occasion].keys() == found.keys()
    for k in range(5):  # of a place its trajectory too
        owner = dealt.owner["representation", SiteKey(k)]
        assert Name("type trajectory", k, "activations", 0, "sum") in parts[owner].occasions["trajectory"]
    table = dealt.owner["embedding", SiteKey(0, "")]
    assert Name("trajectory", 0, "input", 0, "sum") in parts[table].occasions["trajectory"]
