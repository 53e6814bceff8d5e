"""p over `haar` and of the isotropy gain, of two folds, against explicit rotations of both proxies together."""

import math

import numpy as np
import pytest
import torch

from anisoscope import cross_fit
from anisoscope.testing import independent_clouds
from reference import slow_rotations as slow

DRAWS = 1500


def judged(law, seed):
    x, g = independent_clouds(law, n=16, length=6, width=9, seed=seed)
    side = torch.arange(16) % 2
    # Frames of the isotropy gain are at most 199: several seeds stand for more.
    found = [
        cross_fit(x, g, rank=3, folds=side, resamples=999, generator=torch.Generator().manual_seed(k)) for k in range(5)
    ]
    first, second = (subspace.basis.numpy() for subspace in found[0].subspaces)
    folds = [g[fold == side].flatten(0, 1).numpy() for fold in (0, 1)]
    return found, folds, (second, first)


@pytest.mark.parametrize(("law", "seed"), [("clustered", 3), ("t3", 4), ("common mean", 5)])
def test_p_is_that_of_one_rotation_of_both_proxies(law, seed):
    found, folds, bases = judged(law, seed)
    for statistic, value, p in (
        (slow.log_odds, math.log(found[0].inside / found[0].outside), np.mean([f.p["haar"] for f in found])),
        (slow.mean_gain, found[0].isotropy_gain, np.mean([float(f.isotropy_gain_p) for f in found])),
    ):
        exact, _ = slow.p_of(statistic, folds, bases, DRAWS, seed)
        assert value == pytest.approx(statistic(folds, bases), rel=1e-9)
        # 995 frames on one side and 1500 rotations on the other; the cheap scheme itself is off by up to 0.02.
        assert p == pytest.approx(exact, abs=0.02 + 8 * math.sqrt(exact * (1 - exact / 2) / 1000))


def test_chance_of_the_gain_is_the_mean_over_rotations():
    found, folds, bases = judged("gaussian", 6)
    drawn = slow.p_of(slow.mean_gain, folds, bases, 600, 6)[1]
    chance = np.mean([float(f.isotropy_gain_chance) for f in found])
    assert chance == pytest.approx(drawn.mean(), abs=5 * drawn.std() / math.sqrt(600))
