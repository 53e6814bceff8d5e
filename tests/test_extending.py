"""docs/extending.md is executed: what it registers is in the rows and in the report."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from anisoscope import Scope, Subspace, cross_fit, register_measure, register_null, register_proxy, vocabulary
from anisoscope.evidence.nulls.registry import unregister_null
from anisoscope.geometry.measure_registry import unregister_measure
from anisoscope.geometry.results import Estimate
from anisoscope.geometry.subspace import unregister_proxy
from anisoscope.store.run import open_run
from capture.families import batch, build
from report.embedded import figures_in
from study.jobs import corpus

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
PLUGINS = ("hubness.py", "dealt.py", "widest.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The page's files, and its last example executed beside them, as a user would: in a process of its own."""
    where = tmp_path_factory.mktemp("extending")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    for block in blocks:
        name = re.match(r"# (\w+\.py)\n", block)
        (where / (name[1] if name else "use.py")).write_text(block, encoding="utf-8")
    assert {path.name for path in where.glob("*.py")} == {*PLUGINS, "use.py"}
    subprocess.run([sys.executable, "use.py"], cwd=where, check=True, capture_output=True)
    return where


def anisoscope(where, *arguments):
    """The command line in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "anisoscope.cli", *arguments], cwd=where, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_puts_a_measure_a_null_and_a_proxy_into_rows_and_report(folder):
    rows = open_run(folder / "run").table().to_pylist()
    hubs = [r for r in rows if r["measure"] == "hubness"]
    assert {r["layer"] for r in hubs} == {0, 1, 2}
    assert all(np.isfinite(r["value"]) and 0.2 < r["floor"] < 0.4 for r in hubs)  # k = 10: 1/√10
    dealt = [r for r in rows if r["null"] == "dealt"]
    assert {r["view"] for r in dealt} == {"representation", "weight", "embedding"}
    assert all(0 < r["p"] <= 1 and r["low"] < r["value"] < r["high"] for r in dealt if r["low"] is not None)
    assert {"pca", "widest"} == {r["proxy"] for r in rows if r["measure"] == "energy"}
    assert "hubness" not in vocabulary.MEASURES  # this process never loaded them: the report knows from the manifest
    anisoscope(folder, "report", "run")
    page = (folder / "run" / "report.html").read_text(encoding="utf-8")
    tags = {name: [series["tags"] for series in figure["series"]] for name, figure in figures_in(page).items()}
    assert "hubness" in {t["measure"] for t in tags["dimension-layers"]}
    assert "dealt" in {t["null"] for t in tags["emergence"]}
    fits = {(t["proxy"], t["timing"], t["subset"]) for t in tags["emergence"]}
    assert ("widest", "rolling", "all tokens") in fits


def test_commands_take_them_with_plugins(folder, tmp_path):
    measured = json.loads(anisoscope(folder, "measure", "demo", "--plugins", "hubness.py", "--json"))[0]["measures"]
    (hub,) = [m for m in measured if m["measure"] == "hubness"]
    assert hub["floor"] == pytest.approx(1 / 10**0.5, rel=0.02)
    tiny = "--layers 2 --width 16 --heads 2 --vocabulary 300 --length 16 --batch 8 --steps 2 --observations 2 --rank 2"
    tiny += " --ranks 1 --resamples 19 --probe 4096 --held-out 0.5 --no-targets --checkpoints 0 --evaluations 1"
    plugins = ["--plugins", ",".join(PLUGINS), "--proxies", "widest,pca", "--device", "cpu", "--out", "pair"]
    said = anisoscope(folder, "pair", *tiny.split(), "--corpus", corpus(tmp_path), *plugins)
    assert "enrichment over haar by layer" in said  # of the first proxy, whichever it is
    rows = open_run(folder / "pair").table().to_pylist()
    assert {"hubness"} <= {r["measure"] for r in rows}
    assert {"dealt"} <= {r["null"] for r in rows}
    assert "hubness" in (folder / "pair" / "report.html").read_text(encoding="utf-8")


def test_a_plugin_that_is_missing_or_fails_is_told_in_one_line(folder, tmp_path):
    (tmp_path / "bad.py").write_text("1 / 0\n", encoding="utf-8")
    for plugin, message in (
        ("none.py", "no such file"),
        ("not_a_module", "importable module"),
        ("bad.py", "ZeroDivision"),
    ):
        command = [sys.executable, "-m", "anisoscope.cli", "measure", "demo", "--plugins", plugin]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode in (1, 2)
        assert message in done.stderr
        assert "Traceback" not in done.stderr


def test_a_scope_takes_a_function_as_proxy():
    def first_axes(rows):
        return Subspace(torch.eye(rows.shape[1], dtype=torch.float64)[:, :4])

    model = build("gpt2").eval()
    scope = Scope(model, rank=4, proxies=(first_axes,), schedule=[0], resamples=19, strict=True)
    with scope.step():
        model(**batch(sequences=16)).loss.backward()
    rows = [r for r in scope.rows() if r["measure"] == "energy"]
    unregister_proxy("first_axes")
    assert {r["proxy"] for r in rows} == {"first_axes"}
    x, g = torch.randn(2, 12, 8, 6, generator=torch.Generator().manual_seed(0))
    axes = Subspace(torch.eye(6, dtype=torch.float64)[:, :2])
    assert cross_fit(x, g, method=lambda rows: axes, resamples=19).energy == pytest.approx(
        float(g[..., :2].square().sum() / g.square().sum())
    )


def test_a_null_from_outside_is_calibrated_where_it_is_true():
    """Random directions by another route: p of an independent proxy is uniform, and its mean share is K/D."""

    @register_null("random-frames", breaks="the orientation")
    def random_frames(second, basis, draws, generator):
        frames = torch.linalg.qr(torch.randn(draws, *basis.shape, generator=generator, dtype=second.dtype)).Q
        return ((second @ frames) * frames).sum((1, 2))

    try:
        ps, means = [], []
        for seed in range(200):
            generator = torch.Generator().manual_seed(seed)
            x, g = torch.randn(2, 12, 6, 10, generator=generator)
            found = cross_fit(x, g, rank=3, nulls=("random-frames",), resamples=99, generator=generator, isotropy=False)
            ps.append(found.p["random-frames"])
            means.append(found.mean["random-frames"])
        assert np.mean(means) == pytest.approx(0.3, abs=0.01)
        assert np.mean(np.array(ps) <= 0.05) < 0.11  # 99 % of binomial(200, 0.05) lies below
        assert np.mean(np.array(ps) <= 0.5) == pytest.approx(0.5, abs=0.15)
    finally:
        unregister_null("random-frames")


def test_names_of_ours_cannot_be_taken_and_wrong_results_are_told():
    with pytest.raises(ValueError, match="must be new"):
        register_measure("two_nn")(lambda x: None)
    with pytest.raises(ValueError, match="must be new"):
        register_null("haar", breaks="")(lambda *given: None)
    with pytest.raises(ValueError, match="must be new"):
        register_proxy("pca")(lambda *given: None)
    with pytest.raises(ValueError, match="everything"):
        register_measure("mine", needs="everything")
    register_null("short", breaks="nothing")(lambda second, basis, draws, generator: second.new_zeros(3))
    try:
        x, g = torch.randn(2, 12, 6, 10, generator=torch.Generator().manual_seed(0))
        with pytest.raises(ValueError, match="one energy for each of 19 draws"):
            cross_fit(x, g, rank=3, nulls=("short",), resamples=19)
    finally:
        unregister_null("short")
    register_measure("mine", needs="moments")(lambda m: Estimate(value=1.0, n=1))
    unregister_measure("mine")
    assert "mine" not in vocabulary.MEASURES
