"""Inner products of the gradients of an embedding by sequence, against a loop over types."""

from __future__ import annotations

import pytest
import torch

from anisoscope.evidence import typed_units
from anisoscope.evidence.typed_units import TypedUnits

WIDTH, RANK, UNITS, TYPES = 6, 2, 5, 9


def units(seed: int) -> tuple[TypedUnits, dict[tuple[int, int], torch.Tensor], list[torch.Tensor]]:
    """Units made of random rows, their sums by unit and type, and the projector of each fold."""
    drawn = torch.Generator().manual_seed(seed)
    rows = torch.randn(60, WIDTH, generator=drawn, dtype=torch.float64)
    of_unit = torch.randint(UNITS, (60,), generator=drawn)
    types = torch.randint(TYPES, (60,), generator=drawn) + 3 * (seed % 2)  # some types on one side alone
    basis = torch.Generator().manual_seed(0)
    bases = [torch.linalg.qr(torch.randn(WIDTH, RANK, generator=basis, dtype=torch.float64))[0] for _ in range(2)]
    sums: dict[tuple[int, int], torch.Tensor] = {}
    for row, unit, kind in zip(rows, of_unit.tolist(), types.tolist(), strict=True):
        sums[unit, kind] = sums.get((unit, kind), torch.zeros(WIDTH, dtype=torch.float64)) + row
    return TypedUnits.of(rows, types, of_unit, types % 2, bases), sums, bases


@pytest.mark.parametrize("most_kept", [0, 1 << 24])
@pytest.mark.parametrize("numbers", [UNITS * 2 * WIDTH, 1 << 24])
def test_products_are_those_of_a_loop_over_types(monkeypatch: pytest.MonkeyPatch, most_kept: int, numbers: int) -> None:
    """However many types are taken at a time, and whether products by column are kept or not."""
    monkeypatch.setattr(typed_units, "_MOST_KEPT", most_kept)
    monkeypatch.setattr(typed_units, "_CHUNK_NUMBERS", numbers)
    own, sums, bases = units(0)
    for other, others in ((own, sums), units(1)[:2]):
        inside, whole, axes = (torch.zeros(UNITS, UNITS, dtype=torch.float64) for _ in range(3))
        for (s, kind), first in sums.items():
            for (t, same), second in others.items():
                if kind == same:
                    basis = bases[kind % 2]
                    inside[s, t] += first @ basis @ basis.T @ second
                    whole[s, t] += first @ second
                    axes[s, t] += (first * second) @ basis.square().sum(1)
        found = own.cross(other)
        assert torch.allclose(found.inside, inside, atol=1e-12)
        assert torch.allclose(found.outside, whole - inside, atol=1e-12)
        assert torch.allclose(found.axes, axes, atol=1e-12)
