"""Directions removed from weight updates: what is left of them, with optimisers that nobody changed."""

import copy

import pytest
import torch
from torch import nn

from anisoscope.capture.sites import find_sites
from anisoscope.intervene.readers import find_readers
from anisoscope.intervene.updates import LARGEST_SCALE, UpdateProjection, partial_strength
from models.snapshots import tiny

RANK = 3


def batch(step, vocabulary=20, n=6, length=16):
    ids = torch.randint(5, vocabulary, (n, length), generator=torch.Generator().manual_seed(step))
    return {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}


READ = {
    "llama": {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"},
    "gpt_neox": {"attention.query_key_value", "mlp.dense_h_to_4h"},
    "gpt2": {"attn.c_attn", "mlp.c_fc"},
    "bert": {"attention.self.query", "attention.self.key", "attention.self.value", "intermediate.dense"},
}


@pytest.mark.parametrize("kind", READ)
def test_matrices_that_read_the_stream_are_found_and_no_others(kind):
    model = tiny(kind)
    sites = find_sites(model)
    found = find_readers(model, sites, batch(0))
    for site in sites.blocks:
        own = {r.name.removeprefix(f"{site.name}.") for r in found if r.layer == site.layer}
        assert own == READ[kind]
    assert all(reader.as_rows(reader.weight).shape[1] == 16 for reader in found)


def training(kind="llama", optimizer=torch.optim.AdamW, steps=6, lr=1e-2, dtype=torch.float32, **options):
    """The weights before and after each step."""
    torch.manual_seed(0)
    model = tiny(kind).to(dtype)
    optim = optimizer(model.parameters(), lr=lr)
    trace = [copy.deepcopy(model.state_dict())]
    with UpdateProjection(model, optim, rank=RANK, every=3, **options) as projection:
        bases = []
        for step in range(steps):
            bases.append({site: projection.basis(site) for site in projection.sites})
            model(**batch(step)).loss.backward()
            optim.step()
            optim.zero_grad()
            trace.append(copy.deepcopy(model.state_dict()))
    return model, projection, trace, bases


def change(trace, step, name, kind):
    delta = (trace[step + 1][name] - trace[step][name]).double()
    return delta.T if kind == "gpt2" else delta


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_nothing_of_an_update_is_left_inside_and_its_length_is_kept(kind, optimizer):
    _, projection, trace, bases = training(kind, optimizer, dtype=torch.float64)
    _, _, free, _ = training(kind, optimizer, dtype=torch.float64, strength=0.0)
    for site in projection.sites:
        name = f"{site}.weight"
        basis = bases[1][site]
        assert torch.equal(trace[1][name], free[1][name])  # before the first fit nothing is removed
        done = change(trace, 1, name, kind)
        assert float((done @ basis).norm() / done.norm()) < 1e-9
        wanted = change(free, 1, name, kind)
        left = wanted - wanted @ basis @ basis.T
        scale = min(LARGEST_SCALE, float(wanted.norm() / left.norm()))
        assert torch.allclose(done, scale * left, atol=1e-9 * float(left.abs().max()))
    others = [n for n in free[2] if n.removesuffix(".weight") not in projection.sites]
    assert all(torch.equal(trace[2][name], free[2][name]) for name in others)


def test_directions_are_fitted_anew_on_the_batch_before():
    _, projection, _, bases = training(steps=7)
    site = projection.sites[0]
    assert bases[0] == {}
    assert torch.equal(bases[1][site], bases[2][site])  # fitted after step 0, again after steps 2 and 5
    assert not torch.equal(bases[2][site], bases[3][site])
    assert torch.equal(bases[3][site], bases[5][site])
    assert {r.step for r in projection.history} == {1, 3, 6}


def test_the_fit_is_on_the_inputs_of_the_matrix_itself():
    torch.manual_seed(0)
    model = tiny("llama")
    seen = {}
    first = model.model.layers[1].mlp.up_proj
    handle = first.register_forward_pre_hook(lambda m, args: seen.update(x=args[0].detach().double()))
    model(**batch(0))
    handle.remove()
    x = seen["x"].flatten(0, 1)
    expected = torch.linalg.svd(x - x.mean(0)).Vh[:RANK].T
    _, _, _, bases = training()
    found = bases[1]["model.layers.1.mlp.up_proj"]
    assert torch.allclose(found @ found.T, expected @ expected.T, atol=1e-6)


def test_projected_gradients_come_back_through_adam():
    """Why the update is projected and not the gradient."""
    _, projection, trace, bases = training(target="gradient", lr=0.5)
    site = projection.sites[0]
    done = change(trace, 1, f"{site}.weight", "llama")
    assert float((done @ bases[1][site]).norm() / done.norm()) > 0.05


@pytest.mark.parametrize("directions", ["haar", "normal"])
def test_controls_are_other_directions_of_the_same_rank(directions):
    _, projection, _, bases = training(directions=directions)
    _, _, _, proxies = training()
    for site in projection.sites:
        basis, proxy = bases[1][site], proxies[1][site]
        assert torch.allclose(basis.T @ basis, torch.eye(RANK, dtype=basis.dtype), atol=1e-9)
        overlap = float((basis.T @ proxy).square().sum())
        assert overlap < 1e-9 if directions == "normal" else 0 < overlap < RANK


def test_arms_of_equal_share_lose_as_much():
    _, tangent, _, _ = training(against="normal")
    _, normal, _, _ = training(directions="normal", against="proxy")
    pairs = list(zip(tangent.history, normal.history, strict=True))[: len(tangent.sites)]  # the same weights so far
    for a, b in pairs:
        assert a.removed == pytest.approx(b.removed, rel=1e-9)
        assert a.removed == pytest.approx(min(a.share, b.share), rel=1e-9)
        assert max(a.strength, b.strength) == 1.0
    assert min(a.strength for a, _ in pairs) < 1


def test_partial_strength_takes_what_the_other_side_holds():
    a = partial_strength(0.6, 0.3)
    assert (2 * a - a * a) * 0.6 == pytest.approx(0.3)


def test_strength_0_is_bit_identical_and_leaves_no_hook():
    model = tiny("llama")
    bare, optim = copy.deepcopy(model), None
    optim = torch.optim.AdamW(bare.parameters(), lr=1e-2)
    for step in range(6):
        bare(**batch(step)).loss.backward()
        optim.step()
        optim.zero_grad()
    torch.manual_seed(0)
    found, _, trace, _ = training(strength=0.0)
    assert all(torch.equal(a, b) for a, b in zip(trace[0].values(), model.state_dict().values(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(bare.parameters(), found.parameters(), strict=True))


def test_hooks_are_gone_afterwards_and_the_state_of_the_optimiser_is_its_own():
    model = tiny("llama")
    optim = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def broken_off():
        with UpdateProjection(model, optim, rank=RANK):
            model(**batch(0)).loss.backward()
            optim.step()
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        broken_off()
    assert not optim._optimizer_step_pre_hooks
    assert not optim._optimizer_step_post_hooks
    assert not any(m._forward_pre_hooks for m in model.modules())
    assert {key for state in optim.state.values() for key in state} == {"step", "exp_avg", "exp_avg_sq"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strength": 2.0}, "strength must lie in 0…1"),
        ({"every": 0}, "at least 1"),
        ({"proxy": "semi_nmf"}, "proxy must be one of"),
        ({"layers": (9,)}, "hold a matrix that reads"),
        ({"maps": ["model.embed_tokens"]}, "linear maps inside blocks"),
        ({"rank": 9}, "at most half of the width, 8"),
    ],
)
def test_wrong_use_is_told(options, message):
    model = tiny("llama")
    optim = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=message), UpdateProjection(model, optim, **({"rank": RANK} | options)):
        model(**batch(0))


def test_frozen_matrices_are_told():
    model = tiny("llama")
    optim = torch.optim.SGD([nn.Parameter(torch.zeros(3))], lr=0.1)
    with pytest.raises(ValueError, match="must train the matrices"), UpdateProjection(model, optim, rank=RANK):
        model(**batch(0))
