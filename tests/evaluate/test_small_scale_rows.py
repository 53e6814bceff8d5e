"""The small scale beside a training: planted tangents and gradients, and what is said where nothing can be."""

import math

import pytest
import torch

from anisoscope.capture.sites import SiteKey
from anisoscope.evaluate import small_scale_rows as local
from anisoscope.evaluate.judge_sites import Place, Request
from anisoscope.evaluate.row_builders import adjusted
from anisoscope.evaluate.small_scale_rows import local_rows
from anisoscope.evidence.premise import Premise
from anisoscope.geometry.results import Estimate
from anisoscope.geometry.subspace import Subspace
from anisoscope.observe.statistics import Name, Observation
from anisoscope.stats.reservoir import Selection
from anisoscope.stats.running import Running
from anisoscope.testing import sphere

WIDTH, LENGTH, SEQUENCES, VOCABULARY = 24, 32, 40, 50


def observed(activations, gradients, counts=None):
    """An observation of one layer; both folds hold the same number of sequences."""
    tokens = torch.randint(0, VOCABULARY, (2 * SEQUENCES, LENGTH), generator=torch.Generator().manual_seed(0))
    statistics = {}
    for fold in (0, 1):
        mask = torch.zeros(2 * SEQUENCES, LENGTH, dtype=torch.bool)
        mask[fold::2] = True
        selection = Selection.of(tokens, mask, rows=8192)
        for tensor, cloud in (("activations", activations), ("gradients", gradients)):
            x = cloud.reshape(2 * SEQUENCES, LENGTH, WIDTH)
            running = Running.start(x, mask, parts=1)
            running.add(x, mask, torch.ones(1, 2 * SEQUENCES, dtype=torch.bool))
            statistics[Name("representation", 0, tensor, fold, "rest")] = running.moments()[0]
            statistics[Name("representation", 0, tensor, fold, "kept")] = selection.take(x)
    return Observation(3, statistics, frequency=counts)


def judged(found, basis):
    place = Place("representation", SiteKey(0), "all", "pca")
    request = Request(("pca",), basis.shape[1], ("all",), ("haar",), 99, 0)
    rows = adjusted(local_rows(found, {place: (Subspace(basis), Subspace(basis))}, request))
    return {(r["measure"], r["variant"], r["subset"]): r for r in rows}


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


N = 2 * SEQUENCES * LENGTH


def test_tangents_curvature_and_visible_curvature_of_a_planted_sphere():
    x = torch.zeros(N, WIDTH)
    x[:, :3] = 2 * sphere(N, dim=2, width=3, seed=1).float()  # radius 2 in the first three coordinates
    counts = torch.arange(1, VOCABULARY + 1)
    found = judged(observed(x, normal(N, WIDTH), counts), torch.eye(WIDTH)[:, :3].double())
    inside = found["tangent_overlap", None, "no-first"]
    assert inside["value"] == pytest.approx(1.0, abs=1e-3)
    chance = found["tangent_overlap", "random proxy", "no-first"]
    assert chance["value"] == pytest.approx(3 / WIDTH)
    assert chance["p"] < 0.01
    # A sphere is a cloud of one radius and random directions: its control is a sphere as well, and nothing is left.
    assert inside["floor"] == pytest.approx(1.0, abs=1e-3)
    assert inside["p"] > 0.05
    bent = found["curvature", "rms", "no-first"]
    assert bent["value"] == pytest.approx(0.5, rel=0.05)
    assert found["curvature", "along proxy over random", "no-first"]["low"] < 1.05
    seen = [found["bin_visible_curvature", "local tangents", f"input tokens {k}/5"] for k in range(1, 6)]
    # Tokens have nothing to do with places here, so every type is spread over the sphere, by its radius R, and the
    # balls have the radius √2·R: half the sphere, heights uniform over R. Variance R²/12 off the tangent, 2R²/3 along.
    assert [row["value"] for row in seen] == pytest.approx([1 / 8] * 5, rel=0.2)
    assert all(row["radius"] > 0 for row in seen)


def test_a_proxy_beside_the_cloud_holds_nothing_of_its_tangents():
    x = torch.zeros(N, WIDTH)
    x[:, :2] = normal(N, 2)
    found = judged(observed(x, normal(N, WIDTH)), torch.eye(WIDTH)[:, -3:].double())
    assert found["tangent_overlap", None, "no-first"]["value"] == pytest.approx(0, abs=1e-6)


def test_tangents_that_would_take_most_of_the_tokens_are_not_told(monkeypatch):
    monkeypatch.setattr(local, "ROWS", 300)
    found = judged(observed(normal(N, WIDTH), normal(N, WIDTH)), torch.eye(WIDTH)[:, :3].double())
    row = found["tangent_overlap", None, "no-first"]
    assert math.isnan(row["value"])
    assert row["note"].startswith("cannot tell: a tangent of ")


@pytest.mark.parametrize("degrees", [None, 4])
def test_wide_directions_and_heavy_tails_alone_are_not_called_tangent(degrees):
    """No elliptical cloud has tangents: what a proxy holds of its neighbourhoods is what the control holds."""
    x = normal(N, WIDTH) * torch.linspace(3, 0.2, WIDTH)
    if degrees is not None:
        x /= (normal(N, degrees, seed=5).square().mean(1, keepdim=True)).sqrt()
    found = judged(observed(x, normal(N, WIDTH)), torch.eye(WIDTH)[:, :6].double())
    inside, control, over = (
        found["tangent_overlap", variant, "no-first"] for variant in (None, "elliptical", "over elliptical")
    )
    assert inside["value"] > found["tangent_overlap", "normal part", "no-first"]["high"]
    assert inside["floor"] == control["value"]
    assert over["value"] == pytest.approx(inside["value"] - control["value"])
    assert over["p"] == inside["p"] > 0.05
    assert over["low"] < 0 < over["high"]
    assert over["outcome"] == "cannot tell"


def test_tangents_that_are_not_the_wide_directions_are_told():
    """Islands far apart, each spread along the same two directions: those are tangent, and far from the widest."""
    generator = torch.Generator().manual_seed(3)
    islands = 20 * torch.randn(8, WIDTH, generator=generator)
    islands[:, :2] = 0
    x = islands[torch.randint(0, 8, (N,), generator=generator)]
    x[:, :2] += normal(N, 2)
    found = judged(observed(x, normal(N, WIDTH)), torch.eye(WIDTH)[:, :2].double())
    inside, control = (found["tangent_overlap", variant, "no-first"] for variant in (None, "elliptical"))
    assert inside["value"] == pytest.approx(1, abs=1e-3)
    assert control["high"] < 0.2
    assert inside["p"] < 1e-6
    over = found["tangent_overlap", "over elliptical", "no-first"]
    assert (over["low"] > 0.5, over["outcome"]) == (True, "above")


def test_a_cloud_without_neighbourhoods_says_so():
    found = judged(observed(torch.zeros(N, WIDTH), normal(N, WIDTH)), torch.eye(WIDTH)[:, :3].double())
    row = found["tangent_overlap", None, "no-first"]
    assert math.isnan(row["value"])
    assert row["note"]


def test_the_premise_is_told_in_the_outcome_by_the_margin_of_the_run(monkeypatch):
    """Not in the note, which is left for why there is no quotient."""
    part, quotient = Estimate(value=0.5, n=9), Estimate(value=1.02, low=0.9, high=1.1, n=9)
    found = Premise(tangent=part, normal=part, quotient=quotient, difference=part, p=0.1, detectable=1.3)
    monkeypatch.setattr(local, "held_units", lambda *_: None)
    monkeypatch.setattr(local, "premise", lambda *_, **__: found)
    basis = torch.eye(WIDTH)[:, :3].double()
    place, seen = Place("weight", SiteKey(0), "all", "pca"), observed(normal(N, WIDTH), normal(N, WIDTH))
    for margin, outcome in ((1.25, "equal"), (1.05, "cannot tell")):
        request = Request(("pca",), 3, ("all",), ("haar",), 99, 0, margin=margin)
        rows = local_rows(seen, {place: (Subspace(basis), Subspace(basis))}, request)
        (row,) = (r for r in rows if r["variant"] == "tangent over normal")
        assert (row["outcome"], row["detectable"], row["note"]) == (outcome, 1.3, None)
