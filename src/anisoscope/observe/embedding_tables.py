"""Tables of embeddings at an observation: a fixed sample of types with the two centres of the whole table.

Letters: V vocabulary, n types in the sample, D width.

The sample is chosen by a hash of the id, so it is the same at every observation and on every rank, and its size does
not grow with the vocabulary. Nothing here waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.stats.hashing import as_key, mix
from anisoscope.stats.row_chunks import rows_per_chunk


@dataclass(frozen=True, slots=True, eq=False)
class TableReading:
    """Some rows of a table; its centre over the types that were seen, each once and by their counts."""

    ids: Tensor  # (n,)
    rows: Tensor  # (n, D)
    plain: Tensor  # (D,)
    weighted: Tensor  # (D,)

    def tensors(self) -> tuple[Tensor, ...]:
        """All that it is made of."""
        return self.ids, self.rows, self.plain, self.weighted


def read_table(weight_VD: Tensor, counts_V: Tensor, *, rows: int, seed: int) -> TableReading:
    """Read one table."""
    keys = as_key(mix(torch.arange(len(weight_VD), device=weight_VD.device), seed=seed))
    ids = keys.argsort()[:rows]  # in the order of their keys, so that the first few are a sample as well
    counts = counts_V.to(weight_VD.device)
    weights_2V = torch.stack([(counts > 0).double(), counts.double()])
    weights_2V = (weights_2V / weights_2V.sum(1, keepdim=True).clamp_min(1)).float()
    centres_2D = torch.zeros(2, weight_VD.shape[1], dtype=torch.float32, device=weight_VD.device)
    size = rows_per_chunk(weight_VD)  # a second table would not fit beside a large one
    for part, share in zip(weight_VD.split(size), weights_2V.split(size, 1), strict=True):
        centres_2D += share @ part.float()
    return TableReading(ids, weight_VD[ids].float(), centres_2D[0], centres_2D[1])
