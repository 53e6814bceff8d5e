"""Fits of several clouds at once are those of each cloud by itself."""

from __future__ import annotations

import pytest
import torch

from anisoscope.geometry.semi_nmf import semi_nmf
from anisoscope.geometry.semi_nmf_together import semi_nmf_together


def _clouds(dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes, found = ((200, 3.0), (150, 0.0), (200, 0.5), (61, 1.0)), []
    for n, mean in shapes:  # unequal sizes, and one centred cloud, whose best factorisation is a limit
        scale = torch.linspace(3, 0.2, 12, dtype=torch.float64)
        found.append((torch.randn(n, 12, generator=generator, dtype=torch.float64) * scale + mean).to(dtype))
    return found


@pytest.mark.parametrize("iterations", [3, 60, 500])
def test_fits_are_those_of_each_cloud_by_itself(iterations: int) -> None:
    clouds = _clouds(torch.float64)
    own = torch.Generator().manual_seed(7)
    together = semi_nmf_together(clouds, 4, generator=own, iterations=iterations)
    for x, fit in zip(clouds, together, strict=True):
        alone = semi_nmf(x, 4, generator=own, iterations=iterations)
        assert fit.converged == alone.converged
        assert len(fit.loss_trace) == len(alone.loss_trace)
        assert fit.loss_trace == pytest.approx(alone.loss_trace, rel=1e-9)
        assert fit.codes.shape == alone.codes.shape
        assert torch.allclose(fit.codes @ fit.concepts, alone.codes @ alone.concepts, atol=1e-7)


def test_losses_never_rise_and_codes_are_not_negative() -> None:
    for fit in semi_nmf_together(_clouds(torch.float32), 5, iterations=80):
        trace = torch.tensor(fit.loss_trace)
        assert bool((trace.diff() <= 0).all())
        assert bool((fit.codes >= 0).all())


def test_no_cloud_is_no_fit() -> None:
    assert semi_nmf_together([], 3) == []
