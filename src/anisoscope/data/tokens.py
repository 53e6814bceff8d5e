"""A corpus as sequences of tokens: two parts that share no document, and sequences that never cross one.

Letters: n sequences, T their length, V the vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anisoscope.data.corpora import Corpus, load_corpus
from anisoscope.data.tokeniser_files import load_tokeniser
from anisoscope.data.tokenisers import CHARACTERS, Tokeniser, train_bpe, train_characters
from anisoscope.errors import broken

SHORTEST = 8  # a shorter rest of a document teaches its first token and little else


@dataclass(frozen=True, slots=True, eq=False)
class Sequences:
    """Token ids, padded on the right, how many of each row are tokens, and which document each row is from."""

    ids: np.ndarray  # (n, T) int32
    lengths: np.ndarray  # (n,) int32
    documents: np.ndarray | None = None  # (n,) int32, an index into the corpus

    def rows(self, which: slice) -> Sequences:
        """Some of them."""
        return Sequences(
            self.ids[which], self.lengths[which], None if self.documents is None else self.documents[which]
        )

    def units(self) -> np.ndarray | None:
        """The document of each row, one number for all documents that hold an equal sequence, where they are known."""
        return None if self.documents is None else joined_documents(self.ids, self.lengths, self.documents)


@dataclass(frozen=True, slots=True, eq=False)
class Tokenised:
    """A corpus ready to train on, with its tokeniser and an account of what went in."""

    train: Sequences
    held: Sequences
    vocabulary: int
    pad_id: int
    mask_id: int
    special_ids: tuple[int, ...]
    tokeniser: Tokeniser
    fingerprint: str
    about: dict[str, Any]

    def counts(self) -> np.ndarray:
        """How often each id occurs in the part that is trained on, padding left out: (V,) int64."""
        return _counts(self.train, self.vocabulary)


def prepare(
    corpus: str | Corpus,
    *,
    length: int,
    vocabulary: int = 4096,
    held_out: float = 0.05,
    tokeniser: str | None = None,
    seed: int = 0,
) -> Tokenised:
    """Split a corpus by document, train (or load) its tokeniser on the first part, and cut it into sequences.

    ``held_out`` is the share of documents that are kept from training, ``tokeniser`` the name of one that exists. A
    corpus of characters has its own vocabulary of 205 characters, whatever ``vocabulary`` says.

    >>> data = prepare(Corpus("notes", [f"note {k}: all is well, and {k * k} is a square" for k in range(50)]),
    ...                length=16, vocabulary=300)
    >>> data.train.ids.shape[1], data.vocabulary, int(data.counts().sum()) == data.about["train"]["tokens"]
    (16, 300, True)
    """
    if length < SHORTEST:
        raise broken(f"the length of sequences must be at least {SHORTEST} tokens", length, "raise it")
    if not 0 < held_out < 1:
        raise broken("the held-out share must be between 0 and 1", held_out, "0.05 is usual")
    if isinstance(corpus, str):
        corpus = load_corpus(corpus, seed=seed)
    inside, outside = split(corpus, held_out=held_out, seed=seed)
    learnt = _tokeniser([corpus.documents[index] for index in inside], corpus, tokeniser, vocabulary)
    train, train_about = _sequences(corpus.documents, inside, learnt, length)
    held, held_about = _sequences(corpus.documents, outside, learnt, length)
    for name, part in (("trained on", train), ("held out", held)):
        if not len(part.ids):
            raise broken(
                f"a document of the part {name} must have at least {SHORTEST} tokens",
                f"shorter ones only in {corpus.name}",
                "use longer documents",
            )
    about: dict[str, Any] = {
        "corpus": {"name": corpus.name, **corpus.about},
        "length": length,
        "held_out": held_out,
        "seed": seed,
        "train": train_about,
        "held": held_about,
        "unigram_entropy": _entropy(_counts(train, learnt.vocabulary)),
        "tokeniser": dict(learnt.about),
        "shortest_piece": SHORTEST,
    }
    fingerprint = _fingerprint((train, held), learnt)
    parts = (learnt.vocabulary, learnt.pad_id, learnt.mask_id, learnt.special_ids, learnt)
    return Tokenised(train, held, *parts, fingerprint, about)


def split(corpus: Corpus, *, held_out: float, seed: int = 0) -> tuple[list[int], list[int]]:
    """Part documents by a hash of their content, so that equal ones are on one side and a growing corpus stays split.

    If chance leaves a side empty, the document with the lowest (or highest) hash, and its equals, go there.
    """
    if not corpus.documents:
        raise broken("a corpus must have documents", f"none in {corpus.name}", "add some")
    hashes = [_hash(document, seed) for document in corpus.documents]
    lowest, highest = min(hashes), max(hashes)
    if lowest == highest:
        raise broken(
            "a corpus must have two different documents, one of them to hold out",
            f"{len(hashes)} in {corpus.name}, all equal" if len(hashes) > 1 else f"one in {corpus.name}",
            "name several files, or one over 1 MB, which is split",
        )
    border = min(max(int(held_out * 2**64), lowest + 1), highest)
    inside = [index for index, value in enumerate(hashes) if value >= border]
    return inside, [index for index, value in enumerate(hashes) if value < border]


def joined_documents(ids_nT: np.ndarray, lengths: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """The documents of sequences, with one number for all documents that hold an equal sequence, also by way of others.

    Documents are the units of folds. Equal text in both folds would let a proxy be judged on what it was fitted on.

    >>> ids = np.array([[1, 2], [3, 4], [3, 4], [5, 6]])
    >>> joined_documents(ids, np.full(4, 2), np.array([7, 7, 9, 8])).tolist()
    [7, 7, 7, 8]
    """
    parent = {int(document): int(document) for document in documents}

    def root(document: int) -> int:
        while parent[document] != document:
            parent[document] = parent[parent[document]]
            document = parent[document]
        return document

    first: dict[bytes, int] = {}
    for row, length, document in zip(ids_nT, lengths.tolist(), documents.tolist(), strict=True):
        content = hashlib.blake2b(np.ascontiguousarray(row[:length]).tobytes(), digest_size=16).digest()
        low, high = sorted((root(first.setdefault(content, document)), root(document)))
        parent[high] = low
    return np.asarray([root(document) for document in documents.tolist()], documents.dtype)


def _hash(document: str, seed: int) -> int:
    digest = hashlib.sha256(f"{seed} ".encode() + document.encode("utf-8", "surrogatepass"))
    return int.from_bytes(digest.digest()[:8], "little")


def _tokeniser(texts: list[str], corpus: Corpus, name: str | None, vocabulary: int) -> Tokeniser:
    if name is not None:
        return load_tokeniser(name)
    if corpus.characters:
        return train_characters(texts, characters=CHARACTERS)
    return train_bpe(texts, vocabulary=vocabulary)


def _sequences(
    documents: Sequence[str], part: list[int], tokeniser: Tokeniser, length: int
) -> tuple[Sequences, dict[str, int]]:
    rows: list[np.ndarray] = []
    lengths: list[int] = []
    sources: list[int] = []
    dropped = dropped_tokens = 0
    for index, ids in zip(part, tokeniser.encode_all([documents[index] for index in part]), strict=True):
        if tokeniser.end_id is not None:
            ids = np.append(ids, np.int32(tokeniser.end_id))
        whole, rest = divmod(len(ids), length)
        pieces = [length] * whole
        if rest >= SHORTEST:
            pieces.append(rest)
        elif rest:
            dropped += 1
            dropped_tokens += rest
        padded = np.full((len(pieces), length), tokeniser.pad_id, np.int32)
        padded.reshape(-1)[: sum(pieces)] = ids[: sum(pieces)]
        rows.append(padded)
        lengths += pieces
        sources += [index] * len(pieces)
    ids_nT = np.concatenate(rows) if rows else np.empty((0, length), np.int32)
    sequences = Sequences(ids_nT, np.asarray(lengths, np.int32), np.asarray(sources, np.int32))
    about = {
        "documents": len(set(sources)),
        "documents_dropped": len(part) - len(set(sources)),
        "sequences": len(lengths),
        "tokens": sum(lengths),
        "pieces_dropped": dropped,
        "tokens_dropped": dropped_tokens,
    }
    return sequences, about


def _counts(part: Sequences, vocabulary: int) -> np.ndarray:
    inside = np.arange(part.ids.shape[1]) < part.lengths[:, None]
    return np.bincount(part.ids[inside], minlength=vocabulary)


def _entropy(counts: np.ndarray) -> float:
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())


def _fingerprint(parts: tuple[Sequences, ...], tokeniser: Tokeniser) -> str:
    digest = hashlib.sha256(tokeniser.to_json().encode())
    for part in parts:
        digest.update(repr(part.ids.shape).encode())
        digest.update(np.ascontiguousarray(part.ids, "<i4").tobytes())
        digest.update(np.ascontiguousarray(part.lengths, "<i4").tobytes())
    return digest.hexdigest()
