"""What an arm of a plan is trained on: masked tokens by type, and documents drawn anew. Letters: V vocabulary."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise

import numpy as np
import torch

from anisoscope.data import zipf
from anisoscope.data.tokens import Sequences, Tokenised
from anisoscope.intervene.frequency_weights import document_rates
from anisoscope.study.dataset import TrainingDataset

_DRAWS = 4  # a stream of random numbers beside those of lessons


class ArmDataset(TrainingDataset):
    """Lessons of which an arm can change which tokens are masked, and which sequences come.

    ``rates`` (V,) are chances to mask a token by its type. ``chances`` are chances of the sequences, which are then
    drawn with replacement, the same for the same seed and number.
    """

    rates: np.ndarray | None = None
    chances: np.ndarray | None = None

    def place(self, number: int) -> int:
        """Which sequence is the ``number``-th that is trained on."""
        if self.chances is None:
            return super().place(number)
        drawn = np.random.default_rng([self._seed, _DRAWS, number]).random()
        return min(int(np.searchsorted(self._steps, drawn, side="right")), len(self._steps) - 1)

    def came(self) -> Sequences:
        """The sequences of all samples, in their order."""
        places = np.asarray([self.place(number) for number in range(len(self))])
        return Sequences(self._part.ids[places], self._part.lengths[places])

    @cached_property
    def _steps(self) -> np.ndarray:
        assert self.chances is not None, "drawn by chance"
        return np.cumsum(self.chances / self.chances.sum())

    def _masked(self, ids_T: np.ndarray, mask_T: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
        if self.rates is None:
            return super()._masked(ids_T, mask_T, number)
        constant, self._mask_rate = self._mask_rate, self.rates[ids_T]  # pyright: ignore[reportAttributeAccessIssue]
        try:
            return super()._masked(ids_T, mask_T, number)
        finally:
            self._mask_rate = constant


def sequence_chances(data: Tokenised, alpha: float) -> np.ndarray:
    """Chances of the sequences that are trained on: those of a document all have the rate of their document.

    ``alpha`` is the exponent of ``document_rates``; where documents are not known, every sequence is one.
    """
    part = data.train
    owners = np.arange(len(part.ids)) if part.documents is None else part.documents
    known, place = np.unique(owners, return_inverse=True)
    order = np.argsort(place, kind="stable")
    rows = [row[:length] for row, length in zip(part.ids, part.lengths, strict=True)]
    ends = np.searchsorted(place[order], np.arange(len(known) + 1))
    documents = [np.concatenate([rows[k] for k in order[start:end]]) for start, end in pairwise(ends)]
    rates, _ = document_rates(documents, torch.from_numpy(data.counts()), alpha)
    return rates[place]


def words_exponent(data: Tokenised, part: Sequences, *, seed: int) -> float:
    """The exponent of the synthetic language in sequences, by their words; seeds are those of the corpus.

    Words that a sequence cuts are left out by dropping its first and last one.
    """
    texts = []
    for row, length in zip(part.ids, part.lengths, strict=True):
        said = data.tokeniser.decode(row[:length].tolist())
        texts.append(" ".join(said.split()[1:-1]))
    return zipf.exponent_of(texts, seed=seed)
