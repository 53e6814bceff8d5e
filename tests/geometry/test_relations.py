"""CKA and neighbourhood overlap against slow versions, closed forms, and clouds that share only their sequences."""

import math

import numpy as np
import pytest
import torch

from anisoscope import linear_cka, neighbourhood_overlap
from anisoscope.errors import BrokenRuleError
from anisoscope.testing import rotation
from reference import slow_relations as slow


def clouds(n, length, widths=(6, 5), *, common=0.0, within=0.0, seed=0):
    """Two clouds; ``within`` is the correlation inside a sequence, ``common`` the part that both share."""
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(n, length, 1, generator=generator, dtype=torch.float64)
    found = []
    for width in widths:
        own = math.sqrt(1 - within) * torch.randn(n, length, width, generator=generator, dtype=torch.float64)
        own = own + math.sqrt(within) * torch.randn(n, 1, width, generator=generator, dtype=torch.float64)
        found.append(own + common * shared)
    return found


def flat(x):
    return x.flatten(0, 1).numpy()


def test_hsic_in_gram_form_is_the_u_statistic():
    x, y = clouds(3, 3, common=1.0)
    assert slow.hsic(flat(x), flat(y)) == pytest.approx(slow.hsic_by_tuples(flat(x), flat(y)), rel=1e-12)


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_cka_its_jackknife_and_its_floor_are_those_of_slow_versions(offset):
    x, y = clouds(10, 6, common=0.8, within=0.2)
    found = linear_cka(x + offset, 3 * y)
    assert found.value == pytest.approx(slow.cka(flat(x), flat(y)), rel=1e-9 if offset else 1e-12)
    others = [[t for t in range(10) if t != s] for s in range(10)]
    left_out = [slow.cka(flat(x[rest]), flat(y[rest])) for rest in others]
    assert found.se == pytest.approx(math.sqrt(9 * np.var(left_out)), rel=1e-8)
    generator = np.random.default_rng(0)
    own = math.sqrt(slow.hsic(flat(x), flat(x)) * slow.hsic(flat(y), flat(y)))
    drawn = [slow.hsic(flat(x), flat(y[generator.permutation(10)])) / own for _ in range(2000)]
    assert found.floor == pytest.approx(np.mean(drawn), abs=4 * np.std(drawn) / math.sqrt(2000))
    rows = linear_cka(x.flatten(0, 1), y.flatten(0, 1), groups=np.arange(60) // 6)
    assert (rows.value, rows.se, rows.floor) == pytest.approx((found.value, found.se, found.floor), rel=1e-9)
    assert linear_cka(x.flatten(0, 1), y.flatten(0, 1)).floor is None


def test_cka_of_a_rotation_is_one_and_of_independent_rows_zero_on_average():
    x, _ = clouds(8, 10)
    assert float(linear_cka(x, x @ rotation(6) * 5 + 2)) == pytest.approx(1, abs=1e-12)
    generator = torch.Generator().manual_seed(0)
    drawn = [float(linear_cka(*torch.randn(2, 300, 1000, generator=generator, dtype=torch.float64))) for _ in range(24)]
    assert abs(np.mean(drawn)) < 3 * np.std(drawn, ddof=1) / math.sqrt(24)
    assert np.std(drawn) < 0.008


@pytest.mark.parametrize("within", [0.3, 0.6])
def test_clouds_that_share_only_sequences_are_at_their_floor(within):
    """Both measures are far above what independent rows give, and equal to their permuted floor."""
    ckas, overlaps, chances = [], [], []
    for seed in range(12):
        x, y = clouds(24, 16, (40, 40), within=within, seed=seed)
        cka, overlap = linear_cka(x, y), neighbourhood_overlap(x, y)
        ckas.append((cka.value, cka.floor))
        overlaps.append((overlap.value, overlap.floor))
        chances.append(overlap.chance)
    for found, least in ((np.array(ckas), 0.03), (np.array(overlaps), 1.3 * chances[0])):
        off = found[:, 0] - found[:, 1]
        assert found[:, 0].mean() > least
        assert abs(off.mean()) < 3 * off.std(ddof=1) / math.sqrt(12) + 1e-3


def test_unequal_lengths_are_cut_for_the_floor():
    generator = torch.Generator().manual_seed(0)
    keep = torch.rand(200, generator=generator) < 0.8
    groups = (torch.arange(200) // 10)[keep]
    values, floors = [], []
    for seed in range(30):
        x, y = clouds(20, 10, (8, 8), within=0.6, seed=seed)
        found = linear_cka(x.flatten(0, 1)[keep], y.flatten(0, 1)[keep], groups=groups)
        values.append(found.value)
        floors.append(found.floor)
    off = np.array(values) - np.array(floors)
    assert np.mean(floors) > 0.1
    assert abs(off.mean()) < 3 * off.std(ddof=1) / math.sqrt(30)


@pytest.mark.parametrize("across", [False, True])
def test_overlap_is_that_of_a_slow_version(across):
    x, y = clouds(9, 7, common=1.5, within=0.3)
    found = neighbourhood_overlap(x.float(), y, k=4, across=across)
    sequence = np.arange(63) // 7 if across else None
    assert found.value == pytest.approx(slow.overlap(flat(x), flat(y), 4, sequence), abs=1e-12)
    assert found.chance == pytest.approx(4 / 56 if across else 4 / 62)
    assert found.low < found.value < found.high


def test_overlap_of_independent_rows_is_chance():
    for across in (False, True):
        found = [neighbourhood_overlap(*clouds(12, 10, (8, 8), seed=1000 + s), across=across) for s in range(60)]
        values = np.array([e.value for e in found])
        assert abs(values.mean() - found[0].chance) < 3 * values.std(ddof=1) / math.sqrt(60)


@pytest.mark.parametrize("measure", [linear_cka, neighbourhood_overlap])
def test_interval_holds_the_mean_over_new_sequences(measure):
    found = [measure(*clouds(24, 8, (6, 6), common=1.0, within=0.3, seed=seed)) for seed in range(150)]
    mean = np.mean([e.value for e in found])
    assert 0.88 <= np.mean([e.low <= mean <= e.high for e in found]) <= 0.995


def test_copies_are_left_out_and_counted():
    x, y = clouds(12, 8)
    y[3, 2] = y[0, 0]
    found = neighbourhood_overlap(x, y, k=5)
    assert found.duplicates == 1
    assert found.n == 95
    assert "1 tokens left out" in found.details


def test_wrong_use_is_said():
    x, y = clouds(12, 8)
    for act, words in (
        (lambda: linear_cka(x, y[:5]), "same tokens"),
        (lambda: linear_cka(x, y, groups=[1]), "groups go with rows"),
        (lambda: linear_cka(x[0], y[0], groups=[1]), "one id for each of 8"),
        (lambda: linear_cka(x[0, :3], y[0, :3]), "at least 4 rows"),
        (lambda: neighbourhood_overlap(x[0], y[0]), "shape"),
        (lambda: neighbourhood_overlap(x, y, k=90), "k must lie in 1…87"),
        (lambda: neighbourhood_overlap(x, y[:, :4]), "same tokens"),
    ):
        with pytest.raises(BrokenRuleError, match=words):
            act()
    assert math.isnan(float(linear_cka(torch.ones(9, 4, 3), x[:9, :4])))
    few = linear_cka(x[:5], y[:5])
    assert few.low is None
    assert "5 sequences" in few.note
