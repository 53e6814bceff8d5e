"""Text for a model that exists already: through its own tokeniser, framed as it expects, cut into sequences.

Letters: n sequences, T positions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from anisoscope.data.corpora import Corpus
from anisoscope.data.tokenisers import Tokeniser
from anisoscope.data.tokens import SHORTEST, Sequences, Tokenised
from anisoscope.errors import broken

_SURPLUS = 4  # so many times more sequences are cut than are drawn, so that they come from many documents


@dataclass(frozen=True, slots=True)
class Frame:
    """Special tokens that a tokeniser puts around a text, such as ``[CLS]`` and ``[SEP]``."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.before) + len(self.after)


def frame_of(tokeniser: Tokeniser) -> Frame:
    """What the tokeniser's own template adds."""
    bare = tokeniser.backend.encode("a", add_special_tokens=False).ids
    full = tokeniser.backend.encode("a", add_special_tokens=True).ids
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return Frame(tuple(full[:start]), tuple(full[start + len(bare) :]))
    return Frame()


def passages(
    corpus: Corpus, tokeniser: Tokeniser, *, length: int, sequences: int, seed: int = 0, fewest: int = 0
) -> Tokenised:
    """Draw sequences of ``length`` tokens from a corpus, its documents shuffled by ``seed`` and kept apart.

    Whole sequences come first; shorter ones, padded, only where there are too few of them. Of a long corpus no more is
    tokenised than is needed. A text of less than ``fewest`` tokens is refused.
    """
    frame = frame_of(tokeniser)
    inner = length - frame.size
    if inner < SHORTEST:
        raise broken(
            f"the length of sequences must be at least {SHORTEST + frame.size} tokens for this model",
            length,
            "raise it",
        )
    order = np.random.default_rng([seed, 1]).permutation(len(corpus.documents))
    whole: list[tuple[int, np.ndarray]] = []
    rest: list[tuple[int, np.ndarray]] = []
    for index, ids in _encoded(corpus, tokeniser, order):
        for start in range(0, len(ids), inner):
            piece = ids[start : start + inner]
            if len(piece) == inner:
                whole.append((index, piece))
            elif len(piece) >= SHORTEST:
                rest.append((index, piece))
        if len(whole) >= max(_SURPLUS * sequences, -(-fewest // inner)):
            break
    chosen = [whole[k] for k in np.random.default_rng([seed, 2]).permutation(len(whole))[:sequences]]
    chosen += rest[: sequences - len(chosen)]
    there = sum(len(piece) for _, piece in whole + rest)
    if there < fewest:
        raise broken(f"the text must have at least {fewest:,} tokens", f"{there:,} in {corpus.name}", "give more of it")
    if len(chosen) < sequences:
        raise broken(
            f"the text must give {sequences} sequences of up to {length} tokens",
            f"{len(chosen)} in {corpus.name}",
            "give more text, or ask for fewer or shorter sequences",
        )
    return _padded(corpus, tokeniser, frame, chosen, length, seed)


def _encoded(corpus: Corpus, tokeniser: Tokeniser, order: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Documents in that order, a few at a time."""
    for start in range(0, len(order), 64):
        indexes: list[int] = order[start : start + 64].tolist()
        yield from zip(indexes, tokeniser.encode_all([corpus.documents[i] for i in indexes]), strict=True)


def _padded(
    corpus: Corpus, tokeniser: Tokeniser, frame: Frame, chosen: list[tuple[int, np.ndarray]], length: int, seed: int
) -> Tokenised:
    # A pad token that we added has no row in the model's embedding; what is masked may be any other.
    filler = 0 if tokeniser.pad_id >= tokeniser.own_vocabulary else tokeniser.pad_id
    ids_nT = np.full((len(chosen), length), filler, np.int32)
    lengths = np.zeros(len(chosen), np.int32)
    for row, (_, piece) in enumerate(chosen):
        framed = np.concatenate([frame.before, piece, frame.after]).astype(np.int32)
        ids_nT[row, : len(framed)], lengths[row] = framed, len(framed)
    documents = np.asarray([index for index, _ in chosen], np.int32)
    found = Sequences(ids_nT, lengths, documents)
    digest = hashlib.sha256(np.ascontiguousarray(ids_nT, "<i4").tobytes() + lengths.astype("<i4").tobytes())
    about: dict[str, Any] = {
        "corpus": {"name": corpus.name, **corpus.about},
        "length": length,
        "seed": seed,
        "sequences": len(chosen),
        "documents": len(set(documents.tolist())),
        "tokens": int(lengths.sum()),
        "frame": {"before": list(frame.before), "after": list(frame.after)},
        "tokeniser": dict(tokeniser.about),
    }
    parts = (tokeniser.own_vocabulary, filler, tokeniser.mask_id, tokeniser.special_ids, tokeniser)
    return Tokenised(found, found, *parts, digest.hexdigest(), about)
