"""What a model is trained on, step by step: a pure function of the seed and the number of the sample.

Letters: n sequences, T positions.

Nothing here remembers where it was, so a training that is resumed sees what the uninterrupted one saw.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from anisoscope.data.tokens import Sequences, Tokenised
from anisoscope.models.twins import IGNORED, Role

_ORDER, _MASKS, _HELD = 1, 2, 3  # streams of random numbers that never meet


class TrainingDataset(Dataset[dict[str, Tensor]]):
    """``samples`` sequences in the order they are trained on, every epoch shuffled anew, with labels for the role.

    A decoder is asked for every next token. For an encoder a share of the tokens is chosen; of these 80 % are masked,
    10 % replaced at random and 10 % left (Devlin et al. 2019), and their true ids are the labels.
    """

    def __init__(
        self, data: Tokenised, role: Role, *, samples: int, seed: int, mask_rate: float, held: bool = False
    ) -> None:
        self.data, self._role, self._samples = data, role, samples
        self._seed, self._mask_rate, self._held = seed, mask_rate, held
        self._part: Sequences = data.held if held else data.train
        self._units: np.ndarray | None = None  # of the sequences, made when they are asked for
        self._special = np.asarray(data.special_ids, dtype=np.int64)

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        if not 0 <= number < self._samples:
            raise IndexError(number)
        place = self.place(number)
        ids_T = self._part.ids[place].astype(np.int64)
        mask_T = np.arange(len(ids_T)) < self._part.lengths[place]
        labels_T = np.where(mask_T, ids_T, IGNORED)
        if self._role == "encoder":
            ids_T, labels_T = self._masked(ids_T, mask_T, number)
        return {
            "input_ids": torch.from_numpy(ids_T),
            "attention_mask": torch.from_numpy(mask_T.astype(np.int64)),
            "labels": torch.from_numpy(labels_T),
        }

    def place(self, number: int) -> int:
        """Which sequence is the ``number``-th that is trained on."""
        epoch, within = divmod(number, len(self._part.ids))
        return within if self._held else int(_order(self._seed, epoch, len(self._part.ids))[within])

    def tokens(self, first: int, last: int) -> int:
        """Tokens in the samples from ``first`` up to ``last``, which is not included."""
        return sum(int(self._part.lengths[self.place(number)]) for number in range(first, last))

    def documents(self, first: int, last: int) -> Tensor | None:
        """The documents that the samples from ``first`` up to ``last`` are of, where they are known.

        Documents that hold an equal sequence have one number, so that equal text never falls into both folds.
        """
        if self._part.documents is None:
            return None
        known = self._units = self._part.units() if self._units is None else self._units
        assert known is not None, "documents are known"
        return torch.tensor([int(known[self.place(number)]) for number in range(first, last)], dtype=torch.int64)

    def counts(self) -> np.ndarray:
        """How often each id was trained on, in all samples."""
        found = np.zeros(self.data.vocabulary, dtype=np.int64)
        for number in range(self._samples):
            place = self.place(number)
            np.add.at(found, self._part.ids[place, : self._part.lengths[place]], 1)
        return found

    def _masked(self, ids_T: np.ndarray, mask_T: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
        stream = _HELD if self._held else _MASKS
        random = np.random.default_rng([self._seed, stream, number])
        may_T = mask_T & ~np.isin(ids_T, self._special)
        chosen_T = may_T & (random.random(len(ids_T)) < self._mask_rate)
        if not chosen_T.any() and may_T.any():  # every sequence is asked for something
            chosen_T[random.choice(np.flatnonzero(may_T))] = True
        how_T = random.random(len(ids_T))
        other_T = random.integers(0, self.data.vocabulary, len(ids_T))
        seen_T = np.where(chosen_T & (how_T < 0.8), self.data.mask_id, ids_T)
        seen_T = np.where(chosen_T & (how_T >= 0.9), other_T, seen_T)
        return seen_T, np.where(chosen_T, ids_T, IGNORED)


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, n: int) -> np.ndarray:
    return np.random.default_rng([seed, _ORDER, epoch]).permutation(n)


def collated(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """A batch."""
    return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}
