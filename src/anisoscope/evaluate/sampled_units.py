"""Gradients by sequence, or document, of what was kept of an observation: the units of intervals and swap tests.

Letters: n sequences, T positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.capture.sites import SiteKey
from anisoscope.evidence.typed_units import TypedUnits
from anisoscope.evidence.units import BilinearUnits
from anisoscope.geometry.subspace import Subspace
from anisoscope.observe.embedding import type_folds
from anisoscope.observe.statistics import Name, Observation
from anisoscope.stats.reservoir import Reservoir


def typed_units(observed: Observation, pair: tuple[Subspace, Subspace], under: str | None = None) -> TypedUnits | None:
    """The gradient of the embedding by sequence, of those kept, for proxies that were fitted on two folds of types."""
    source = observed.statistics if under is None else observed.others[under]
    found = [source.get(Name("embedding", 0, "looked-up", fold, "kept")) for fold in (0, 1)]
    kept = [one for one in found if isinstance(one, Reservoir)]
    if len(kept) < len(found):
        return None
    samples = [one.sample() for one in kept]
    rows, types, units = (
        torch.cat([getattr(sample, name) for sample in samples]) for name in ("values", "tokens", "sequences")
    )
    side = type_folds(types, seed=kept[0].seed)
    return TypedUnits.of(rows, types, units, side, judged_bases(pair, rows.device))


def judged_bases(pair: tuple[Subspace, Subspace], device: torch.device) -> tuple[Tensor, Tensor]:
    """Bases by the fold of types that they are judged on: the one that they were not fitted on."""
    return pair[1].basis.to(device), pair[0].basis.to(device)


@dataclass(frozen=True, slots=True, eq=False)
class Stacked:
    """Whole sequences as ``(n, T, ·)``; those of one document, or of equal contents, are apart, and of one unit."""

    inputs: Tensor
    deltas: Tensor
    strata: Tensor | None
    ids: Tensor
    unit: Tensor


def held_units(
    observed: Observation, at: SiteKey, held: int, subspace: Subspace, view: str = "weight"
) -> BilinearUnits:
    """The gradient of a linear map by sequence, of those kept of a fold, for a proxy of the other fold."""
    return bilinear_units(stacked_sequences(observed, at, held, None, view), subspace)


def bilinear_units(stacked: Stacked, subspace: Subspace) -> BilinearUnits:
    """Sequences put side by side as the units of a linear map's gradient."""
    basis = subspace.basis.to(stacked.inputs.device)
    return BilinearUnits(stacked.ids.cpu(), stacked.inputs, stacked.deltas, basis, stacked.unit)


def stacked_sequences(
    observed: Observation, at: SiteKey, fold: int, under: str | None, view: str = "weight"
) -> Stacked:
    """Rows of whole sequences put side by side.

    Where all sequences are of one length and labelled alike, aligned positions are of one kind and need no strata; else
    they are: first position, labelled, unlabelled, and −1 for padding.
    """
    rows = observed.kept(view, at, "inputs", fold, under=under)
    d_rows = observed.kept(view, at, "deltas", fold, under=under)
    sketch, flags = d_rows.values[:, :-1].float(), d_rows.values[:, -1]
    ids, unit_of_row = torch.unique(rows.sequences, return_inverse=True)
    length = int(rows.positions.max()) + 1
    contents, content_of_row = torch.unique(rows.keys, return_inverse=True)
    copy = _occurrence(content_of_row * length + rows.positions)
    slots, slot_of_row = torch.unique(copy * len(contents) + content_of_row, return_inverse=True)
    unit = torch.empty_like(slots).scatter_(0, slot_of_row, unit_of_row)
    x = torch.zeros(len(slots), length, rows.values.shape[1], dtype=torch.float32, device=rows.values.device)
    d = x.new_zeros(len(slots), length, sketch.shape[1])
    strata = torch.full((len(slots), length), -1, dtype=torch.int64, device=x.device)
    x[slot_of_row, rows.positions], d[slot_of_row, rows.positions] = rows.values.float(), sketch
    strata[slot_of_row, rows.positions] = torch.where(rows.positions == 0, 0, 1 + flags.long())
    alike = bool((strata == strata[:1]).all()) and bool((strata[:1] >= 0).all())
    return Stacked(x, d, None if alike else strata, ids, unit)


def _occurrence(keys_N: Tensor) -> Tensor:
    """For each row how many rows before it have the same key."""
    order = torch.argsort(keys_N, stable=True)
    ordered = keys_N[order]
    index = torch.arange(len(keys_N), device=keys_N.device)
    start = torch.where(torch.cat([ordered.new_ones(1), ordered.diff()]) != 0, index, 0).cummax(0).values
    return torch.empty_like(index).scatter_(0, order, index - start)
