"""Observations evaluated on the GPU that trains, and on the host in several processes: the same numbers."""

import math

import pytest
import torch

from anisoscope import Scope
from anisoscope.evaluate.remote import evaluator_pool as judges
from anisoscope.record.scope_options import EvidenceOptions
from capture.families import batch, build

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore::anisoscope.errors.ScopeWarning"),  # test_notices.py is about them
]


def rows(evaluate):
    torch.manual_seed(0)
    model = build("gpt_neox").cuda()
    probe = batch(seed=99, sequences=900, padded=False)["input_ids"].cuda()
    options = {"proxies": ("pca", "svd", "semi_nmf"), "targets": True, "frequency": True, "probe": probe}
    evidence = EvidenceOptions(subsets=("all", "no-first"), ranks=(2,))
    scope = Scope(
        model, steps=12, rank=4, schedule=[0, 2, 6, 9], strict=True, evaluate=evaluate, evidence=evidence, **options
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(12):
        with scope.step():
            model(**{name: t.cuda() for name, t in batch(seed=step, sequences=24).items()}).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    found = scope.rows()
    scope.close()
    return [row for row in found if row["measure"] != "cost"], [p.detach().cpu() for p in model.parameters()]


LOCAL = ("tangent_overlap", "curvature", "bin_visible_curvature", "two_nn")


def tolerance(row):
    """Rounding alone, but for what goes through many steps in float32, or asks which of two rows is nearer."""
    if row["proxy"] == "semi_nmf":
        return 0.05
    if row["measure"] in LOCAL or row["measure"] == "local_isotropy":  # clusters: one row may change its own
        return 1e-3
    # The error of a mean of unit vectors in float32, and ends of intervals that lie near 0, are differences.
    return 1e-4 if row["measure"] in ("average_cosine", "bin_energy") else 1e-6


def test_rows_are_those_of_the_host():
    here, weights = rows("device")
    there, same_weights = rows("host")
    assert all(torch.equal(a, b) for a, b in zip(weights, same_weights, strict=True))
    assert len(here) == len(there) > 1000
    assert {row["timing"] for row in here} >= {"rolling", "anchored"}
    off = []
    for a, b in zip(here, there, strict=True):
        for name, value in a.items():
            drawn = a["proxy"] == "semi_nmf" and name in ("p", "q", "outcome", "note", "token_id", "n", "place", "item")
            if drawn or value == b[name]:
                continue
            close = isinstance(value, float) and isinstance(b[name], float)
            close = close and math.isclose(value, b[name], rel_tol=tolerance(a), abs_tol=1e-9)
            both = value != value and b[name] != b[name]  # NaN
            if not close and not both:
                off.append((a["measure"], a["variant"], a["null"], a["proxy"], a["layer"], name, value, b[name]))
    assert not off, (len(off), off[:20])


def test_several_processes_say_what_one_says(monkeypatch):
    several, _ = rows("host")
    monkeypatch.setattr(judges, "evaluators_for_cores", lambda: 1)
    one, _ = rows("host")
    for a, b in zip(several, one, strict=True):
        for name, value in a.items():
            # The gradient of an embedding is added up by type in no fixed order on a GPU.
            numbers = isinstance(value, float) and isinstance(b[name], float)
            close = a["view"] == "embedding" and numbers and math.isclose(value, b[name], rel_tol=1e-6)
            assert value == b[name] or close or (math.isnan(value) and math.isnan(b[name])), (a, b)
