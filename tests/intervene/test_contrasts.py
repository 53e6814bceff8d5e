"""Effects over seeds: closed forms, simulated power, and false positives of null arms."""

import math

import numpy as np
import pytest
from scipy import stats

from anisoscope.evidence.inference import adjust
from anisoscope.intervene.contrasts import contrast, over_seeds, smallest_effect, trend
from anisoscope.verdict import ABOVE, BELOW, outcome_of_difference


def test_a_contrast_is_the_paired_t_test():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(6) + 1, rng.standard_normal(6)
    found = contrast(dict(enumerate(a)), dict(enumerate(b)))
    reference = stats.ttest_rel(a, b)
    assert found.p == pytest.approx(reference.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(reference.confidence_interval(0.95)))
    assert (found.low90, found.high90) == pytest.approx(tuple(reference.confidence_interval(0.90)))


def test_only_seeds_that_both_have_are_compared():
    assert contrast({0: 5.0, 1: 1.0, 2: 2.0, 3: 3.0}, {1: 0.0, 2: 0.0, 3: 0.0, 9: 7.0}).value == 2.0


def test_few_seeds_have_no_interval_and_what_diverged_is_said():
    assert contrast({0: 1.0, 1: 2.0}, {0: 0.0, 1: 0.0}).low is None
    assert "fewer than 3" in (contrast({0: 1.0}, {0: 0.0}).note or "")
    assert "not finite" in (over_seeds([1.0, math.nan, 2.0]).note or "")
    assert math.isnan(contrast({0: 1.0}, {1: 1.0}).value)


def test_an_arm_that_changes_nothing_shows_nothing():
    same = {seed: 0.3 * seed for seed in range(5)}
    found = contrast(same, same)
    assert (found.value, found.low, found.high, found.p) == (0.0, 0.0, 0.0, 1.0)


def test_a_trend_is_the_slope_within_seeds():
    doses = {
        dose: {seed: 10 * seed + 2.0 * dose + 0.01 * seed * dose for seed in range(4)} for dose in (-1.0, 0.0, 2.0)
    }
    assert trend(doses).value == pytest.approx(2.0 + 0.01 * 1.5)
    with pytest.raises(ValueError, match="two doses"):
        trend({1.0: {0: 1.0}})


@pytest.mark.parametrize(("n", "family"), [(3, 1), (5, 1), (5, 6), (10, 1)])
def test_the_smallest_effect_is_found_in_80_percent_of_plans(n, family):
    effect = smallest_effect(2.0, n, family=family)
    values = effect + 2.0 * np.random.default_rng(n).standard_normal((20_000, n))
    t = values.mean(1) / (values.std(1, ddof=1) / math.sqrt(n))
    assert np.mean(np.abs(t) > stats.t.ppf(1 - 0.025 / family, n - 1)) == pytest.approx(0.8, abs=0.015)


def test_null_arms_show_nothing_at_the_stated_rate():
    """200 plans of 5 seeds whose null arm differs by noise alone, correlated over 8 outcomes; q within each plan."""
    rng, outcomes, plans = np.random.default_rng(3), 0, 0
    for _ in range(200):
        noise = rng.standard_normal((5, 1)) + rng.standard_normal((5, 8))
        found = [over_seeds(list(column), family=8) for column in noise.T]
        said = [
            outcome_of_difference(
                {name: getattr(f, name) for name in ("value", "low", "high", "low90", "high90")} | {"q": q}, 0.01
            )
            for f, q in zip(found, adjust([f.p for f in found]), strict=True)
        ]
        wrong = sum(word in ABOVE | BELOW for word in said)
        outcomes, plans = outcomes + wrong, plans + bool(wrong)
    assert stats.binomtest(plans, 200).proportion_ci(0.99).low < 0.05
    assert plans / 200 < 0.09
    assert outcomes / 1600 < 0.05
