import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anisoscope import Moments
from reference import slow

FIELDS = ("count", "mean", "scatter", "third", "fourth")


def cloud(n, d, *, mean=0.0, spread=1.0, seed=0):
    return mean + spread * torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_same(a: Moments, b: Moments, *, rtol):
    scale = float(b.scatter.diagonal().sum()) ** 0.5 + 1e-300
    units = {"count": 1, "mean": scale, "scatter": scale**2, "third": scale**3, "fourth": scale**4}
    for name in FIELDS:
        gap = (getattr(a, name) - getattr(b, name)).abs().max()
        assert float(gap) <= rtol * units[name], name


@pytest.mark.parametrize(("n", "d"), [(1, 3), (2, 1), (7, 5), (100, 600)])
def test_equals_the_sums_written_out(n, d):
    x = cloud(n, d, mean=3.0)
    got = Moments.of(x)
    for name, expected in zip(FIELDS, slow.central_sums(x), strict=True):
        np.testing.assert_allclose(getattr(got, name), expected, rtol=1e-10, atol=1e-10)


@given(st.data())
def test_merge_is_exact_in_any_order_and_grouping(data):
    sizes = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=6))
    offset = data.draw(st.sampled_from([0.0, 1.0, 1e4]))
    rows = max(sum(sizes), 1)
    x = cloud(rows, 3, mean=offset, seed=data.draw(st.integers(0, 99)))
    sizes[-1] += rows - sum(sizes)
    parts = [Moments.of(part) for part in x.split(sizes)]
    while len(parts) > 1:  # any tree over any permutation
        a = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        b = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        parts.append(a.merge(b))
    assert_same(parts[0], Moments.of(x), rtol=1e-12 * max(1.0, offset))


def test_an_offset_of_5000_spreads_costs_nothing_in_float32():
    x32 = cloud(40_000, 8, mean=50.0, spread=0.01).float()
    got = Moments.of(x32)  # several chunks
    truth = Moments.of(x32.double())
    assert_same(got, truth, rtol=1e-12)
    for name, expected in zip(("count", "mean", "scatter"), slow.central_sums(x32[:500].double()), strict=False):
        np.testing.assert_allclose(getattr(Moments.of(x32[:500]), name), expected, rtol=1e-9, atol=1e-12)
    raw = x32.T @ x32 / len(x32) - torch.outer(x32.mean(0), x32.mean(0))  # what is avoided
    assert float((raw - truth.covariance).abs().max() / truth.covariance.max()) > 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_float_dtype_goes_in_and_the_state_is_float64(dtype):
    x = cloud(50, 4).to(dtype)
    got = Moments.of(x)
    assert {getattr(got, name).dtype for name in FIELDS} == {torch.float64}
    assert_same(got, Moments.of(x.double()), rtol=1e-14)


def test_weights_are_frequencies_and_masks_drop_rows():
    x = cloud(6, 3)
    weights = torch.tensor([1, 0, 3, 1, 2, 0])
    repeated = x.repeat_interleave(weights, 0)
    assert_same(Moments.of(x, weights=weights), Moments.of(repeated), rtol=1e-12)
    garbage = x.clone()
    garbage[weights == 0] = 1e30
    assert_same(Moments.of(garbage, mask=weights > 0), Moments.of(x[weights > 0]), rtol=1e-12)
    batch = x.reshape(2, 3, 3)
    assert_same(Moments.of(batch, mask=(weights > 0).reshape(2, 3)), Moments.of(x[weights > 0]), rtol=1e-12)


def test_empty_is_neutral_and_one_row_has_no_spread():
    x = cloud(5, 4)
    for merged in (Moments.empty(4).merge(Moments.of(x)), Moments.of(x).merge(Moments.of(x[:0]))):
        assert_same(merged, Moments.of(x), rtol=1e-14)
    one = Moments.of(x[:1])
    assert float(one.count) == 1
    assert float(one.scatter.abs().max()) == 0
    assert bool(one.covariance.isnan().all())
    nothing = Moments.of(x, mask=torch.zeros(5, dtype=torch.bool))
    assert float(nothing.count) == 0
    assert bool(torch.isfinite(nothing.scatter).all())


def test_uncentred_second_moment():
    x = cloud(9, 3, mean=2.0)
    torch.testing.assert_close(Moments.of(x).second, x.T @ x)


def test_state_goes_through_plain_tensors():
    for higher in (True, False):
        moments = Moments.of(cloud(9, 3), higher=higher)
        again = Moments.from_state(moments.state())
        assert all(torch.equal(a, b) for a, b in zip(again.state().values(), moments.state().values(), strict=True))
        assert again.higher is higher


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: Moments.of(torch.ones(3, 2, dtype=torch.int64)), "floating-point dtype"),
        (lambda: Moments.of(torch.ones(3, 2, dtype=torch.complex64)), "floating-point dtype"),
        (lambda: Moments.of(torch.ones(3)), "rows and columns"),
        (lambda: Moments.of(torch.ones(3, 2), mask=torch.ones(2)), r"shape of the rows \(3,\)"),
        (lambda: Moments.of(torch.ones(3, 2), weights=torch.tensor([1.0, -1.0, 1.0])), "not be negative"),
        (lambda: Moments.of(torch.ones(3, 2)).merge(Moments.empty(3)), "equal width 2"),
        (lambda: Moments.of(torch.ones(3, 2)).merge(Moments.empty(2, higher=False)), "or neither"),
        (lambda: Moments.empty(0), "at least 1"),
        (lambda: Moments.from_state({"count": torch.ones(())}), "count, mean, scatter"),
    ],
)
def test_wrong_use_is_named(act, message):
    with pytest.raises(ValueError, match=message):
        act()
