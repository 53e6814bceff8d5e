"""When to look: pure rules of the step, and plans that keep to tokens or to a share of the time."""

import math
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anisoscope.budget import timing
from anisoscope.capture.schedule import END, MOST, TURNS, Schedule, next_by_budget, next_by_tokens
from capture.families import batch, build
from observe.test_scope import small


@given(st.integers(1, 10**7))
def test_the_default_looks_first_near_the_end_and_at_most_16_times(steps):
    chosen = Schedule.of("log", steps=steps).chosen
    assert {0, steps - 1 - (steps // END if steps > MOST else 0)} <= chosen
    assert max(chosen) >= 0.9 * (steps - 1)
    assert len(chosen) <= MOST


@given(st.one_of(st.none(), st.integers(1, 3000)), st.integers(2, 13))
def test_always_sees_every_block_at_least_once_in_four_steps(steps, blocks):
    schedule = Schedule.of("always", steps=steps)
    layers = range(blocks + 1)
    recent, step = [], 0
    for step in range(steps or 200):
        start, end = schedule.window(step)
        assert start <= step <= end
        assert schedule.judged(end) or end >= (steps or 200) - 1
        seen = schedule.turn(step, layers)
        recent.append(set(layers) if seen is None else seen)
        if len(recent) >= TURNS and step - start >= TURNS - 1:
            assert set().union(*recent[-TURNS:]) == set(layers)
        if schedule.judged(step):  # whatever is judged has been seen, and sampled, inside its window
            assert set().union(*recent[start - step - 1 :]) == set(layers)
            sampled = [s for s in range(start, step + 1) if schedule.samples(s)]
            assert set().union(*(recent[s - step - 1] for s in sampled)) == set(layers)


def test_tokens_are_counted_and_the_next_look_is_planned():
    assert next_by_tokens(0, 100, 1000) == 9
    model = build("gpt2")
    scope = small(model, steps=None, schedule="300 tokens", views=("representation",))
    for step in range(12):
        with scope.step():
            model(**batch(seed=step, sequences=12)).loss.backward()  # 100 tokens each
    rows = [r for r in scope.rows() if r["measure"] == "energy" and r["layer"] == 1]
    assert [(r["step"], r["tokens"]) for r in rows] == [(0, 100), (2, 300), (5, 600), (8, 900), (11, 1200)]


def test_tokens_that_are_told_are_believed():
    model = build("gpt2")
    scope = small(model, steps=None, schedule=[0, 3], views=("representation",))
    for step in range(4):
        with scope.step(tokens=1000):
            model(**batch(seed=step, sequences=12)).loss.backward()
    rows = [r for r in scope.rows() if r["measure"] == "energy" and r["layer"] == 1]
    assert [(r["step"], r["tokens"]) for r in rows] == [(0, 100), (3, 100 + 2000 + 100)]


def test_a_budget_counts_evaluation(monkeypatch):
    """Three bare steps of 1 s; one observed of 3 s; one of 4 s that an evaluation slowed; six seconds of evaluation."""
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    clock = timing.Clock()
    for seconds, observed, busy in [(1, False, False), (3, True, False), (4, False, True), (1, False, False)]:
        clock.begin(observed, busy)
        now[0] += seconds
    clock.begin(False, False)
    assert clock.plan(0.0, 0, 1) == (1.0, 0.0, math.inf)
    assert clock.plan(6.0, 1, 0) == (1.0, 8.0, 8.0)
    assert clock.plan(6.0, 1, 1) == (1.0, 14.0, 7.0)  # the one that waits is expected to take as long
    assert clock.overhead == (2 + 3) / 4  # of the steps alone


def test_a_budget_is_kept():
    assert next_by_budget(10, bare=None, spent=0, cost=0.5, budget=0.01) == 28  # no step had the machine to itself
    assert next_by_budget(10, bare=0.1, spent=1.0, cost=0.5, budget=0.01) == 1500
    assert next_by_budget(10, bare=0.1, spent=0.0, cost=math.inf, budget=0.01) == 28  # nothing is judged yet
    model = build("gpt2")
    scope = small(model, steps=None, budget="0.1%", views=("representation",))
    for step in range(120):
        with scope.step():
            model(**batch(seed=step, sequences=24)).loss.backward()
            time.sleep(0.01)
    seen = sorted({r["step"] for r in scope.rows()})
    assert seen[:2] == [0, 8]
    # An evaluation takes far more than a thousandth of these steps, however busy the machine; until it is known what
    # one takes, gaps double: 0, 8, 24, 56.
    assert len(seen) <= 4
    for step in range(120, 132):  # where everything is judged before the next step, some have the machine to themselves
        with scope.step():
            model(**batch(seed=step, sequences=24)).loss.backward()
        scope.rows()
    assert scope.overhead is not None


def test_always_gives_what_every_step_together_gives():
    """Three windows; the last one is the sum of its steps, layer by layer in turn."""
    model = build("gpt2").eval()
    scope = small(model, steps=40, schedule="always", views=("representation", "weight"))
    for step in range(40):
        with scope.step():
            model(**batch(seed=step, sequences=12)).loss.backward()
    rows = [r for r in scope.rows() if r["measure"] == "energy" and r["view"] == "representation"]
    assert {r["step"] for r in rows} == Schedule.of("always", steps=40).chosen
    assert {r["layer"] for r in rows} == {0, 1, 2, 3}
    last = [r for r in rows if r["step"] == 39 and r["timing"] == "rolling"]
    start, end = scope._schedule.window(39)
    assert start < end
    turns = min(TURNS, end - start + 1)
    for r in last:
        steps = [s for s in range(start, end + 1) if r["layer"] % turns == (s - start) % turns]
        assert r["n"] == sum(int(batch(seed=s, sequences=12)["attention_mask"].sum()) for s in steps)


def test_an_overflow_in_a_window_is_left_out():
    model = build("gpt2").eval()
    scope = small(model, steps=40, schedule="always", views=("representation",))
    for step in range(40):
        with scope.step():
            loss = model(**batch(seed=step, sequences=12)).loss
            (loss * (torch.inf if step == 35 else 1)).backward()
    rows = [r for r in scope.rows() if r["measure"] == "energy"]
    assert {r["step"] for r in rows} == Schedule.of("always", steps=40).chosen
    assert all(0 < r["value"] < 1 for r in rows)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: Schedule.of("often"), "schedule must be 'log'"),
        (lambda: Schedule.of("0 tokens"), "schedule must be 'log'"),
        (lambda: Schedule.of("1e 6tokens"), "schedule must be 'log'"),
        (lambda: Schedule.of("log", budget="120%"), "between 0 and 1"),
        (lambda: Schedule.of("log", budget="much"), "between 0 and 1"),
        (lambda: Schedule.of(0), "every n ≥ 1"),
        (lambda: Schedule.of([-1]), "numbers from 0 on"),
    ],
)
def test_wrong_schedules_are_named(act, message):
    with pytest.raises(ValueError, match=message):
        act()


@pytest.mark.slow
def test_what_always_samples_stays_inside_its_intervals(monkeypatch):
    """A quarter of the layers in turn and half of the tokens, against everything: the weights are held still."""
    monkeypatch.setattr("anisoscope.scope.ALWAYS_TOKENS", 54)
    from anisoscope.capture.sites import find_sites
    from anisoscope.capture.taps import Taps
    from anisoscope.evaluate.evaluator import Evaluator, EvaluatorSettings
    from anisoscope.evaluate.judge_sites import Request
    from anisoscope.observe.collector import Collector
    from anisoscope.observe.statistics import Observation
    from anisoscope.record.pipeline import EvaluatedSeries

    model = build("gpt_neox").eval()
    scope = small(model, steps=200, schedule="always", views=("representation",))
    everything = Collector(("representation",))
    start, end = scope._schedule.window(199)
    assert end - start > 40
    for step in range(200):
        inputs = batch(seed=step, sequences=12)
        with scope.step():
            model(**inputs).loss.backward()
        if step >= start:
            everything.next_step(everything.views, rows=8192, vocabulary=0, most_tokens=0)
            with Taps(model, find_sites(model), everything):
                model(**inputs).loss.backward()
    series = EvaluatedSeries(Evaluator(EvaluatorSettings(Request(("pca",), 4, ("all",), ("haar",), 9, 0), anchor=None)))
    series.judge(Observation(199, everything.statistics))
    key = ("layer", "view", "proxy", "measure", "null")
    full = {tuple(r[k] for k in key): r for r in series.rows if r["measure"] == "enrichment"}
    inside = 0
    for r in scope.rows():
        name = tuple(r[k] for k in key)
        if r["step"] == 199 and r["timing"] == "rolling" and name in full:
            assert r["n"] > 0
            inside += r["low"] <= full[name]["value"] <= r["high"]
            assert r["value"] == pytest.approx(full[name]["value"], rel=0.15)
    assert inside == 4  # every layer
