"""Curvature, tangents and frequency on a GPU: the CPU's numbers."""

import pytest
import torch

from anisoscope import Scope, curvature, fit_subspace, tangent_overlap, visible_curvature
from anisoscope.geometry.neighbours import nearest_to
from anisoscope.testing import sphere
from capture.families import batch, build

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore::anisoscope.errors.ScopeWarning"),  # test_notices.py is about them
]


@pytest.fixture(scope="module")
def cloud():
    noise = torch.randn(4000, 30, generator=torch.Generator().manual_seed(0)) / 30**0.5
    return sphere(4000, dim=2, width=30, radius=2.0).float() + 0.02 * noise


def test_curvature_and_tangents_are_those_of_the_cpu(cloud):
    proxy = fit_subspace(cloud, method="pca", rank=3)
    here = curvature(cloud, dim=2, along=proxy)
    there = curvature(cloud.cuda(), dim=2, along=proxy.to("cuda"))
    assert there.neighbours == here.neighbours
    for a, b in ((here.rms, there.rms), (here.mean, there.mean), (here.ratio, there.ratio)):
        assert (float(b), b.low, b.high) == pytest.approx((float(a), a.low, a.high), rel=1e-3)
    a, b = tangent_overlap(cloud, proxy, dim=2), tangent_overlap(cloud.cuda(), proxy.to("cuda"), dim=2)
    assert (float(b), b.low, b.high, b.p) == pytest.approx((float(a), a.low, a.high, a.p), rel=1e-3)
    a, b = (visible_curvature(x, [0.4, 0.8], dim=2).points for x in (cloud, cloud.cuda()))
    assert [float(point) for point in b] == pytest.approx([float(point) for point in a], rel=1e-3)


def test_neighbours_of_some_rows_are_those_of_the_cpu(cloud):
    rows = torch.arange(0, 4000, 37)
    here, there = nearest_to(cloud, rows, 12), nearest_to(cloud.cuda(), rows.cuda(), 12)
    for a, b in zip(here, there, strict=True):
        torch.testing.assert_close(b.cpu(), a, rtol=1e-4, atol=1e-5)


def test_frequency_is_that_of_the_cpu():
    found = []
    for device in ("cpu", "cuda"):
        model = build("gpt_neox").to(device).eval()
        scope = Scope(model, rank=4, resamples=49, schedule=1, strict=True, frequency=True)
        for step in range(4):
            with scope.step():
                inputs = {k: v.to(device) for k, v in batch(seed=step, sequences=30).items()}
                model(**inputs).loss.backward()
            model.zero_grad()
        kinds = ("frequency_correlation", "bin_enrichment", "bin_energy", "bin_spread", "non_cancellation")
        key = ("step", "view", "layer", "tensor", "subset", "measure", "variant")
        found.append({tuple(r[k] for k in key): r["value"] for r in scope.rows() if r["measure"] in kinds})
    cpu, gpu = found
    assert cpu.keys() == gpu.keys()
    assert len(cpu) > 300
    for name, value in cpu.items():
        assert gpu[name] == pytest.approx(value, rel=5e-3, abs=5e-3, nan_ok=True), name
