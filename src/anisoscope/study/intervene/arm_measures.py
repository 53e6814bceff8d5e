"""What is measured of a model beside what its scope sees: its loss on held-out text, by frequency.

Letters: B sequences, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.data.tokens import Tokenised
from anisoscope.evaluate.row_builders import Row, row
from anisoscope.evidence.frequency_evidence import BINS, frequency_bins
from anisoscope.models.twins import IGNORED
from anisoscope.study.dataset import TrainingDataset, collated
from anisoscope.study.intervene.intervene_settings import InterveneSettings
from anisoscope.vocabulary import bin_subset

HELD = 4  # batches of held-out text
_PROBED = 4096  # tokens of it for neighbours, the fewest that a dimension is told of


def held_batches(data: Tokenised, settings: InterveneSettings, role: Any) -> Iterator[dict[str, Tensor]]:
    """Held-out text, the same for every arm and seed with this corpus and objective."""
    size = settings.batch
    samples = min(len(data.held.ids), HELD * size)
    lessons = TrainingDataset(
        data, role, samples=samples, seed=settings.first_seed, mask_rate=settings.mask_rate, held=True
    )
    for start in range(0, samples, size):
        yield collated([lessons[k] for k in range(start, min(start + size, samples))])


def held_out_rows(model: Any, data: Tokenised, batches: Iterator[Mapping[str, Tensor]], common: Row) -> list[Row]:
    """The mean loss of a held-out token, of all and by how frequent it is in the text that was trained on."""
    bins_V = frequency_bins(torch.from_numpy(data.counts()), by="tokens")
    sums, tokens = torch.zeros(BINS + 1, dtype=torch.float64), torch.zeros(BINS + 1, dtype=torch.float64)
    model.eval()
    with torch.no_grad():
        for batch in batches:
            logits, labels = model.asked(
                model(**{name: part for name, part in batch.items() if name != "labels"}).logits,
                batch["labels"],
                model.prefix(batch["attention_mask"]),
            )
            flat = labels.flatten()
            losses = nn.functional.cross_entropy(
                logits.flatten(0, -2).float(), flat.long(), ignore_index=IGNORED, reduction="none"
            )
            bins = torch.where(flat != IGNORED, bins_V[flat.clamp_min(0)], -2)
            for k in (*range(BINS), -1):
                sums[k] += losses[bins == k].double().sum()
                tokens[k] += int((bins == k).sum())
    model.train()
    found = [
        row(
            **common,
            measure="loss",
            variant="held-out",
            subset="all",
            value=float(sums.sum() / tokens.sum()),
            n=int(tokens.sum()),
        )
    ]
    for k in range(BINS):
        if tokens[k]:
            number = float(sums[k] / tokens[k])
            where = bin_subset("target", "tokens", k + 1)
            found.append(row(**common, measure="bin_loss", subset=where, value=number, n=int(tokens[k])))
    return found


def probe_text(data: Tokenised) -> dict[str, Tensor] | None:
    """Held-out sequences of so many tokens that a dimension can be told of them, or none where there are not enough."""
    total, count = 0, 0
    while count < len(data.held.ids) and total < _PROBED:
        total += int(data.held.lengths[count])
        count += 1
    if total < _PROBED:
        return None
    ids = torch.from_numpy(data.held.ids[:count].astype("int64"))
    mask = torch.arange(ids.shape[1])[None] < torch.from_numpy(data.held.lengths[:count].astype("int64"))[:, None]
    return {"input_ids": ids, "attention_mask": mask.long()}
