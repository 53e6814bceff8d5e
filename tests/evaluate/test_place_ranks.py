"""Ranks that every place finds for itself."""

from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
import torch

from anisoscope.errors import BrokenRuleError
from anisoscope.evaluate import judge_sites as judging
from anisoscope.evaluate.evaluator import Evaluator, EvaluatorSettings
from anisoscope.evaluate.judge_sites import fit_proxies
from anisoscope.evaluate.place_ranks import FoundRank, rank_at, require_rank
from anisoscope.observe.statistics import Cloud
from anisoscope.stats.moments import Moments
from anisoscope.stats.reservoir import Reservoir
from anisoscope.vocabulary import VIEWS, is_main, rank_of
from evaluate.test_evaluator import REQUEST, observation

NULLS = ("haar", "init")


@pytest.fixture(scope="module")
def observed():
    return observation()


def clouds(scales, rows=600, dimension=None):
    """Two folds of Gaussian rows with these standard deviations; of a flat sheet of some dimension, if asked."""
    generator = torch.Generator().manual_seed(5)
    width = len(scales)
    found = []
    for fold in (0, 1):
        x = torch.randn(rows, width, generator=generator) * torch.tensor(scales)
        if dimension is not None:
            x = torch.rand(rows, dimension, generator=generator) @ torch.eye(width)[:dimension]
        kept = Reservoir.of_rows(x, rows=rows, seed=fold, start=rows * fold)
        moments = Moments.of(x.double(), higher=False)
        found.append(Cloud(moments, moments, kept))
    return tuple(found)


def test_a_share_of_the_variance_is_counted_over_both_folds():
    # Variances 16, 9, 4, 1, …: of 32 in all 16 + 9 are 78 %, with 4 they are 91 %.
    found = rank_at(clouds([4.0, 3.0, 2.0, 1.0, 1.0, 0.5, 0.5, 0.5]), "all", "85%", "pca")
    assert (found.rank, found.note) == (3, None)


def test_the_share_of_an_uncentred_method_is_about_zero():
    pair = clouds([1.0] * 8)
    moved = tuple(replace(cloud, moments=shifted(cloud), rest=shifted(cloud)) for cloud in pair)
    assert rank_at(moved, "all", "90%", "svd").rank == 1
    assert rank_at(moved, "all", "40%", "pca").rank in (3, 4)


def shifted(cloud):
    x = cloud.sample().values.double()
    return Moments.of(x + 50, higher=False)


def test_more_directions_than_controls_allow_are_cut_and_said():
    found = rank_at(clouds([1.0] * 8), "all", "95%", "pca")
    assert found.rank == 4
    assert found.note
    assert "asks for 8 directions; 4 are taken" in found.note


def test_the_dimension_of_a_sheet_is_its_rank():
    assert rank_at(clouds([1.0] * 12, dimension=3), "all", "id", "pca").rank == 3


@pytest.mark.parametrize("rank", [0, -3, 2.5, True, "95", "0%", "101%", "ID", None])
def test_other_ranks_are_refused(rank):
    with pytest.raises(BrokenRuleError, match="whole number of at least 1, a share"):
        require_rank(rank)


def test_every_place_has_the_rank_that_its_activations_ask_for(observed):
    request = replace(REQUEST, rank="60%", proxies=("pca",), subsets=("all",))
    proxies = fit_proxies(observed, request)
    assert {place.view for place in proxies} == {"representation", "weight"}
    for place, (first, second) in proxies.items():
        fitted_on = VIEWS[place.view].fitted_on
        rows = [observed.cloud(place.view, place.at, fitted_on, fold) for fold in (0, 1)]
        x = np.concatenate([cloud.sample().values.numpy() for cloud in rows]).astype(float)
        spectrum = np.linalg.svd(x - x.mean(0), compute_uv=False) ** 2
        wanted = int(np.searchsorted(spectrum.cumsum() / spectrum.sum(), 0.6)) + 1
        assert first.rank == second.rank == min(wanted, x.shape[1] // 2)


def test_rows_carry_the_rank_that_was_found_and_its_rule(observed, monkeypatch):
    ranks = cycle((3, 4, 5))  # layers of this model are alike: each would find the same
    monkeypatch.setattr(judging, "rank_at", lambda *_: FoundRank(next(ranks)))
    request = replace(REQUEST, rank="60%", proxies=("pca", "mean"), subsets=("all",), nulls=NULLS, isotropy=False)
    judge = Evaluator(EvaluatorSettings(request, anchor=None))
    rows = judge.judged(observed).rows
    enriched = [r for r in rows if r["measure"] == "enrichment" and r["proxy"] == "pca"]
    assert {r["rank"] for r in enriched} == {3, 4, 5}
    assert {r["rank_rule"] for r in enriched} == {"60%"}
    assert all(is_main(r, "pca", "60%") for r in enriched)
    assert {rank_of(r) for r in rows if r["proxy"] == "mean"} == {1}
    # Layers of several ranks are one family: a lone layer's q would be its p.
    family = [r for r in enriched if (r["view"], r["null"], r["tensor"]) == ("representation", "haar", "gradients")]
    smallest = min(family, key=lambda r: r["p"])
    assert smallest["q"] >= smallest["p"]
    assert max(r["q"] for r in family) <= max(r["p"] for r in family) + 1e-12
    assert len({r["q_floor"] for r in family}) == 1
    assert family[0]["q_floor"] == pytest.approx(len(family) * 2 / 100)  # two-sided, 99 draws
    pooled = [r for r in rows if r["measure"] == "pooled_enrichment" and r["view"] == "representation"]
    assert [r["n"] for r in pooled if r["proxy"] == "pca"] == [len(family)]


def test_what_began_with_another_rank_is_not_compared(observed):
    request = replace(REQUEST, rank="60%", proxies=("pca",), subsets=("all",), nulls=NULLS, isotropy=False)
    judge = Evaluator(EvaluatorSettings(request, anchor=None))
    judge.judged(observed)
    judge._request = replace(request, rank=3)  # as if the place had found 3 directions now
    rows = [r for r in judge.judged(replace(observed, step=1)).rows if r["null"] == "init" and r["layer"] is not None]
    assert rows
    assert all(np.isnan(r["value"]) and "do not compare" in r["note"] for r in rows)


def test_rows_over_normal_hold_the_p_of_the_paper_and_no_q(observed):
    """Bernas et al. (2026) count normal controls: their p is in the rows, and decides nothing."""
    request = replace(REQUEST, proxies=("pca",), subsets=("all",), nulls=("haar", "normal"), isotropy=False)
    (found,) = judging.judge_observation(observed, [judging.Question(fit_proxies(observed, request), request, {})])
    rows = [
        r for r in Evaluator(EvaluatorSettings(request, anchor=None)).judged(observed).rows if r["null"] == "normal"
    ]
    rows = {(r["view"], r["layer"], r["tensor"]): r for r in rows if r["measure"] == "enrichment"}
    assert len(rows) == len(found)
    for case, evidence in found.items():
        row = rows[case.place.view, case.place.at.layer, case.tensor]
        assert row["p"] == evidence.p_paper
        assert row["p"] is not None
        assert row["q"] is None
