"""The scope beside real training: no bit changed, every number that of a slow reference, trouble recorded."""

import gc
import math
import time
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from anisoscope import Scope, cross_fit
from anisoscope.capture.sites import find_sites
from anisoscope.capture.taps import Listener, Taps
from anisoscope.observe.collector import Collector
from anisoscope.observe.statistics import Name
from anisoscope.stats.hashing import as_key, mix, sequence_keys
from capture.families import FAMILIES, batch, build
from observe.grouped import grouped

pytestmark = pytest.mark.filterwarnings("ignore::anisoscope.errors.ScopeWarning")  # test_notices.py is about them


def train(name, scope_of=None, steps=30, *, sequences=12, accumulate=1, configure=None):
    torch.manual_seed(1)
    model = build(name)
    model.train()
    if configure:
        configure(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scope = None if scope_of is None else scope_of(model)
    torch.manual_seed(2)
    losses = []
    for step in range(steps):
        if scope is None:
            losses += [backward(model, step, micro, sequences) for micro in range(accumulate)]
        else:
            with scope.step():
                losses += [backward(model, step, micro, sequences) for micro in range(accumulate)]
        optimizer.step()
        optimizer.zero_grad()
    return torch.stack(losses), [p.detach().clone() for p in model.parameters()], scope


def backward(model, step, micro, sequences):
    loss = model(**batch(seed=7 * step + micro, sequences=sequences)).loss
    loss.backward()
    return loss.detach().clone()


def measured(rows):
    """Without what an observation cost, which is never twice the same."""
    return [row for row in rows if row["measure"] != "cost"]


def small(model, **options):
    return Scope(model, **grouped(**({"steps": 30, "rank": 4, "resamples": 19, "strict": True} | options)))


USUAL = ("gpt_neox", "bert", "plain")
"""Families of every kind; the others take as long again."""


@pytest.mark.parametrize(
    "name", [name if name in USUAL else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]
)
def test_training_is_bit_identical_with_the_scope(name):
    if build(name) is None:
        pytest.skip(f"this transformers has no {name}")
    bare, observed = train(name), train(name, small)
    assert torch.equal(bare[0], observed[0])
    assert all(torch.equal(a, b) for a, b in zip(bare[1], observed[1], strict=True))
    rows = observed[2].rows()
    assert not [r for r in rows if r["measure"] == "skipped"]
    assert {r["view"] for r in rows if r["view"]} == {"representation", "weight", "embedding"}
    assert {r["timing"] for r in rows if r["proxy"]} == {"rolling", "anchored"}


@pytest.mark.parametrize(
    "options",
    [
        {"accumulate": 2},
        {"configure": lambda model: model.gradient_checkpointing_enable({"use_reentrant": True})},
        {"configure": lambda model: model.gradient_checkpointing_enable({"use_reentrant": False})},
    ],
    ids=["accumulation", "reentrant", "non-reentrant"],
)
def test_training_is_bit_identical_in_every_situation(options):
    bare, observed = train("gpt_neox", steps=9, **options), train("gpt_neox", small, steps=9, **options)
    assert torch.equal(bare[0], observed[0])
    assert all(torch.equal(a, b) for a, b in zip(bare[1], observed[1], strict=True))
    assert not [r for r in observed[2].rows() if r["measure"] == "skipped"]


class Store(Listener):
    """The slow reference: keeps everything."""

    def __init__(self):
        self.activations, self.gradients, self.pairs, self.batches = {}, {}, {}, {}

    def activation(self, at, x_BTD, batch):
        self.activations.setdefault(at.layer, {})[batch.number] = x_BTD.double().clone()
        self.batches[batch.number] = batch

    def gradient(self, at, g_BTD, batch):
        self.gradients.setdefault(at.layer, {})[batch.number] = g_BTD.double().clone()

    def pair(self, at, x_BTD, delta_BTF, batch):
        self.pairs.setdefault(at.layer, {})[batch.number] = x_BTD.double().clone(), delta_BTF.double().clone()

    def looked_up(self, tokens, gradient, batch):
        self.looked = [*getattr(self, "looked", []), (tokens.clone(), gradient.double().clone())]

    def table(self, gradient_VD):
        self.total = getattr(self, "total", 0) + gradient_VD.double()


def observed_twice(name="gpt_neox", micro=2, padded=True):
    """One step seen by the store and one, equal to it, by the scope."""
    store = Store()
    model = build(name).eval()
    with Taps(model, find_sites(model), store):
        for i in range(micro):
            model(**batch(seed=i, sequences=12, padded=padded)).loss.backward()
    model = build(name).eval()
    scope = small(model, schedule=[0], resamples=99)
    with scope.step():
        for i in range(micro):
            model(**batch(seed=i, sequences=12, padded=padded)).loss.backward()
    return store, scope.rows()


def flattened(store, clouds):
    """Rows under the mask, with the key and the fold of their sequence."""
    rows, ids, folds = [], [], []
    for number, x in sorted(clouds.items()):
        b = store.batches[number]
        mask = b.mask.bool()
        keys = sequence_keys(b.tokens, mask, seed=0)
        side = as_key(mix(keys, seed=0)) & 1
        rows.append(x[mask])
        ids.append(keys[:, None].expand_as(mask)[mask])
        folds.append(side[:, None].expand_as(mask)[mask])
    return torch.cat(rows), torch.cat(ids), torch.cat(folds)


def chosen(rows, **key):
    (found,) = [r for r in rows if all(r[name] == value for name, value in key.items())]
    return found


def test_every_representation_number_is_that_of_the_slow_reference():
    store, rows = observed_twice()
    for layer in store.activations:
        x, ids, folds = flattened(store, store.activations[layer])
        g, _, _ = flattened(store, store.gradients[layer])
        expected = cross_fit(x, g, rank=4, groups=ids, folds=folds, nulls=("haar", "normal", "axes"), resamples=99)
        key = {"view": "representation", "layer": layer, "proxy": "pca", "timing": "rolling"}
        assert chosen(rows, **key, measure="energy")["value"] == pytest.approx(expected.energy, rel=1e-5)
        for null in ("haar", "axes"):
            found = chosen(rows, **key, measure="enrichment", null=null)
            e = expected.enrichment[null]
            assert (found["value"], found["low"], found["high"]) == pytest.approx((e.value, e.low, e.high), rel=1e-4)
            assert found["p"] == expected.p[null]
        assert chosen(rows, **key, measure="radial")["value"] == pytest.approx(expected.radial, rel=1e-4)
        gain = chosen(rows, **key, measure="isotropy_gain", variant=None)["value"]
        assert gain == pytest.approx(expected.isotropy_gain, rel=1e-3, abs=1e-5)


def test_the_weight_gradient_of_a_fold_is_that_of_its_sequences():
    store, rows = observed_twice(padded=False)
    for layer in store.pairs:
        x, ids, folds = flattened(store, {n: p[0] for n, p in store.pairs[layer].items()})
        d, _, _ = flattened(store, {n: p[1] for n, p in store.pairs[layer].items()})
        inside = total = 0.0
        from anisoscope import energy_share, fit_subspace

        for fit_on in (0, 1):
            proxy = fit_subspace(x[folds == fit_on], method="pca", rank=4)
            share = energy_share(d[folds != fit_on].T @ x[folds != fit_on], proxy)
            inside, total = inside + share.inside, total + share.total
        key = {"view": "weight", "layer": layer, "proxy": "pca", "timing": "rolling"}
        assert chosen(rows, **key, measure="energy")["value"] == pytest.approx(inside / total, rel=1e-5)
        pairing = chosen(rows, **key, measure="enrichment", null="pairing")
        assert pairing["low"] < pairing["value"] < pairing["high"]
        assert 0 < pairing["p"] <= 1
        assert pairing["n"] == len(torch.unique(ids))


def test_q_is_over_layers():
    from anisoscope import adjust

    _, rows = observed_twice()
    picked = [r for r in rows if r["measure"] == "enrichment" and r["null"] == "haar" and r["view"] == "representation"]
    assert [r["q"] for r in picked] == pytest.approx(list(adjust([r["p"] for r in picked])))


def test_anchored_proxies_are_judged_only_late():
    *_, scope = train("gpt2", lambda model: small(model, schedule=3, proxies=("pca", "svd", "semi_nmf")))
    rows = [r for r in scope.rows() if r["proxy"]]
    assert {r["step"] for r in rows if r["timing"] == "rolling"} == set(range(0, 30, 3))
    assert {r["step"] for r in rows if r["timing"] == "anchored"} == {12, 15, 18, 21, 24, 27}
    assert {r["proxy"] for r in rows} == {"pca", "svd", "semi_nmf"}
    init = [r for r in rows if r["null"] == "init"]
    assert min(r["step"] for r in init) == 3  # step 0 is its own beginning
    *_, plain = train("gpt2", lambda model: small(model, steps=None, schedule=[0, 5]), steps=7)
    assert {r["timing"] for r in plain.rows() if r["proxy"]} == {"rolling"}


def test_drift_is_the_angle_to_earlier_proxies():
    model = build("gpt2").eval()
    scope = small(model, schedule=1)
    for seed in (0, 0, 5):
        with scope.step():
            model(**batch(seed=seed, sequences=12)).loss.backward()
    angles = {(r["step"], r["variant"], r["layer"]): r["value"] for r in scope.rows() if r["measure"] == "angle"}
    assert {step for step, *_ in angles} == {1, 2}
    for layer in range(4):
        assert angles[1, "since previous", layer] == pytest.approx(0, abs=1e-4)  # the same batch again
        assert angles[2, "since first", layer] > 1
        assert angles[2, "since first", layer] == pytest.approx(angles[2, "since previous", layer], abs=1e-3)


def test_rows_go_to_the_sink_as_they_come():
    class Sink:
        def __init__(self):
            self.parts = []

        def write(self, rows):
            self.parts.append(rows)

    sink = Sink()
    *_, scope = train("bert", lambda model: small(model, schedule=2, sink=sink), steps=5)
    scope.rows()
    assert len(sink.parts) == 3
    assert [r for part in sink.parts for r in part] == scope.rows()


def test_trouble_is_recorded_and_training_goes_on():
    model = build("gpt2")
    scope = Scope(model, steps=20, rank=4, resamples=9, schedule=1)
    with scope.step():  # one sequence: no two folds
        model(**batch(sequences=1, padded=False)).loss.backward()
    with scope.step():  # no backward
        model(**batch(sequences=12))
    with scope.step():
        (model(**batch(sequences=12)).loss * math.nan).backward()
    with scope.step():
        model(**batch(sequences=12)).loss.backward()
    skipped = {r["step"]: r["note"] for r in scope.rows() if r["measure"] == "skipped"}
    assert skipped.keys() == {0, 1, 2}
    assert "at least 2 sequences" in skipped[0]
    assert "was backward called" in skipped[1]
    assert "finite" in skipped[2]
    assert [r for r in scope.rows() if r["step"] == 3 and r["measure"] == "energy"]


def test_strict_raises_and_hooks_are_gone_after_any_exception():
    model = build("gpt2")
    hooks = [len(m._forward_hooks) for m in model.modules()]
    scope = small(model, schedule=1)

    def failing():
        with scope.step():
            raise KeyError("in the user's code")

    with pytest.raises(KeyError, match="user's code"):
        failing()
    assert [len(m._forward_hooks) for m in model.modules()] == hooks

    def silent():
        with scope.step():
            model(**batch(sequences=12))

    with pytest.raises(Exception, match="was backward called"):
        silent()
    assert [len(m._forward_hooks) for m in model.modules()] == hooks
    with scope.step():  # and the next step is a step like any other
        model(**batch(sequences=12)).loss.backward()
    assert scope.rows()


def test_nothing_is_retained_after_close():
    *_, scope = train("gpt2", small, steps=4)
    model = weakref.ref(scope._model)
    scope.close()
    gc.collect()
    assert model() is None
    assert scope.rows()
    with pytest.raises(ValueError, match="must be open"), scope.step():
        pass


def test_memory_does_not_grow_with_tokens():
    def numbers(listener):
        name = Name("representation", 1, "activations", 0, "rest", "transformer.h.0")
        statistics = listener.statistics
        return statistics[name].scatter.numel() + statistics[name._replace(part="kept")].values.numel()

    sizes = []
    for micro in (4, 12):
        model = build("gpt2")
        observation = Collector(("representation",), rows=32)
        with Taps(model, find_sites(model), observation):
            for i in range(micro):
                model(**batch(seed=i, sequences=12)).loss.backward()
        sizes.append(numbers(observation))
    assert sizes[0] == sizes[1]


def test_views_are_chosen_or_named():
    model = build("gpt2")
    assert small(model).views == ("representation", "weight", "embedding")
    assert small(model, views=("weight",)).views == ("weight",)
    bare = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    scope = small(bare)
    assert scope.views == ("representation",)
    assert any("no MLP" in note for note in scope.notes)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: small(build("gpt2").requires_grad_(False)), "require gradients"),
        (lambda: small(build("gpt2"), views=("attention",)), "views must be among"),
        (lambda: small(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), views=("weight",)), "must have sites for it"),
        (lambda: small(build("gpt2"), sites=["transformer.h.7"]), "nearest: transformer.h"),
        (lambda: small(build("gpt2"), schedule="often"), "schedule must be 'log'"),
        (lambda: small(build("gpt2"), schedule=0), "every n ≥ 1"),
        (lambda: small(build("gpt2"), schedule=[]), "numbers from 0 on"),
        (lambda: small(build("gpt2"), steps=0), "steps must be a whole number of at least 1"),
    ],
)
def test_wrong_use_is_named(act, message):
    with pytest.raises(ValueError, match=message):
        act()


def test_steps_do_not_nest():
    scope = small(build("gpt2"), schedule=[5])
    with scope.step(), pytest.raises(ValueError, match="must not be nested"), scope.step():
        pass


def test_statistics_take_memory_of_the_width_and_not_of_the_tokens(monkeypatch):
    """O(sites · (D² + reservoir_rows · D)): equal for any number of tokens once the sample is full."""
    sizes = []
    for micro in (4, 16):
        model = build("gpt_neox")
        scope = small(model, schedule=[0], reservoir_rows=32, views=("representation", "weight"))
        taken = []
        monkeypatch.setattr(scope._worker, "submit", lambda o, taken=taken: taken.append(o.bytes))
        with scope.step():
            for i in range(micro):
                model(**batch(seed=i, sequences=12)).loss.backward()
        sizes += taken
    assert sizes[0] == sizes[1]


def test_masked_positions_meet_masked_positions():
    """In a masked language model pairing permutes inside strata: the share is that of the pure function with them."""
    from anisoscope import fit_subspace, pairing_share
    from anisoscope.evaluate.sampled_units import stacked_sequences
    from anisoscope.observe.collector import Collector
    from anisoscope.observe.statistics import Observation

    g = torch.Generator().manual_seed(0)
    inputs = batch(sequences=24, padded=True)
    labels = torch.where((torch.rand(24, 9, generator=g) < 0.3) & inputs["attention_mask"].bool(), 5, -100)
    model = build("bert").eval()
    listener = Collector(("weight",))
    with Taps(model, find_sites(model), listener):
        model(**(inputs | {"labels": labels})).loss.backward()
    observed = Observation(0, listener.statistics)
    stacked = stacked_sequences(observed, observed.sites("weight", "inputs")[0], 0, None)
    assert stacked.strata is not None
    keys = sequence_keys(inputs["input_ids"], inputs["attention_mask"].bool(), seed=0)
    for id_, strata, x in zip(stacked.ids[stacked.unit], stacked.strata, stacked.inputs, strict=True):
        (place,) = torch.nonzero(keys == id_)[:, 0].tolist()
        length = int(inputs["attention_mask"][place].sum())
        expected = torch.where(labels[place] != -100, 2, 1)
        expected[0], expected[length:] = 0, -1
        assert torch.equal(strata, expected[: len(strata)])
        assert not x[length:].any()
    proxy = fit_subspace(stacked.inputs[stacked.strata >= 0], method="pca", rank=4)
    share = pairing_share(stacked.inputs, stacked.deltas, proxy, strata=stacked.strata)
    assert 0 < share < 1


def test_equal_sequences_are_one_unit_and_all_are_counted():
    model = build("gpt2").eval()
    scope = small(model, schedule=[0])
    inputs = batch(sequences=12, padded=False)
    with scope.step():
        for _ in range(2):  # the same sequences twice
            model(**inputs).loss.backward()
    once = small(build("gpt2").eval(), schedule=[0])
    with once.step():
        once._model(**inputs).loss.backward()
    for view in ("representation", "weight"):
        key = {"view": view, "layer": 1, "proxy": "pca", "measure": "enrichment", "null": "haar"}
        a, b = chosen(scope.rows(), **key), chosen(once.rows(), **key)
        assert a["value"] == pytest.approx(b["value"], rel=1e-4)
        assert (a["low"], a["high"]) == pytest.approx((b["low"], b["high"]), rel=1e-3)


def test_a_program_that_forgets_to_close_ends_in_peace():
    import subprocess
    import sys

    code = """
import torch
from torch import nn
from anisoscope import Scope
model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(2)))
scope = Scope(model, rank=4, schedule=1)
for _ in range(3):
    with scope.step():
        model(torch.randn(12, 9, 16)).square().sum().backward()
print("done")
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert (found.returncode, found.stdout.strip(), found.stderr.strip()) == (0, "done", "")


def test_rows_go_into_a_run_on_disk(tmp_path):
    from anisoscope import open_run

    *_, scope = train("gpt2", lambda model: small(model, schedule=2, store=tmp_path / "run"), steps=5)
    assert open_run(tmp_path / "run").manifest["status"] == "running"
    scope.close()
    run = open_run(tmp_path / "run")
    assert run.finished
    assert run.manifest["config"]["rank"] == 4
    found = [{name: row[name] for name in scope.rows()[0]} for row in run.table().to_pylist()]
    assert repr(found) == repr(scope.rows())
    with pytest.raises(ValueError, match="a sink or to a store"):
        small(build("gpt2"), store=tmp_path / "other", sink=run.sink("a"))


def test_many_forward_passes_before_one_backward_are_all_counted_once():
    found = []
    for together in (False, True):
        model = build("gpt2").eval()
        scope = small(model, schedule=[0], views=("representation", "weight"))
        with scope.step():
            losses = []
            for i in range(11):  # more than are remembered
                losses.append(model(**batch(seed=i, sequences=12)).loss)
                if not together:
                    losses.pop().backward()
            if together:
                torch.stack(losses).sum().backward()
        found.append(measured(scope.rows()))
    for a, b in zip(*found, strict=True):
        assert (a["tokens"], a["n"]) == (b["tokens"], b["n"])
        assert a["value"] == pytest.approx(b["value"], rel=1e-4, abs=1e-6, nan_ok=True)


def test_accumulated_micro_batches_may_share_the_memory_of_their_tokens(monkeypatch):
    """Who is in which fold is worked out after the loader has written the next tokens over these."""
    monkeypatch.setattr("anisoscope.scope.ALWAYS_TOKENS", 54)
    counts = []
    for shared in (False, True):
        model = build("gpt_neox").eval()
        scope = small(model, steps=200, schedule="always", views=("representation",))
        scope._step = 100
        buffer = torch.zeros_like(batch(sequences=12, padded=False)["input_ids"])
        with scope.step():
            for seed in range(4):
                ids = batch(seed=seed, sequences=12, padded=False)["input_ids"]
                ids = buffer.copy_(ids) if shared else ids
                model(input_ids=ids, labels=ids.clone()).loss.backward()
        assert scope._window is not None
        found: dict[Any, Any] = scope._window.statistics
        counts.append({name: float(s.count) for name, s in found.items() if name.part == "rest"})
        scope.close()
    assert counts[0]
    assert counts[0] == counts[1]


def test_every_observation_says_what_it_cost():
    """Host seconds of watching are within those of the step; judging takes some, and nothing was moved from a GPU."""
    model = build("gpt2")
    scope = small(model, schedule=[0, 2])
    began = time.perf_counter()
    for seed in range(3):
        with scope.step():
            model(**batch(sequences=12, padded=False, seed=seed)).loss.backward()
    rows = [r for r in scope.rows() if r["measure"] == "cost"]
    whole = time.perf_counter() - began
    assert [(r["step"], r["variant"]) for r in rows] == [(s, v) for s in (0, 2) for v in ("watched", "evaluated")]
    assert all(r["value"] > 0 and r["tokens"] for r in rows)
    assert sum(r["value"] for r in rows) < whole
