import inspect
import math

import numpy as np
import pytest
import torch

from anisoscope import Moments, Subspace, fit_subspace, principal_angles, semi_nmf, two_nn
from anisoscope.errors import BrokenRuleError
from anisoscope.testing import gaussian, plane, rotation
from reference import slow_evidence


def cloud(n=300, d=12, mean=0.0, seed=0):
    return gaussian(n, [2.0**-i for i in range(d)], mean=mean, seed=seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pca_and_svd_are_those_of_numpy(dtype):
    x = cloud(mean=1.0).to(dtype)
    for method, centred in (("pca", True), ("svd", False)):
        y = x.double().numpy() - (x.double().numpy().mean(0) if centred else 0)
        _, s, vt = np.linalg.svd(y, full_matrices=False)
        fitted = fit_subspace(x, method=method, rank=4)
        angles = principal_angles(fitted, Subspace(torch.from_numpy(vt[:4].T.copy())))
        assert float(angles.max()) < 1e-7
        np.testing.assert_allclose(fitted.spectrum * (len(x) - centred), s**2, rtol=1e-6, atol=1e-9)
        assert fitted.explained == pytest.approx((s[:4] ** 2).sum() / (s**2).sum())
        from_moments = fit_subspace(Moments.of(x.double()), method=method, rank=4)
        assert float(principal_angles(fitted, from_moments).max()) < 1e-6
        assert (fitted.n, fitted.rank, fitted.method, from_moments.n) == (300, 4, method, 300)


def test_rank_by_explained_variance_and_by_dimension():
    x = gaussian(4000, [4.0, 3.0, 2.0, 1.0, 1e-9, 1e-9])
    share = np.cumsum([4, 3, 2, 1]) / 10
    for target, rank in (("40%", 1), ("65%", 2), ("95%", 4), ("100%", 6)):
        assert fit_subspace(x, method="pca", rank=target).rank == rank, (target, share)
    flat = plane(2000, dim=3, width=10)
    assert fit_subspace(flat, method="pca", rank="id").rank == round(float(two_nn(flat))) == 3


def test_haar_and_mean_are_ablations():
    x = cloud(mean=3.0)
    one = fit_subspace(x, method="haar", rank=3, generator=torch.Generator().manual_seed(1))
    again = fit_subspace(x, method="haar", rank=3, generator=torch.Generator().manual_seed(1))
    other = fit_subspace(x, method="haar", rank=3, generator=torch.Generator().manual_seed(2))
    assert torch.equal(one.basis, again.basis)
    assert float(principal_angles(one, other).max()) > 0.1
    mean = fit_subspace(x, method="mean", rank=1)
    direction = x.mean(0) / x.mean(0).norm()
    assert float((mean.basis[:, 0] @ direction).abs()) == pytest.approx(1)


def test_project_remove_and_complement():
    x = cloud(40, 6)
    fitted = fit_subspace(x, method="pca", rank=2)
    torch.testing.assert_close(fitted.project(x) + fitted.remove(x), x)
    assert float((fitted.remove(x) @ fitted.basis).abs().max()) < 1e-12
    rest = fitted.complement()
    assert rest.rank == 4
    assert float((rest.basis.T @ fitted.basis).abs().max()) < 1e-12


def test_principal_angles_are_exact_when_small_and_when_ranks_differ():
    turn = 1e-9
    a = Subspace(torch.eye(4, 2, dtype=torch.float64))
    tilted = torch.eye(4, 2, dtype=torch.float64)
    tilted[1, 1], tilted[2, 1] = math.cos(turn), math.sin(turn)
    np.testing.assert_allclose(principal_angles(a, Subspace(tilted)), [0, turn], rtol=1e-6, atol=1e-16)
    line = Subspace(torch.tensor([[1.0], [0], [1], [0]]) / math.sqrt(2))
    assert float(principal_angles(a, line)[0]) == pytest.approx(math.pi / 4)
    assert float(principal_angles(line, a)[0]) == pytest.approx(math.pi / 4)


def test_concepts_are_reached_from_the_subspace():
    x = cloud(200, 8, mean=1.0)
    fitted = fit_subspace(x, method="semi_nmf", rank=3)
    assert fitted.loss_trace == fitted.factors.loss_trace
    assert fitted.converged == fitted.factors.converged
    assert fitted.encode(x[:5]).shape == (5, 3)
    assert len(fitted.top_tokens(np.arange(200) % 7)) == 3


def test_semi_nmf_spans_the_svd_of_an_offset_cloud():
    x = cloud(800, 10, mean=4.0)
    fitted = fit_subspace(x, method="semi_nmf", rank=3)
    assert float(principal_angles(fitted, fit_subspace(x, method="svd", rank=3)).max()) < 0.05
    assert fitted.factors.converged


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_semi_nmf_loss_never_rises_and_codes_stay_nonnegative(seed, dtype):
    x = cloud(400, 8, mean=float(seed % 2), seed=seed).to(dtype)
    fit = semi_nmf(x, 4, generator=torch.Generator().manual_seed(seed), tolerance=1e-9)
    assert (np.diff(fit.loss_trace) <= 0).all()
    # The trace could claim what it likes: factors stopped after i iterations must really be better each time.
    energy = float(x.double().square().sum())
    losses = []
    for i in range(1, 25):
        cut = semi_nmf(x, 4, generator=torch.Generator().manual_seed(seed), iterations=i, tolerance=0)
        losses.append(float((x.double() - cut.codes.double() @ cut.concepts.double()).square().sum()) / energy)
    assert (np.diff(losses) <= 1e-12).all()
    assert bool((fit.codes >= 0).all())
    direct = float((x.double() - fit.codes.double() @ fit.concepts.double()).square().sum() / x.double().square().sum())
    assert fit.loss == pytest.approx(direct, abs=1e-9)
    again = semi_nmf(x, 4, generator=torch.Generator().manual_seed(seed), tolerance=1e-9)
    assert again.loss_trace == fit.loss_trace


def test_semi_nmf_beats_multiplicative_updates_from_the_same_start():
    x = cloud(300, 8, mean=0.5)
    start = torch.rand(300, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    slow = slow_evidence.multiplicative_semi_nmf(x.numpy(), start.numpy(), 500)
    fit = semi_nmf(x, 3, start=start)
    assert fit.loss <= slow
    assert next(i for i, loss in enumerate(fit.loss_trace) if loss <= slow) < 100


def test_semi_nmf_stops_by_its_loss_and_says_if_it_did_not():
    x = cloud(300, 8)
    assert semi_nmf(x + 4, 3).converged
    cut = semi_nmf(x, 3, iterations=2, tolerance=0)
    assert not cut.converged
    assert len(cut.loss_trace) == 3


def test_encode_is_nonnegative_least_squares():
    from scipy.optimize import nnls

    x = cloud(200, 8, mean=1.0)
    fit = semi_nmf(x, 3)
    codes = fit.encode(x[:20], iterations=5000, tolerance=1e-20)
    for row, code in zip(x[:20].numpy(), codes.numpy(), strict=True):
        np.testing.assert_allclose(code, nnls(fit.concepts.double().numpy().T, row)[0], atol=1e-6)


def test_concepts_list_their_tokens():
    centres = torch.tensor([[10.0, 0, 0], [0, 10, 0]])
    tokens = torch.arange(200) % 2 + 7
    x = centres[tokens - 7] + 0.1 * torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    fit = semi_nmf(x, 2)
    tops = fit.top_tokens(tokens, count=1)
    assert {top[0].token for top in tops} == {7, 8}
    assert all(top[0].share > 0.5 and top[0].count == 100 for top in tops)


X = rotation(6)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: inspect.unwrap(fit_subspace)(X, method="ica", rank=2), "method must be one of pca svd"),
        (lambda: fit_subspace(X, method="pca", rank=6), "rank must lie in 1…5 for 6 vectors of width 6, got 6"),
        (lambda: fit_subspace(X, method="svd", rank=7), "rank must lie in 1…6"),
        (lambda: fit_subspace(X, method="pca", rank=0), "rank must lie in"),
        (lambda: fit_subspace(X, method="pca", rank="95"), "a share such as '95%'"),
        (lambda: fit_subspace(X, method="pca", rank="0%"), "a share such as '95%'"),
        (lambda: fit_subspace(X, method="mean", rank=3), "rank must be 1"),
        (lambda: fit_subspace(torch.cat([X, -X]), method="mean", rank=1), "must have a mean"),
        (lambda: fit_subspace(Moments.of(X), method="semi_nmf", rank=2), "fitted on rows"),
        (lambda: fit_subspace(Moments.of(X), method="pca", rank="id"), "measured on rows"),
        (lambda: fit_subspace(torch.ones(9, 3), method="pca", rank="id"), "measurable intrinsic dimension"),
        (lambda: fit_subspace(plane(50, dim=2, width=5), method="pca", rank=3), "at most 2, the number of directions"),
        (lambda: fit_subspace(plane(50, dim=2, width=5), method="semi_nmf", rank=4), "number of directions"),
        (lambda: fit_subspace(torch.ones(9, 3), method="pca", rank=1), "must have variance"),
        (lambda: fit_subspace(Moments.empty(3), method="pca", rank=1), "at least 2 finite rows"),
        (lambda: fit_subspace(X, method="pca", rank=2).loss_trace, "come with the method semi_nmf"),
        (lambda: Subspace(X[:, :2]).project(torch.ones(3, 5)), "width of the subspace, 6"),
        (lambda: semi_nmf(X, 2, start=torch.zeros(6, 2)), "no column all zero"),
        (lambda: Subspace(2 * X[:, :2]), "orthonormal to 1e-06, got"),
        (lambda: Subspace(X[:2]), "1 ≤ K ≤ D"),
        (lambda: Subspace(X).complement(), "rank below its width"),
        (lambda: principal_angles(Subspace(X), Subspace(rotation(5))), "share the width 6"),
        (lambda: semi_nmf(X, 7), "rank must lie in 1…6"),
        (lambda: semi_nmf(torch.zeros(5, 3), 2), "nonzero row"),
        (lambda: semi_nmf(X, 2, iterations=0), "at least 1"),
        (lambda: semi_nmf(X, 2, start=-torch.ones(6, 2)), "nonnegative codes"),
        (lambda: semi_nmf(X, 2).encode(torch.ones(2, 3)), "width 6"),
        (lambda: semi_nmf(X, 2).top_tokens(torch.arange(5)), "one a fitted row"),
    ],
)
def test_wrong_use_is_named(act, message):
    with pytest.raises(ValueError, match=message):
        act()


def test_the_span_of_concepts_has_the_variances_that_the_second_moment_gives():
    x = torch.randn(300, 12, generator=torch.Generator().manual_seed(3)) * torch.linspace(3, 0.2, 12)
    found = fit_subspace(x, method="semi_nmf", rank=4)
    second = x.double().T @ x.double()
    expected = (found.basis.T @ second @ found.basis).diagonal() / 300
    assert torch.allclose(found.spectrum, expected, rtol=1e-12)
    assert found.explained == pytest.approx(float(expected.sum() * 300 / second.trace()), rel=1e-12)
    inside = found.basis @ (found.basis.T @ found.factors.concepts.T)
    assert torch.allclose(inside, found.factors.concepts.T, atol=1e-12)


def test_concepts_that_depend_on_one_another_are_refused_with_the_number_of_directions():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 3, generator=generator).double() @ torch.randn(3, 9, generator=generator).double()
    with pytest.raises(BrokenRuleError, match="at most 3, the number of directions"):
        fit_subspace(x, method="semi_nmf", rank=4)
