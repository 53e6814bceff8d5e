"""Statistics are kept by module: two linear maps of one block are two sites, each with the numbers it has alone."""

import numpy as np
import pytest
import torch

from anisoscope import CaptureOptions, Scope, SessionOptions, open_run
from anisoscope.report.make import make_report
from capture.families import batch, build
from report.embedded import figures_in

BOTH = ["transformer.h.0", "transformer.h.1"]
MAPS = ["attn.c_attn", "mlp.c_fc"]


def observed(maps, tmp_path=None, **options):
    model = build("gpt2").eval()
    blocks = [name for name, _ in model.named_modules() if name.count(".") == 2 and name.startswith("transformer.h.")]
    sites = [*blocks, *(f"{block}.{name}" for block in blocks for name in maps)]
    capture = CaptureOptions(sites=sites)
    given = {"rank": 4, "resamples": 19, "schedule": 1, "strict": True, "steps": 4, "capture": capture}
    scope = Scope(model, **(given | ({} if tmp_path is None else {"store": tmp_path / "run"}) | options))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        with scope.step():
            model(**batch(seed=step, sequences=16)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    rows = scope.rows()
    scope.close()
    return rows


def by_site(rows):
    names = ("step", "site", "proxy", "timing", "measure", "variant", "null")
    return {tuple(r[n] for n in names): repr(r["value"]) for r in rows if r["view"] == "weight" and r["site"]}


def test_two_maps_of_a_block_have_the_rows_that_each_has_alone():
    together = by_site(observed(MAPS))
    alone = by_site(observed(MAPS[:1])) | by_site(observed(MAPS[1:]))
    assert len(together) == len(alone) > 100
    assert together == alone
    assert {site.split(".", 3)[3] for _, site, *_ in together} == set(MAPS)


def test_the_report_tells_them_apart(tmp_path):
    observed(MAPS, tmp_path)
    page = make_report([str(tmp_path / "run")])
    emergence = figures_in(page)["emergence"]["series"]
    layers = {s["tags"]["layer"] for s in emergence if s["tags"]["view"] == "weight"}
    assert layers == {f"{layer} {name}" for layer in (1, 2, 3) for name in MAPS}


def test_a_run_keeps_spectra_and_bases_of_every_observation_and_what_decides_its_numbers(tmp_path):
    rows = observed(MAPS[1:], tmp_path, session=SessionOptions(keep_bases=True))
    run = open_run(tmp_path / "run")
    shares = {(r["step"], r["layer"]): r["value"] for r in rows if _is_top_share(r)}
    for step in range(3):
        spectra = run.tensors(f"spectra-scope-{step:09d}")
        values = spectra["representation/1/transformer.h.0/gradients"]
        assert (np.diff(values) <= 0).all()
        assert values[0] / values.sum() == pytest.approx(shares[step, 1], rel=1e-5)
        assert {name.split("/")[0] for name in spectra} == {"representation", "weight", "embedding"}
        basis = run.tensors(f"subspaces-scope-rolling-{step:09d}")["representation/1/transformer.h.0/all/pca/0"]
        assert np.allclose(basis.T @ basis, np.eye(4), atol=1e-6)
    parameters = run.manifest["parameters"]
    assert parameters["zeta"] == 0.2
    assert parameters["windows"] == {"early": 0.3, "late": 0.7}
    assert {"semi_nmf_iterations", "two_nn_discard", "reservoir_rows", "fold_seed", "alpha"} <= set(parameters)
    assert {"versions", "machine", "commit"} <= set(run.manifest)


def _is_top_share(row):
    usual = row["variant"] is None and row["subset"] == "all"
    return usual and row["measure"] == "top_share" and row["tensor"] == "gradients"


def test_rows_carry_their_floor_and_their_errors(tmp_path):
    rows = observed(MAPS[1:])
    for measure in ("top_share", "effective_rank", "participation_ratio", "isoscore_star", "average_cosine", "energy"):
        found = [r for r in rows if r["measure"] == measure]
        assert found
        assert all(r["floor"] is not None and r["width"] for r in found), measure
    enriched = [r for r in rows if r["measure"] == "enrichment" and r["low"] is not None]
    assert enriched
    for r in enriched:
        assert r["low"] < r["low90"] < r["value"] < r["high90"] < r["high"]
        assert r["floor"] == 1
        assert r["se"] > 0
        assert 8 <= r["units"] <= r["n"] + 1e-9
