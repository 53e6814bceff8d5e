"""A synthetic language whose content words follow Zipf's law with a chosen exponent, for controlled experiments.

The grammar, with a, p, r, b, o the probabilities of what is in brackets::

    S  -> NP AUX VP .           AUX agrees with the head of NP in gender and number, whatever stands between them
    NP -> DET [ADJ] N [PP] [RC]  DET shows the number, N has one of three genders and is written the same in both
    PP -> P NP
    RC -> REL AUX VP            AUX agrees with the noun that RC belongs to
    VP -> V [NP] [ADV]

Content words (N, V, ADJ, ADV) share one lexicon, ranked 1 to 4000, and p(rank) ∝ rank^-s. Ranks are dealt to the four
parts of speech, and a word is drawn in its slot by p(rank) / p(part of speech). The expected frequency of a word is
therefore p(rank), exactly, if the grammar asks for each part of speech as often as its ranks weigh. Expected numbers
per sentence are linear in each other, and solving them gives, for the weights W and given o and r,

    p = 1 + r - (1 + o) W_V / W_N,    a = W_ADJ / W_N,    b = W_ADV / W_V.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from anisoscope.errors import broken

LEXICON = 4000
DOCUMENTS = 400
WORDS_PER_DOCUMENT = 2500
LARGEST = 2.0
_SHARES = {"noun": 0.45, "verb": 0.25, "adjective": 0.2, "adverb": 0.1}
_OBJECT, _RELATIVE = 0.7, 0.1
_SENTENCES_PER_PARAGRAPH = 8
_ONSETS = (
    "b",
    "br",
    "d",
    "dr",
    "f",
    "g",
    "gl",
    "k",
    "kr",
    "l",
    "m",
    "n",
    "p",
    "pl",
    "r",
    "s",
    "st",
    "t",
    "tr",
    "v",
    "z",
)
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ou")
_CODAS = ("", "", "", "l", "m", "n", "r", "s", "t")
# Function words end in h, content words never do, so that nobody can take one for the other.
_DETERMINERS = (("ah", "meh"), ("ith", "soh"))  # [plural][indefinite]
_AUXILIARIES = (("dah", "vah"), ("deh", "veh"), ("doh", "voh"))  # [gender][plural]
_PREPOSITIONS = ("nah", "puh", "tih", "kuh")
_RELATIVE_PRONOUN = "keh"


@dataclass(frozen=True, slots=True, eq=False)
class Language:
    """A lexicon and the probabilities of a grammar that uses it by its law."""

    exponent: float
    content: tuple[str, ...]  # by rank
    speech: np.ndarray  # part of speech of each rank, an index into ``_SHARES``
    gender: np.ndarray
    weights: np.ndarray  # expected share of each rank among content words
    chance: Mapping[str, float]

    def words_per_sentence(self) -> float:
        """Expected number of words of a sentence, function words included."""
        verbs, nouns = self._per_sentence()
        content = nouns * (1 + self.chance["adjective"]) + verbs * (1 + self.chance["adverb"])
        # A determiner for each noun, an auxiliary for each verb, a pronoun for each relative clause.
        return content + nouns * (1 + self.chance["phrase"] + self.chance["relative"]) + verbs

    def _per_sentence(self) -> tuple[float, float]:
        open_, relative = self.chance["object"], self.chance["relative"]
        per_phrase = 1 / (1 - self.chance["phrase"] - relative * open_)
        nouns = (1 + open_) * per_phrase
        return 1 + relative * nouns, nouns


def function_words() -> tuple[str, ...]:
    """All words that are no content words."""
    nested = (*_DETERMINERS, *_AUXILIARIES)
    return (*itertools.chain.from_iterable(nested), *_PREPOSITIONS, _RELATIVE_PRONOUN)


def language(exponent: float, *, seed: int = 0) -> Language:
    """Build the language; the words of the ranks depend on the seed only, not on the exponent.

    >>> first = language(1.0)
    >>> first.content[:3] == language(0.0).content[:3], len(set(first.content))
    (True, 4000)
    """
    if not 0 <= exponent <= LARGEST:
        raise broken(f"the exponent of zipf:S must be from 0 to {LARGEST:g}", exponent, "write for example zipf:1")
    random = np.random.default_rng((seed, 0))
    weights = np.arange(1, LEXICON + 1, dtype=np.float64) ** -exponent
    weights /= weights.sum()
    speech = _dealt(weights)
    noun, verb, adjective, adverb = np.bincount(speech, weights, minlength=4).tolist()
    chance = {
        "object": _OBJECT,
        "relative": _RELATIVE,
        "phrase": 1 + _RELATIVE - (1 + _OBJECT) * verb / noun,
        "adjective": adjective / noun,
        "adverb": adverb / verb,
    }
    assert all(0 <= value < 0.95 for value in chance.values()), chance
    content = _lexicon(random)
    return Language(exponent, content, speech, random.integers(0, 3, LEXICON), weights, chance)


def load(exponent: str, *, documents: int | None, seed: int) -> tuple[list[str], dict[str, Any]]:
    """Write a corpus in the language of that exponent; document k is the same however many are asked for."""
    try:
        value = float(exponent)
    except ValueError:
        value = math.nan
    spoken = language(value, seed=seed)
    count = documents or DOCUMENTS
    sentences = round(WORDS_PER_DOCUMENT / spoken.words_per_sentence())
    texts = [_document(spoken, sentences, np.random.default_rng((seed, 1, index))) for index in range(count)]
    about = {
        "exponent": value,
        "seed": seed,
        "lexicon": LEXICON,
        "grammar": dict(spoken.chance),
        "document": f"about {WORDS_PER_DOCUMENT} words",
    }
    return texts, about


def exponent_of(texts: Iterable[str], *, seed: int = 0) -> float:
    """The exponent under which the content words of some texts of this language are likeliest; NaN without any.

    >>> round(exponent_of(load("1", documents=4, seed=0)[0]), 1)
    1.0
    """
    place = {word: rank for rank, word in enumerate(language(1.0, seed=seed).content)}
    counts = np.zeros(LEXICON)
    for text in texts:
        for word in re.findall(r"[a-z]+", text.lower()):
            if word in place:
                counts[place[word]] += 1
    if not counts.any():
        return math.nan
    logs = np.log(np.arange(1, LEXICON + 1))
    target, low, high = float(counts @ logs / counts.sum()), -1.0, 4.0
    for _ in range(60):  # the mean of log rank falls as the exponent rises
        middle = (low + high) / 2
        law = np.exp(-middle * logs)
        low, high = (middle, high) if float(law @ logs / law.sum()) > target else (low, middle)
    return (low + high) / 2


def _dealt(weights: np.ndarray) -> np.ndarray:
    """Deal ranks to parts of speech so that each is, at every rank, as close to its share as can be."""
    shares = list(_SHARES.values())
    held = [0.0] * len(shares)
    speech = np.empty(len(weights), np.int64)
    total = 0.0
    for rank, weight in enumerate(weights.tolist()):
        total += weight
        lacking = [share * total - have for share, have in zip(shares, held, strict=True)]
        speech[rank] = index = lacking.index(max(lacking))
        held[index] += weight
    return speech


def _lexicon(random: np.random.Generator) -> tuple[str, ...]:
    words: dict[str, None] = {}
    while len(words) < LEXICON:
        syllables = (
            _ONSETS[random.integers(len(_ONSETS))] + _VOWELS[random.integers(len(_VOWELS))]
            for _ in range(random.integers(1, 4))
        )
        words["".join(syllables) + _CODAS[random.integers(len(_CODAS))]] = None
    return tuple(words)


class _Speaker:
    """Says sentences one after the other; the words of the sentence so far are in ``words``."""

    def __init__(self, spoken: Language, random: np.random.Generator) -> None:
        self.spoken, self.odds = spoken, spoken.chance
        self.genders: list[int] = spoken.gender.tolist()
        self.chance = _stream(lambda size: random.random(size))
        self.nouns, self.verbs, self.adjectives, self.adverbs = (
            _words(spoken, part, random) for part in range(len(_SHARES))
        )
        self.words: list[str] = []

    def sentence(self) -> str:
        self.words = []
        self.words.append(self._noun_phrase())
        self._verb_phrase()
        return " ".join(self.words).capitalize() + "."

    def _noun_phrase(self) -> str:
        """Say a noun phrase and return the auxiliary that agrees with its head."""
        plural = next(self.chance) < 0.4
        self.words.append(_DETERMINERS[plural][next(self.chance) < 0.5])
        if next(self.chance) < self.odds["adjective"]:
            self._say(self.adjectives)
        head = self._say(self.nouns)
        if next(self.chance) < self.odds["phrase"]:
            self.words.append(_PREPOSITIONS[int(next(self.chance) * len(_PREPOSITIONS))])
            self._noun_phrase()
        agreeing = _AUXILIARIES[self.genders[head]][plural]
        if next(self.chance) < self.odds["relative"]:
            self.words += (_RELATIVE_PRONOUN, agreeing)
            self._verb_phrase()
        return agreeing

    def _verb_phrase(self) -> None:
        self._say(self.verbs)
        if next(self.chance) < self.odds["object"]:
            self._noun_phrase()
        if next(self.chance) < self.odds["adverb"]:
            self._say(self.adverbs)

    def _say(self, draws: Iterator[int]) -> int:
        index = next(draws)
        self.words.append(self.spoken.content[index])
        return index


def _document(spoken: Language, sentences: int, random: np.random.Generator) -> str:
    speaker = _Speaker(spoken, random)
    said = [speaker.sentence() for _ in range(sentences)]
    starts = range(0, sentences, _SENTENCES_PER_PARAGRAPH)
    return "\n".join(" ".join(said[start : start + _SENTENCES_PER_PARAGRAPH]) for start in starts)


def _words(spoken: Language, part: int, random: np.random.Generator) -> Iterator[int]:
    ranks = np.flatnonzero(spoken.speech == part)
    steps = np.cumsum(spoken.weights[ranks])
    # Not steps / steps[-1]: rounding could leave a last step below 1 and an index past the end.
    return _stream(lambda size: ranks[np.searchsorted(steps[:-1], random.random(size) * steps[-1], side="right")])


def _stream(draw: Callable[[int], np.ndarray], size: int = 1024) -> Iterator[Any]:
    while True:
        yield from draw(size).tolist()
