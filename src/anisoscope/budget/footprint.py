"""How much memory the statistics of an observation take, before any was taken.

Letters: D width, F outputs of a linear map, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from anisoscope.capture.maps import linear_shape
from anisoscope.capture.sites import Sites
from anisoscope.errors import broken
from anisoscope.observe.collector import SKETCH
from anisoscope.observe.embedding import vocabulary_of

_FOLDS = 2
# Moments of a fold: the running scatter, and, when the step ends, those of first positions and of the others.
_MATRICES = 3
_ROW_EXTRAS = 48  # bytes beside the values of a kept row: token, sequence, position, keys


def layer_bytes(sites: Sites, views: Sequence[str], *, rows: int, label_nulls: int) -> dict[int, int]:
    """Bytes that the statistics of each layer take at most, from 0 (what enters the first block) on.

    Batches smaller than ``rows`` keep fewer rows and take less.
    """
    width = _width(sites)
    found = dict.fromkeys(sites.layers, 0)
    own, under_labels = 2 * _cloud(width, rows), _cloud(width, rows)
    for site in sites.blocks:  # of an encoder-decoder, two a layer
        for layer in (0, 1) if site.layer == 1 else (site.layer,):
            found[layer] += own + label_nulls * under_labels if site.view in views else 0
    for site in sites.weights:
        if site.view not in views:
            continue
        into, out = linear_shape(site.module) or (width, 4 * width)
        gradient = _FOLDS * into * out * 4
        kept = _kept(into, rows) + _kept(SKETCH + 1, rows)
        found[site.layer] += _moments(into) + kept + gradient + label_nulls * (gradient + kept)
    return found


def embedding_bytes(sites: Sites, views: Sequence[str], *, rows: int, label_nulls: int) -> int:
    """Bytes of the embedding view: the table before the step, its gradient on both sides, what was looked up."""
    if "embedding" not in views or sites.embedding is None:
        return 0
    width = _width(sites)
    table = 4 * vocabulary_of(sites.embedding.module) * width
    clouds = 4 * _cloud(width, rows)  # types, their gradients on both sides, their update
    return 4 * table + clouds + (1 + label_nulls) * _kept(width, rows) + label_nulls * (2 * table + _cloud(width, rows))


def _cloud(width: int, rows: int) -> int:
    return _moments(width) + _kept(width, rows)


def _moments(width: int) -> int:
    return _FOLDS * _MATRICES * width * (width + 2) * torch.float64.itemsize


def _kept(width: int, rows: int) -> int:
    return _FOLDS * rows * (4 * width + _ROW_EXTRAS)


def _width(sites: Sites) -> int:
    """Width of the residual stream: what the first linear map reads; the embedding of some models is narrower."""
    if sites.width is not None:
        return sites.width
    shape = next((found for site in sites.weights if (found := linear_shape(site.module))), None)
    if shape is not None:
        return shape[0]
    weight = None if sites.embedding is None else getattr(sites.embedding.module, "weight", None)
    if weight is None or weight.ndim != 2:
        raise broken(
            "memory= must know the width of the residual stream",
            "a model without a weight site and without an embedding",
            "leave memory= out",
        )
    return weight.shape[1]
