"""Many clouds over many steps at once: the moments of a plain pass over the rows of each."""

import torch

from anisoscope import Moments
from anisoscope.stats.batched import Batched

SCALE = torch.tensor([9.0, 3.0, 1.0, 0.1], dtype=torch.float64)


def steps(clouds=("a", "b"), count=3, offset=5.0):
    g = torch.Generator().manual_seed(0)
    for i in range(count):
        size = (6, 5 + i % 2, 4)  # lengths differ from step to step
        x = {c: offset * (1 + j) + torch.randn(size, generator=g).double() * SCALE for j, c in enumerate(clouds)}
        rest = torch.rand(size[:2], generator=g) < 0.7
        first = torch.randint(0, size[1], size[:1], generator=g)
        rest[torch.arange(6), first] = False
        side = torch.randint(0, 2, size[:1], generator=g)
        yield x, rest, first, torch.stack([side == 0, side == 1])


def check(batched, kept):
    for key, parts in batched.moments().items():
        for part, folds in parts.items():
            for fold, found in enumerate(folds):
                expected = Moments.of(torch.cat(kept[key, part, fold]), higher=False)
                assert float(found.count) == float(expected.count)
                torch.testing.assert_close(found.mean, expected.mean, rtol=1e-10, atol=1e-10)
                torch.testing.assert_close(found.scatter, expected.scatter, rtol=1e-10, atol=1e-9)


def absorbed(batched, kept, x, rest, first, members, *, put=None, counted=None):
    for key, rows in x.items():
        if put is None or key in put:
            batched.put(key, rows, short=False)
        if (put is None or key in put) and (counted is None or key in counted):
            for fold, inside in enumerate(members):
                kept.setdefault((key, "rest", fold), []).append(rows[inside][rest[inside]])
                kept.setdefault((key, "first", fold), []).append(rows[torch.arange(6), first][inside])
    batched.absorb(rest, first, members)


def test_each_part_has_the_moments_of_its_own_rows():
    batched, kept = Batched(parts=2), {}
    for step in steps():
        absorbed(batched, kept, *step)
    check(batched, kept)


def test_a_cloud_that_overflows_or_does_not_come_adds_nothing():
    batched, kept = Batched(parts=2), {}
    for i, (x, rest, first, members) in enumerate(steps(count=4)):
        if i == 1:
            rest[0, 0] = True
            first[0] = 1
            x["a"][0, 0] = torch.inf
            x["a"][0, 1] = torch.nan
            absorbed(batched, kept, x, rest, first, members, counted={"b"})
        else:
            absorbed(batched, kept, x, rest, first, members, put={"b"} if i == 3 else None)
    check(batched, kept)


def test_float32_rows_are_multiplied_in_float64():
    batched, rows = Batched(parts=1), []
    g = torch.Generator().manual_seed(3)
    rest, first = torch.ones(4, 6, dtype=torch.bool), torch.zeros(4, dtype=torch.int64)
    rest[:, 0] = False
    for _ in range(10):  # more than wait in one sum
        x = torch.randn(4, 6, 2, generator=g) @ torch.randn(2, 32, generator=torch.Generator().manual_seed(4))
        batched.put("a", x, short=False)
        batched.absorb(rest, first, torch.ones(1, 4, dtype=torch.bool))
        rows.append(x[:, 1:].flatten(0, 1).double())
    (found,) = batched.moments()["a"]["rest"]
    expected = Moments.of(torch.cat(rows), higher=False)
    # Centred rows are rounded to float32; products in float32 would be off by 1e-7 of the trace.
    gap = torch.linalg.eigvalsh(found.scatter - expected.scatter).abs().max() / expected.scatter.diagonal().sum()
    assert float(gap) < 2e-8
    assert float(torch.linalg.eigvalsh(found.scatter)[:-2].abs().max()) < 1e-13 * float(expected.scatter.trace())
