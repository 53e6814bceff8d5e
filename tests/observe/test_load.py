"""A scope under load and in odd company: memory, forks, dropped scopes, other dtypes, frozen layers."""

import gc
import os
import threading
import time

import pytest
import torch
from torch import nn

from anisoscope import Scope, ScopeWarning, open_run

pytestmark = pytest.mark.filterwarnings("ignore:not measured at step")  # weights are changed by hand


class Tiny(nn.Module):
    def __init__(self, width=8, layers=3):
        super().__init__()
        self.embed = nn.Embedding(32, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(layers)
        )
        self.head = nn.Linear(width, 32)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


def trained(model, scope, steps):
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        ids = torch.randint(0, 32, (12, 8), generator=generator)
        with scope.step():
            nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        model.zero_grad()


def watched(model, **options):
    return Scope(model, rank=2, resamples=19, schedule=1, **options)


def plain(rows):
    """What a row says, without what only a run knows and what only a clock does."""
    names = ("step", "layer", "view", "measure", "null", "proxy", "tensor", "subset", "value")
    return sorted(str([row.get(name) for name in names]) for row in rows if not row["measure"].startswith("cost"))


def test_rows_of_a_store_are_read_from_there_and_do_not_stay_in_memory(tmp_path):
    torch.manual_seed(0)
    model = Tiny()
    kept = watched(model)
    trained(model, kept, 3)
    stored = watched(model, store=tmp_path / "run")
    trained(model, stored, 3)
    assert len(stored.rows()) > 100
    assert plain(stored.rows()) == plain(kept.rows())
    assert stored._series._kept == []
    kept.close()
    stored.close()
    assert open_run(tmp_path / "run").table().num_rows == len(stored.rows())


def test_what_the_store_could_not_take_is_still_told(tmp_path):
    import shutil

    model = Tiny()
    scope = watched(model, store=tmp_path / "run")
    trained(model, scope, 1)
    first = len(scope.rows())
    copy = shutil.copytree(tmp_path / "run", tmp_path / "copy")
    shutil.rmtree(tmp_path / "run")
    trained(model, scope, 1)
    with pytest.warns(ScopeWarning, match="could not be written"):
        scope.wait()
    shutil.copytree(copy, tmp_path / "run")
    found = scope.rows()
    assert len(found) > first + 50
    assert "the sink failed" in found[-1]["note"]
    scope.close()


@pytest.mark.parametrize("act", ["rows", "close"])
def test_a_forked_child_does_not_hang_and_leaves_the_parent_alone(act):
    model = Tiny()
    scope = watched(model)
    trained(model, scope, 1)
    scope.rows()
    scope._worker._left.append(99)  # as if a judgement were under way when the process was forked
    child = os.fork()
    if child == 0:
        getattr(scope, act)()
        os._exit(7)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        time.sleep(0.05)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the child hangs")
    assert os.waitstatus_to_exitcode(status) == 7
    scope._worker._left.remove(99)
    trained(model, scope, 1)
    assert {row["step"] for row in scope.rows()} == {0, 1}
    scope.close()


def test_a_scope_that_is_dropped_leaves_no_threads():
    def ours():
        return [thread for thread in threading.enumerate() if thread.name.startswith("anisoscope")]

    before = len(ours())
    model = Tiny()
    scope = watched(model)
    trained(model, scope, 1)
    scope.wait()
    assert len(ours()) == before + 3
    del scope
    gc.collect()
    deadline = time.monotonic() + 10
    while len(ours()) > before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(ours()) == before


def test_float64_by_default_is_observed():
    torch.set_default_dtype(torch.float64)
    try:
        model = Tiny()
        scope = watched(model, strict=True)
        trained(model, scope, 2)
        rows = scope.rows()
        scope.close()
    finally:
        torch.set_default_dtype(torch.float32)
    assert not [row["note"] for row in rows if row["measure"] == "skipped"]
    assert {row["layer"] for row in rows if row["measure"] == "energy"} >= {0, 1, 2, 3}


def test_layers_above_frozen_ones_are_observed():
    model = Tiny()
    for part in (model.embed, model.layers[0]):
        part.requires_grad_(False)
    scope = watched(model, strict=True)
    with pytest.warns(ScopeWarning, match="the embedding embed is frozen"):
        trained(model, scope, 2)
    rows = scope.rows()
    scope.close()
    assert {row["layer"] for row in rows if row["measure"] == "energy" and row["view"] == "representation"} == {2, 3}
    assert {row["layer"] for row in rows if row["tensor"] == "activations"} >= {1}


def test_a_model_that_is_frozen_as_a_whole_is_an_error():
    model = Tiny()
    scope = watched(model)
    model.requires_grad_(False)
    with pytest.warns(ScopeWarning, match="no gradient at layers.0"), scope.step():
        model(torch.randint(0, 32, (12, 8)))
    assert "no gradient at" in scope.rows()[0]["note"]
    scope.close()
