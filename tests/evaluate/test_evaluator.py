"""Judging an observation: what is shared between proxies of one place changes nothing."""

import math
from dataclasses import replace

import pytest

from anisoscope.capture.sites import find_sites
from anisoscope.capture.taps import Taps
from anisoscope.evaluate.judge_sites import Question, Request, fit_proxies, judge_observation
from anisoscope.evidence import gain_units
from anisoscope.evidence.units import GramUnits
from anisoscope.observe.collector import Collector
from anisoscope.observe.statistics import Observation
from observe.test_scope import batch, build

REQUEST = Request(("pca", "svd"), 4, ("all", "no-first"), ("haar", "normal", "axes", "pairing"), 99, seed=3)


def observation():
    model, listener = build("gpt2").eval(), Collector(("representation", "weight"), seed=0)
    with Taps(model, find_sites(model), listener):
        model(**batch(sequences=24, padded=True)).loss.backward()
    return Observation(0, listener.statistics)


def numbers(evidence):
    """Everything that ends in rows."""
    told = {f"{null} {name}": getattr(e, name) for null, e in evidence.enrichment.items() for name in ("value", "se")}
    names = ("energy", "isotropy_gain", "isotropy_gain_p", "isotropy_gain_null", "radial", "units", "p_paper")
    gain = evidence.isotropy_gain_estimate
    told |= {name: getattr(evidence, name) for name in names} | {f"p {n}": p for n, p in evidence.p.items()}
    told |= {} if gain is None else {"gain low": gain.low, "gain se": gain.se}
    return {name: math.nan if value is None else value for name, value in told.items()}


@pytest.fixture(scope="module")
def observed():
    return observation()


def test_questions_asked_together_have_the_answers_of_each_alone(observed):
    asked = [replace(REQUEST, rank=rank) for rank in (2, 4, 8)]
    questions = [Question(fit_proxies(observed, request), request, {}) for request in asked]
    together = judge_observation(observed, questions)
    assert {case.place.view for case in together[0]} == {"representation", "weight"}
    for question, answers in zip(questions, together, strict=True):
        (alone,) = judge_observation(observed, [question])
        assert list(answers) == list(alone)
        for case, evidence in answers.items():
            own = Question({case.place: question.proxies[case.place]}, question.request, {})
            (single,) = judge_observation(observed, [own])
            # One proxy alone is one layer alone: what depends on the number of layers is not compared.
            assert numbers(evidence) == pytest.approx(numbers(alone[case]), rel=1e-12, nan_ok=True)
            assert numbers(evidence) == pytest.approx(numbers(single[case]), rel=1e-12, nan_ok=True)


def test_units_that_are_too_large_to_keep_give_the_same_intervals(observed, monkeypatch):
    question = Question(fit_proxies(observed, REQUEST), REQUEST, {})
    (kept,) = judge_observation(observed, [question])
    monkeypatch.setattr(gain_units, "_MOST_NUMBERS", 0)
    (made_again,) = judge_observation(observed, [question])
    for case, evidence in kept.items():
        assert numbers(evidence) == pytest.approx(numbers(made_again[case]), rel=1e-9, nan_ok=True)


def test_units_hold_on_to_nothing_that_was_shared_and_are_as_good(observed):
    """Those of step 0 are kept for the whole training."""
    request = replace(REQUEST, nulls=("haar", "init"))
    start = Question(fit_proxies(observed, request), replace(request, nulls=("haar",)), {})
    (initial,) = judge_observation(observed, [start])
    later = Question(start.proxies, request, initial)
    (once,), (again,) = judge_observation(observed, [later]), judge_observation(observed, [later])
    units = [u for found in (initial, once) for e in found.values() for u in e.folds or () if isinstance(u, GramUnits)]
    assert units
    assert not any(u.shared._known for u in units)
    for case, evidence in once.items():
        assert "init" in evidence.enrichment
        assert numbers(evidence) == pytest.approx(numbers(again[case]), nan_ok=True, rel=1e-12)


def test_the_answer_does_not_depend_on_who_shares_the_work(observed):
    def backwards(act, items):
        return [act(item) for item in reversed(items)][::-1]

    question = Question(fit_proxies(observed, REQUEST), REQUEST, {})
    first, second = (judge_observation(observed, [question], *each)[0] for each in ((), (backwards,)))
    assert list(first) == list(second)
    assert all(numbers(first[case]) == pytest.approx(numbers(second[case]), rel=0, nan_ok=True) for case in first)
