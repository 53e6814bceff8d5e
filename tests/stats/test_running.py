"""Running moments of several parts: those of a plain pass over the rows of each part."""

import pytest
import torch

from anisoscope import Moments, effective_rank
from anisoscope.stats.running import Running
from reference import slow


def stream(dtype=torch.float32, batches=3, offset=0.0, length=5):
    g = torch.Generator().manual_seed(0)
    for i in range(batches):
        size = (6 + i, length, 4)
        x = offset + torch.randn(size, generator=g, dtype=torch.float64) * torch.tensor([9.0, 3.0, 1.0, 0.1])
        mask = torch.rand(size[:2], generator=g) < 0.7
        side = torch.randint(0, 2, size[:1], generator=g)
        yield x.to(dtype), mask, torch.stack([side == 0, side == 1])


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("length", [5, 300])  # several sequences at once, and one by one
@pytest.mark.parametrize(("dtype", "offset", "rtol"), [(torch.float64, 50.0, 1e-11), (torch.float32, 5.0, 1e-11)])
def test_each_part_has_the_moments_of_its_own_rows(dtype, offset, rtol, fixed, length):
    running, rows = None, ([], [])
    for x, mask, members in stream(dtype, offset=offset, length=length):
        running = running or Running.start(x, mask, parts=2)
        running.add(x, mask, members, fixed=fixed)
        for kept, inside in zip(rows, members, strict=True):
            kept.append(x[inside][mask[inside]].double())
    for found, kept in zip(running.moments(), rows, strict=True):
        expected = Moments.of(torch.cat(kept), higher=False)
        assert float(found.count) == float(expected.count)
        torch.testing.assert_close(found.mean, expected.mean, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(found.scatter, expected.scatter, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("fixed", [False, True])
def test_float32_rows_lose_no_small_singular_value(fixed):
    """A cloud of rank 5 in 256 directions: sums of products in float32 would fill the other 251."""
    g = torch.Generator().manual_seed(1)
    x = (torch.randn(24, 40, 5, generator=g).double() @ torch.randn(5, 256, generator=g).double()).float() + 2
    mask = torch.rand(24, 40, generator=g) < 0.9
    running = Running.start(x, mask, parts=1)
    for part in range(0, 24, 8):
        running.add(x[part : part + 8], mask[part : part + 8], torch.ones(1, 8, dtype=torch.bool), fixed=fixed)
    truth = slow.effective_rank(x[mask])
    # The rows themselves are rounded about an offset of 2, which the reference sees and sums of squares cannot.
    assert float(effective_rank(running.moments()[0])) == pytest.approx(truth, rel=1e-4)
    exact = running.moments()[0].scatter
    expected = (x[mask].double() - x[mask].double().mean(0)).T @ (x[mask].double() - x[mask].double().mean(0))
    torch.testing.assert_close(exact, expected, rtol=0, atol=1e-12 * float(expected.diagonal().sum()))


def test_padding_may_hold_anything():
    (x, mask, members), *_ = stream()
    other = torch.where(mask[..., None], x, torch.nan)
    found = []
    for rows in (x, other):
        running = Running.start(rows, mask, parts=2)
        running.add(rows, mask, members)
        found.append(running.moments())
    for a, b in zip(*found, strict=True):
        assert torch.equal(a.scatter, b.scatter)
        assert torch.isfinite(b.scatter).all()


def test_in_a_window_an_overflow_adds_nothing_and_alone_it_shows():
    first, (broken, mask, members), last = stream()
    broken[0, 0], mask[0, 0], members[0, 0] = torch.inf, True, True
    found = []
    for batches in ([first, last], [first, (broken, mask, members), last]):
        running = Running.start(*first[:2], parts=2)
        for batch in batches:
            running.add(*batch, fixed=True)
        found.append(running.moments())
    for a, b in zip(*found, strict=True):
        assert torch.equal(a.scatter, b.scatter)
        assert torch.equal(a.count, b.count)
    running = Running.start(broken, mask, parts=2)
    running.add(broken, mask, members)
    assert not torch.isfinite(running.moments()[0].scatter).all()


def test_a_part_without_rows_is_empty():
    (x, mask, members), *_ = stream()
    running = Running.start(x, mask, parts=2)
    running.add(x, mask, members & False)
    for found in running.moments():
        assert float(found.count) == 0
        assert not found.scatter.any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("length", [128, 512])
def test_sixteen_bits_on_a_gpu_are_as_good_as_they_came(fixed, length):
    """Against float64 moments of the same bfloat16 rows, with an offset and columns of very different size."""
    g = torch.Generator().manual_seed(0)
    size = torch.logspace(-3, 3, 64)
    running, rows = None, []
    for _ in range(4):
        x = ((torch.randn(32, length, 64, generator=g) + 3) * size).to("cuda", torch.bfloat16)
        mask = torch.ones(32, length, dtype=torch.bool, device="cuda")
        running = running or Running.start(x, mask, parts=1)
        running.add(x, mask, mask[None, :, 0], fixed=fixed)
        rows.append(x.double().flatten(0, 1))
    (found,) = running.moments()
    expected = Moments.of(torch.cat(rows), higher=False)
    scale = expected.scatter.diagonal().sqrt()
    error = (found.scatter - expected.scatter).abs() / (scale[:, None] * scale)
    assert float(error.max()) < 2e-4
