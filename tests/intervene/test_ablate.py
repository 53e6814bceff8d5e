"""Removals from the residual stream, against algebra, slow references and a model that must stay as it was."""

import copy
import math

import numpy as np
import pytest
import torch
from scipy import stats

from anisoscope import ablate, register_proxy
from anisoscope.errors import AnisoscopeError
from anisoscope.geometry.subspace import unregister_proxy
from anisoscope.intervene import removal as module
from anisoscope.intervene.directions import Removal, Tokens
from anisoscope.intervene.edits import Edits
from anisoscope.intervene.effects import cost_of
from anisoscope.stats.hashing import second_fold
from intervene.planted import WIDTH, Output, ReadsOneDirection, batches
from models.snapshots import tiny

SETTINGS = {"ranks": (1,), "draws": 2, "layers": (1,)}


@pytest.fixture
def fixed():
    """Proxies that are known directions."""
    names = []

    def make(name, basis):
        register_proxy(name, needs="moments")(lambda x, rank, generator: basis)
        names.append(name)
        return name

    yield make
    for name in names:
        unregister_proxy(name)


def softmax_losses(scores_V, labels):
    return np.log(np.exp(scores_V).sum()) - scores_V[labels]


def by_hand(model, given):
    """Cost of removing the direction that is read: each fold's logits become those of the other fold's mean."""
    table, u, w = (t.detach().numpy() for t in (model.embed.weight, model.direction, model.readout))
    ids, mask = (np.concatenate([b[name].numpy() for b in given]) for name in ("input_ids", "attention_mask"))
    second = second_fold(torch.from_numpy(ids), torch.from_numpy(mask).bool(), seed=0).numpy()
    total = count = 0
    for fold in (False, True):
        other = table[ids[second != fold][mask[second != fold].astype(bool)]].mean(0)
        for row, inside in zip(ids[second == fold], mask[second == fold], strict=True):
            for t in range(1, int(inside.sum())):
                plain = softmax_losses((table[row[t - 1]] @ u) * w, row[t])
                total += softmax_losses((other @ u) * w, row[t]) - plain
                count += 1
    return total / count


def test_removing_the_direction_that_is_read_costs_what_algebra_says(fixed):
    model, given = ReadsOneDirection(), batches()
    name = fixed("read direction", model.direction[:, None])
    expected = by_hand(model, given)
    assert abs(expected) > 0.1
    found = ablate(model, given, proxy=name, ranks=(1,), draws=2)
    for layer in range(3):
        row = found.row("removal_cost", layer)
        assert row["value"] == pytest.approx(expected, abs=1e-9)
        assert found.row("removal_cost", layer, null="normal")["value"] == pytest.approx(0, abs=1e-12)
        assert found.row("removal_cost", layer, proxy=None, variant="whole stream")["value"] == pytest.approx(
            expected, abs=1e-9
        )


def test_removing_a_direction_that_is_not_read_costs_nothing(fixed):
    model = ReadsOneDirection()
    other = torch.linalg.qr(torch.stack([model.direction, torch.ones(WIDTH, dtype=torch.float64)], 1)).Q[:, 1:]
    found = ablate(model, batches(), proxy=fixed("other direction", other), **SETTINGS)
    assert found.row("removal_cost", 1)["value"] == pytest.approx(0, abs=1e-12)
    assert abs(found.row("removal_cost", 1, null="haar")["value"]) > 1e-3


@pytest.mark.parametrize("subset", ["all", "no-first"])
@pytest.mark.parametrize("method", ["pca", "mean"])
def test_displacements_are_equal_where_they_are_said_to_be(method, subset, monkeypatch):
    """Measured in the stream itself; ``mean`` is smaller than its controls, so there they are removed in part."""
    model, given, places = ReadsOneDirection(), batches(), []
    fit = module.fit_layer
    monkeypatch.setattr(module, "fit_layer", lambda *a, **k: places.append(fit(*a, **k)) or places[-1])
    ablate(model, given, proxy=method, subset=subset, **SETTINGS)
    (place,) = places
    model.eval()

    def moved(removal: Removal):
        """Mean squared displacement by fold."""
        squares, counts = np.zeros(2), np.zeros(2)
        for b in given:
            tokens = Tokens.of(b, subset=subset, seed=0)
            hidden = model.embed(b["input_ids"]).detach()
            change = (removal.change(place.means, tokens)(hidden) - hidden).square().sum(2)
            for fold in (0, 1):
                squares[fold] += float(change[tokens.fold(fold)].sum())
                counts[fold] += int(tokens.fold(fold).sum())
            assert float(change[~tokens.where].abs().sum()) == 0
        return squares / counts

    for control in ("haar", "normal", "next"):
        own, others = place.strengths(control)
        assert max(own.strength) <= 1
        assert max(others[0].strength) <= 1
        assert np.allclose(moved(own), np.mean([moved(other) for other in others], 0), rtol=1e-12)
        assert np.allclose(moved(own), own.displacement, rtol=1e-12)
    scaled = {part for removal in (own, *others) for part in removal.strength}
    assert len(scaled) > 1


def test_an_interval_is_the_jackknife_of_the_ratio_over_units():
    rng = np.random.default_rng(0)
    d, c = rng.lognormal(size=(1, 24)), rng.integers(5, 50, 24)
    left = [(d.sum() - d[0, k]) / (c.sum() - c[k]) for k in range(24)]
    gap = (np.array(left) - np.mean(left)) ** 2
    df = gap.sum() ** 2 / (gap**2).sum() - 1
    half = stats.t.ppf(0.975, df) * math.sqrt(23 / 24 * gap.sum())
    found = cost_of(torch.from_numpy(d), torch.from_numpy(c))
    assert (found.low, found.high) == pytest.approx((d.sum() / c.sum() - half, d.sum() / c.sum() + half))
    assert found.p == pytest.approx(2 * stats.t.sf(abs(found.value) / found.se, df))


def test_few_units_or_one_that_decides_have_no_interval():
    even = torch.ones(1, 20)
    assert cost_of(even + torch.arange(20) % 3, torch.ones(20)).low is not None
    assert "fewer than 8" in (cost_of(even * torch.tensor([50.0] + [0.1] * 19), torch.ones(20)).note or "")
    assert "under 4 units" in (cost_of(even, torch.ones(20), fewest=3).note or "")


def test_intervals_cover_the_control_that_was_not_drawn():
    """With a random effect of the draw, an interval about the draws made misses the mean over all draws."""
    rng, missed = np.random.default_rng(1), np.zeros(2)
    for _ in range(300):
        made = 0.3 * rng.standard_normal((4, 1)) + rng.standard_normal((1, 40)) + 0.5
        for k, over_draws in enumerate((True, False)):
            found = cost_of(torch.from_numpy(made), torch.ones(40), over_draws=over_draws)
            missed[k] += not found.low <= 0.5 <= found.high
    assert missed[0] / 300 < 0.09
    assert missed[1] / 300 > 0.1


def test_costs_of_bins_add_up_to_the_cost_of_all_tokens():
    found = ablate(tiny("llama"), [causal(n=40)], ranks=(2,), layers=(1,), draws=1)
    whole = found.row("removal_cost", 1)
    bins = [found.row("removal_cost", 1, subset=f"target tokens {k}/5") for k in range(1, 6)]
    known = [b for b in bins if b["n"]]
    assert sum(b["n"] for b in known) == whole["n"]
    assert sum(b["n"] * b["value"] for b in known) == pytest.approx(whole["n"] * whole["value"])


def causal(n=24, length=16, seed=0, vocabulary=20):
    ids = torch.randint(vocabulary, (n, length), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}


@pytest.mark.parametrize("kind", ["llama", "gpt_neox", "gpt2", "opt"])
def test_replaying_blocks_changes_no_number(kind, monkeypatch):
    model, given = tiny(kind), [causal()]
    fast = ablate(model, given, ranks=(2,), draws=1)
    assert not fast.notes
    monkeypatch.setattr(Edits, "can_replay", False)
    slow = ablate(model, given, ranks=(2,), draws=1)
    assert slow.notes
    assert [r["value"] for r in fast.rows] == pytest.approx([r["value"] for r in slow.rows], nan_ok=True, abs=1e-12)
    assert fast.loss == pytest.approx(model.eval()(**given[0]).loss.item(), rel=1e-5)


def test_a_model_with_ways_around_its_blocks_is_passed_whole():
    class Around(ReadsOneDirection):
        def forward(self, input_ids, attention_mask=None, labels=None):
            hidden = self.embed(input_ids)
            entered = []
            handles = [b.get_submodule("map").register_forward_hook(lambda *_: entered.append(1)) for b in self.blocks]
            for block in self.blocks:
                hidden, _ = block(hidden)
            for handle in handles:
                handle.remove()
            return Output((hidden @ self.direction)[..., None] * self.readout * len(entered))

    found = ablate(Around(), batches(), ranks=(1,), draws=1)
    assert "every pass went through all" in found.notes[0]


def test_masked_models_are_asked_for_what_is_masked():
    model, generator = tiny("bert"), torch.Generator().manual_seed(3)
    ids = torch.randint(5, 20, (24, 16), generator=generator)
    chosen = torch.rand(ids.shape, generator=generator) < 0.3
    given = {"input_ids": torch.where(chosen, 4, ids), "labels": torch.where(chosen, ids, -100)}
    found = ablate(model, [given], ranks=(2,), layers=(1,), draws=1)
    assert found.loss == pytest.approx(model.eval()(**given).loss.item(), rel=1e-5)
    assert found.row("removal_cost", 1)["n"] == int(chosen.sum())


class Fails(ReadsOneDirection):
    """Breaks off in the middle of the removals."""

    left = 9

    def forward(self, *args, **kwargs):
        self.left -= 1
        if not self.left:
            raise RuntimeError("no memory left")
        return super().forward(*args, **kwargs)


@pytest.mark.parametrize("kind", [ReadsOneDirection, Fails])
def test_the_model_is_as_it_was(kind):
    model = kind().train()
    model.blocks[1].eval()
    before, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks), "forward" in m.__dict__) for m in model.modules()]
    random = torch.get_rng_state()
    if kind is Fails:
        with pytest.raises(RuntimeError, match="no memory"):
            ablate(model, batches(), **SETTINGS)
    else:
        ablate(model, batches(), **SETTINGS)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes
    assert [
        (len(m._forward_hooks), len(m._forward_pre_hooks), "forward" in m.__dict__) for m in model.modules()
    ] == hooks
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.is_grad_enabled()
    assert all(p.grad is None for p in model.parameters())


def test_documents_are_the_units():
    given = causal(n=48)
    bare = ablate(tiny("llama"), [given], **SETTINGS).row("removal_cost", 1)
    grouped = given | {"documents": torch.arange(48) // 2}
    found = ablate(tiny("llama"), [grouped], **SETTINGS).row("removal_cost", 1)
    assert found["units"] <= 24 < bare["units"]


def test_other_proxies_and_ranks():
    found = ablate(tiny("llama"), [causal()], proxy="semi_nmf", ranks=(1, 2), layers=(1,), draws=1)
    assert {r["rank"] for r in found.rows if r["measure"] == "removal_excess"} == {1, 2}
    share = found.row("removed_variance", 1, rank=2)["value"]
    assert 0 < share < 1


def test_rows_hold_q_and_outcomes_over_layers():
    found = ablate(tiny("llama"), [causal(n=64)], ranks=(2,), draws=2)
    rows = [r for r in found.rows if r["measure"] == "removal_excess"]
    assert all(r["outcome"] for r in rows)
    judged = [r for r in rows if r["null"] == "haar" and r["variant"] is None and r["subset"] == "all"]
    assert len(judged) == 3
    q = stats.false_discovery_control([r["p"] for r in judged])
    assert [r["q"] for r in judged] == pytest.approx(list(q))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"proxy": "pac"}, "proxy must be one of"),
        ({"ranks": ()}, "ranks must be whole numbers"),
        ({"ranks": (99,)}, "at most half of the width"),
        ({"layers": (7,)}, r"layers must lie in 0…2"),
        ({"subset": "some"}, "subset must be one of"),
        ({"draws": 0}, "at least once"),
        ({"margin": 0.0}, "above 0 nats"),
        ({"batches": []}, "at least one batch"),
        ({"batches": [{"input_ids": torch.ones(2, 4).long()}]}, "labels"),
        ({"batches": [causal() | {"labels": torch.ones(3, 4).long()}]}, "shape of input_ids"),
        ({"batches": [causal() | {"labels": torch.full((24, 16), -100)}]}, "at least one token"),
    ],
)
def test_wrong_use_is_told_before_anything_is_passed(changed, message):
    given = {"batches": [causal()], "ranks": (2,), "draws": 1} | changed
    with pytest.raises(ValueError, match=message):
        ablate(tiny("llama"), **given)


def test_a_model_trained_on_another_loss_is_refused_and_can_bring_its_own():
    class Twice(ReadsOneDirection):
        def forward(self, input_ids, attention_mask=None, labels=None):
            found = super().forward(input_ids)
            found.loss = torch.tensor(99.0)
            return found

    with pytest.raises(AnisoscopeError, match="pass loss_fn"):
        ablate(Twice(), batches(), **SETTINGS)

    def loss_fn(output, batch):
        losses = torch.full(batch["labels"].shape, torch.nan, dtype=torch.float64)
        losses[:, 1:] = output.logits[:, :-1, 0]
        return losses

    assert math.isfinite(ablate(Twice(), batches(), loss_fn=loss_fn, **SETTINGS).row("removal_cost", 1)["value"])


def test_damaged_weights_are_told():
    model = ReadsOneDirection()
    with torch.no_grad():
        model.embed.weight[3, 2] = torch.nan
    with pytest.raises(AnisoscopeError, match="not finite"):
        ablate(model, batches(), **SETTINGS)
