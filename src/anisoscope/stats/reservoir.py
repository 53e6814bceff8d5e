"""A seeded, mergeable sample of a stream: the rows, or the whole sequences, with the smallest keys.

Letters: B sequences, T positions, R rows kept, D width.

A key is a hash of content and position (of the row number for a plain file) and the seed, so membership depends neither
on the order of the stream nor on which process saw what, and the sample is uniform over distinct contents. Buffers
have a fixed size and nothing waits for the device.

A sample is always a *prefix* of the stream in key order. Once anything has been left out, its key is the ``cutoff``: no
larger key may enter later, which is what makes merging exact when sequences have unequal lengths.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.stats.hashing import position_keys, row_keys, sequence_keys

NO_KEY = (1 << 63) - 1
_FIELDS = ("keys", "ties", "positions", "tokens", "sequences", "values")


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """The rows a reservoir holds, in key order; ``tokens`` and ``sequences`` are −1 for a plain file.

    ``sequences`` says what each row belongs to: its sequence, or the document that its sequence is of. ``keys`` tells
    sequences of different contents apart either way.
    """

    values: Tensor
    tokens: Tensor
    sequences: Tensor
    positions: Tensor
    keys: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Which rows of a batch a reservoir of whole sequences keeps: made once, taken from every cloud of that batch.

    Samples taken through one selection hold the same tokens in the same order.
    """

    rows: int
    seed: int
    order: Tensor
    keys: Tensor
    ties: Tensor
    positions: Tensor
    tokens: Tensor
    sequences: Tensor
    cutoff: Tensor

    @classmethod
    def of(
        cls, tokens_BT: Tensor, mask_BT: Tensor, *, rows: int, seed: int = 0, units_B: Tensor | None = None
    ) -> Selection:
        """Choose among the sequences of a batch; one longer than ``rows`` makes room for itself.

        ``units_B`` says what each sequence belongs to, where that is not the sequence itself.
        """
        rows = max(rows, tokens_BT.shape[1])
        place_BT = torch.arange(tokens_BT.numel(), device=tokens_BT.device).reshape(tokens_BT.shape)
        drawn = Reservoir.of_sequences(place_BT[..., None], tokens_BT, mask=mask_BT, rows=rows, seed=seed)
        order = drawn.values[:, 0]
        zeros = torch.zeros_like(drawn.ties)
        sequences = drawn.sequences if units_B is None else units_B[order // tokens_BT.shape[1]]
        return cls(rows, seed, order, drawn.keys, zeros, drawn.positions, drawn.tokens, sequences, drawn.cutoff)

    def take(self, x_BTD: Tensor) -> Reservoir:
        """The reservoir of a cloud of this batch."""
        values = x_BTD.detach().reshape(-1, x_BTD.shape[-1])[self.order]
        columns = (self.keys, self.ties, self.positions, self.tokens, self.sequences, values)
        return Reservoir(self.rows, self.seed, True, *columns, cutoff=self.cutoff)


@dataclass(frozen=True, slots=True, eq=False)
class Reservoir:
    """At most ``rows`` rows of a stream; with ``whole``, only complete sequences.

    >>> import torch
    >>> stream = torch.arange(100.0).reshape(100, 1)
    >>> one = Reservoir.of_rows(stream, rows=10, seed=1)
    >>> late = Reservoir.of_rows(stream[60:], rows=10, seed=1, start=60)
    >>> two = late.merge(Reservoir.of_rows(stream[:60], rows=10, seed=1))
    >>> torch.equal(one.sample().values, two.sample().values)
    True
    """

    rows: int
    seed: int
    whole: bool
    keys: Tensor
    ties: Tensor
    positions: Tensor
    tokens: Tensor
    sequences: Tensor
    values: Tensor
    cutoff: Tensor

    @classmethod
    def of_rows(cls, x_ND: Tensor, *, rows: int, seed: int = 0, start: int = 0) -> Reservoir:
        """Sample rows of a plain file whose first row here has the number ``start``."""
        number_N = torch.arange(start, start + x_ND.shape[0], device=x_ND.device)
        none_N = torch.full_like(number_N, -1)
        keys_N = row_keys(number_N, seed=seed)
        return cls._kept(rows, seed, False, (keys_N, none_N.double(), number_N, none_N, none_N, x_ND.detach()))

    @classmethod
    def of_sequences(
        cls,
        x_BTD: Tensor,
        tokens_BT: Tensor,
        *,
        rows: int,
        mask: Tensor | None = None,
        seed: int = 0,
        whole: bool = True,
    ) -> Reservoir:
        """Sample tokens (or, with ``whole``, complete sequences) of a batch; masked positions never enter."""
        if x_BTD.ndim != 3 or tokens_BT.shape != x_BTD.shape[:2]:
            raise broken(
                "a batch must be (B, T, D) with tokens (B, T)",
                f"{tuple(x_BTD.shape)} with {tuple(tokens_BT.shape)}",
                "pass activations and input_ids",
            )
        if whole and tokens_BT.shape[1] > rows:
            raise broken(
                f"a reservoir of {rows} rows must have room for one whole sequence",
                f"{tokens_BT.shape[1]} positions",
                "raise rows or sample with whole=False",
            )
        x_BTD = x_BTD.detach()
        mask_BT = torch.ones_like(tokens_BT, dtype=torch.bool) if mask is None else mask.bool()
        sequences_B = sequence_keys(tokens_BT, mask_BT, seed=seed)
        positions_BT = mask_BT.long().cumsum(1) - 1
        sequences_BT = sequences_B[:, None].expand_as(positions_BT)
        keys_BT = sequences_BT if whole else position_keys(sequences_B, positions_BT)
        # Equal contents have equal keys; their values, which dropout may make differ, then decide the order.
        sums_BT = torch.where(mask_BT, x_BTD.sum(-1, dtype=torch.float64), 0.0)
        ties_BT = sums_BT.sum(1, keepdim=True).expand_as(sums_BT) if whole else sums_BT
        keys_BT = torch.where(mask_BT, keys_BT, NO_KEY)
        flat = (keys_BT, ties_BT, positions_BT, tokens_BT.long(), sequences_BT)
        columns = (*(field.reshape(-1) for field in flat), x_BTD.reshape(-1, x_BTD.shape[-1]))
        return cls._kept(rows, seed, whole, columns)

    @classmethod
    def _kept(
        cls, rows: int, seed: int, whole: bool, columns: tuple[Tensor, ...], cutoff: Tensor | None = None
    ) -> Reservoir:
        if rows < 1:
            raise broken("a reservoir must hold at least 1 row", rows, "raise rows")
        keys, ties, positions = columns[:3]
        order = torch.argsort(positions, stable=True)
        order = order[torch.argsort(ties[order], stable=True)]
        order = order[torch.argsort(keys[order], stable=True)]
        keys = keys[order]
        if cutoff is None:
            cutoff = keys.new_full((), NO_KEY)
        if keys.shape[0] > rows:
            cutoff = torch.minimum(cutoff, keys[rows])
        order, keys = order[:rows], keys[:rows]
        if whole:  # a sequence cut by the cap goes as a whole, and so does all behind anything ever left out
            keys = torch.where(keys >= cutoff, NO_KEY, keys)
        return cls(rows, seed, whole, keys, *(column[order] for column in columns[1:]), cutoff=cutoff)

    def merge(self, other: Reservoir) -> Reservoir:
        """The sample of both streams together: the same rows as one reservoir over the concatenation.

        Reservoirs of whole sequences may differ in ``rows`` (long sequences make room for themselves): the larger wins.
        """
        for name in ("rows", "seed", "whole") if not (self.whole and other.whole) else ("seed",):
            if getattr(self, name) != getattr(other, name):
                raise broken(
                    f"merged reservoirs must share {name}={getattr(self, name)}",
                    getattr(other, name),
                    "build both sides alike",
                )
        columns = tuple(torch.cat([getattr(self, name), getattr(other, name)]) for name in _FIELDS)
        rows = max(self.rows, other.rows)
        return self._kept(rows, self.seed, self.whole, columns, torch.minimum(self.cutoff, other.cutoff))

    def to(self, device: torch.device | str) -> Reservoir:
        """The same sample on another device."""
        state = {name: tensor.to(device) for name, tensor in self.state().items() if name != "settings"}
        return Reservoir(self.rows, self.seed, self.whole, *(state[name] for name in _FIELDS), cutoff=state["cutoff"])

    def sample(self) -> Sample:
        """The rows kept (waits for the device)."""
        valid = self.keys != NO_KEY
        if bool(valid.all()):
            return Sample(self.values, self.tokens, self.sequences, self.positions, self.keys)
        columns = (self.values, self.tokens, self.sequences, self.positions, self.keys)
        return Sample(*(column[valid] for column in columns))

    def state(self) -> dict[str, Tensor]:
        """Plain tensors, for safetensors or a checkpoint."""
        settings = torch.tensor([self.rows, self.seed, int(self.whole)], device="cpu")
        return {"settings": settings, "cutoff": self.cutoff} | {name: getattr(self, name) for name in _FIELDS}

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> Reservoir:
        """The reservoir that ``state()`` described."""
        rows, seed, whole = state["settings"].tolist()
        return cls(rows, seed, bool(whole), *(state[name] for name in _FIELDS), cutoff=state["cutoff"])
