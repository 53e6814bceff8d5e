"""The effect over layers: against a slow jackknife of the mean, and its interval where layers share their units."""

import math

import numpy as np
import pytest
import torch

from anisoscope import Subspace, judge
from anisoscope.evidence.inference import Spread
from anisoscope.evidence.pooled import Layer, pool


def layers(seed, *, count=4, n=24, lift=1.0, shared=True):
    """Layers that see the same sequences: sizes and shares of a sequence go through all of them."""
    generator = torch.Generator().manual_seed(seed)
    lean = torch.randn(n, 1, 1, generator=generator, dtype=torch.float64)
    found = []
    for _ in range(count):
        own = lean if shared else torch.randn(n, 1, 1, generator=generator, dtype=torch.float64)
        g = torch.randn(n, 8, 10, generator=generator, dtype=torch.float64)
        g[..., :3] *= lift * (0.3 * own).exp()
        found.append(g)
    return found


def pooled(found, null):
    return pool([Layer.of(e) for e in found], null)


def judged(clouds, nulls=("haar", "axes")):
    proxy = Subspace(torch.eye(10, 3, dtype=torch.float64))
    return [judge(g, proxy, nulls=nulls, resamples=19, isotropy=False) for g in clouds]


def test_the_pooled_effect_is_the_mean_of_logarithms_with_a_joint_jackknife():
    clouds = layers(1)
    found = pooled(judged(clouds), "haar")

    def mean_log_odds(kept):
        logs = []
        for g in clouds:
            inside = float(g[kept][..., :3].square().sum())
            logs.append(math.log(inside / (float(g[kept].square().sum()) - inside) / (3 / 7)))
        return np.mean(logs)

    everyone = list(range(24))
    assert math.log(found.value) == pytest.approx(mean_log_odds(everyone), rel=1e-9)
    lost = [mean_log_odds([k for k in everyone if k != left]) for left in everyone]
    expected = math.sqrt(23 / 24 * np.sum((np.array(lost) - np.mean(lost)) ** 2))
    assert found.se == pytest.approx(expected, rel=1e-9)
    assert found.n == 4


def test_layers_that_share_their_sequences_are_not_independent_witnesses():
    together, apart = (
        np.mean([float(pooled(judged(layers(seed, shared=shared)), "haar").se) for seed in range(10)])
        for shared in (True, False)
    )
    assert together > 1.2 * apart


def test_the_interval_holds_the_truth():
    """The proxy's coordinates are three times as strong: pooled over four layers that share their sequences."""
    missed = 0
    found = [pooled(judged(layers(seed, lift=math.sqrt(3.0))), "haar") for seed in range(150)]
    truth = float(np.mean([math.log(f.value) for f in found]))
    for f in found:
        missed += not math.log(f.low) <= truth <= math.log(f.high)
    assert missed <= 15


def test_independent_sides_add_their_errors():
    a, b = torch.randn(2, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    both = Spread.of_parts([a, b])
    assert both.error == pytest.approx(math.hypot(Spread.of(a).error, Spread.of(b).error))


def test_without_units_there_is_no_interval():
    proxy = Subspace(torch.eye(10, 3, dtype=torch.float64))
    rows = torch.randn(60, 10, dtype=torch.float64)
    found = pooled([judge(rows, proxy, resamples=19, isotropy=False)] * 2, "haar")
    assert found.low is None
    assert pooled([], "haar") is None


def test_the_smallest_effect_that_would_be_seen_is_seen_in_four_of_five():
    """Plant what `detectable` names, over `axes`: both the interval and p find it about that often."""
    proxy = Subspace(torch.eye(10, 3, dtype=torch.float64))
    plain = [judged(layers(seed, count=1))[0] for seed in range(60)]
    wanted = float(np.median([found.detectable["haar"] for found in plain]))
    seen = 0
    for seed in range(60):
        (g,) = layers(1000 + seed, count=1, lift=math.sqrt(wanted))
        found = judge(g, proxy, resamples=199, isotropy=False)
        e = found.enrichment["haar"]
        seen += e.low is not None and e.low > 1 and found.p["haar"] <= 0.05
    assert 0.6 <= seen / 60 <= 1.0, seen


def test_a_layer_without_gradients_stays_in_the_count():
    clouds = layers(1)
    found = judged([clouds[0], torch.zeros_like(clouds[0])])
    assert math.isnan(found[1].enrichment["haar"].value)
    assert pooled(found, "haar").low is None


def test_layers_of_other_units_have_no_common_interval():
    proxy = Subspace(torch.eye(10, 3, dtype=torch.float64))
    a, b = layers(1, count=2)
    other = [
        judge(g, proxy, groups=ids, resamples=9, isotropy=False)
        for g, ids in ((a, torch.arange(24)), (b, torch.arange(24) + 5))
    ]
    assert pooled(other, "haar").low is None


def test_a_side_that_few_units_dominate_refuses_the_comparison():
    proxy = Subspace(torch.eye(10, 3, dtype=torch.float64))
    a, b = layers(1, count=2)
    b = b.clone()
    b[3] *= 100
    found = judge(a, proxy, nulls=("targets",), others={"targets": b}, resamples=19, isotropy=False)
    assert found.enrichment["targets"].low is None
    assert found.enrichment["targets"].units < 2
