"""Identifiers of nulls and proxies as words: what rows and options call them is told in the glossary alone."""

from __future__ import annotations

import re

NULLS = {
    "haar": "random directions",
    "pairing": "inputs of other sequences",
    "axes": "shared coordinate axes",
    "init": "the untrained network",
    "targets": "shuffled targets",
    "targets-uniform": "random targets",
    "normal": "directions orthogonal to the proxy",
    "next": "the directions after the proxy's",
}
"""A null in a list: more than … give."""
SHORT = {
    "haar": "random directions",
    "pairing": "other inputs",
    "axes": "shared axes",
    "init": "untrained network",
    "targets": "shuffled targets",
    "targets-uniform": "random targets",
    "normal": "orthogonal directions",
    "next": "next directions",
}
"""The same as the head of a column."""
PROXIES = {"pca": "PCA", "svd": "SVD", "semi_nmf": "semi-NMF", "mean": "mean direction"}
KEYS = ("null", "proxy", "removed")
"""Tags whose values are such identifiers."""
_CODE = re.compile(r"(^|\. )?`([^`<>]{1,60})`")


def word_of(name: str) -> str:
    """A null or a proxy in words; what was registered from outside goes by its name.

    >>> word_of("semi_nmf"), word_of("init"), word_of("mine")
    ('semi-NMF', 'the untrained network', 'mine')
    """
    return NULLS.get(name) or PROXIES.get(name) or name


def short_of(name: str) -> str:
    """The same in as few words as the head of a column has room for."""
    return SHORT.get(name) or word_of(name)


def worded(text: str) -> str:
    """Text in which names between backticks are words, if there are any; others stay as they are.

    >>> worded("Over `haar` it is 2; `lr` is 1. `init` was not run.")
    'Over random directions it is 2; `lr` is 1. The untrained network was not run.'
    """
    return _CODE.sub(_word, text)


def _word(found: re.Match[str]) -> str:
    before, name = found.group(1), found.group(2)
    word = word_of(name)
    if word == name:
        return found.group(0)
    return word if before is None else before + word[:1].upper() + word[1:]


def all_words() -> dict[str, str]:
    """Every identifier with its words, for the drawings of a page."""
    return PROXIES | NULLS


def short_words() -> dict[str, str]:
    """The same in few words."""
    return PROXIES | SHORT
