"""A model that is looked at from outside shows what the scope sees inside a training step."""

import math

import pytest
import torch

from anisoscope import Scope
from anisoscope.errors import AnisoscopeError
from anisoscope.evaluate.evaluator import Evaluator, EvaluatorSettings
from anisoscope.evaluate.judge_sites import Request
from anisoscope.observe.finalize import finalize
from anisoscope.observe.offline import observe_model, shares_of
from anisoscope.observe.probe import Probe
from anisoscope.observe.site_selection import choose
from capture.families import VOCABULARY, batch, build

NULLS = ("haar", "normal", "pairing", "axes", "init", "targets", "targets-uniform")
REQUEST = Request(("pca",), 4, ("all",), NULLS, 19, 0)
KEYS = ("step", "layer", "view", "tensor", "subset", "proxy", "rank", "timing", "measure", "variant", "null")


def live(model, given, **options):
    scope = Scope(model, steps=10, rank=4, resamples=19, targets=True, strict=True, schedule=[0], **options)
    with scope.step():
        model(**given).loss.backward()
    model.zero_grad()
    rows = scope.rows()
    scope.close()
    return rows


def outside(model, chunks, **options):
    seen = observe_model(model, choose(model, None, None), chunks, step=0, targets=True, **options)
    return judged(seen)


def judged(seen, request=REQUEST):
    return Evaluator(EvaluatorSettings(request, 3)).judged(finalize(seen, rows=8192, seed=0)).rows


def by_key(rows):
    kept = [row for row in rows if row["tensor"] != "update" and row["measure"] not in ("note", "cost")]
    found = {tuple(row[key] for key in KEYS): row for row in kept}
    assert len(found) > 50
    return found


def cut(given, size):
    n = len(given["input_ids"])
    return [{name: tensor[start : start + size] for name, tensor in given.items()} for start in range(0, n, size)]


def same(a, b, tolerance):
    for column in ("value", "low", "high"):
        x, y = a[column], b[column]
        assert (x is None) == (y is None)
        if x is not None:
            assert (math.isnan(x) and math.isnan(y)) or math.isclose(x, y, rel_tol=tolerance, abs_tol=tolerance)


@pytest.mark.parametrize("name", ["gpt_neox", "bert", "gpt2", "albert"])
def test_it_sees_what_the_scope_sees_live(name):
    torch.manual_seed(1)
    model, given = build(name).eval(), batch(seed=3, sequences=12)
    seen, found = by_key(live(model, given)), by_key(outside(model, [given]))
    assert seen.keys() == found.keys()
    for key, row in seen.items():
        same(row, found[key], 1e-4)


@pytest.mark.parametrize("name", ["gpt_neox", "bert"])
def test_chunks_are_weighed_as_one_batch(name):
    torch.manual_seed(1)
    model, given = build(name).eval(), batch(seed=3, sequences=12)
    if name == "bert":  # chunks with many and with few labels
        keep = torch.arange(12)[:, None] % 3 < torch.arange(given["labels"].shape[1])[None] % 4
        given["labels"] = torch.where(keep, given["labels"], -100)
    whole = {k: r for k, r in by_key(outside(model, [given])).items() if not str(k[-1]).startswith("targets")}
    parts = by_key(outside(model, cut(given, 5)))
    for key, row in whole.items():  # labels of other chunks are permuted apart, so those nulls differ
        same(row, parts[key], 2e-3)


def test_parts_of_a_text_add_up():
    torch.manual_seed(1)
    model, chunks = build("gpt_neox").eval(), cut(batch(seed=3, sequences=12), 3)
    choice, shares = choose(model, None, None), shares_of(chunks)
    whole = observe_model(model, choice, chunks, step=0, targets=True)
    first, second = (
        observe_model(model, choice, chunks[part], step=0, targets=True, shares=shares[part])
        for part in (slice(0, 2), slice(2, 4))
    )
    expected, found = by_key(judged(whole)), by_key(judged(first.merge(second)))
    for key, row in expected.items():
        if not str(key[-1]).startswith("targets"):
            same(row, found[key], 1e-6)


def test_the_model_is_as_before():
    torch.manual_seed(1)
    model = build("bert").train()
    before = [p.detach().clone() for p in model.parameters()]
    state = torch.get_rng_state()
    probe = Probe(torch.randint(3, VOCABULARY, (200, 24), generator=torch.Generator().manual_seed(0)), seed=0)
    shares = []
    given = cut(batch(seed=3, sequences=12), 4)
    observe_model(
        model.eval(), choose(model, None, None), given, step=0, targets=True, probe=probe, progress=shares.append
    )
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert torch.equal(state, torch.get_rng_state())
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert len(shares) == 3 + 2 + 1


def test_a_model_without_a_loss_is_told():
    model = build("gpt2")
    with pytest.raises(AnisoscopeError, match="no loss"):
        observe_model(model, choose(model, None, None), [{"input_ids": batch(seed=0)["input_ids"]}], step=0)
