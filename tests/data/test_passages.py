"""Text for a model that exists: framed as its tokeniser frames it, never across documents, the same for every run."""

import numpy as np
import pytest
import tokenizers
from tokenizers.processors import TemplateProcessing

from anisoscope.data.corpora import Corpus
from anisoscope.data.passages import Frame, frame_of, passages
from anisoscope.data.tokenisers import finished
from anisoscope.errors import BrokenRuleError

LETTERS = "abcdefghij "


def tokeniser(template=None, specials=("[PAD]", "[CLS]", "[SEP]", "[MASK]")):
    ids = {token: number for number, token in enumerate((*specials, *LETTERS))}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token=LETTERS[0]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    backend.add_special_tokens(list(specials))
    if template:
        backend.post_processor = TemplateProcessing(single=template, special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    return finished(backend, {})


def corpus(documents=30, size=500):
    random = np.random.default_rng(0)
    return Corpus("made", ["".join(random.choice(list(LETTERS), size)) for _ in range(documents)])


def test_sequences_carry_the_frame_of_the_tokeniser():
    framed = tokeniser("[CLS] $A [SEP]")
    assert frame_of(framed) == Frame((1,), (2,))
    assert frame_of(tokeniser()) == Frame()
    data = passages(corpus(), framed, length=32, sequences=20)
    assert data.train.ids.shape == (20, 32)
    assert (data.train.ids[:, 0] == 1).all()
    assert (data.train.ids[:, -1] == 2).all()
    assert (data.train.lengths == 32).all()


def test_every_sequence_is_a_piece_of_its_document():
    made, words = corpus(), tokeniser("[CLS] $A [SEP]")
    data = passages(made, words, length=32, sequences=40, seed=3)
    for row, document in zip(data.train.ids, data.train.documents, strict=True):
        piece = "".join(words.backend.id_to_token(int(i)) for i in row[1:-1])
        assert piece in made.documents[document]
    assert len(set(data.train.documents.tolist())) > 5


def test_it_is_decided_by_the_seed():
    made, words = corpus(), tokeniser()
    a, b, c = (passages(made, words, length=32, sequences=10, seed=seed) for seed in (0, 0, 1))
    assert a.fingerprint == b.fingerprint != c.fingerprint


def test_short_pieces_serve_only_where_whole_ones_are_too_few():
    words = tokeniser()
    data = passages(corpus(documents=10, size=70), words, length=32, sequences=20)
    assert (data.train.lengths == 32).all()
    data = passages(corpus(documents=10, size=50), words, length=32, sequences=15)
    assert sorted(set(data.train.lengths.tolist())) == [18, 32]
    assert (data.train.lengths == 32).sum() == 10
    assert all((row[length:] == 0).all() for row, length in zip(data.train.ids, data.train.lengths, strict=True))


def test_a_pad_token_that_the_model_does_not_know_is_never_used():
    words = tokeniser(specials=())
    assert words.pad_id >= words.own_vocabulary
    data = passages(corpus(documents=10, size=50), words, length=32, sequences=15)
    assert data.train.ids.max() < words.own_vocabulary == data.vocabulary


def test_too_little_text_is_told_with_numbers():
    with pytest.raises(BrokenRuleError, match=r"20 sequences of up to 32 tokens, got 10 in made"):
        passages(corpus(documents=10, size=32), tokeniser(), length=32, sequences=20)
    with pytest.raises(BrokenRuleError, match=r"at least 4,096 tokens, got 320 in made"):
        passages(corpus(documents=10, size=32), tokeniser(), length=32, sequences=20, fewest=4096)
    with pytest.raises(BrokenRuleError, match="at least 10 tokens for this model, got 9"):
        passages(corpus(), tokeniser("[CLS] $A [SEP]"), length=9, sequences=2)
