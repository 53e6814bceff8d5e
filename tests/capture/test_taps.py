"""Sites found on every family; taps that see what passes, once, and change no bit of training."""

import gc
import weakref
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from anisoscope import AnisoscopeError
from anisoscope.capture.sites import find_sites, linear_shape, unwrapped
from anisoscope.capture.taps import Listener, Taps
from capture.families import EXPECTED_MAP, FAMILIES, LAYERS, WIDTH, batch, build


class Recorder(Listener):
    """Keeps a copy of everything, in the order it came."""

    def __init__(self):
        self.activations, self.gradients, self.pairs = [], [], []

    def activation(self, at, x_BTD, batch):
        self.activations.append((at.layer, batch.number, x_BTD.clone()))

    def gradient(self, at, g_BTD, batch):
        self.gradients.append((at.layer, batch.number, g_BTD.clone()))

    def pair(self, at, x_BTD, delta_BTF, batch):
        self.pairs.append((at.layer, batch.number, x_BTD.clone(), delta_BTF.clone()))


@pytest.fixture(params=FAMILIES)
def family(request):
    model = build(request.param)
    if model is None:
        pytest.skip(f"this transformers has no {request.param}")
    return request.param, model


def test_sites_are_found_from_structure(family):
    name, model = family
    sites = find_sites(model)
    assert len(sites.blocks) == (1 if name == "albert" else LAYERS)
    assert sites.weights[0].name == f"{sites.blocks[0].name}.{EXPECTED_MAP[name]}"
    assert all(linear_shape(site.module)[0] == WIDTH for site in sites.weights)
    assert sites.embedding is not None
    assert sites.embedding.module.get_parameter("weight").shape[0] == 40
    assert sites.notes == ()


def losses_and_weights(name, observed, steps=30, **options):
    torch.manual_seed(1)
    model = build(name)
    model.train()
    configure = options.get("configure")
    if configure:
        configure(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sites = find_sites(model)
    losses = []
    torch.manual_seed(2)  # dropout
    for step in range(steps):
        for micro in range(options.get("accumulate", 1)):
            inputs = batch(seed=7 * step + micro)
            if observed and step % 3 == 0:
                with Taps(model, sites, Recorder()) as taps, options.get("autocast", nullcontext)():
                    loss = model(**inputs).loss
                    loss.backward()
                    taps.require_heard()
            else:
                with options.get("autocast", nullcontext)():
                    loss = model(**inputs).loss
                    loss.backward()
            losses.append(loss.detach().clone())
        if options.get("clip"):
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    return torch.stack(losses), [p.detach().clone() for p in model.parameters()]


def assert_bit_identical(name, **options):
    bare, observed = (losses_and_weights(name, flag, **options) for flag in (False, True))
    assert torch.equal(bare[0], observed[0])
    assert all(torch.equal(a, b) for a, b in zip(bare[1], observed[1], strict=True))


def test_training_is_bit_identical(family):
    assert_bit_identical(family[0])


def checkpointed(reentrant):
    return lambda model: model.gradient_checkpointing_enable({"use_reentrant": reentrant})


@pytest.mark.parametrize("name", ["gpt_neox", "bert", "llama"])
@pytest.mark.parametrize(
    "options",
    [
        {"accumulate": 2},
        {"clip": True},
        {"autocast": lambda: torch.autocast("cpu", torch.bfloat16)},
        {"configure": checkpointed(True)},
        {"configure": checkpointed(False)},
    ],
    ids=["accumulation", "clipping", "bf16", "reentrant", "non-reentrant"],
)
def test_training_is_bit_identical_in_every_situation(name, options):
    assert_bit_identical(name, steps=9, **options)


def reference(model, inputs):
    """All hidden states and their gradients by the plain means of autograd: every output retained."""
    sites = find_sites(model)
    kept, weights = [], []

    def keep(module, args, kwargs, output):
        hidden = output if isinstance(output, torch.Tensor) else output[0]
        if not kept:
            first = args[0] if args else kwargs["hidden_states"]
            first.retain_grad()
            kept.append(first)
        hidden.retain_grad()
        kept.append(hidden)

    def keep_map(module, args, output):
        output.retain_grad()
        weights.append((args[0].detach(), output))

    blocks = list({site.module: None for site in sites.blocks})
    handles = [block.register_forward_hook(keep, with_kwargs=True) for block in blocks]
    handles += [module.register_forward_hook(keep_map) for module in {site.module: None for site in sites.weights}]
    model(**inputs).loss.backward()
    for handle in handles:
        handle.remove()
    return [(h.detach(), h.grad) for h in kept], [(x, y.grad) for x, y in weights]


def turned(name, tensor):
    return tensor.transpose(0, 1) if name == "plain-positions-first" else tensor


def test_taps_see_what_passes(family):
    name, model = family
    model.eval()  # no dropout, so that two runs are one
    hidden, maps = reference(model, batch())
    model.zero_grad()
    recorder = Recorder()
    with Taps(model, find_sites(model), recorder) as taps:
        model(**batch()).loss.backward()
        taps.require_heard()
    assert [layer for layer, _, _ in recorder.activations] == list(range(LAYERS + 1))
    assert sorted(layer for layer, _, _ in recorder.gradients) == list(range(LAYERS + 1))
    assert sorted(layer for layer, *_ in recorder.pairs) == list(range(1, LAYERS + 1))
    gradients = {layer: g for layer, _, g in recorder.gradients}
    for layer, _, x in recorder.activations:
        assert torch.equal(x, turned(name, hidden[layer][0]))
        assert torch.equal(gradients[layer], turned(name, hidden[layer][1]))
    for layer, _, x, delta in recorder.pairs:
        assert x.shape[:2] == delta.shape[:2] == (4, 9)
        assert torch.equal(x, turned(name, maps[layer - 1][0]).reshape(x.shape))
        assert torch.equal(delta, turned(name, maps[layer - 1][1]).reshape(delta.shape))


@pytest.mark.parametrize("name", ["gpt_neox", "llama", "bert", "gpt2"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_counts_once(name, reentrant):
    plain, checkpointing = Recorder(), Recorder()
    for recorder in (plain, checkpointing):
        model = build(name)
        model.train()
        if recorder is checkpointing:
            checkpointed(reentrant)(model)
        model.config.use_cache = False  # checkpointing switches it off, and with it another path through attention
        torch.manual_seed(3)  # the same dropout in both
        with Taps(model, find_sites(model), recorder):
            model(**batch()).loss.backward()
    assert [(layer, number) for layer, number, _ in checkpointing.activations] == [
        (layer, number) for layer, number, _ in plain.activations
    ]
    for a, b in zip(plain.activations, checkpointing.activations, strict=True):
        assert torch.equal(a[2], b[2])
    assert sorted(layer for layer, *_ in checkpointing.pairs) == list(range(1, LAYERS + 1))
    expected = {layer: g for layer, _, g in plain.gradients}
    found = {layer: g for layer, _, g in checkpointing.gradients}
    assert len(checkpointing.gradients) == len(found) == LAYERS + 1
    for layer, g in found.items():
        torch.testing.assert_close(g, expected[layer], rtol=1e-5, atol=1e-9)
    pairs = {layer: (x, d) for layer, _, x, d in plain.pairs}
    for layer, _, x, d in checkpointing.pairs:
        torch.testing.assert_close(d, pairs[layer][1], rtol=1e-5, atol=1e-9)
        torch.testing.assert_close(x, pairs[layer][0], rtol=1e-6, atol=1e-7)


def test_accumulation_counts_all_and_evaluation_counts_nothing():
    model = build("gpt2")
    recorder = Recorder()
    with Taps(model, find_sites(model), recorder):
        model(**batch(0)).loss.backward()
        with torch.no_grad():
            model(**batch(9))
        model(**batch(1)).loss.backward()
    assert len(recorder.activations) == len(recorder.gradients) == 2 * (LAYERS + 1)
    assert {number for _, number, _ in recorder.gradients} == {0, 2}


def test_batches_carry_their_tokens_and_mask():
    model = build("bert")
    seen = []

    class Listener(Recorder):
        def gradient(self, at, g_BTD, batch):
            seen.append(batch)

    inputs = batch()
    with Taps(model, find_sites(model), Listener()):
        model(**inputs).loss.backward()
    assert all(
        torch.equal(b.tokens, inputs["input_ids"]) and torch.equal(b.mask, inputs["attention_mask"]) for b in seen
    )


def interrupted_step(model, recorder):
    """A step that fails between forward and backward; gives back the loss, whose backward may still come."""
    losses = []
    try:
        with Taps(model, find_sites(model), recorder):
            losses.append(model(**batch()).loss)
            raise RuntimeError("stop")
    except RuntimeError:
        return losses[0]


def test_nothing_stays_attached_or_alive():
    model = build("gpt2")
    before = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    recorder = Recorder()
    watched = weakref.ref(recorder)
    loss = interrupted_step(model, recorder)
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()] == before
    loss.backward()  # a gradient that comes late is nobody's
    late = len(recorder.gradients)
    del recorder, loss
    gc.collect()
    assert watched() is None
    assert late == 0


def test_a_tap_that_never_fired_is_an_error():
    model = build("gpt2")
    with Taps(model, find_sites(model), Recorder()) as taps:
        model(**batch())
        with pytest.raises(AnisoscopeError, match=r"no gradient at transformer\.h\.0"):
            taps.require_heard()


def test_wrappers_are_seen_through():
    model = build("gpt2")
    assert unwrapped(torch.nn.DataParallel(model)) is model
    assert unwrapped(torch.compile(model)) is model


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: find_sites(nn.Linear(3, 3)), "must have a chain of blocks"),
        (lambda: find_sites(build("plain"), blocks=["encoder.layer.0"]), "nearest: encoder.layers.0"),
        (lambda: find_sites(build("plain"), weights=["head"]), "inside a block"),
    ],
)
def test_wrong_use_is_named(act, message):
    with pytest.raises(ValueError, match=message):
        act()


def test_names_override_structure_and_what_is_missing_is_noted():
    model = build("plain")
    sites = find_sites(model, blocks=["encoder.layers.1"], weights=["encoder.layers.1.self_attn.out_proj"])
    assert [site.name for site in sites.blocks] == ["encoder.layers.1"]
    assert sites.weights[0].layer == 1
    bare = find_sites(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    assert bare.weights == ()
    assert any("no MLP" in note for note in bare.notes)
    assert any("no embedding" in note for note in bare.notes)
    assert find_sites(build("gpt2")).tied
