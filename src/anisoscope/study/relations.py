"""How alike layers of one model are, and one layer at two checkpoints: CKA and neighbourhood overlap as rows.

Letters: n sequences, T positions, D width, L layers. The same tokens of whole sequences are seen everywhere, without
first positions; tokens that are copies of others in some layer are left out of the overlap.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anisoscope.capture.sites import SiteKey, Sites
from anisoscope.data.tokens import Sequences
from anisoscope.evaluate.row_builders import Row, at_columns, estimate_row
from anisoscope.geometry.cka import CKASide, cka_of
from anisoscope.geometry.overlap import K, OverlapSide, distinct, overlap_of
from anisoscope.geometry.results import Estimate
from anisoscope.stats.reservoir import Reservoir
from anisoscope.study.profile.layer_measures import Draw, vectors_of

SEQUENCES, POSITIONS, MOST_LAYERS = 32, 64, 16
KEPT_SEQUENCES = 16  # of a checkpoint, until all are judged
MOST_COPIES = 0.2
Vectors = Mapping[SiteKey, Tensor]


def chosen_tokens(part: Sequences) -> np.ndarray | None:
    """Places ``(n, T)`` of whole sequences that layers are compared at; None where too few are long enough."""
    length = min(POSITIONS + 1, part.ids.shape[1])
    rows = np.flatnonzero(part.lengths >= length)[:SEQUENCES]
    if len(rows) * (length - 1) < 4 * K or length < 2:
        return None
    chosen = np.zeros(part.ids.shape, bool)
    chosen[rows, 1:length] = True
    return chosen


def spread_layers(keys: Sequence[SiteKey]) -> list[SiteKey]:
    """At most 16 layers, evenly spread, with the first and the last."""
    if len(keys) <= MOST_LAYERS:
        return list(keys)
    return [keys[round(i * (len(keys) - 1) / (MOST_LAYERS - 1))] for i in range(MOST_LAYERS)]


def aligned_vectors(model: nn.Module, sites: Sites, part: Sequences, *, chunk: int) -> dict[SiteKey, Tensor]:
    """Vectors ``(n, T, D)`` of the chosen tokens in every layer; nothing where the text is too short."""
    chosen = chosen_tokens(part)
    if chosen is None:
        return {}
    found = vectors_of(model, sites, part, Draw({"aligned": chosen}), chunk=chunk)
    n = int(chosen.any(1).sum())
    return {at: vectors.of("aligned").float().reshape(n, -1, vectors.values.shape[1]) for at, vectors in found.items()}


def aligned_probe(probe: Mapping[SiteKey, Reservoir]) -> dict[str, np.ndarray]:
    """The same of the probe of a checkpoint, by layer and module: of at most 16 layers, as float32."""
    found: dict[str, np.ndarray] = {}
    for at in spread_layers(sorted(probe)):
        sample = probe[at].sample()
        length = min(POSITIONS, int(sample.positions.max())) + 1
        later = (sample.positions > 0) & (sample.positions < length)
        ids, counts = torch.unique(sample.sequences[later], return_counts=True)
        whole = ids[counts == length - 1][:KEPT_SEQUENCES]
        rows = (later & torch.isin(sample.sequences, whole)).nonzero()[:, 0]
        if len(whole) < 2:
            continue
        order = torch.argsort(sample.positions[rows], stable=True)
        rows = rows[order][torch.argsort(sample.sequences[rows][order], stable=True)]
        values = sample.values[rows].float().reshape(len(whole), length - 1, -1)
        found["/".join((str(at.layer), at.name))] = values.cpu().numpy()
    return found


def layer_rows(vectors: Vectors) -> list[Row]:
    """Every pair of (at most 16) layers; the row is of the lower one, ``item`` is the other."""
    keys = spread_layers(sorted(vectors))
    sides = {at: _CKA(vectors[at]) for at in keys}
    rows = []
    for a, b in itertools.combinations(keys, 2):
        common = _columns(a, vectors[a]) | {"item": b.layer}
        rows.append(_row(common, sides[a].with_(sides[b]), "cka", "layers"))
    return rows + _overlap_rows({at: vectors[at] for at in keys})


def checkpoint_rows(now: Vectors, other: Vectors, *, which: str, step: int) -> list[Row]:
    """Each layer now and at another checkpoint (``which``: previous or last), whose step is ``item``."""
    rows = []
    for at in sorted(now.keys() & other.keys()):
        if now[at].shape != other[at].shape:
            continue
        common = _columns(at, now[at]) | {"item": step}
        variant = f"{which} checkpoint"
        rows.append(_row(common, _CKA(now[at]).with_(_CKA(other[at])), "cka", variant))
        pair = [now[at], other[at]]
        keep = reduce(torch.logical_and, map(distinct, pair))
        for across in (False, True):
            name = f"{variant}, across" if across else variant
            few = _too_few(keep)
            found = few or overlap_of(*(OverlapSide(x, keep, across=across) for x in pair))
            rows.append(_row(common, found, "neighbourhood_overlap", name))
    return rows


class _CKA:
    """One side, or the knowledge that it has no finite rows."""

    def __init__(self, x_nTD: Tensor) -> None:
        n, length = x_nTD.shape[:2]
        groups = torch.arange(n).repeat_interleave(length)
        self._side = CKASide(x_nTD.flatten(0, 1), groups)

    def with_(self, other: _CKA) -> Estimate:
        """CKA of both."""
        return cka_of(self._side, other._side)


def _overlap_rows(vectors: Vectors) -> list[Row]:
    """Tokens are those that are distinct in all layers but those where copies are many, which have a NaN."""
    keeps = {at: distinct(x) for at, x in vectors.items()}
    good = [at for at, keep in keeps.items() if float((~keep).float().mean()) <= MOST_COPIES]
    rows = []
    if len(good) > 1:
        keep = reduce(torch.logical_and, (keeps[at] for at in good))
        few = _too_few(keep)
        for across in (False, True):
            variant = "layers, across" if across else "layers"
            sides = {} if few else {at: OverlapSide(vectors[at], keep, across=across) for at in good}
            for a, b in itertools.combinations(good, 2):
                found = few or overlap_of(sides[a], sides[b])
                common = _columns(a, vectors[a]) | {"item": b.layer}
                rows.append(_row(common, found, "neighbourhood_overlap", variant))
    for at in vectors.keys() - set(good):
        copies = int((~keeps[at]).sum())
        why = f"{copies} of {len(keeps[at])} tokens are copies of others in this layer: it has no overlap"
        common = _columns(at, vectors[at])
        rows.append(_row(common, Estimate(value=math.nan, n=0, note=why), "neighbourhood_overlap", "layers"))
    return rows


def _too_few(keep: Tensor) -> Estimate | None:
    left = int(keep.sum())
    if left >= POSITIONS + 2 * K and left >= (1 - 2 * MOST_COPIES) * len(keep):
        return None
    why = f"only {left} of {len(keep)} tokens are no copies of others: too few for an overlap"
    return Estimate(value=math.nan, n=left, note=why)


def _columns(at: SiteKey, x_nTD: Tensor) -> Row:
    common: dict[str, Any] = {"view": "representation", "tensor": "activations", "subset": "no-first"}
    return at_columns(at) | common | {"width": x_nTD.shape[2]}


def _row(common: Row, found: Estimate, measure: str, variant: str) -> Row:
    notes = [part for part in (found.note, found.details) if part]
    variant_ = None if variant == "layers" else variant
    return estimate_row(common, found, measure=measure, variant=variant_, note="; ".join(notes) or None)
