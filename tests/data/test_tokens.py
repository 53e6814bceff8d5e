import dataclasses
import json
import math
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from anisoscope import AnisoscopeError
from anisoscope.data import tokens
from anisoscope.data.corpora import Corpus, load_corpus
from anisoscope.data.tokeniser_files import load_tokeniser
from anisoscope.data.tokenisers import train_bpe, train_characters
from anisoscope.data.tokens import prepare

ODD = [
    "naïve — “quotes” 日本語 🜁\u200d\ufe0f",
    "a\tb\r\n\n  c\x00d",
    "<pad> and <mask> and <end>",
    "é\u0301",
    " ",
    "[MASK]",
]


@pytest.fixture(scope="module")
def kjv():
    return load_corpus("kjv", documents=240)


@pytest.fixture(scope="module")
def data(kjv):
    return prepare(kjv, length=64, vocabulary=1000)


def rows(part):
    return [row[:length].tolist() for row, length in zip(part.ids, part.lengths, strict=True)]


def documents_of(part):
    """Join the rows of each document again."""
    joined = {}
    for row, document in zip(rows(part), part.documents, strict=True):
        joined.setdefault(int(document), []).extend(row)
    return joined


def test_every_sequence_is_of_one_document_and_nothing_else_is_lost(kjv, data):
    lost = 0
    for part in (data.train, data.held):
        for index, ids in documents_of(part).items():
            whole = [*data.tokeniser.encode(kjv.documents[index]), data.tokeniser.end_id]
            assert ids == whole[: len(ids)]
            assert len(whole) - len(ids) < 8
            lost += len(whole) - len(ids)
    told = data.about["train"]["tokens_dropped"] + data.about["held"]["tokens_dropped"]
    assert lost == told > 0


def test_parts_share_no_document(kjv, data):
    train, held = (set(part.documents.tolist()) for part in (data.train, data.held))
    assert not train & held
    assert train | held == set(range(240))
    assert {kjv.documents[i] for i in train}.isdisjoint(kjv.documents[i] for i in held)
    assert (data.about["train"]["documents"], data.about["held"]["documents"]) == (len(train), len(held))


def test_equal_documents_fall_on_one_side_and_a_growing_corpus_stays_split(kjv):
    twice = Corpus("twice", [*kjv.documents, *kjv.documents])
    inside, outside = tokens.split(twice, held_out=0.3)
    assert {index % 240 for index in inside}.isdisjoint(index % 240 for index in outside)
    once = tokens.split(Corpus("once", kjv.documents[:100]), held_out=0.3)
    assert set(once[1]) == {index for index in outside if index < 100}
    assert 40 < len(outside) / 2 < 105
    assert tokens.split(twice, held_out=0.3, seed=1)[1] != outside


def test_small_corpora_have_both_sides_or_an_error():
    for seed in range(20):
        inside, outside = tokens.split(Corpus("two", ["a", "b"]), held_out=0.01, seed=seed)
        assert len(inside) == len(outside) == 1
    for documents in (["a"], ["a", "a"]):
        with pytest.raises(ValueError, match="two different documents"):
            tokens.split(Corpus("few", documents), held_out=0.5)
    with pytest.raises(ValueError, match="must have documents"):
        prepare(Corpus("none", []), length=8)
    with pytest.raises(ValueError, match="at least 8 tokens"):
        prepare(Corpus("short", ["a", "b"]), length=8, vocabulary=300)


def test_shapes_padding_and_short_pieces(data):
    for part, told in ((data.train, data.about["train"]), (data.held, data.about["held"])):
        assert part.ids.dtype == part.lengths.dtype == np.int32
        assert part.ids.shape == (told["sequences"], 64)
        assert 8 <= part.lengths.min() <= part.lengths.max() == 64
        padding = np.arange(64) >= part.lengths[:, None]
        assert (part.ids[padding] == data.pad_id).all()
        assert not np.isin(part.ids[~padding], (data.pad_id, data.mask_id)).any()
        assert part.ids.max() < data.vocabulary
        assert told["tokens"] == part.lengths.sum()
        ends = sum(row[-1] == data.tokeniser.end_id for row in rows(part))
        assert ends == told["documents"] - told["pieces_dropped"]
    assert max(map(len, documents_of(data.train).values())) > 64  # some document is cut


def test_a_document_becomes_ceil_tokens_over_length_sequences():
    letters = [("abcdefgh" * 9)[:size] + "!" for size in (10, 31, 30, 38, 22, 70)]  # with the end: 12 33 32 40 24 72
    data = prepare(Corpus("letters", letters, characters=True), length=16, held_out=0.2)
    counts = Counter(data.train.documents.tolist()) + Counter(data.held.documents.tolist())
    assert [counts[index] for index in range(6)] == [1, 2, 2, 3, 2, 5]
    assert data.about["train"]["pieces_dropped"] + data.about["held"]["pieces_dropped"] == 1  # 33 = 2 · 16 + 1


def test_entropy_and_counts_against_a_slow_count(data):
    counts = Counter(id for row in rows(data.train) for id in row)
    total = sum(counts.values())
    entropy = -math.fsum(n / total * math.log(n / total) for n in counts.values())
    assert data.about["unigram_entropy"] == pytest.approx(entropy, rel=1e-12)
    assert {id: n for id, n in enumerate(data.counts().tolist()) if n} == dict(counts)
    assert data.counts().shape == (data.vocabulary,)


def test_encoding_comes_back_unchanged(kjv, data):
    for text in [*kjv.documents, *ODD]:
        ids = data.tokeniser.encode(text)
        assert data.tokeniser.decode(ids) == text
        assert not set(ids) & set(data.special_ids)  # a <pad> in the text is text
    batch = list(data.tokeniser.encode_all([*kjv.documents, *ODD]))
    assert [ids.tolist() for ids in batch] == [data.tokeniser.encode(text) for text in [*kjv.documents, *ODD]]
    reloaded = json.loads(data.tokeniser.to_json())
    assert list(reloaded["model"]["vocab"])[:3] == ["<pad>", "<mask>", "<end>"]
    assert data.vocabulary == 1000 == len(reloaded["model"]["vocab"])


def test_tokens_are_shown_as_text(data):
    assert "".join(data.tokeniser.text(id) for id in data.tokeniser.encode("And the LORD")) == "And the LORD"
    assert "�" not in "".join(data.tokeniser.text(id) for id in range(data.vocabulary))
    assert data.tokeniser.text(data.tokeniser.encode("日")[0]) == "\\xe6"
    assert data.tokeniser.text(data.pad_id) == "<pad>"
    assert data.tokeniser.text(10**6) == "<1000000>"


def test_training_tells_the_same_story_in_every_process():
    code = (
        "from anisoscope.data.tokens import prepare; from anisoscope.data.corpora import load_corpus;"
        "print(prepare(load_corpus('kjv', documents=60), length=32, vocabulary=600).fingerprint)"
    )
    seen = {prepare(load_corpus("kjv", documents=60), length=32, vocabulary=600).fingerprint}
    for threads, hashing in (("1", "1"), ("2", "2")):
        environment = {"RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": hashing, "PATH": ""}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        seen.add(done.stdout.strip())
    assert len(seen) == 1


def test_the_fingerprint_follows_the_content(kjv, data):
    again = prepare(kjv, length=64, vocabulary=1000)
    assert again.fingerprint == data.fingerprint
    assert again.tokeniser.to_json() == data.tokeniser.to_json()
    changed = [kjv.documents[0].replace("e", "a", 1), *kjv.documents[1:]]
    others = {
        prepare(Corpus("kjv", changed), length=64, vocabulary=1000).fingerprint,
        prepare(kjv, length=65, vocabulary=1000).fingerprint,
        prepare(kjv, length=64, vocabulary=999).fingerprint,
        prepare(kjv, length=64, vocabulary=1000, seed=1).fingerprint,
        data.fingerprint,
    }
    assert len(others) == 5


def test_characters_beyond_the_205_most_frequent_are_unknown(tmp_path):
    letters = [chr(0x4E00 + index) for index in range(300)]
    # Letter k occurs 300 - k times in each document, and both documents are trained on alike.
    text = "".join(letter * (300 - index) for index, letter in enumerate(letters))
    pages = "".join(f"<page><title>{k}</title><text>{text}{k}</text></page>" for k in range(9))
    (tmp_path / "dump").write_text(pages, encoding="utf-8")
    data = prepare(f"enwik8:{tmp_path / 'dump'}", length=128)
    assert data.vocabulary == 205 + 4
    assert len(data.special_ids) == 4
    assert data.about["tokeniser"]["characters"] == 205
    known = set(map(data.tokeniser.text, range(data.vocabulary))) - set(map(data.tokeniser.text, data.special_ids))
    assert known == set(letters[:205])
    unknown = data.tokeniser.encode(letters[205])
    assert unknown == data.tokeniser.encode("𝄞") == data.tokeniser.encode("a")
    assert unknown[0] in data.special_ids
    for odd in (*ODD, text):  # the quick way and the library's agree
        (quick,) = data.tokeniser.encode_all([odd])
        assert quick.tolist() == data.tokeniser.encode(odd)
    assert data.tokeniser.decode(data.tokeniser.encode("".join(letters[:205]))) == "".join(letters[:205])


def test_only_the_part_trained_on_teaches_the_tokeniser():
    documents = [f"{'common words here ' * 20}{k}" for k in range(40)]
    secret = Corpus("x", [*documents, "Ω" * 50], characters=True)
    held = [40 in tokens.split(secret, held_out=0.2, seed=seed)[1] for seed in range(20)]
    assert set(held) == {True, False}
    for seed, hidden in enumerate(held):
        known = prepare(secret, length=16, held_out=0.2, seed=seed).tokeniser.to_json()
        assert ("Ω" in known) is not hidden


def test_a_loaded_tokeniser_gets_the_tokens_it_lacks(tmp_path, kjv):
    import tokenizers

    bare = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "the": 1, "LORD": 2}, unk_token="[UNK]"))
    bare.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    bare.enable_truncation(4)
    bare.enable_padding(length=4)
    bare.save(str(tmp_path / "tokenizer.json"))
    for name in (tmp_path, tmp_path / "tokenizer.json"):
        loaded = load_tokeniser(str(name))
        assert (loaded.vocabulary, loaded.pad_id, loaded.mask_id, loaded.end_id) == (5, 3, 4, None)
        assert loaded.special_ids == (0, 3, 4)
        assert loaded.encode("the LORD of the LORD") == [1, 2, 0, 1, 2]
        assert loaded.about["tokens_added"] == ["<pad>", "<mask>"]
    data = prepare(kjv, length=32, tokeniser=str(tmp_path))
    assert data.vocabulary == 5
    assert data.about["tokeniser"]["path"].endswith("tokenizer.json")
    # The part that a token plays is told beside the file; a pad that is also the end of a document is no pad.
    tokeniser = train_bpe(["a text"], vocabulary=300)
    (tmp_path / "tokenizer.json").write_text(tokeniser.to_json())
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"pad_token": "<end>", "eos_token": {"content": "<end>"}})
    )
    loaded = load_tokeniser(str(tmp_path))
    assert loaded.end_id == tokeniser.end_id
    assert loaded.pad_id not in (loaded.end_id, loaded.mask_id)


def test_a_saved_tokeniser_gives_the_same_ids(tmp_path, kjv, data):
    (tmp_path / "t.json").write_text(data.tokeniser.to_json(), encoding="utf-8")
    again = prepare(kjv, length=64, tokeniser=str(tmp_path / "t.json"))
    assert again.fingerprint == data.fingerprint
    letters = train_characters(["abc"])
    (tmp_path / "c.json").write_text(letters.to_json(), encoding="utf-8")
    loaded = load_tokeniser(str(tmp_path / "c.json"))
    assert (loaded.vocabulary, loaded.special_ids) == (letters.vocabulary, letters.special_ids)
    assert loaded.encode("cabd<pad>") == letters.encode("cabd<pad>") == next(letters.encode_all(["cabd<pad>"])).tolist()


def test_tokenisers_of_the_hub_come_through_transformers(tmp_path, monkeypatch, data):
    transformers = pytest.importorskip("transformers")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=data.tokeniser.backend, eos_token="<end>", pad_token="<pad>"
    )
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda name: fast)
    loaded = load_tokeniser("owner/model")
    assert (loaded.pad_id, loaded.mask_id, loaded.end_id) == (data.pad_id, data.mask_id, data.tokeniser.end_id)
    assert loaded.encode("And the LORD <pad>") == data.tokeniser.encode("And the LORD <pad>")

    def offline(name):
        raise OSError("We couldn't connect to 'https://huggingface.co'")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", offline)
    with pytest.raises(AnisoscopeError, match=r"owner/model cannot be loaded: We couldn't connect .*tokenizer\.json"):
        load_tokeniser("owner/model")


def test_wrong_settings_say_what_to_do(tmp_path, kjv, monkeypatch):
    for wrong, says in (
        ({"vocabulary": 258}, "at least 259"),
        ({"length": 7}, "at least 8 tokens"),
        ({"held_out": 0.0}, "between 0 and 1"),
        ({"held_out": float("nan")}, "between 0 and 1"),
        ({"tokeniser": str(tmp_path)}, "must hold a tokenizer.json"),
        ({"tokeniser": str(tmp_path / "no.json")}, "must exist"),
    ):
        with pytest.raises(ValueError, match=says):
            prepare(kjv, **{"length": 16, **wrong})
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(AnisoscopeError, match=r"t\.json is not a valid tokenizer\.json"):
        load_tokeniser(str(tmp_path / "t.json"))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(AnisoscopeError, match=r'pip install "anisoscope\[models\]"'):
        prepare(kjv, length=16)


def test_documents_that_hold_an_equal_sequence_are_one_unit():
    """Equal pieces link documents, also by way of a third; equal beginnings of unequal length do not."""
    first, second, third = ([k] * 8 for k in (1, 2, 3))
    ids = np.array([first, second, second, third, third, [4] * 8, [4] * 8])
    lengths = np.array([8, 8, 8, 8, 8, 8, 5])
    documents = np.array([9, 9, 5, 5, 7, 2, 3], np.int32)
    joined = tokens.joined_documents(ids, lengths, documents)
    assert joined.tolist() == [5, 5, 5, 5, 5, 2, 3]
    assert joined.dtype == np.int32


def test_units_of_sequences_join_what_documents_share():
    """A refrain of exactly one sequence in two of sixty documents."""
    texts = [np.random.default_rng(k).choice(list("abcdefghij"), 64) for k in range(60)]
    for k in (10, 40):
        texts[k] = np.concatenate([list("abcdefgh" * 4), texts[k]])
    corpus = Corpus("songs", ["".join(text) for text in texts], characters=True)
    part = prepare(corpus, length=32, held_out=0.05).train
    equal = [k for k, row in enumerate(part.ids) if (part.ids == row).all(1).sum() > 1]
    assert part.documents[equal].tolist() == [10, 40]
    assert part.units()[equal].tolist() == [10, 10]
    assert len(set(part.documents)) - len(set(part.units())) == 1
    assert dataclasses.replace(part, documents=None).units() is None
