"""Training as people really do it: every bit as without the scope, every number that of a slow reference."""

import math
from functools import partial

import pytest
import torch

from anisoscope import Scope, cross_fit, install_taps
from anisoscope.stats.hashing import as_key, mix, sequence_keys
from capture.families import batch, build
from observe.test_scope import chosen, measured, small

NAME = "gpt_neox"
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),  # dynamo looks at it
    pytest.mark.filterwarnings("ignore::anisoscope.errors.ScopeWarning"),  # test_notices.py is about them
]


def checkpointed(reentrant):
    def configure(model):
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        return model

    return configure


def compiled_blocks(model):
    for i, block in enumerate(model.gpt_neox.layers):
        model.gpt_neox.layers[i] = torch.compile(block, backend="aot_eager")
    return model


def blocks_compiled_in_place(model):
    for block in model.gpt_neox.layers:
        block.compile(backend="aot_eager")
    return model


def compiled_with_taps(model):
    install_taps(model)
    return torch.compile(model, backend="aot_eager")


SITUATIONS = {
    "plain": {},
    "accumulation": {"micro": 2},
    "reentrant": {"configure": checkpointed(True)},
    "non-reentrant": {"configure": checkpointed(False)},
    "autocast": {"autocast": True},
    "scaler": {"scaler": True},
    "clipping": {"clip": 0.1},
    "tied": {"name": "gpt2"},
    "blocks": {"configure": compiled_blocks},
    "blocks in place": {"configure": blocks_compiled_in_place},
    "taps before compilation": {"configure": compiled_with_taps},
}


def train(scope_of=None, *, name=NAME, steps=7, micro=1, configure=None, autocast=False, scaler=False, clip=None):
    """A loop with everything that a user may put into one."""
    torch._dynamo.reset()
    torch.manual_seed(1)
    model = build(name).train()
    model = configure(model) if configure else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scale = torch.amp.GradScaler("cpu", enabled=scaler)
    scope = scope_of(model) if scope_of else None
    torch.manual_seed(2)
    losses = []

    def passes(step):
        for i in range(micro):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = model(**batch(seed=7 * step + i, sequences=12)).loss
            losses.append(loss.detach().clone())
            scale.scale(loss * math.inf if scaler and step == 2 else loss).backward()

    for step in range(steps):
        if scope is None:
            passes(step)
        else:
            with scope.step():
                passes(step)
        scale.unscale_(optimizer)
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        scale.step(optimizer)
        scale.update()
        optimizer.zero_grad()
    return torch.stack(losses), [p.detach().clone() for p in model.parameters()], scope


@pytest.mark.parametrize("situation", SITUATIONS)
def test_training_is_bit_identical(situation):
    options = SITUATIONS[situation]
    strict = situation != "scaler"
    bare = train(**options)
    observed = train(lambda model: small(model, schedule=2, strict=strict), **options)
    assert torch.equal(bare[0], observed[0])
    assert all(torch.equal(a, b) for a, b in zip(bare[1], observed[1], strict=True))
    rows = observed[2].rows()
    skipped = {r["step"]: r["note"] for r in rows if r["measure"] == "skipped"}
    if situation == "scaler":
        assert skipped.keys() == {2}  # the overflow
        assert "finite" in skipped[2]
        assert {r["step"] for r in rows if r["tensor"] == "update"} == {0, 4, 6}
    else:
        assert not skipped
    views = {r["view"] for r in rows if r["view"]}
    blind = situation.startswith("blocks")
    assert views == ({"representation", "embedding"} if blind else {"representation", "weight", "embedding"})
    assert any("compiled" in note for note in observed[2].notes) == blind


def reference(name, micro, autocast):
    """Hidden states and their gradients, kept by autograd itself: no hook of ours."""
    model = build(name).eval()
    rows, gradients, ids, folds = {}, {}, [], []
    for i in range(micro):
        inputs = batch(seed=i, sequences=12)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output = model(**inputs, output_hidden_states=True)
        for state in output.hidden_states:
            state.retain_grad()
        output.loss.backward()
        mask = inputs["attention_mask"].bool()
        keys = sequence_keys(inputs["input_ids"], mask, seed=0)
        ids.append(keys[:, None].expand_as(mask)[mask])
        folds.append((as_key(mix(keys, seed=0)) & 1)[:, None].expand_as(mask)[mask])
        for layer, state in enumerate(output.hidden_states[:-1]):  # the last one is after the final norm
            rows.setdefault(layer, []).append(state.detach().double()[mask])
            gradients.setdefault(layer, []).append(state.grad.double()[mask])
    return {
        layer: cross_fit(
            torch.cat(rows[layer]),
            torch.cat(gradients[layer]),
            rank=4,
            groups=torch.cat(ids),
            folds=torch.cat(folds),
            nulls=("haar", "axes"),
            resamples=19,
        )
        for layer in rows
    }


@pytest.mark.parametrize("situation", [s for s in SITUATIONS if s != "clipping"])
def test_every_number_is_that_of_the_slow_reference(situation):
    options = SITUATIONS[situation]
    name, micro, autocast = options.get("name", NAME), options.get("micro", 1), options.get("autocast", False)
    torch._dynamo.reset()
    model = build(name).eval()
    if "configure" in options:
        model = options["configure"](model)
    scale = 1024.0 if options.get("scaler") else 1.0
    if "reentrant" in situation:
        model.train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
    scope = small(model, schedule=[0])
    with scope.step():
        for i in range(micro):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = model(**batch(seed=i, sequences=12)).loss
            (loss * scale).backward()
    for layer, expected in reference(name, micro, autocast).items():
        key = {"view": "representation", "layer": layer, "proxy": "pca", "timing": "rolling"}
        found = chosen(scope.rows(), **key, measure="energy")
        assert found["value"] == pytest.approx(expected.energy, rel=1e-4)
        assert found["n"] == expected.n
        for null in ("haar", "axes"):
            row, e = chosen(scope.rows(), **key, measure="enrichment", null=null), expected.enrichment[null]
            assert (row["value"], row["low"], row["high"]) == pytest.approx((e.value, e.low, e.high), rel=1e-3)


@pytest.mark.slow
def test_a_model_compiled_as_a_whole_says_so_and_stays_close():
    """Observed steps run without the graph: right, and apart from the bare run by rounding alone."""
    configure = partial(torch.compile, backend="inductor")
    bare = train(steps=12, configure=configure)
    with pytest.warns(UserWarning, match="compiled as a whole"):
        observed = train(lambda model: small(model, schedule=2), steps=12, configure=configure)
    apart = max(float((a - b).abs().max()) for a, b in zip(bare[1], observed[1], strict=True))
    assert apart <= 4e-6
    rows = observed[2].rows()
    assert {r["view"] for r in rows if r["view"]} == {"representation", "weight", "embedding"}
    assert not [r for r in rows if r["measure"] == "skipped"]


def test_a_weight_view_asked_for_by_name_is_an_error_where_blocks_are_compiled():
    with pytest.raises(ValueError, match="install_taps"):
        Scope(compiled_blocks(build(NAME)), views=("weight",))


def test_half_precision_on_the_cpu():
    model = build(NAME).to(torch.bfloat16)
    scope = small(model, schedule=[0])
    with scope.step():
        model(**batch(sequences=12)).loss.backward()
    assert all(math.isfinite(r["value"]) for r in scope.rows() if r["measure"] == "energy")


def test_a_module_replaced_while_attached_is_recorded():
    model = build(NAME)
    scope = small(model, schedule=1, strict=False)
    with scope.step():
        model.gpt_neox.layers[1] = build(NAME, seed=5).gpt_neox.layers[1]
        model(**batch(sequences=12)).loss.backward()
    (row,) = [r for r in scope.rows() if r["measure"] == "skipped"]
    assert "gpt_neox.layers.1" in row["note"]


def test_an_error_inside_a_hook_never_reaches_the_training(monkeypatch):
    def failing(*args, **kwargs):
        raise MemoryError("no room")

    monkeypatch.setattr("anisoscope.observe.collector.Running.start", failing)
    model = build(NAME)
    scope = small(model, schedule=1, strict=False)
    with scope.step():
        model(**batch(sequences=12)).loss.backward()
    assert all(p.grad is not None for p in model.parameters())
    (row,) = [r for r in scope.rows() if r["measure"] == "skipped"]
    assert "no room" in row["note"]


def test_sequences_that_are_all_padding_count_for_nothing():
    full = batch(sequences=12)
    empty = {
        name: torch.cat([tensor, tensor[:2] * 0 - (100 if name == "labels" else 0)]) for name, tensor in full.items()
    }
    found = []
    for inputs in (full, empty):
        model = build("gpt2").eval()
        scope = small(model, schedule=[0], views=("representation",))
        with scope.step():
            loss = model(**inputs).loss
            loss.backward()
        found.append(measured(scope.rows()))
    for a, b in zip(*found, strict=True):
        assert a["n"] == b["n"]
        assert a["value"] == pytest.approx(b["value"], rel=1e-4, nan_ok=True)
