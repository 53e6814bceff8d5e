"""Tokenisers: byte-level BPE and characters, trained here, each with a pad and a mask token.

Every tokeniser is one of the library ``tokenizers`` inside, so that ``to_json`` is a file other tools read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from anisoscope.errors import AnisoscopeError, broken

PAD, MASK, END, UNKNOWN = "<pad>", "<mask>", "<end>", "<unk>"
BPE_SPECIALS = (PAD, MASK, END)
SMALLEST_BPE = 256 + len(BPE_SPECIALS)
CHARACTERS = 205
_BATCH_CHARACTERS = 4_000_000
# A tokenizer.json does not say which token plays which part: tokenizer_config.json does, and else these names.
_NAMES = {
    "pad": (PAD, "[PAD]", "<|pad|>", "<|padding|>"),
    "mask": (MASK, "[MASK]", "<|mask|>"),
    "end": (END, "</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "[EOS]", "[SEP]"),
    "unknown": (UNKNOWN, "[UNK]", "<|unk|>"),
}


@dataclass(frozen=True, slots=True, eq=False)
class Tokeniser:
    """Text to ids and back; ``end_id`` closes a document and may be missing in a tokeniser that was loaded."""

    backend: Any  # tokenizers.Tokenizer
    vocabulary: int
    pad_id: int
    mask_id: int
    end_id: int | None
    special_ids: tuple[int, ...]
    about: Mapping[str, Any] = field(default_factory=dict)
    table: np.ndarray | None = None  # of characters: id by code point, and last the id of all others

    @property
    def own_vocabulary(self) -> int:
        """How many ids it had before tokens were added here: those that its model knows."""
        return self.vocabulary - len(self.about.get("tokens_added", ()))

    def encode(self, text: str) -> list[int]:
        """Encode a text as it stands: a ``<pad>`` written in it is text, and nothing is put around it."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def encode_all(self, texts: Sequence[str]) -> Iterator[np.ndarray]:
        """Encode many texts, a few at a time."""
        if self.table is not None:  # the general way costs a microsecond and a hundred bytes for each character
            for text in texts:
                points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
                yield self.table[np.minimum(points, len(self.table) - 1)]
            return
        for batch in _batches(texts):
            for encoding in self.backend.encode_batch_fast(batch, add_special_tokens=False):
                yield np.asarray(encoding.ids, np.int32)

    def decode(self, ids: Sequence[int]) -> str:
        """Turn ids into text, special tokens included."""
        return self.backend.decode(list(ids), skip_special_tokens=False)

    def text(self, id: int) -> str:
        r"""Show a token to people; bytes that are no character alone are written ``\xe2``."""
        token = self.backend.id_to_token(id)
        if token is None:
            return f"<{id}>"
        if id in self.special_ids or not _is_byte_level(self.backend):
            return token
        letters = _bytes_by_letter()
        if not set(token) <= set(letters):
            return token
        return bytes(letters[letter] for letter in token).decode("utf-8", "backslashreplace")

    def to_json(self) -> str:
        """Write the tokeniser as the contents of a ``tokenizer.json``."""
        return self.backend.to_str()


def train_bpe(texts: Sequence[str], *, vocabulary: int) -> Tokeniser:
    """Train byte-level BPE; every text can be encoded and comes back unchanged."""
    tokenizers = library()
    if vocabulary < SMALLEST_BPE:
        raise broken(
            f"the vocabulary must be at least {SMALLEST_BPE}: 256 bytes and {len(BPE_SPECIALS)} special tokens",
            vocabulary,
            "raise it",
        )
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(BPE_SPECIALS),
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return finished(backend, {"kind": "byte-level BPE, trained", "library": f"tokenizers {tokenizers.__version__}"})


def train_characters(texts: Sequence[str], *, characters: int = CHARACTERS) -> Tokeniser:
    """Take the most frequent characters as the vocabulary; all others are one unknown character."""
    tokenizers = library()
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    ranked = sorted(counts, key=lambda letter: (-counts[letter], letter))[:characters]
    specials = (*BPE_SPECIALS, UNKNOWN)
    ids = {token: id for id, token in enumerate((*specials, *ranked))}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token=UNKNOWN))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    backend.decoder = tokenizers.decoders.Fuse()
    backend.add_special_tokens(list(specials))
    replaced = counts.total() - sum(counts[letter] for letter in ranked)
    about = {"kind": "characters, trained", "characters": len(ranked), "characters_unknown": replaced}
    table = np.full(max(map(ord, ranked), default=0) + 2, ids[UNKNOWN], np.int32)
    table[[ord(letter) for letter in ranked]] = [ids[letter] for letter in ranked]
    return finished(backend, {**about, "library": f"tokenizers {tokenizers.__version__}"}, table=table)


def finished(
    backend: Any,
    about: dict[str, Any],
    *,
    roles: Mapping[str, str] | None = None,
    table: np.ndarray | None = None,
) -> Tokeniser:
    """Find the special tokens, add those that every training needs, and freeze."""
    backend.no_padding()
    backend.no_truncation()
    known = backend.get_vocab(with_added_tokens=True)
    found = {
        role: next((token for token in ((roles or {}).get(role), *names) if token in known), None)
        for role, names in _NAMES.items()
    }
    if found["pad"] in (found["end"], found["unknown"]):  # GPT-2's habit: the end of a document would not be learnt
        found["pad"] = None
    added = []
    for role, token in (("pad", PAD), ("mask", MASK)):
        if found[role] is None:
            while token in known:
                token = f"<{token}>"
            backend.add_special_tokens([token])
            found[role] = token
            added.append(token)
    backend.encode_special_tokens = True
    ids = backend.get_vocab(with_added_tokens=True)
    special = {ids[token] for token in found.values() if token is not None}
    special |= {id for id, token in backend.get_added_tokens_decoder().items() if token.special}
    return Tokeniser(
        backend=backend,
        vocabulary=max(ids.values()) + 1,
        pad_id=ids[found["pad"]],
        mask_id=ids[found["mask"]],
        end_id=None if found["end"] is None else ids[found["end"]],
        special_ids=tuple(sorted(special)),
        about={**about, "vocabulary": max(ids.values()) + 1, "tokens_added": added},
        table=table,
    )


def library() -> Any:
    """Import ``tokenizers``, which only training needs."""
    try:
        import tokenizers
    except ImportError as error:
        raise AnisoscopeError('a tokeniser needs tokenizers: pip install "anisoscope[models]"') from error
    return tokenizers


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


@lru_cache(maxsize=8)
def _is_byte_level(backend: Any) -> bool:
    return '"ByteLevel"' in json.dumps(json.loads(backend.to_str())["decoder"])


@lru_cache(maxsize=1)
def _bytes_by_letter() -> dict[str, int]:
    """Give the byte of each letter of a byte-level vocabulary: Latin-1 where it prints, else counted up from 256."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {chr(256 + index): byte for index, byte in enumerate(others)}
