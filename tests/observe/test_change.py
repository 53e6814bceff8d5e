"""The change of an embedding between two checkpoints, as a cloud of types in two folds."""

import pytest
import torch

from anisoscope.evaluate.evaluator import Evaluator, EvaluatorSettings
from anisoscope.evaluate.judge_sites import Request
from anisoscope.observe.embedding import type_folds
from anisoscope.observe.finalize import finalize, with_change
from anisoscope.observe.offline import observe_model
from anisoscope.observe.site_selection import choose
from models.snapshots import batch, tiny

REQUEST = Request(("pca",), 3, ("all",), ("haar", "axes", "targets"), 99, seed=0)


@pytest.fixture(scope="module")
def seen():
    model = tiny("gpt2")
    many = [batch(seed=seed) for seed in range(12)]
    text = {name: torch.cat([one[name] for one in many]) for name in many[0]}
    return observe_model(model, choose(model, None, None), [text], step=0, seed=0), text["input_ids"].unique()


def judged(seen, ids, after):
    observed = with_change(finalize(seen, rows=64, seed=0), ids, seen.embedding, after, rows=64, seed=0)
    return observed, Evaluator(EvaluatorSettings(REQUEST, None)).judged(observed).rows


def test_its_moments_are_those_of_the_difference_of_two_tables(seen):
    observation, ids = seen
    after = observation.embedding + torch.randn_like(observation.embedding)
    observed, _ = judged(observation, ids, after)
    at = observed.sites("embedding", "change")[0]
    moved = (after - observation.embedding).double()[ids]
    for fold in (0, 1):
        own = moved[type_folds(ids, seed=0) == fold]
        found = observed.cloud("embedding", at, "change", fold).moments
        assert round(float(found.count)) == len(own)
        assert torch.allclose(found.second, own.T @ own, rtol=1e-5, atol=1e-6)


def test_a_change_along_the_proxy_is_above_and_one_across_it_below(seen):
    observation, ids = seen
    table = observation.embedding.double()
    own = table[ids] - table[ids].mean(0)
    along = own @ torch.linalg.eigh(own.T @ own).eigenvectors
    basis = torch.linalg.eigh(own.T @ own).eigenvectors
    wanted = {}
    for name, kept in (("along", along[:, -3:] @ basis[:, -3:].T), ("across", along[:, :8] @ basis[:, :8].T)):
        after = table.clone()
        after[ids] += kept
        _, rows = judged(observation, ids, after.float())
        rows = [r for r in rows if r["tensor"] == "change" and r["measure"] == "enrichment" and r["layer"] is not None]
        assert {r["null"] for r in rows} == {"haar", "axes"}  # other labels were not trained on
        assert all(r["low"] is None for r in rows)
        wanted[name] = next(r["value"] for r in rows if r["null"] == "haar")
    assert wanted["along"] > 1.5
    assert wanted["across"] < 0.75
