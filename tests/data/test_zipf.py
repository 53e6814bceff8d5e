import re
from collections import Counter

import numpy as np
import pytest

from anisoscope.data import zipf
from anisoscope.data.corpora import load_corpus

FUNCTION = {"ah", "meh", "ith", "soh", "dah", "vah", "deh", "veh", "doh", "voh", "nah", "puh", "tih", "kuh", "keh"}
PLURAL_DETERMINER = {"ith", "soh"}


def words(documents):
    return [word for document in documents for word in re.findall("[a-z]+", document.lower())]


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0, 1.4])
def test_content_words_follow_the_law(exponent):
    corpus = load_corpus(f"zipf:{exponent}", seed=5)
    spoken = zipf.language(exponent, seed=5)
    counts = Counter(words(corpus.documents))
    assert set(counts) - set(spoken.content) == FUNCTION == set(zipf.function_words())
    assert 0.95e6 < counts.total() < 1.05e6
    n = np.array([counts[word] for word in spoken.content])
    ranks = np.arange(1, len(n) + 1)
    # The exponent within 0.03 by regression on the planted ranks that are expected 50 times or more.
    law = ranks**-exponent / (ranks**-exponent).sum()
    often = law * n.sum() >= 50
    slope = np.polyfit(np.log(ranks[often]), np.log(n[often]), 1)[0]
    assert abs(slope + exponent) < 0.03
    # And by the counts alone, as somebody without the lexicon would do it; the head is free of sorting bias.
    if exponent:
        head = np.sort(n)[::-1][:100]
        assert abs(np.polyfit(np.log(np.arange(1, 101)), np.log(head), 1)[0] + exponent) < 0.06
    # Not only the slope: each word is as frequent as the law says (χ² per degree of freedom).
    expected = law * n.sum()
    common = expected >= 5
    chi2 = ((n - expected)[common] ** 2 / expected[common]).mean()
    assert 0.85 < chi2 < 1.15


def test_a_wrong_grammar_would_be_noticed(monkeypatch):
    """Canary: with the parts of speech asked for at other rates, the counts leave the law."""
    spoken = zipf.language(1.0)
    wrong = zipf.Language(
        1.0, spoken.content, spoken.speech, spoken.gender, spoken.weights, {**spoken.chance, "adjective": 0.2}
    )
    monkeypatch.setattr(zipf, "language", lambda *_, **__: wrong)
    counts = Counter(words(load_corpus("zipf:1").documents))
    n = np.array([counts[word] for word in spoken.content])
    expected = spoken.weights * n.sum()
    common = expected >= 5
    assert ((n - expected)[common] ** 2 / expected[common]).mean() > 1.5


def test_the_auxiliary_agrees_with_its_distant_noun():
    """Every sentence can be parsed by the grammar; the distance from noun to auxiliary is often long."""
    spoken = zipf.language(1.0)
    parts = ("noun", "verb", "adjective", "adverb")
    kind = {word: parts[part] for word, part in zip(spoken.content, spoken.speech, strict=True)}
    gender = dict(zip(spoken.content, spoken.gender.tolist(), strict=True))
    auxiliaries = {"dah": (0, 0), "vah": (0, 1), "deh": (1, 0), "veh": (1, 1), "doh": (2, 0), "voh": (2, 1)}
    distances = []

    def noun_phrase(line):
        plural = int(line.pop(0) in PLURAL_DETERMINER)
        if kind.get(line[0]) == "adjective":
            line.pop(0)
        noun = line.pop(0)
        assert kind[noun] == "noun"
        left = len(line)
        if line and line[0] in ("nah", "puh", "tih", "kuh"):
            line.pop(0)
            noun_phrase(line)
        # A clause that does not agree belongs to a noun further out; one that belongs to none is left over.
        if line and line[0] == "keh" and auxiliaries[line[1]] == (gender[noun], plural):
            del line[:2]
            verb_phrase(line)
        return gender[noun], plural, left

    def verb_phrase(line):
        assert kind[line.pop(0)] == "verb"
        if line and line[0] in ("ah", "meh", "ith", "soh"):
            noun_phrase(line)
        if line and kind.get(line[0]) == "adverb":
            line.pop(0)

    for sentence in re.findall(r"[^.]+\.", " ".join(load_corpus("zipf:1", documents=10).documents)):
        line = words([sentence])
        *head, left = noun_phrase(line)
        distances.append(left - len(line))
        assert auxiliaries[line.pop(0)] == tuple(head)
        verb_phrase(line)
        assert not line
    assert len(distances) > 2000
    assert np.mean(np.array(distances) >= 3) > 0.15


def test_a_corpus_follows_its_seed_and_grows_at_its_end():
    few, more, other = (load_corpus("zipf:0.7", documents=n, seed=s).documents for n, s in ((3, 0), (5, 0), (3, 1)))
    assert few == more[:3]
    assert not set(few) & set(other)
    assert zipf.language(0.5, seed=1).content == zipf.language(1.5, seed=1).content != zipf.language(0.5).content
    assert zipf.language(2.0).weights[0] > 0.6  # the steepest law still has a grammar
