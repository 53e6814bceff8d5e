"""Blocks of models that are in no library; a look at a model that leaves no trace."""

import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from anisoscope import Scope
from anisoscope.capture.shadow import Shadow, untouched
from anisoscope.capture.sites import find_sites
from anisoscope.capture.trace import TraceError, trace
from capture.strangers import DEPTH, STRANGERS, VOCABULARY, Block, Host, stranger

BLOCKS = {
    "dict": [f"transformer.block {i}" for i in range(DEPTH)],
    "attributes": ["first", "second", "third"],
    "sequence": [f"trunk.{i}" for i in range(DEPTH)],
    "two lists": ["down.0", "down.1", "up.0", "up.1"],
}
MAPS = {"fused": ["into"] * DEPTH, "routed": [None] * DEPTH, "mixed": ["mlp.0", "into", None]}
MAPS["adapted"] = ["mlp.0.base"] * DEPTH


@pytest.mark.parametrize("name", STRANGERS)
def test_blocks_and_maps_of_models_written_by_hand(name):
    sites = find_sites(stranger(name))
    blocks = BLOCKS.get(name, [f"h.{i}" for i in range(DEPTH)])
    assert [site.name for site in sites.blocks] == blocks
    assert [site.layer for site in sites.blocks] == list(range(1, len(blocks) + 1))
    inside = MAPS.get(name, ["mlp.0"] * len(blocks))
    expected = [f"{block}.{path}" for block, path in zip(blocks, inside, strict=True) if path]
    assert [site.name for site in sites.weights] == expected
    assert sites.embedding.name == "wte"
    assert sites.left_out == {}
    assert sites.how.startswith("traced") == (name not in ("checkpointed", "batches"))
    assert [router.name for router in sites.routers] == [
        f"{block}.router" for block, path in zip(blocks, inside, strict=True) if path is None
    ]


def test_what_cannot_be_traced_says_why():
    how = find_sites(stranger("batches")).how
    assert how.startswith("the list with the most parameters, for the model could not be traced (IndexError")
    with pytest.raises(TraceError, match="IndexError"):
        trace(stranger("batches"))


def everything(model):
    """All that a look could have changed."""
    return {
        "state": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "random": (torch.get_rng_state(), model.generator.get_state()),
        "numpy": np.random.get_state()[1].tolist(),  # noqa: NPY002
        "modes": [module.training for module in model.modules()],
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        "own": (model.calls, list(model.seen), dict(model.cache), model.scratch.clone()),
        "gradients": [(p.grad is None, p.requires_grad) for p in model.parameters()],
        "autograd": torch.is_grad_enabled(),
        "attributes": [sorted(vars(module)) for module in model.modules()],
    }


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize("training", [True, False])
def test_a_look_leaves_no_trace_on_the_model(training):
    model = stranger("touchy").train(training)
    fired = []
    model.h[1].register_forward_hook(lambda *_: fired.append(1))
    before = everything(model)
    identities = [id(tensor) for tensor in (*model.parameters(), *model.buffers())]
    find_sites(model)
    now = everything(model)
    assert [what for what in before if not same(before[what], now[what])] == []
    assert identities == [id(tensor) for tensor in (*model.parameters(), *model.buffers())]
    assert fired == []
    model(torch.zeros(2, 4, dtype=torch.int64))  # the test sees it where it does happen
    after = everything(model)
    assert not same(before["own"], after["own"])
    assert not same(before["state"], after["state"]) or not training
    assert not same(before["random"], after["random"])


def test_random_states_of_python_numpy_and_torch_are_given_back():
    """By itself: the types that tests check draw from Python's generator."""
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    with untouched():
        random.random()
        np.random.rand()  # noqa: NPY002
        torch.rand(1)
    assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # noqa: NPY002


def test_a_shadow_takes_no_memory_and_shares_none():
    model = Host(lambda: nn.Linear(512, 512))
    shadow = Shadow(model)
    own = {tensor.untyped_storage().data_ptr() for tensor in model.parameters()}
    copies = list(shadow.model.parameters())
    assert sum(copy.untyped_storage().nbytes() for copy in copies) == 4 * len(copies)
    assert own.isdisjoint(copy.untyped_storage().data_ptr() for copy in copies)
    assert [copy.shape for copy in copies] == [tensor.shape for tensor in model.parameters()]
    assert set(shadow.original.values()) == set(model.modules())


@pytest.mark.parametrize("wrap", ["compiled blocks", "in place", "frozen", "half", "meta"])
def test_blocks_are_found_however_the_model_is_dressed(wrap):
    model = stranger("list")
    if wrap == "compiled blocks":
        for i, block in enumerate(model.h):
            model.h[i] = torch.compile(block, backend="aot_eager")
    elif wrap == "in place":
        for block in model.h:
            block.compile(backend="aot_eager")
    elif wrap == "frozen":
        model.requires_grad_(False)
    elif wrap == "half":
        model.bfloat16()
    else:
        model.to("meta")
    sites = find_sites(model)
    assert sites.how.startswith("traced")
    assert [site.name for site in sites.blocks] == ["h.0", "h.1", "h.2"]
    assert [site.module for site in sites.blocks] == list(model.h)


def test_data_that_a_model_holds_is_not_copied():
    class Heavy:
        def __init__(self):
            self.rows = list(range(5000))

        def __copy__(self):
            raise TypeError("must not be copied")

    model = stranger("list")
    model.trainer = Heavy()
    assert find_sites(model).how.startswith("traced")


def ids(seed, length=9):
    return torch.randint(5, VOCABULARY, (16, length), generator=torch.Generator().manual_seed(seed))


def trained(make, inputs, *, observed, steps=4, **options):
    torch.manual_seed(3)
    model = make().train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    options = {"steps": steps, "schedule": [0, 2], "rank": 4, "resamples": 19, "strict": True} | options
    scope = Scope(model, **options) if observed else None
    losses, rows = [], []
    torch.manual_seed(4)
    for step in range(steps):
        with scope.step() if scope else torch.enable_grad():
            output = model(*inputs(step)) if isinstance(inputs(step), tuple) else model(**inputs(step))
            loss = output[1] if isinstance(output, tuple) else output.loss
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().clone())
    if scope:
        rows = scope.rows()
        scope.close()
    return torch.stack(losses), [p.detach().clone() for p in model.parameters()], rows, model


def assert_same_bits(make, inputs, **options):
    """Train with and without the scope; gives back the rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bare = trained(make, inputs, observed=False)
        watched = trained(make, inputs, observed=True, **options)
    assert torch.equal(bare[0], watched[0])
    assert all(torch.equal(a, b) for a, b in zip(bare[1], watched[1], strict=True))
    rows = watched[2]
    assert not [row["note"] for row in rows if row["measure"] == "skipped"]
    assert [row for row in rows if row["measure"] == "energy"]
    return rows


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("routed", "dropping", "touchy") else pytest.mark.slow)
        for name in STRANGERS
        if name != "batches"
    ],
)
def test_models_written_by_hand_train_to_the_same_bits(name):
    rows = assert_same_bits(lambda: STRANGERS[name](), lambda step: (ids(step), ids(step)))
    loads = [row for row in rows if row["measure"] == "router_load" and row["variant"] is None]
    layers = {"routed": [1, 2, 3], "mixed": [3]}.get(name, [])
    assert sorted({row["layer"] for row in loads}) == layers
    assert all(row["n"] == 2 * 16 * 9 and row["width"] == 4 and 1 <= row["value"] <= 4 for row in loads)


def test_the_load_of_routers_is_what_was_routed():
    """Counted by hand: a hook of the test's own on the router, tokens behind a mask left out."""
    config = transformers.MixtralConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    config.num_key_value_heads, config.num_local_experts, config.num_experts_per_tok = 1, 5, 2
    torch.manual_seed(0)
    model: Any = transformers.MixtralForCausalLM(config)
    chosen = []
    model.model.layers[0].mlp.gate.register_forward_hook(lambda module, args, output: chosen.append(output[2]))
    mask = torch.ones(16, 9, dtype=torch.int64)
    mask[:6, 5:] = 0
    scope = Scope(model, steps=1, rank=4, resamples=19, strict=True)
    with scope.step():
        model(input_ids=ids(0), attention_mask=mask, labels=ids(0)).loss.backward()
    rows = {row["variant"]: row for row in scope.rows() if row["measure"] == "router_load"}
    scope.close()
    kept = [
        expert for row, real in zip(chosen[0].tolist(), mask.flatten().tolist(), strict=True) if real for expert in row
    ]
    counts = np.bincount(kept, minlength=5)
    shares = counts / counts.sum()
    assert rows[None]["n"] == len(kept) == 2 * int(mask.sum())
    assert rows[None]["value"] == pytest.approx(shares.max() * 5)
    assert rows["effective"]["value"] == pytest.approx(np.exp(-sum(s * np.log(s) for s in shares if s)))
    assert rows["unused"]["value"] == pytest.approx(np.mean(counts == 0))


@pytest.mark.filterwarnings("ignore:not measured at step")  # nothing is stepped on
def test_a_block_that_is_dropped_is_missing_for_this_step_only():
    torch.manual_seed(0)
    model = stranger("dropping")
    called = []
    for i, block in enumerate(model.h):
        block.register_forward_hook(lambda *_, i=i: called.append(i + 1))
    scope = Scope(model, steps=6, schedule=1, rank=4, resamples=19, strict=True)
    expected = []
    for step in range(6):
        called.clear()
        with scope.step():
            model(ids(step), ids(step))[1].backward()
        expected.append(set(called))
        model.zero_grad()
    rows = scope.rows()
    scope.close()
    assert len({frozenset(layers) for layers in expected}) > 2, "the seed drops different blocks"
    for step, layers in enumerate(expected):
        energies = [row for row in rows if row["step"] == step and row["measure"] == "energy"]
        for view in ("representation", "weight"):
            assert {row["layer"] for row in energies if row["view"] == view} - {0} == layers
        notes = [row for row in rows if row["step"] == step and row["measure"] == "note" and row["layer"]]
        assert {row["layer"] for row in notes} == {1, 2, 3} - layers
        assert all("was not called in this step" in row["note"] for row in notes)


def test_a_block_keeps_its_number_where_others_are_dropped():
    from anisoscope.capture.taps import Listener, Taps

    class Seen(Listener):
        def __init__(self):
            self.found = []

        def activation(self, at, x_BTD, batch):
            self.found.append((at.layer, at.name))

    class Half(Host):
        def run(self, x):
            return self.h[2](self.h[0](x))

    model, seen = Host(), Seen()
    sites = find_sites(model)
    model.__class__ = Half
    with Taps(model, sites, seen):
        model(ids(0))
    assert seen.found == [(0, ""), (1, "h.0"), (3, "h.2")]


def test_lengths_that_do_not_agree_are_left_out_with_the_reason():
    class Pooling(Block):
        def forward(self, x):
            return super().forward(x)[:, ::2]

    class Pooled(Host):
        def hold(self, blocks):
            self.h = nn.ModuleList([blocks[0], Pooling(), blocks[2]])

        def forward(self, idx, targets=None):
            logits, _ = super().forward(idx)
            return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets[:, ::2].flatten())

    rows = assert_same_bits(Pooled, lambda step: (ids(step), ids(step)))
    energies = {(row["view"], row["layer"]) for row in rows if row["measure"] == "energy"} - {("embedding", 0)}
    assert energies == {("representation", 0), ("representation", 1), ("weight", 1), ("weight", 2)}
    notes = {row["layer"]: row["note"] for row in rows if row["measure"] == "note" and row["layer"]}
    assert notes[2] == notes[3] == "it has shape (16, 5, 16) where the text has (16, 9) positions"
