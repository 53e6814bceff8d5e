"""Large runs and long trainings keep within stated bounds; `make faults` measures them, `make test` a tenth or less."""

import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from anisoscope.store.run import create_run
from faults.conftest import ALL
from faults.serving import package
from report import planted

ROWS, SECONDS, BYTES = 200_000, 20, 500_000_000
OBSERVATIONS, GROWTH = 3_000, 10 << 20
OBSERVING = """
import resource, sys, torch
from anisoscope import Scope
from observe.test_load import Tiny, trained
torch.manual_seed(0)
model = Tiny(layers=1)
store = {"store": sys.argv[2]} if len(sys.argv) > 2 else {}
least = {"proxies": ("pca",), "views": ("weight",), "nulls": ("haar",)}
scope = Scope(model, rank=2, resamples=19, schedule=1, **least, **store)
def taken():
    scope.wait()
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
steps = int(sys.argv[1])
trained(model, scope, steps // 10)
before = taken()
trained(model, scope, steps - steps // 10)
print(before, taken(), len(scope.rows()))
"""
# What Linux says of a process that was started counts its parent's memory too: this parent is small, and pytest is not.
LAUNCHER = """
import json, os, sys
process = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, used = os.wait4(process, 0)
print(json.dumps([status, used.ru_utime + used.ru_stime, used.ru_maxrss]))
"""


def large(path, rows):
    """A finished run of both roles and as many seeds as so many rows take."""
    run, left, seed = create_run(path, config={"rank": planted.RANK}, kind="pair", steps=planted.TOTAL), rows, 0
    while left:
        for role in ("decoder", "encoder"):
            sink = run.sink(f"{role}-{seed}", role=role, model=f"twin-{role}", seed=seed)
            random = np.random.default_rng(seed)
            for step in planted.STEPS:
                made = planted.evidence(role, step, random, True) + planted.clouds(role, step, random)
                sink.write((made + planted.about(role, step))[:left])
                left -= min(left, len(made) + len(planted.about(role, step)))
        seed += 1
    run.close("finished")
    return path


def test_a_report_of_a_large_run_takes_seconds_and_half_a_gigabyte(tmp_path, measured):
    run = large(tmp_path / "run", ROWS if ALL else ROWS // 10)
    command = [sys.executable, "-m", "anisoscope.cli", "report", str(run), "--out", str(tmp_path / "page.html")]
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", LAUNCHER, *command], capture_output=True, text=True, check=False)
    status, processor, largest = json.loads(done.stdout.splitlines()[-1])
    seconds, taken = time.monotonic() - began, largest * (1 if sys.platform == "darwin" else 1024)
    assert status == 0, done.stderr
    assert processor < (SECONDS if ALL else SECONDS / 2)
    assert taken < BYTES if ALL else taken < BYTES / 2
    what = f"a report of {ROWS:,} rows, at most {SECONDS} s and {BYTES / 1e6:.0f} MB"
    measured(what, f"{processor:.1f} s of processor, {seconds:.1f} s by the clock, {taken / 1e6:.0f} MB")


@pytest.mark.skipif(sys.platform != "linux", reason="memory of a process under way is read from /proc")
@pytest.mark.skipif(not ALL, reason="minutes; `make faults` does it")
def test_rows_of_a_long_training_with_a_store_do_not_stay_in_memory(tmp_path, measured):
    grown = {}
    for name, store in (("with", [str(tmp_path / "run")]), ("without", [])):
        command = [sys.executable, "-c", OBSERVING, str(OBSERVATIONS), *store]
        paths = os.pathsep.join(["tests", ".", str(package())])
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": paths}, timeout=1200
        )
        before, after, count = map(int, done.stdout.split()[-3:])
        assert count > 10 * OBSERVATIONS
        grown[name] = after - before
    assert grown["with"] < GROWTH < grown["without"]
    said = f"{grown['with'] / 1e6:.1f} MB with a store, {grown['without'] / 1e6:.1f} MB without"
    what = f"memory that observations {OBSERVATIONS // 10:,} to {OBSERVATIONS:,} add, with a store at most 10 MiB"
    measured(what, said)
