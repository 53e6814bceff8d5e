"""Selections of one cloud measured together are what each is alone."""

import threading

import pytest
import torch

from anisoscope.jobs.side_by_side import side_by_side
from anisoscope.study.measure import measure_study as measure
from anisoscope.study.measure.measure_study import measure_cloud, measure_selections

EQUAL = {"rel": 1e-9, "abs": 1e-12, "nan_ok": True}


@pytest.fixture(scope="module")
def layer():
    """Tokens with sinks in first positions, copies, and a few rows that one selection alone has."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 5, generator=generator) @ torch.randn(5, 12, generator=generator)
    x += 0.1 * torch.randn(600, 12, generator=generator)
    x[::40] += 30
    x[41], x[300] = x[40], x[7]
    numbers = torch.arange(600)
    return x, {"all": numbers[:590], "no-first": numbers[numbers % 40 > 0]}


def numbers_of(row):
    return [float("nan") if v is None else v for v in (row.value, row.low, row.high, row.floor, row.radius)]


def test_selections_together_measure_as_each_alone(layer):
    x, selections = layer
    together = measure_selections(x, selections, seed=3)
    assert list(together) == ["all", "no-first"]
    for name, rows in selections.items():
        alone = measure_cloud([x[rows]], seed=3)
        assert len(alone.table) == len(together[name].table) > 20
        for found, expected in zip(together[name].table, alone.table, strict=True):
            same = (expected.measure, expected.variant, expected.n, expected.note, expected.width)
            assert (found.measure, found.variant, found.n, found.note, found.width) == same
            assert numbers_of(found) == pytest.approx(numbers_of(expected), **EQUAL), (name, same)


def test_the_usual_measures_are_those_among_all(layer):
    x, selections = layer
    every = {(r.measure, r.variant): r for r in measure_selections(x, selections)["no-first"].table}
    usual = measure_selections(x, selections, which="usual")["no-first"].table
    names = {"average_cosine", "isoscore_star", "participation_ratio", "effective_rank", "rankme", "spectral_decay"}
    names |= {"local_isotropy", "two_nn"}
    forms = {"power=2, centred", "power=1, centred", "power=1, uncentred"}  # the literature has three of this one
    assert {row.measure for row in usual} == {"top_share"} | names
    assert {row.variant for row in usual if row.measure == "top_share"} == forms
    assert len(usual) == len(forms) + len(names)  # one variant each of the others
    for row in usual:
        assert numbers_of(row) == pytest.approx(numbers_of(every[row.measure, row.variant]), **EQUAL)


def test_selections_larger_than_a_sample_have_each_its_own(layer, monkeypatch):
    x, selections = layer
    monkeypatch.setattr(measure, "SAMPLE_ROWS", 500)
    taken = []

    def counted(chunks, **given):
        taken.append(len(chunks[0]))
        return measure_cloud(chunks, **given)

    monkeypatch.setattr(measure, "measure_cloud", counted)
    measured = measure_selections(x, selections, which="usual")
    assert taken == [590, 585]
    assert [len(one.table) for one in measured.values()] == [len(measure_cloud([x], which="usual").table)] * 2


def test_threads_side_by_side_compute_with_one_thread_each():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        meeting = threading.Barrier(2, timeout=30)

        def act(number):
            meeting.wait()  # both must be under way at once
            return number, torch.get_num_threads()

        with side_by_side(2) as apply:
            assert list(apply(act, [5, 3])) == [(5, 1), (3, 1)]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_after_an_error_nothing_new_is_begun():
    begun, go_on = [], threading.Event()

    def act(number):
        begun.append(number)
        if number == 0:
            raise ValueError("the first one fails")
        go_on.wait(0.2)

    with pytest.raises(ValueError, match="the first one fails"), side_by_side(1) as apply:
        list(apply(act, range(50)))
    assert len(begun) < 5
