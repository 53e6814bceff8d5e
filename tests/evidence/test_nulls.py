"""Closed forms against enumeration and Monte Carlo; the algebra that nulls share."""

import math

import numpy as np
import pytest
import torch

from anisoscope import Moments, Subspace, energy_share, fit_subspace, judge, pairing_share
from anisoscope.evidence import isotropy_gain
from anisoscope.evidence.isotropy_gain import isotropy_gains
from anisoscope.evidence.random_tables import haar_frames, haar_weights
from anisoscope.evidence.sequence_pairing import sequence_null
from anisoscope.evidence.shared import Shared
from anisoscope.evidence.spectral import (
    aligned,
    axes_draws,
    eigenvalues_of_projectors,
    haar_draws,
    haar_draws_of_folds,
    normal_draws,
)
from anisoscope.testing import rotation
from reference import slow_evidence as slow


def basis(d, k, seed=0):
    return Subspace(rotation(d, seed=seed)[:, :k])


def rows(n, d, seed=0, dtype=torch.float64):
    scale = torch.linspace(3, 0.2, d, dtype=torch.float64)
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale
    return x.to(dtype)


@pytest.mark.parametrize(("d", "k"), [(6, 1), (12, 4), (30, 15)])
def test_haar_and_normal_means_agree_with_explicit_frames(d, k):
    g = rows(200, d)
    second = (g.T @ g).numpy()
    subspace = basis(d, k)
    q = subspace.basis.numpy()
    rng = np.random.default_rng(0)
    frames = [slow.random_frame(d, k, rng) for _ in range(2000)]
    shares = np.array([slow.share(second, f) for f in frames])
    evidence = judge(g, subspace, nulls=("haar", "normal"), isotropy=False)
    assert evidence.mean["haar"] == pytest.approx(shares.mean(), abs=4 * shares.std() / math.sqrt(2000))
    beside = [np.linalg.qr(f - q @ (q.T @ f))[0] for f in frames]
    normal = np.array([slow.share(second, f) for f in beside])
    assert evidence.mean["normal"] == pytest.approx(normal.mean(), abs=4 * normal.std() / math.sqrt(2000) + 1e-9)
    # and the draws have the law of the explicit shares, not only their mean
    total = np.trace(second)
    cheap = haar_draws(torch.from_numpy(second)[None], k, 2000, 7).inside[0].numpy() / total
    assert np.quantile(cheap, [0.05, 0.5, 0.95]) == pytest.approx(np.quantile(shares, [0.05, 0.5, 0.95]), abs=0.03)
    paper = normal_draws(torch.from_numpy(second)[None], subspace.basis[None], 2000, 7).inside[0].numpy() / total
    assert np.quantile(paper, [0.05, 0.5, 0.95]) == pytest.approx(np.quantile(normal, [0.05, 0.5, 0.95]), abs=0.03)


def test_tables_are_those_of_frames():
    weights, frames = haar_weights(9, 3, 500, 1), haar_frames(9, 3, 500, 1)
    assert torch.allclose(weights.sum(1), torch.full((500,), 3.0, dtype=torch.float64))
    assert torch.allclose(frames.mT @ frames, torch.eye(3, dtype=torch.float64).expand(500, 3, 3), atol=1e-12)
    # squared row norms of a uniform frame are Beta(K/2, (D−K)/2)
    for table in (weights, frames.square().sum(2)):
        assert float(table.var()) == pytest.approx(1.5 * 3 / (4.5**2 * 5.5), rel=0.1)


def test_axes_draws_are_sign_flips():
    g, subspace = rows(50, 5), basis(5, 2)
    second = g.T @ g
    drawn = axes_draws(second[None], subspace.basis[None], 400, 0)
    flips = [
        float(energy_share(g, Subspace(torch.diag(torch.tensor(s, dtype=torch.float64)) @ subspace.basis)).inside)
        for s in np.array(np.meshgrid(*[[-1, 1]] * 5)).T.reshape(-1, 5)
    ]
    assert {round(float(v), 6) for v in drawn.inside[0]} <= {round(v, 6) for v in flips}
    evidence = judge(g, subspace, nulls=("axes",), isotropy=False)
    assert evidence.mean["axes"] == pytest.approx(np.mean(flips) / float(second.diagonal().sum()), rel=1e-10)


@pytest.mark.parametrize(("n", "t", "d", "e"), [(2, 3, 4, 2), (4, 2, 3, 3), (5, 3, 6, 1)])
def test_pairing_by_sequence_is_the_mean_over_all_permutations(n, t, d, e):
    rng = np.random.default_rng(0)
    x, delta = rng.normal(size=(n, t, d)) + 1, rng.normal(size=(n, t, e)) - 0.5
    subspace = basis(d, 2)
    expected = slow.pairing_by_enumeration(x, delta, subspace.basis.numpy())
    assert pairing_share(x, delta, subspace) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("labels", [None, [0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 2, 2]])
def test_pairing_by_token_is_the_mean_over_all_permutations(labels):
    rng = np.random.default_rng(1)
    x, delta = rng.normal(size=(6, 4)) + 1, rng.normal(size=(6, 3)) - 0.5
    subspace = basis(4, 2)
    expected = slow.tokens_by_enumeration(x, delta, subspace.basis.numpy(), labels)
    assert pairing_share(x, delta, subspace, strata=labels) == pytest.approx(expected, rel=1e-9)
    tensors = torch.tensor(x), torch.tensor(delta)
    if labels is None:
        inputs, deltas = map(Moments.of, tensors)
        assert pairing_share(inputs, deltas, subspace) == pytest.approx(expected, rel=1e-9)
    else:
        chosen = {c: torch.tensor(labels) == c for c in set(labels)}
        pairs = {c: (Moments.of(tensors[0][rows]), Moments.of(tensors[1][rows])) for c, rows in chosen.items()}
        assert pairing_share(None, None, subspace, strata=pairs) == pytest.approx(expected, rel=1e-9)


def planted_strata():
    """Eight sequences of two kinds: one position of kind 0 in all, and 8 to 17 of kind 1."""
    rng = np.random.default_rng(2)
    strata = np.full((8, 18), -1)
    strata[:, 0] = 0
    for s, size in enumerate((8, 9, 17, 11, 16, 16, 15, 17)):
        strata[s, 1 : 1 + size] = 1
    strata[3, 1:15] = rng.permutation([1] * 11 + [-1] * 3)
    return rng.normal(size=(8, 18, 4)) + 1, rng.normal(size=(8, 18, 2)), strata


def test_sequences_are_permuted_within_classes_of_equal_length():
    x, delta, strata = planted_strata()
    subspace = basis(4, 1)
    assert [len(members) for members in slow.classes(strata)] == [4, 4]
    expected = slow.pairing_in_classes(x, delta, strata, subspace.basis.numpy())
    assert pairing_share(x, delta, subspace, strata=strata) == pytest.approx(expected, rel=1e-9)
    null = sequence_null(
        torch.from_numpy(x), torch.from_numpy(delta), subspace.basis, strata=torch.from_numpy(strata), draws=3000
    )
    assert null.draws is not None
    inside, outside = (part.mean() for part in null.draws)
    assert float(inside / (inside + outside)) == pytest.approx(expected, abs=0.02)


def test_strata_that_leave_nothing_are_no_number():
    x, delta = np.ones((3, 2, 4)), np.ones((3, 2, 2))
    assert math.isnan(pairing_share(x, delta, basis(4, 1), strata=-np.ones((3, 2), dtype=int)))


def test_strata_of_one_kind_are_no_strata():
    rng = np.random.default_rng(3)
    x, delta = rng.normal(size=(8, 4, 5)), rng.normal(size=(8, 4, 3))
    subspace = basis(5, 2)
    closed = pairing_share(x, delta, subspace)
    drawn = [
        pairing_share(
            x, delta, subspace, strata=np.zeros((8, 4), dtype=int), generator=torch.Generator().manual_seed(s)
        )
        for s in range(10)
    ]
    assert np.mean(drawn) == pytest.approx(closed, abs=4 * np.std(drawn) / math.sqrt(10))


@pytest.mark.parametrize("units", [None, (0, 0, 1, 2, 3, 1, 4, 4)])
def test_left_out_pairing_is_that_of_the_other_sequences(units):
    """One unit left out, of one sequence or of several, in one class or in two."""
    x, delta, strata = planted_strata()
    strata[:, 1:] = np.where(np.arange(17) < 16, 1, -1)  # two classes of four by a third kind of position
    strata[::2, 9:17] = 2
    q = basis(4, 1).basis
    place = torch.arange(8) if units is None else torch.tensor(units)
    inputs, deltas, kinds = (torch.from_numpy(part) for part in (x, delta, strata))
    null = sequence_null(inputs, deltas, q, strata=kinds, units=place, draws=0)
    for unit in range(int(place.max()) + 1):
        keep = (place != unit).numpy()
        groups = [[m for m in g if keep[m[0]]] for g in slow.classes(strata)]
        inside, total = slow.energies_of_classes(x, delta, groups, q.numpy())
        assert float(null.lost.inside[unit]) == pytest.approx(inside, rel=1e-9)
        assert float(null.lost.outside[unit]) == pytest.approx(total - inside, rel=1e-9)
        g = sum(np.einsum("te,td->ed", delta[s][p], x[s][p]) for members in groups for s, p in members)
        assert float(null.observed_lost.inside[unit]) == pytest.approx(((g @ q.numpy()) ** 2).sum(), rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_enrichment_over_haar_is_the_ratio_to_the_normal_mean(dtype):
    g = rows(300, 20, dtype=dtype)
    for k in (1, 5, 10):
        subspace = fit_subspace(g, method="pca", rank=k)
        evidence = judge(g, subspace, nulls=("haar", "normal"), isotropy=False)
        ratio = evidence.energy / evidence.mean["normal"]
        assert evidence.enrichment["haar"].value == pytest.approx(ratio, rel=1e-10)
        assert evidence.enrichment["normal"].value == pytest.approx(ratio, rel=1e-10)
        assert "normal" not in evidence.p
        assert 0 < evidence.p_paper <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_odds_survive_a_share_of_one_minus_1e7(dtype):
    subspace = Subspace(torch.eye(8, 2, dtype=torch.float64))
    g = torch.zeros(64, 8, dtype=dtype)
    g[:, :2] = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
    g[:, 2] = float(g.double().square().sum() / 64) ** 0.5 * math.sqrt(1e-7)
    inside, outside = float(g[:, :2].double().square().sum()), float(g[:, 2:].double().square().sum())
    assert outside / (inside + outside) == pytest.approx(1e-7, rel=1e-3)
    evidence = judge(g, subspace, groups=torch.arange(64) // 8, isotropy=False)
    assert evidence.enrichment["haar"].value == pytest.approx(inside / outside * 3, rel=1e-9)
    assert energy_share(Moments.of(g.double()), subspace).odds == pytest.approx(inside / outside, rel=1e-6)
    turn = rotation(8, seed=3)
    rounded = Subspace((turn[:, :2]).float())  # a basis that went through float32 is orthonormal again, not only nearly
    assert float((rounded.basis.T @ rounded.basis - torch.eye(2)).abs().max()) < 1e-14


@pytest.mark.parametrize(("d", "k"), [(12, 3), (20, 10), (9, 6)])
def test_isotropy_gain_is_that_of_explicit_removal(d, k):
    g = rows(400, d)
    c = torch.cov(g.T)
    subspace = basis(d, k)
    (gain,) = isotropy_gains([c], [subspace.basis], 40, 5)
    q, frames = subspace.basis.numpy(), haar_frames(d, k, 40, 5).numpy()
    assert float(gain.gain) == pytest.approx(slow.isotropy_gain(c.numpy(), q, 0.2), rel=1e-9)
    assert float(gain.gain_zeta0) == pytest.approx(slow.isotropy_gain(c.numpy(), q, 0.0), rel=1e-9)
    expected = [slow.isotropy_gain(c.numpy(), f, 0.2) for f in frames]
    np.testing.assert_allclose(gain.haar, expected, atol=1e-9)
    if 2 * k <= d:
        beside = [np.linalg.qr(f - q @ (q.T @ f))[0] for f in frames]
        expected = [slow.isotropy_gain(c.numpy(), f, 0.2) for f in beside]
        np.testing.assert_allclose(gain.orthogonal, expected, atol=1e-7)


def test_wide_controls_in_float32_agree_with_float64():
    d, k = 300, 8
    g = rows(500, d)
    c, q = torch.cov(g.T), basis(d, k).basis
    (fast,) = isotropy_gains([c], [q], 9, 0)
    expected = [slow.isotropy_gain(c.numpy(), f, 0.2) for f in haar_frames(d, k, 9, 0).numpy()]
    np.testing.assert_allclose(fast.haar, expected, atol=1e-5)


@pytest.mark.parametrize(("d", "k"), [(12, 3), (9, 6), (80, 4)])
def test_one_rotation_gives_the_gains_of_both_folds_and_is_shared_between_proxies(d, k):
    """Frames with the angles of the two proxies, made explicitly, against products that all proxies share."""
    covariances = [torch.cov(rows(200, d, seed=s).double().T) for s in (1, 2)]
    turn, shared = rotation(d, seed=3), Shared()
    for overlap in (0.0, 0.8, 1.0):
        first = basis(d, k).basis
        other = torch.linalg.qr(overlap * first + (1 - overlap) * turn[:, :k]).Q
        gains = isotropy_gains(covariances, [first, other], 30, 5, shared)
        (q1, q2), cosines, sines = aligned([first, other])
        np.testing.assert_allclose(q1.T @ q2, torch.diag(cosines), atol=1e-9)
        w = haar_frames(d, min(2 * k, d), 30, 5).numpy()
        second = w[..., :k] * cosines.numpy()
        second[..., k - len(sines) :] += w[..., k:] * sines.numpy()
        for gain, frames, q, c in zip(gains, (w[..., :k], second), (first, other), covariances, strict=True):
            inner = np.swapaxes(frames, 1, 2) @ frames
            np.testing.assert_allclose(inner, np.broadcast_to(np.eye(k), inner.shape), atol=1e-7)
            expected = [slow.isotropy_gain(c.numpy(), f, 0.2) for f in frames]
            np.testing.assert_allclose(gain.haar, expected, atol=1e-8 if d < 64 else 1e-5)
            assert float(gain.gain) == pytest.approx(slow.isotropy_gain(c.numpy(), q.numpy(), 0.2), rel=1e-8)
            if 2 * k <= d:
                beside = [np.linalg.qr(f - q.numpy() @ (q.numpy().T @ f))[0] for f in frames]
                expected = [slow.isotropy_gain(c.numpy(), f, 0.2) for f in beside]
                np.testing.assert_allclose(gain.orthogonal, expected, atol=1e-7 if d < 64 else 1e-5)


def test_frames_may_be_multiplied_a_few_at_a_time(monkeypatch):
    covariances = [torch.cov(rows(200, 12, seed=s).T) for s in (1, 2)]
    bases = [basis(12, 3, seed=s).basis for s in (1, 2)]
    whole = isotropy_gains(covariances, bases, 60, 5)
    monkeypatch.setattr(isotropy_gain, "_CHUNK_NUMBERS", 12 * 6 * 7)
    for a, b in zip(whole, isotropy_gains(covariances, bases, 60, 5), strict=True):
        np.testing.assert_allclose(a.haar, b.haar, rtol=1e-12)
        np.testing.assert_allclose(a.orthogonal, b.orthogonal, rtol=1e-9)
        assert len(b.orthogonal) == isotropy_gain.NORMAL_FRAMES


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("d", [10, 66, 256])
def test_orthogonal_to_half_of_the_space_there_is_one_subspace_only(d, seed):
    """Frames that are made orthogonal to it nearly vanish in some direction, and all gain the same."""
    q, c = basis(d, d // 2, seed=seed).basis, torch.cov(rows(300, d, seed=seed).T)
    (found,) = isotropy_gains([c], [q], 30, seed)
    expected = slow.isotropy_gain(c.numpy(), rotation(d, seed=seed)[:, d // 2 :].numpy(), 0.2)
    np.testing.assert_allclose(found.orthogonal, np.full(30, expected), atol=1e-6)


@pytest.mark.parametrize(("d", "k"), [(12, 3), (9, 6), (10, 5)])
def test_eigenvalues_of_projectors_are_those_of_the_matrices(d, k):
    first, other = basis(d, k).basis, rotation(d, seed=5)[:, :k]
    projectors = [q @ q.T for q in (first, other)]
    for found, sign in zip(eigenvalues_of_projectors(first, other), (1, -1), strict=True):
        whole = torch.linalg.eigvalsh(projectors[0] + sign * projectors[1])
        by_size = whole[whole.abs().argsort()]
        expected = by_size[d - len(found) :].sort().values
        np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("overlap", [0.0, 0.7, 1.0])
def test_one_rotation_for_both_folds_has_the_law_of_explicit_rotations(overlap):
    """Draws of the cheap scheme against explicit rotations of both proxies: mean, spread and tails."""
    d, k, rng = 16, 4, np.random.default_rng(0)
    turn = rotation(d, seed=3)
    first = basis(d, k).basis
    other = torch.linalg.qr(overlap * first + (1 - overlap) * turn[:, :k]).Q
    m = [rows(60, d, seed=s).double() for s in (1, 2)]
    seconds = [part.T @ part for part in m]
    cheap = haar_draws_of_folds(seconds, [first, other], 4000, 0).inside[0].numpy()
    exact = []
    for _ in range(4000):
        o = np.linalg.qr(rng.normal(size=(d, d)))[0]
        turned = [o @ q.numpy() for q in (first, other)]
        exact.append(sum(np.trace(q.T @ s.numpy() @ q) for q, s in zip(turned, seconds, strict=True)))
    exact = np.array(exact)
    assert cheap.mean() == pytest.approx(exact.mean(), rel=0.01)
    assert cheap.std() == pytest.approx(exact.std(), rel=0.06)
    np.testing.assert_allclose(np.quantile(cheap, (0.025, 0.975)), np.quantile(exact, (0.025, 0.975)), rtol=0.02)


def test_isotropy_gain_is_free_of_gradient_scale():
    g = rows(300, 10)
    subspace = fit_subspace(g, method="pca", rank=2)
    gains = [judge(scale * g, subspace) for scale in (1e-12, 1.0, 1e6)]
    for name in ("isotropy_gain", "isotropy_gain_null", "isotropy_gain_p", "captured", "energy"):
        values = [getattr(e, name) for e in gains]
        assert max(values) - min(values) < 1e-9, name
    single = [judge((scale * g).float(), subspace).isotropy_gain for scale in (1e-12, 1.0, 1e6)]
    assert max(single) - min(single) < 1e-5


def test_radial_share_is_that_along_the_activation():
    h = rows(50, 6)
    unit = h / h.norm(dim=1, keepdim=True)
    tangent = rows(50, 6, seed=1)
    tangent = tangent - (tangent * unit).sum(1, keepdim=True) * unit
    mixed = 0.6 * unit + 0.8 * tangent / tangent.norm(dim=1, keepdim=True)
    subspace = basis(6, 2)
    assert judge(mixed, subspace, activations=h).radial == pytest.approx(0.36)
    assert judge(tangent, subspace, activations=h).radial == pytest.approx(0, abs=1e-20)


def test_rows_and_moments_agree():
    g = rows(200, 9)
    subspace = basis(9, 3)
    a, b = judge(g, subspace, nulls=("haar", "axes")), judge(Moments.of(g), subspace, nulls=("haar", "axes"))
    assert a.energy == pytest.approx(b.energy, rel=1e-12)
    assert a.p == b.p
    assert a.isotropy_gain == pytest.approx(b.isotropy_gain, rel=1e-9)
    assert b.enrichment["haar"].low is None  # no interval is invented from one pooled moment


def test_models_wider_than_floats_can_count_sign_flips_are_judged():
    """2¹⁰²⁴ is no float: every observation of a model of width 2 048 was lost to it."""
    gradients = torch.randn(64, 1026, generator=torch.Generator().manual_seed(0))
    found = judge(
        gradients, Subspace(torch.eye(1026, 2, dtype=torch.float64)), nulls=("axes",), resamples=19, isotropy=False
    )
    assert 0 < found.p["axes"] <= 1
    assert found.p_floor["axes"] == 2 / 20
