"""On a GPU: no hook waits for the device, no bit changes, waiting observations take no memory there."""

import pytest
import torch

from anisoscope import Scope
from anisoscope.capture.sites import find_sites
from anisoscope.capture.taps import Taps
from anisoscope.observe.collector import Collector
from capture.families import batch, build

pytestmark = [
    pytest.mark.filterwarnings("ignore::anisoscope.errors.ScopeWarning"),  # test_notices.py is about them
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]
VIEWS = ("representation", "weight", "embedding")


def on_gpu(**options):
    return {name: tensor.cuda() for name, tensor in batch(**options).items()}


def train(scope_of=None, steps=8, autocast=True):
    torch.manual_seed(1)
    model = build("gpt_neox").cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scope = scope_of(model) if scope_of else None
    torch.manual_seed(2)
    losses = []

    def passes(step):
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss = model(**on_gpu(seed=step, sequences=12)).loss
        loss.backward()
        losses.append(loss.detach().clone())

    for step in range(steps):
        if scope is None:
            passes(step)
        else:
            with scope.step():
                passes(step)
        optimizer.step()
        optimizer.zero_grad()
    return torch.stack(losses), [p.detach().clone() for p in model.parameters()], scope


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("schedule", [2, "always"])
def test_training_is_bit_identical(schedule, autocast):
    def scope_of(model):
        return Scope(model, steps=8, rank=4, resamples=19, schedule=schedule, strict=True)

    bare, observed = train(autocast=autocast), train(scope_of, autocast=autocast)
    assert torch.equal(bare[0], observed[0])
    assert all(torch.equal(a, b) for a, b in zip(bare[1], observed[1], strict=True))
    assert [r for r in observed[2].rows() if r["measure"] == "energy"]


@pytest.mark.parametrize(("rows", "most_tokens"), [(0, 0), (8192, 0), (0, 54)])
def test_no_hook_waits_for_the_device(rows, most_tokens):
    model = build("gpt_neox").cuda().train()
    inputs = on_gpu(sequences=12)
    options = {"rows": rows, "vocabulary": 40, "most_tokens": most_tokens}
    listener = Collector(VIEWS, guard=rows == 0)
    listener.next_step(VIEWS, **options)
    sites = find_sites(model)

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(**inputs).loss
        loss.backward()

    with Taps(model, sites, listener):
        step()  # what is made once (the sketch, the graphs of cuBLAS) may wait
    listener.end_step()
    torch.cuda.synchronize()
    waits = []
    call = Collector

    class Watching(call):
        """Waiting for the device is an error inside every call of the listener, and allowed in the model's own code."""

        __slots__ = ()

    def strict(name):
        inner = getattr(call, name)

        def act(self, *args):
            torch.cuda.set_sync_debug_mode("error")
            try:
                return inner(self, *args)
            except RuntimeError as error:
                waits.append(f"{name}: {error}")
                raise
            finally:
                torch.cuda.set_sync_debug_mode("default")

        return act

    for name in ("activation", "gradient", "pair", "looked_up", "table", "end_step"):
        setattr(Watching, name, strict(name))
    watching = Watching(VIEWS, guard=rows == 0)
    watching._sketches = listener._sketches
    watching.next_step(VIEWS, **options)
    with Taps(model, sites, watching) as taps:
        step()
    watching.end_step()
    assert not waits
    taps.require_heard()
    torch.cuda.set_sync_debug_mode("error")  # a canary: the mode is on and does catch
    try:
        with pytest.raises(RuntimeError):
            torch.ones(1, device="cuda").item()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_gpu_gives_the_numbers_of_the_cpu():
    found = []
    for device in ("cpu", "cuda"):
        model = build("gpt_neox").to(device).eval()
        scope = Scope(model, rank=4, resamples=49, schedule=[0], strict=True, targets=True)
        with scope.step():
            inputs = {name: tensor.to(device) for name, tensor in batch(sequences=12).items()}
            model(**inputs).loss.backward()
        found.append(scope.rows())
    key = ("view", "layer", "tensor", "subset", "proxy", "measure", "variant", "null", "n")
    cpu, gpu = ({tuple(r[k] for k in key): r for r in rows if r["measure"] != "cost"} for rows in found)
    assert cpu.keys() == gpu.keys()
    for name, row in cpu.items():
        if row["view"] and row["measure"] in ("energy", "enrichment") and not (row["null"] or "").startswith("targets"):
            assert gpu[name]["value"] == pytest.approx(row["value"], rel=2e-3), name


def test_what_is_accumulated_beside_the_training_is_what_a_cpu_accumulates(monkeypatch):
    """Folds, first positions and the rest over two windows; rows would differ if a stream read too early."""
    monkeypatch.setattr("anisoscope.scope.ALWAYS_TOKENS", 54)
    found = []
    for device in ("cpu", "cuda"):
        model = build("gpt_neox").to(device).eval()
        scope = Scope(model, steps=60, rank=4, resamples=19, schedule="always", strict=True, views=VIEWS[:2])
        for number in range(60):
            inputs = {name: tensor.to(device) for name, tensor in batch(seed=number, sequences=12).items()}
            with scope.step():
                model(**inputs).loss.backward()
        found.append(
            {
                (r["step"], r["layer"], r["view"], r["tensor"], r["timing"], r["measure"], r["null"]): r["value"]
                for r in scope.rows()
                if r["measure"] in ("energy", "enrichment", "top_share", "mean_norm")
            }
        )
    cpu, gpu = found
    assert cpu.keys() == gpu.keys()
    assert len(cpu) > 100
    for name, value in cpu.items():
        assert gpu[name] == pytest.approx(value, rel=2e-3, nan_ok=True), name


def test_observations_that_wait_take_no_memory_on_the_gpu():
    model = build("gpt_neox").cuda().train()
    scope = Scope(model, rank=4, resamples=999, schedule=1, strict=True, views=("representation", "weight"))
    for step in range(6):
        with scope.step():
            model(**on_gpu(seed=step, sequences=12)).loss.backward()
    scope.rows()
    model.zero_grad()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    scope.close()
    del scope
    assert before - torch.cuda.memory_allocated() < 1 << 20
