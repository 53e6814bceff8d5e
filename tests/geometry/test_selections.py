"""Neighbours of several selections by one search are those of a search each."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anisoscope.errors import BrokenRuleError
from anisoscope.geometry import selections
from anisoscope.geometry.neighbours import neighbours
from anisoscope.geometry.selections import neighbours_of_selections


def cloud(n, width, seed=0):
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed))


def without(n, *left_out):
    return torch.tensor([row for row in range(n) if row not in left_out])


def require_equal(x, chosen, k):
    shared = neighbours_of_selections(x, chosen, k)
    assert list(shared) == list(chosen)
    for name, rows in chosen.items():
        alone = neighbours(x[rows], k)
        for part in ("distances", "indices", "rows"):
            assert torch.equal(getattr(shared[name], part), getattr(alone, part)), (name, part)
        assert shared[name].exact_duplicates == alone.exact_duplicates
        assert shared[name].near_duplicates == alone.near_duplicates
    return shared


@pytest.fixture
def searches(monkeypatch):
    """How many rows each search was over."""
    made = {"whole": [], "again": []}
    whole, again = selections.nearest, selections.nearest_to
    monkeypatch.setattr(selections, "nearest", lambda x, k: made["whole"].append(len(x)) or whole(x, k))
    monkeypatch.setattr(
        selections, "nearest_to", lambda x, rows, k: made["again"].append(len(rows)) or again(x, rows, k)
    )
    return made


@pytest.mark.parametrize("k", [1, 2, 20, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_selections_that_nearly_agree_need_one_search(k, dtype, searches):
    x = cloud(700, 12).to(dtype)
    x[::50] *= 100  # sinks, far from all else
    first = list(range(0, 700, 50))
    require_equal(x, {"all": without(700, 698, 699), "no-first": without(700, *first)}, k)
    assert searches["whole"] == [700]


def test_points_crowded_by_rows_outside_are_searched_again(searches):
    x = cloud(400, 6)
    x[:30] = x[200] + 0.01 * cloud(30, 6, seed=1)  # nearer to row 200 than anything else
    require_equal(x, {"all": torch.arange(400), "no-first": torch.arange(30, 400)}, 10)
    (again,) = searches["again"]
    assert 0 < again < 370


def test_each_selection_has_its_own_duplicates():
    x = cloud(300, 5, seed=2)
    x[40], x[50] = x[3], x[3]  # exact copies, of which the first is in one selection only
    step = 0.7e-6 * float((x - x.mean(0)).square().sum(1).mean().sqrt())
    x = x.double()
    x[100], x[101] = x[7], x[7]
    x[7, 0], x[101, 0] = x[100, 0] - step, x[100, 0] + step  # linked through row 100 alone
    shared = require_equal(x.float().double(), {"all": torch.arange(300), "some": without(300, 3)}, 4)
    assert shared["all"].exact_duplicates == 2
    assert shared["some"].exact_duplicates == 1
    shared = require_equal(x, {"all": torch.arange(300), "unlinked": without(300, 100)}, 4)
    assert (shared["all"].near_duplicates, shared["unlinked"].near_duplicates) == (2, 0)


def test_selections_with_little_in_common_are_searched_apart(searches):
    x = cloud(300, 4)
    require_equal(x, {"low": torch.arange(200), "high": torch.arange(100, 300)}, 5)
    assert searches["whole"] == []


@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(0, 4))
def test_any_few_rows_may_be_left_out(seed, k, left_out):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(60, 3, generator=generator).round(decimals=1)  # with ties and copies
    x += 1e-3 * torch.randn(60, 3, generator=generator)
    gone = torch.randperm(60, generator=generator)[:left_out].tolist()
    require_equal(x, {"all": torch.arange(60), "most": without(60, *gone)}, k)


def test_more_neighbours_than_rows_are_all_there_are():
    x = cloud(40, 3)
    shared = require_equal(x, {"all": torch.arange(40), "most": torch.arange(2, 40)}, 64)
    assert shared["most"].distances.shape == (38, 37)


def test_no_neighbour_is_too_few():
    with pytest.raises(BrokenRuleError, match="k must be at least 1"):
        neighbours_of_selections(cloud(10, 2), {"all": torch.arange(10)}, 0)
