"""Contextual means that wander: types come and go, the noise of a mean is no movement, and memory is bounded."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from anisoscope.capture.sites import SiteKey
from anisoscope.evaluate.frequency_rows import trajectory_rows
from anisoscope.evaluate.judge_sites import Request
from anisoscope.evaluate.trajectories import FOLLOWED, Trajectories, TypeMeans
from anisoscope.evidence.frequency_evidence import by_type
from anisoscope.observe.state import ScopeState
from anisoscope.observe.statistics import Name, Observation
from anisoscope.stats.hashing import as_key, mix
from anisoscope.stats.moments import Moments
from anisoscope.stats.reservoir import Reservoir
from capture.families import VOCABULARY
from evaluate.test_frequency_rows import COUNTS, LAYER, STEPS, value, watched

REQUEST = Request(("pca",), 4, ("all",), (), 199, 0)
TYPES, WIDTH, SEQUENCES, LENGTH = 200, 12, 64, 48
ZIPF = 1 / torch.arange(3, TYPES + 3, dtype=torch.float64)


def observed(step, tokens_BT, x_BTD):
    """An observation of one layer; even sequences are one fold, odd ones the other."""
    found = {}
    for fold in (0, 1):
        x, tokens = x_BTD[fold::2], tokens_BT[fold::2]
        name = Name("representation", 1, "activations", fold, "rest")
        found[name] = Moments.of(x[:, 1:], higher=False)
        found[name._replace(part="kept")] = Reservoir.of_sequences(x, tokens, rows=1 << 13)
    return Observation(step, found)


def still(seed, observations=15):
    """Types that stay where they are, seen in batch after batch with a spread about them."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.randn(TYPES, WIDTH, generator=generator)
    for step in range(observations):
        tokens = torch.multinomial(ZIPF, SEQUENCES * LENGTH, True, generator=generator).reshape(SEQUENCES, LENGTH)
        yield observed(step, tokens, places[tokens] + torch.randn(*tokens.shape, WIDTH, generator=generator))


def correlated(trajectories, counts=1e6 * ZIPF, how="pearson"):
    rows = trajectory_rows(trajectories, counts, REQUEST, step=9)
    return value(rows, view="representation", layer=1, subset="no-first", variant=f"trajectory, {how}")


def test_types_that_come_and_go_are_those_of_a_slow_reference():
    torch.manual_seed(0)
    found, places, noises = Trajectories(), {}, {}
    for _ in range(9):
        ids = torch.randperm(60)[: int(torch.randint(0, 50, ()))].sort().values
        means, noise = torch.randn(len(ids), 5, dtype=torch.float64) + 3 * ids[:, None] / 60, torch.rand(len(ids)) / 9
        found.add({}, {SiteKey(1): TypeMeans(ids, means, noise)})
        for i, mean, variance in zip(ids.tolist(), means.numpy(), noise.tolist(), strict=True):
            places.setdefault(i, []).append(mean)
            noises.setdefault(i, []).append(variance)
    often = sorted(i for i, seen in places.items() if len(seen) >= 3)
    wandered = found.contexts[SiteKey(1)].wandered()
    assert wandered.ids.tolist() == often
    assert len({len(places[i]) for i in often}) > 2
    expected = [np.var(places[i], axis=0, ddof=1).sum() - np.mean(noises[i]) for i in often]
    np.testing.assert_allclose(wandered.variance, expected, rtol=1e-5)
    square = [np.square(np.mean(places[i], axis=0)).sum() - sum(noises[i]) / len(noises[i]) ** 2 for i in often]
    np.testing.assert_allclose(wandered.norm, np.sqrt(np.maximum(square, 0)), rtol=1e-4)
    counts = torch.arange(60)  # type 0 never came in the training
    kept = [k for k, i in enumerate(often) if i]
    x = np.log([often[k] for k in kept])
    row = correlated(found, counts)
    assert row["value"] == pytest.approx(stats.pearsonr(x, np.array(expected)[kept])[0], abs=1e-5)
    assert row["n"] == len(kept)


def test_a_scope_tells_how_contextual_means_wander():
    scope, kept = watched("gpt_neox", counted=False)
    places, noises = {}, {}
    for step in kept:
        mask = step["batch"]["attention_mask"].bool().clone()
        mask[torch.arange(len(mask)), mask.int().argmax(1)] = False
        sequence = torch.arange(len(mask))[:, None].expand_as(mask)[mask]
        tokens, vectors = step["batch"]["input_ids"][mask], step["activation"].double()[mask]
        noise = by_type(vectors, tokens, sequence)
        for i in range(VOCABULARY):
            if len(sequence[tokens == i].unique()) >= 4:
                places.setdefault(i, []).append(vectors[tokens == i].mean(0).numpy())
                noises.setdefault(i, []).append(float(noise.noise[noise.ids == i]))
    often = sorted(i for i, seen in places.items() if len(seen) >= 3)
    wander = [np.var(places[i], axis=0, ddof=1).sum() - np.mean(noises[i]) for i in often]
    x, rows = COUNTS[often].double().log(), scope.rows()
    common = {"layer": LAYER, "view": "representation", "subset": "no-first", "measure": "frequency_correlation"}
    for how, expected in (("pearson", stats.pearsonr), ("spearman", stats.spearmanr)):
        found = value(rows, **common, step=STEPS - 1, variant=f"trajectory, {how}")
        assert found["value"] == pytest.approx(expected(x, wander)[0], abs=1e-5)
        assert found["n"] == len(often)
        assert value(rows, **common, step=STEPS - 1, variant=f"trajectory, {how}, norm held")


def test_the_noise_of_means_of_few_vectors_is_no_wandering():
    covered, values = 0, []
    for seed in range(10):
        found, raw = Trajectories(), Trajectories()
        for each in still(seed):
            means = TypeMeans.of(each, SiteKey(1))
            found.add({}, {SiteKey(1): means})
            raw.add({}, {SiteKey(1): TypeMeans(means.ids, means.means, torch.zeros_like(means.noise))})
        row = correlated(found, how="spearman")
        covered += row["low"] < 0 < row["high"]
        values.append(row["value"])
        assert correlated(raw, how="spearman")["high"] < -0.5  # still types that look pinned because they are frequent
    assert covered >= 8
    assert abs(np.mean(values)) < 0.1, values


def test_types_that_come_rarely_do_not_seem_to_wander_less():
    comes, values = torch.linspace(0.1, 1, 400), []  # how likely a type is to come: all wander alike
    for seed in range(10):
        generator, found = torch.Generator().manual_seed(seed), Trajectories()
        for _ in range(12):
            ids = (torch.rand(400, generator=generator) < comes).nonzero()[:, 0]
            means = torch.randn(len(ids), 40, generator=generator)
            found.add({}, {SiteKey(1): TypeMeans(ids, means, torch.zeros(len(ids)))})
        values.append(correlated(found, 1e6 * comes)["value"])
        types = found.contexts[SiteKey(1)]
        often = types.count >= 3
        divided = types.squares[often] / types.count[often]
        assert stats.pearsonr(comes[types.ids[often]].log(), divided)[0] > 0.4
    assert abs(np.mean(values)) < 0.06, values  # three standard errors


def test_memory_is_bounded_and_those_that_are_followed_have_missed_nothing():
    generator = torch.Generator().manual_seed(0)
    found, came = Trajectories(), []
    for _ in range(6):
        ids = torch.randperm(262_144, generator=generator)[:4000]
        ids = torch.cat([ids, torch.arange(2000)]).unique()
        came.append(ids)
        found.add({}, {SiteKey(1): TypeMeans(ids, torch.randn(len(ids), 8), torch.zeros(len(ids)))})
    types = found.contexts[SiteKey(1)]
    every, times = torch.cat(came).unique(return_counts=True)
    smallest = as_key(mix(every)).argsort()[:FOLLOWED].sort().values
    assert torch.equal(types.ids, every[smallest])
    assert torch.equal(types.count, times[smallest])
    assert sum(part.numel() * part.element_size() for part in types.parts()) < FOLLOWED * (8 * 4 + 4 * 8) + 100


def test_a_restart_goes_on_to_the_same_rows():
    batches = list(still(1, 6))
    whole, first, second = Trajectories(), Trajectories(), Trajectories()
    for k, each in enumerate(batches):
        means = {SiteKey(layer): TypeMeans.of(each, SiteKey(1)) for layer in (2, 1)}
        whole.add({}, means)
        (first if k < 4 else second).add({}, means)
        if k == 3:
            state = ScopeState(3, 0, occasions={"trajectory": first.state()}).to_bytes()
            second.restore(ScopeState.from_bytes(state).occasions["trajectory"])
    rows = [trajectory_rows(t, 1e6 * ZIPF, REQUEST, step=5) for t in (whole, second)]
    assert rows[0] == rows[1]
    assert [r["layer"] for r in rows[0]] == [2] * 4 + [1] * 4
    assert not any(math.isnan(r["value"]) for r in rows[0])


def test_too_few_observations_say_nothing_and_too_few_types_say_why():
    found = Trajectories()
    for count in range(3):
        assert trajectory_rows(found, 1e6 * ZIPF, REQUEST, step=count) == []
        found.add({}, {SiteKey(1): TypeMeans(torch.arange(count), torch.randn(count, 4), torch.zeros(count))})
    row = correlated(found)
    assert math.isnan(row["value"])
    assert "0 types" in row["note"]
