"""A corpus by its name: ``kjv``, text files and globs, ``hf:NAME[:CONFIG]``, ``enwik8:PATH``, ``zipf:S``."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from anisoscope.data import corpus_hub as hub
from anisoscope.data import enwik8, kjv, textfiles, zipf
from anisoscope.errors import broken

SPELLINGS = ("kjv", "hf:NAME", "hf:NAME:CONFIG", "enwik8:PATH", "zipf:S")
_RULE = "a corpus must be kjv, hf:NAME[:CONFIG], enwik8:PATH, zipf:S or text files (a path, a glob, a directory)"


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents, kept apart, and where they came from."""

    name: str
    documents: Sequence[str]
    characters: bool = False
    about: Mapping[str, Any] = field(default_factory=dict)


def load_corpus(name: str, *, seed: int = 0, documents: int | None = None) -> Corpus:
    """Read the corpus of that name; ``documents`` takes so many of them, drawn with ``seed``, in their order.

    >>> corpus = load_corpus("zipf:1", documents=3)
    >>> len(corpus.documents), corpus.about["exponent"]
    (3, 1.0)
    """
    if documents is not None and documents < 1:
        raise broken("the number of documents must be at least 1", documents, "raise it or leave it out")
    if seed < 0:
        raise broken("a seed must be at least 0", seed, "choose another")
    kind, _, rest = name.partition(":")
    if name == "kjv":
        texts, about = kjv.load()
    elif kind == "hf":
        texts, about = hub.load(rest, documents=documents, seed=seed)
    elif kind == "enwik8" and rest:
        texts, about = enwik8.load(Path(rest).expanduser())
    elif kind == "zipf" and rest:
        texts, about = zipf.load(rest, documents=documents, seed=seed)
    elif textfiles.looks_like_files(name):
        texts, about = textfiles.load(name)
    else:
        raise broken(_RULE, repr(name), f"did you mean {_nearest(name)}?")
    return _corpus(name, texts, about, documents=documents, seed=seed)


def require_name(name: str) -> None:
    """Raise for a name that is no corpus, or files that are not there, without reading anything."""
    kind, _, rest = name.partition(":")
    if name == "kjv" or (kind in ("hf", "zipf") and rest):
        return
    if kind == "enwik8" and rest:
        if not Path(rest).expanduser().exists():
            raise broken("the file of enwik8 must exist", rest, "check the path")
    elif textfiles.looks_like_files(name):
        for _ in textfiles.files(name):
            break
    else:
        raise broken(_RULE, repr(name), f"did you mean {_nearest(name)}?")


def sha256_of(documents: Iterable[str]) -> str:
    """Hash texts and the borders between them.

    >>> sha256_of(["ab", "c"]) == sha256_of(["a", "bc"])
    False
    """
    digest = hashlib.sha256()
    for document in documents:
        raw = document.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(8, "little"))
        digest.update(raw)
    return digest.hexdigest()


def _corpus(name: str, texts: list[str], about: dict[str, Any], *, documents: int | None, seed: int) -> Corpus:
    full = [text for text in texts if text and not text.isspace()]
    if not full:
        raise broken(
            "a corpus must hold text", f"{len(texts)} empty documents in {name}", "is it the right file or column?"
        )
    empty = len(texts) - len(full)
    if documents is not None and documents < len(full):
        picked = np.random.default_rng(seed).choice(len(full), documents, replace=False)
        full = [full[index] for index in sorted(picked.tolist())]
    counts = {
        "documents": len(full),
        "empty_documents": empty,
        "characters": sum(map(len, full)),
        "sha256": sha256_of(full),
    }
    return Corpus(name, full, name.startswith("enwik8:"), {**about, **counts})


def _nearest(name: str) -> str:
    # What the user typed is compared with what can be typed: the letters before the colon decide.
    close = difflib.get_close_matches(name.lower(), SPELLINGS, n=1, cutoff=0.0)
    return close[0] if close else SPELLINGS[0]
