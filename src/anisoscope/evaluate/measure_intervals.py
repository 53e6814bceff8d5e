"""Intervals over sequences for the isotropy measures of a training.

Letters: N rows, D width, G groups of units.

Tokens of one sequence depend on one another, so an error must come from whole sequences (or documents) left out. Units
are put into at most 16 groups, and each measure is taken again without each group. For measures of the spectrum that is
done in the eigenbasis of the whole cloud: the variance along each eigenvector without the group stands for the
eigenvalue without it, which is right to first order and needs no further decomposition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from anisoscope.evidence.inference import FEWEST_EFFECTIVE, Spread, effective_units
from anisoscope.geometry.cloud_parts import Material, Spectrum
from anisoscope.geometry.measure_registry import MeasureMethod
from anisoscope.geometry.results import Estimate
from anisoscope.stats.unit_directions import UnitSum

GROUPS = 16


@dataclass(frozen=True, slots=True, eq=False)
class MeasureUnits:
    """What each measure is given in place of the whole cloud, once for each group that is left out."""

    spectra: Sequence[Spectrum]
    directions: Sequence[UnitSum]
    effective: float

    @classmethod
    def of(cls, spectrum: Spectrum, rows_ND: Tensor, units_N: Tensor) -> MeasureUnits | None:
        """From the rows that were kept of a cloud; None where fewer than 8 units are behind them."""
        unit_N = torch.unique(units_N, return_inverse=True)[1]
        units = int(unit_N.max()) + 1
        if units < FEWEST_EFFECTIVE:
            return None
        centred_ND = rows_ND.double() - spectrum.moments.mean
        energy_n = torch.zeros(units, dtype=torch.float64, device=rows_ND.device)
        energy_n.index_add_(0, unit_N, centred_ND.square().sum(1))
        effective = effective_units(energy_n)
        if effective < FEWEST_EFFECTIVE:
            return None
        group_N = unit_N % GROUPS if units > GROUPS else unit_N  # units are numbered by a hash: groups are random
        return cls(_spectra(spectrum, rows_ND, group_N), _directions(rows_ND, group_N), effective)

    def estimate(self, method: MeasureMethod, found: Estimate, variant: str | None = None) -> Estimate:
        """The estimate with its interval, where the measure can be taken again without a group."""
        values = self._without_groups(method, variant)
        if values is None or not bool(torch.isfinite(values).all()):
            return found
        return Spread.of(values).estimate(replace(found, units=self.effective), found.value)

    def _without_groups(self, method: MeasureMethod, variant: str | None) -> Tensor | None:
        compute = method.variants.get(variant or "", next(iter(method.variants.values())))
        parts: Sequence[Any]
        if method.needs == "directions":
            parts = self.directions
        elif not method.of_spectrum:
            return None
        elif method.needs == "spectrum":
            parts = self.spectra
        elif method.needs == "material":
            parts = [Material.of_spectrum(spectrum) for spectrum in self.spectra]
        else:
            parts = [spectrum.moments for spectrum in self.spectra]
        found = [compute(part) for part in parts]
        values = [float(one) for one in found if isinstance(one, Estimate)]
        return torch.tensor(values, dtype=torch.float64, device="cpu") if len(values) == len(parts) else None


def kept_units(material: Material, samples: Sequence[Any]) -> MeasureUnits | None:
    """The units behind a cloud of two folds, whose samples are given."""
    if material.sample is None or material.spectrum is None:
        return None
    return MeasureUnits.of(material.spectrum, material.sample, torch.cat([sample.sequences for sample in samples]))


def _spectra(whole: Spectrum, rows_ND: Tensor, group_N: Tensor) -> list[Spectrum]:
    """Spectra without each group; their moments are written in the eigenbasis, and count as many rows as the whole."""
    moments = whole.moments
    about_mean_GD = _variances((rows_ND.double() - moments.mean) @ whole.vectors, group_N, centred=True)
    about_zero_GD = _variances(rows_ND.double() @ whole.uncentred_vectors, group_N, centred=False)
    scatter_GD, second_GD = about_mean_GD * moments.count, about_zero_GD * moments.count
    sorted_GD, uncentred_GD = (values.sort(1).values.cpu() for values in (scatter_GD, second_GD))
    diagonals = [replace(moments, scatter=torch.diag(scatter_D), third=None, fourth=None) for scatter_D in scatter_GD]
    sides = zip(diagonals, sorted_GD, uncentred_GD, strict=True)
    return [Spectrum(one, centred=centred_D, uncentred=uncentred_D) for one, centred_D, uncentred_D in sides]


def _variances(along_ND: Tensor, group_N: Tensor, *, centred: bool) -> Tensor:
    """Mean square of each column without each group, about its mean or about 0."""
    groups, width = int(group_N.max()) + 1, along_ND.shape[1]
    squares_GD = along_ND.new_zeros(groups, width).index_add_(0, group_N, along_ND.square())
    count_G = along_ND.new_zeros(groups).index_add_(0, group_N, along_ND.new_ones(len(group_N)))
    left_G = (count_G.sum() - count_G)[:, None]
    mean_square_GD = (squares_GD.sum(0) - squares_GD) / left_G
    if not centred:
        return mean_square_GD
    sums_GD = along_ND.new_zeros(groups, width).index_add_(0, group_N, along_ND)
    return (mean_square_GD - ((sums_GD.sum(0) - sums_GD) / left_G).square()).clamp_min(0)


def _directions(rows_ND: Tensor, group_N: Tensor) -> list[UnitSum]:
    parts = [UnitSum.of(rows_ND[group_N == group]) for group in range(int(group_N.max()) + 1)]
    total = sum((part.total for part in parts), torch.zeros_like(parts[0].total))
    count, zeros = sum(part.count for part in parts), sum(part.zeros for part in parts)
    return [UnitSum(total - part.total, count - part.count, zeros - part.zeros) for part in parts]
