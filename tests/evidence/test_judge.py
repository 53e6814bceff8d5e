"""Judging, cross-fitting, the referee's table, and everything that can be wrong with a request."""

import math

import numpy as np
import pytest
import torch

from anisoscope import (
    Moments,
    Subspace,
    adjust,
    cross_fit,
    cross_fit_weight,
    energy_share,
    fit_subspace,
    judge,
    ladder,
    pairing_share,
    verify,
)
from anisoscope.evidence.cross_fit import fold_of
from anisoscope.evidence.inference import _studentised, two_sided_p
from anisoscope.evidence.measure_fold import additive_units
from anisoscope.evidence.units import BilinearUnits
from anisoscope.testing import rotation, sphere
from reference import slow_evidence as slow


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


Q = Subspace(rotation(8)[:, :2])
G = normal(10, 5, 8)


def test_a_p_value_is_never_zero_and_ties_are_not_evidence():
    draws = torch.arange(99.0, dtype=torch.float64)
    assert two_sided_p(1000.0, draws) == pytest.approx(0.02)
    assert two_sided_p(-1000.0, draws) == pytest.approx(0.02)
    assert two_sided_p(49.0, draws) == 1.0
    assert two_sided_p(0.0, torch.zeros(99, dtype=torch.float64)) == 1.0
    assert math.isnan(two_sided_p(math.nan, draws))


def test_groups_change_intervals_and_nothing_else():
    flat = G.flatten(0, 1)
    by_sequence = judge(flat, Q, groups=torch.arange(50) // 5)
    by_shape = judge(G, Q)
    assert by_sequence.enrichment["haar"] == by_shape.enrichment["haar"]
    alone = judge(flat, Q)
    assert alone.enrichment["haar"].value == by_shape.enrichment["haar"].value
    assert alone.enrichment["haar"].low is None
    assert alone.p == by_shape.p
    assert (by_shape.units, alone.units) == (10, None)


def test_left_out_energies_are_those_of_the_others():
    x, delta = normal(5, 3, 8, seed=1), normal(5, 3, 4, seed=2)
    units = BilinearUnits(torch.arange(5), x, delta, Q.basis, torch.arange(5))
    lost = units.left_out()
    for s in range(5):
        keep = [i for i in range(5) if i != s]
        g = delta[keep].flatten(0, 1).T @ x[keep].flatten(0, 1)
        share = energy_share(g, Q)
        assert float(lost.inside[s]) == pytest.approx(share.inside, rel=1e-9)
        assert float(lost.outside[s]) == pytest.approx(share.outside, rel=1e-9)
        axes = float(((g.T @ g).diagonal() * Q.basis.square().sum(1)).sum())
        assert float(lost.axes[s]) == pytest.approx(axes, rel=1e-9)


@pytest.mark.parametrize("view", ["additive", "weight", "other units"])
def test_studentised_swaps_are_those_of_a_slow_reference(view):
    """Every dealing is recomputed by loops over gradients or energies, and its jackknife by leaving units out."""
    n, rng = 18, np.random.default_rng(0)
    x, delta, other = normal(n, 3, 8, seed=1), normal(n, 3, 2, seed=2), 2 * normal(n, 3, 2, seed=3)
    chosen = torch.tensor(rng.integers(0, 2, size=(5, n)), dtype=torch.float64)
    chosen[0] = 1
    if view == "weight":
        ids = torch.arange(n)
        own, theirs = (BilinearUnits(ids, x, d, Q.basis, ids) for d in (delta, other))
        mine, others = ([(d[s].T @ x[s]).double().numpy() for s in range(n)] for d in (delta, other))
    else:
        rows, more = normal(n, 3, 8, seed=4).double(), 3 * normal(n, 3, 8, seed=5).double()
        ids = torch.arange(n) if view == "additive" else torch.arange(100, 100 + n)
        own = additive_units(rows.flatten(0, 1), Q, torch.arange(n).repeat_interleave(3))
        theirs = additive_units(more.flatten(0, 1), Q, ids.repeat_interleave(3))
        mine, others = list(rows.numpy()), list(more.numpy())
    both = torch.cat([chosen, 1 - chosen], 1)
    same = view != "other units"
    found = _studentised([(own.joined(theirs, _scales(own, theirs)), both, same)])
    q, weight = Q.basis.numpy(), view == "weight"
    expected = [slow.studentised_swap(mine, others, row.numpy(), q, weight, same) for row in chosen]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def _scales(own, theirs):
    return tuple(1 / float(u.total.inside + u.total.outside) for u in (own, theirs))


def test_a_swap_of_fewer_than_16_units_cannot_tell():
    few = judge(normal(15, 4, 8, seed=1), Q, nulls=("targets",), others={"targets": normal(15, 4, 8, seed=2)})
    enough = judge(normal(16, 4, 8, seed=1), Q, nulls=("targets",), others={"targets": normal(16, 4, 8, seed=2)})
    assert "targets" not in few.p
    assert 0 < enough.p["targets"] <= 1


def test_weight_targets_take_deltas_and_pair_them():
    x, delta = normal(16, 4, 8, seed=1), normal(16, 4, 3, seed=2)
    g = delta.flatten(0, 1).T @ x.flatten(0, 1)
    same = judge(g, Q, nulls=("targets",), inputs=x, deltas=delta, others={"targets": delta})
    assert same.enrichment["targets"].value == pytest.approx(1)
    assert same.p["targets"] == 1
    rows = judge(g, Q, nulls=("targets",), inputs=x, deltas=delta, others={"targets": g})
    assert rows.enrichment["targets"].low is None  # one matrix has no sequences
    assert "targets" not in rows.p


def test_init_of_the_same_text_is_paired_and_of_other_text_is_not():
    first = judge(normal(12, 4, 8, seed=5), Q, groups=torch.arange(12))
    same = judge(G.repeat(2, 1, 1)[:12], Q, nulls=("init",), initial=first, groups=torch.arange(12))
    other = judge(G.repeat(2, 1, 1)[:12], Q, nulls=("init",), initial=first, groups=torch.arange(50, 62))
    assert same.enrichment["init"].value == other.enrichment["init"].value
    assert same.enrichment["init"].low != other.enrichment["init"].low
    assert same.mean["init"] == first.energy


def test_zero_gradients_are_undetermined():
    found = judge(torch.zeros(10, 5, 8), Q, nulls=("haar", "axes"))
    assert found.undetermined
    assert math.isnan(found.energy)
    assert "must have energy" in found.note
    verdict = ladder([found, found], view="representation")
    assert verdict.model.last is None
    assert verdict.model.commonest("haar") == "not measured"


def test_cross_fit_never_tests_on_what_it_fitted():
    """Gradients equal to activations: in-sample PCA flatters itself, cross-fitted it does not beat its own truth."""
    x = normal(20, 4, 30, seed=3)
    fitted = judge(x, fit_subspace(x.flatten(0, 1), method="pca", rank=5)).energy
    crossed = cross_fit(x, x, rank=5)
    assert crossed.energy < fitted - 0.05
    assert crossed.energy == pytest.approx(5 / 30, abs=0.03)  # isotropic: nothing to find
    assert len(crossed.subspaces) == 2


def test_cross_fit_pools_numerators_and_denominators():
    x, g = normal(12, 4, 8, seed=1), normal(12, 4, 8, seed=2) * torch.linspace(1, 9, 12).reshape(12, 1, 1)
    folds = torch.arange(12) % 2
    found = cross_fit(x, g, rank=2, folds=folds)
    inside = total = 0.0
    for fit_on in (0, 1):
        proxy = fit_subspace(x[folds == fit_on].flatten(0, 1), method="pca", rank=2)
        share = energy_share(g[folds != fit_on], proxy)
        inside, total = inside + share.inside, total + share.total
    assert found.energy == pytest.approx(inside / total, rel=1e-12)


def test_cross_fit_forms_the_gradient_of_each_fold():
    x, delta = normal(12, 4, 8, seed=1) + 1, normal(12, 4, 3, seed=2)
    folds = torch.arange(12) % 2
    found = cross_fit_weight(x, delta, rank=2, folds=folds, nulls=("haar", "pairing"))
    inside = total = 0.0
    for fit_on in (0, 1):
        held = folds != fit_on
        proxy = fit_subspace(x[~held].flatten(0, 1), method="pca", rank=2)
        share = energy_share(delta[held].flatten(0, 1).T @ x[held].flatten(0, 1), proxy)
        inside, total = inside + share.inside, total + share.total
    assert found.energy == pytest.approx(inside / total, rel=1e-12)
    assert found.enrichment["pairing"].low is not None
    assert 0 < found.p["pairing"] <= 1


def test_folds_follow_ids_and_small_ones_say_less():
    ids = torch.arange(1000)
    side = fold_of(ids, seed=3)
    assert abs(float(side.double().mean()) - 0.5) < 0.06
    assert torch.equal(side, fold_of(ids.flip(0), seed=3).flip(0))
    assert not torch.equal(side, fold_of(ids, seed=4))
    by_place = cross_fit(normal(8, 4, 8, seed=1), normal(8, 4, 8, seed=2), rank=2)
    assert by_place.p  # without ids the folds are halves, never too small by bad luck
    small = cross_fit(normal(6, 4, 8, seed=1), normal(6, 4, 8, seed=2), rank=2, folds=torch.arange(6) % 2)
    assert small.enrichment["haar"].value > 0
    assert small.enrichment["haar"].low is None
    assert small.p == {}
    assert "no p and no intervals" in small.note
    with pytest.raises(ValueError, match="at least 2 sequences, got 1 and 3"):
        cross_fit(normal(4, 4, 8), normal(4, 4, 8), rank=2, folds=torch.tensor([0, 1, 1, 1]))


def test_a_sequence_of_rows_equals_the_stacked_batch():
    x, g = normal(12, 4, 8, seed=1), normal(12, 4, 8, seed=2)
    rows = cross_fit(x.flatten(0, 1), g.flatten(0, 1), rank=2, groups=torch.arange(12).repeat_interleave(4))
    stacked = cross_fit(x, g, rank=2, groups=torch.arange(12))
    assert rows.energy == pytest.approx(stacked.energy, rel=1e-12)
    assert rows.enrichment["haar"].low == pytest.approx(stacked.enrichment["haar"].low, rel=1e-9)


def test_cross_fit_resolves_a_rank_once_for_both_folds():
    x, g = normal(12, 8, 20, seed=1) * torch.linspace(3, 0.1, 20), normal(12, 8, 20, seed=2)
    assert len({s.rank for s in cross_fit(x, g, rank="80%").subspaces}) == 1


def test_weight_intervals_are_by_group():
    x, delta = normal(40, 3, 8, seed=1), normal(40, 3, 2, seed=2)
    g = delta.flatten(0, 1).T @ x.flatten(0, 1)
    single = judge(g, Q, inputs=x, deltas=delta)
    pairs = judge(g, Q, inputs=x, deltas=delta, groups=torch.arange(40) // 2)
    assert (single.units, pairs.units) == (40, 20)
    merged = judge(g, Q, inputs=x.reshape(20, 6, 8), deltas=delta.reshape(20, 6, 2))
    assert pairs.enrichment["haar"].low == pytest.approx(merged.enrichment["haar"].low, rel=1e-9)
    with pytest.raises(ValueError, match="at least 2 different sequences"):
        judge(g, Q, inputs=x, deltas=delta, groups=torch.zeros(40))


def test_a_dominant_unit_leaves_no_interval_and_is_named():
    g = normal(20, 4, 8, seed=1)
    g[7] *= 100
    found = judge(g, Q, nulls=("haar", "axes"), groups=torch.arange(50, 70))
    assert found.effective_units == pytest.approx(1, abs=0.1)
    assert found.enrichment["haar"].low is None
    assert "effective units, fewer than 8" in found.enrichment["haar"].note
    assert "100% in 57" in found.enrichment["haar"].note
    assert set(found.p) == {"haar", "axes"}  # they rest on orientation, not on units


def test_half_precision_factors_are_their_own_rounding_and_no_more():
    x, delta = normal(10, 6, 8, seed=1).bfloat16(), normal(10, 6, 3, seed=2).bfloat16()
    g = delta.flatten(0, 1).double().T @ x.flatten(0, 1).double()
    wide = judge(g, Q, nulls=("pairing",), inputs=x.double(), deltas=delta.double())
    half = judge(g.bfloat16(), Q, nulls=("pairing",), inputs=x, deltas=delta)
    assert half.enrichment["pairing"].value == pytest.approx(wide.enrichment["pairing"].value, rel=0.02)
    with pytest.raises(ValueError, match="must be the rows of deltasᵀ inputs"):
        judge(g * (1 + 1e-6), Q, nulls=("pairing",), inputs=x.double(), deltas=delta.double())


def test_folds_with_and_without_padding_pool():
    """Strata in one fold only: the draws of both directions must still be as many."""
    x, delta = normal(24, 18, 8, seed=1), normal(24, 18, 3, seed=2)
    strata = torch.zeros(24, 18, dtype=torch.int64)
    strata[0, 17] = -1
    delta[0, 17] = 0
    found = cross_fit_weight(x, delta, rank=2, strata=strata, nulls=("pairing",), resamples=39)
    assert 0 < found.p["pairing"] <= 1


def test_sequences_without_others_of_their_length_stay_out_and_are_counted():
    x, delta = normal(24, 24, 8, seed=1), normal(24, 24, 3, seed=2)
    strata = torch.zeros(24, 24, dtype=torch.int64)
    strata[:3, 8:] = -1  # three short ones
    folds = torch.arange(24) % 2
    found = cross_fit_weight(x, delta, rank=2, strata=strata, folds=folds, nulls=("pairing",), resamples=39)
    assert "3 sequences left out" in found.enrichment["pairing"].note
    assert found.enrichment["pairing"].n == 21
    strata[torch.arange(24) % 4 == 0, 8:], strata[torch.arange(24) % 4 == 1, 16:] = -1, -1
    few = cross_fit_weight(x[:12], delta[:12], rank=2, strata=strata[:12], folds=folds[:12], nulls=("pairing",))
    assert "cannot tell" in few.enrichment["pairing"].note
    assert few.enrichment["pairing"].low is None
    assert "pairing" not in few.p


def test_one_silent_fold_does_not_silence_the_other():
    x, delta = normal(12, 4, 8, seed=1), normal(12, 4, 3, seed=2)
    folds = torch.arange(12) % 2
    delta[folds == 0] = 0
    found = cross_fit_weight(x, delta, rank=2, folds=folds, nulls=("haar", "pairing"))
    assert found.energy > 0
    assert found.enrichment["pairing"].value > 0


def test_init_of_cross_fits():
    x, g = normal(24, 4, 8, seed=1), normal(24, 4, 8, seed=2)
    first = cross_fit(x, normal(24, 4, 8, seed=3), rank=2)
    found = cross_fit(x, g, rank=2, nulls=("haar", "init"), initial=first)
    assert found.enrichment["init"].low is not None
    with pytest.raises(ValueError, match="judged as this evidence is"):
        judge(g, Q, nulls=("init",), initial=first)


def test_adjust_is_benjamini_hochberg():
    assert adjust([0.01, 0.04, 0.03, math.nan]).tolist()[:3] == pytest.approx([0.03, 0.04, 0.04])
    assert math.isnan(adjust([0.01, math.nan])[1])
    with pytest.raises(ValueError, match="p-values must lie in 0…1"):
        adjust([2.0])


def test_ladder_of_a_planted_model():
    strong = torch.ones(8, dtype=torch.float64)
    strong[:2] = 8
    turn = rotation(8, seed=4)
    proxy = Subspace(turn[:, :2])
    layers = []
    for seed in range(5):
        g = (normal(20, 5, 8, seed=seed) * strong) @ turn.T
        plain = normal(20, 5, 8, seed=seed + 50)
        first = judge(plain, proxy, groups=torch.arange(20))
        layers.append(judge(g, proxy, nulls=("haar", "axes", "init", "targets"), initial=first, others={"targets": g}))
    found = ladder(layers, view="representation")
    assert found.model.last == "init"
    assert found.model.first_not_passed == "targets"
    assert found.model.reached == {"haar": 5, "axes": 5, "init": 5, "targets": 0, "targets-uniform": 0}
    assert found.model.commonest("targets") == "equal"  # the very same gradients
    assert len(found.layers) == 5
    assert "targets" in str(found.model)


def test_verify_tells_a_planted_tangent_from_noise():
    """Tokens on a sphere of a 6-dimensional subspace; gradients along it in one case, anywhere in the other."""
    x = (5 * sphere(600, dim=5, width=24, seed=1) + 0.01 * normal(600, 24)).reshape(30, 20, 24)
    plane = rotation(24, seed=2)[:, :6]
    along = (normal(30, 20, 6, seed=3) @ plane.T) + 0.1 * normal(30, 20, 24, seed=4)
    table = verify(x, along, ranks=[2, 6], methods=("pca", "svd"))
    proxy = {(row.method, row.rank): row for row in table.select("proxy")}
    assert proxy["pca", 6].low > 5
    assert proxy["haar", 6].low < 1.5
    assert {method for method, _ in proxy} == {"pca", "svd", "haar", "mean+haar"}
    normals = {(row.method, row.rank): row for row in table.select("normal")}
    assert normals["pca", 6].value > normals["pca", 6].chance + 5  # farther from the normals than chance: tangent
    assert all(row.value < 30 < row.chance for row in table.select("refit") if row.rank == 6)
    assert all(row.value is None and "cannot tell" in row.note for row in table.select("curvature"))  # too few rows
    settled = {(row.method, row.rank): row.value for row in table.select("settling")}
    assert settled["pca", 6] == 0
    assert set(table.as_dicts()[0]) >= {"check", "method", "rank", "value", "chance"}


def test_verify_tells_curvature_along_the_proxy_where_rows_allow_it():
    x = sphere(3000, dim=2, width=12, seed=1).reshape(60, 50, 12)
    (row,) = verify(x, normal(60, 50, 12), ranks=[2], methods=("pca",), resamples=19).select("curvature")
    assert row.value == pytest.approx(1.0, abs=0.05)  # a sphere bends alike along every tangent direction
    assert row.low < 1 < row.high
    assert row.chance == 1


def test_verify_settles_over_seeds_and_layers():
    cells = {(seed, layer): normal(12, 4, 16, seed=10 * seed + layer) for seed in range(3) for layer in range(2)}
    noise = {key: normal(12, 4, 16, seed=500 + i) for i, key in enumerate(cells)}
    (row,) = verify(cells, noise, ranks=[2], methods=("pca",)).select("settling")
    assert row.value >= 0.5
    assert row.n == 6
    assert row.low < row.value <= row.high
    silent = verify(normal(12, 4, 16), torch.zeros(12, 4, 16), ranks=[2])
    assert silent.select("settling") == ()
    assert "must have energy" in silent.select("proxy")[0].note


BASIS = Subspace(rotation(8)[:, :5])
BASIS5 = Subspace(rotation(5)[:, :2])
X, DELTA = normal(6, 3, 8, seed=1), normal(6, 3, 2, seed=2)
WG = DELTA.flatten(0, 1).T @ X.flatten(0, 1)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: judge(G, BASIS, nulls=("normal",)), "rank must be at most 4 for the normal null at width 8, got 5"),
        (lambda: judge(G, Q, resamples=0), "resamples must be at least 1, got 0"),
        (lambda: judge(G, Q, nulls=("har",)), "nulls must be among"),
        (lambda: judge(G[..., :7], Q), "width of the subspace, 8, got 7"),
        (lambda: judge(Moments.of(G[..., :7]), Q), "width of the subspace"),
        (lambda: judge(torch.where(G > 2, torch.nan, G), Q), "finite"),
        (lambda: judge(Moments.of(torch.where(G > 2, torch.inf, G)), Q), "finite"),
        (lambda: judge(G.flatten(0, 1), Q, groups=torch.zeros(50)), "at least 2 different sequences"),
        (lambda: judge(G.flatten(0, 1), Q, groups=torch.zeros(49)), r"one id a row \(50\)"),
        (lambda: judge(G, Q, groups=torch.zeros(9)), r"one id a sequence \(10\)"),
        (lambda: judge(G, Q, nulls=("pairing",)), r"pairing needs inputs and deltas of shape \(n, T, ·\)"),
        (lambda: judge(WG, Q, nulls=("pairing",), inputs=X.flatten(0, 1), deltas=DELTA.flatten(0, 1)), "pairing needs"),
        (lambda: judge(WG, Q, nulls=("pairing-token",), inputs=X, deltas=DELTA), "pairing-token needs"),
        (lambda: judge(WG + 1, Q, nulls=("pairing",), inputs=X, deltas=DELTA), "must be the rows of deltasᵀ inputs"),
        (lambda: judge(WG, Q, nulls=("pairing",), inputs=X, deltas=DELTA[:, :2]), "same tokens"),
        (
            lambda: judge(WG, Q, nulls=("pairing",), inputs=X, deltas=DELTA, strata=torch.zeros(6, 2).long()),
            "strata must",
        ),
        (lambda: judge(G, Q, nulls=("init",)), "init needs initial"),
        (lambda: judge(G, Q, nulls=("targets",)), "targets needs others"),
        (lambda: judge(G, Q, nulls=("targets-uniform",)), "targets-uniform needs others"),
        (lambda: judge(G, Q, nulls=("targets",), others={"targets": G[:9]}), "same tokens"),
        (lambda: judge(G, Q, activations=G[:9]), "aligned with the gradients"),
        (lambda: judge(Moments.of(G), Q, activations=G), "gradients as rows"),
        (lambda: judge(Moments.of(G), Q, groups=torch.arange(10)), "groups need gradients as rows"),
        (
            lambda: judge(WG, Q, nulls=("pairing",), inputs=X.where(X < 2, torch.nan), deltas=DELTA),
            "inputs must be finite",
        ),
        (lambda: judge(WG, Q, nulls=("pairing",), inputs=X, deltas=DELTA.long()), "deltas must be of a real"),
        (lambda: pairing_share(X, DELTA, BASIS5), "width of the subspace"),
        (lambda: pairing_share(X.flatten(0, 1), DELTA.flatten(0, 1), BASIS5), "width of the subspace"),
        (lambda: pairing_share(None, None, Q, strata={}), "at least one pair"),
        (lambda: pairing_share(X.flatten(0, 1), DELTA.flatten(0, 1), Q, strata=-torch.ones(18).long()), "all −1"),
        (lambda: pairing_share(Moments.of(X), DELTA, Q), "Moments on both sides"),
        (lambda: verify(G, G, ranks=[1], methods=("mean",)), "methods must be of any rank"),
        (lambda: cross_fit_weight(G.flatten(0, 1), G, rank=2), r"inputs must be \(n, T, D\)"),
        (lambda: cross_fit(G.flatten(0, 1), G.flatten(0, 1), rank=2), "rows must come with groups"),
        (lambda: cross_fit(G, G[:9], rank=2), "same 10 sequences"),
        (lambda: cross_fit(G, G, rank=2, folds=torch.arange(10)), "folds must be 0 or 1"),
        (lambda: cross_fit(G, G, rank=2, groups=torch.arange(9)), "one id for each of 10"),
        (lambda: cross_fit(G, G, rank=40), "rank must lie in"),
        (lambda: ladder([], view="representation"), "at least one layer"),
        (lambda: ladder([judge(G, Q)], view="attention"), "view must be one of"),
        (lambda: verify(G, G, ranks=[3]), r"ranks must lie in 1…2 \(a quarter of the width 8\)"),
        (lambda: verify({(0, 0): G}, G), "both be mappings"),
        (lambda: verify({(0, 0): G}, {(0, 1): G}), "same .seed, layer. keys"),
    ],
)
def test_wrong_use_is_named(act, message):
    with pytest.raises(ValueError, match=message):
        act()


def test_a_full_rank_basis_still_has_an_answer():
    found = judge(G, Subspace(rotation(8)))
    assert found.energy == pytest.approx(1)
    assert found.p["haar"] == 1.0
    assert math.isnan(found.enrichment["haar"].value)
    assert "whole space" in found.enrichment["haar"].note
