"""Rows of pairs of layers and of checkpoints."""

import math

import numpy as np
import pytest
import torch

from anisoscope import linear_cka, neighbourhood_overlap
from anisoscope.capture.sites import SiteKey
from anisoscope.data.tokens import Sequences
from anisoscope.stats.reservoir import Reservoir
from anisoscope.study.relations import aligned_probe, checkpoint_rows, chosen_tokens, layer_rows, spread_layers


def layers(count=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(12, 20, 8, generator=generator)
    found = {}
    for layer in range(count):
        found[SiteKey(layer, f"h.{layer}")] = x
        x = x + torch.randn(12, 20, 8, generator=generator)
    return found


def of(rows, measure, variant=None):
    return [row for row in rows if row["measure"] == measure and row["variant"] == variant]


def test_every_pair_of_layers_has_its_rows():
    seen = layers()
    rows = layer_rows(seen)
    for measure, variant in (
        ("cka", None), ("neighbourhood_overlap", None), ("neighbourhood_overlap", "layers, across"),
    ):  # fmt: skip
        pairs = of(rows, measure, variant)
        assert [(r["layer"], r["item"]) for r in pairs] == [(0, 1), (0, 2), (1, 2)]
        assert all(r["floor"] < r["low"] <= r["value"] <= r["high"] for r in pairs)
        assert pairs[1]["value"] < min(pairs[0]["value"], pairs[2]["value"])
    first, second = (seen[SiteKey(k, f"h.{k}")] for k in (0, 1))
    assert of(rows, "cka")[0]["value"] == pytest.approx(linear_cka(first, second).value)
    assert of(rows, "neighbourhood_overlap")[0]["value"] == neighbourhood_overlap(first, second).value


def test_a_layer_of_copies_has_a_reason_in_place_of_an_overlap():
    seen = layers()
    seen[SiteKey(0, "h.0")] = seen[SiteKey(0, "h.0")][:1].expand(12, 20, 8).clone()
    rows = layer_rows(seen)
    (lost,) = [r for r in of(rows, "neighbourhood_overlap") if r["layer"] == 0]
    assert math.isnan(lost["value"])
    assert "220 of 240 tokens are copies" in lost["note"]
    assert [(r["layer"], r["item"]) for r in of(rows, "neighbourhood_overlap", "layers, across")] == [(1, 2)]
    assert len(of(rows, "cka")) == 3


def test_a_layer_at_two_checkpoints():
    now, other = layers(seed=1), layers(seed=1)
    moved = SiteKey(2, "h.2")
    other[moved] = torch.randn(12, 20, 8, generator=torch.Generator().manual_seed(5))
    rows = checkpoint_rows(now, other, which="previous", step=40)
    assert {r["item"] for r in rows} == {40}
    same, gone = (
        [r["value"] for r in rows if r["layer"] == k and r["variant"] == "previous checkpoint"] for k in (0, 2)
    )
    assert same == pytest.approx([1, 1])
    assert max(gone) < 0.1


def test_kept_vectors_are_whole_sequences_in_one_order():
    """Whatever the order of the stream, and without first positions and without a sequence that is short."""
    tokens = torch.arange(6 * 9).reshape(6, 9)
    x = torch.randn(6, 9, 4)
    mask = torch.ones(6, 9, dtype=torch.bool)
    mask[2, 6:] = False
    at = SiteKey(1, "h.1")
    found = []
    for order in (torch.arange(6), torch.randperm(6)):
        kept = Reservoir.of_sequences(x[order], tokens[order], mask=mask[order], rows=500, seed=3, whole=False)
        found.append(aligned_probe({at: kept})["1/h.1"])
    assert found[0].shape == (5, 8, 4)
    assert np.array_equal(*found)
    whole = {x[k, 1:].numpy().tobytes() for k in range(6) if k != 2}
    assert {one.tobytes() for one in found[0]} == whole


def test_layers_are_spread_and_short_text_gives_nothing():
    keys = [SiteKey(k, "") for k in range(33)]
    chosen = [at.layer for at in spread_layers(keys)]
    assert len(chosen) == 16
    assert chosen[0] == 0
    assert chosen[-1] == 32
    lengths = np.array([40, 3, 40])
    part = Sequences(np.zeros((3, 40), np.int64), lengths)
    places = chosen_tokens(part)
    assert places.sum(1).tolist() == [39, 0, 39]
    assert not places[:, 0].any()
    assert chosen_tokens(Sequences(np.zeros((3, 6), np.int64), np.array([6, 6, 6]))) is None
