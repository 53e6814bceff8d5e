"""Orthonormal bases of many matrices by their Gram matrices, as a GPU makes them."""

import torch

from anisoscope.geometry.second_form import orthonormal_by_grams


def test_spans_are_those_of_a_qr_decomposition_even_where_columns_nearly_depend():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 30, 4, generator=generator, dtype=torch.float64)
    x[1] *= 1e-150
    x[2, :, 3] = x[2, :, 0] + 1e-4 * x[2, :, 3]
    x[3, :, 3] = x[3, :, 0] + 1e-9 * x[3, :, 3]
    x[4, :, 3] = x[4, :, 0]  # one direction short
    found = orthonormal_by_grams(x)
    assert torch.allclose(found.mT @ found, torch.eye(4, dtype=torch.float64).expand(6, 4, 4), atol=1e-10)
    expected = torch.linalg.qr(x).Q
    for k in (0, 1, 2, 3, 5):
        assert torch.allclose(found[k] @ found[k].T, expected[k] @ expected[k].T, atol=1e-6), k
    gone = x[4] - found[4] @ (found[4].T @ x[4])
    assert float(gone.abs().max()) < 1e-10
