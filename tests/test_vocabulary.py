"""Every word of a row is declared once, and everything that is written or drawn uses those words."""

import ast
import re
from pathlib import Path

import pytest

from anisoscope import vocabulary
from anisoscope.store.run import open_run
from anisoscope.vocabulary import BINS, HEADLINES, MEASURES, NULLS, OUTCOMES, PROXIES, SUBSETS, TENSORS, TIMINGS, VIEWS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "anisoscope"
TABLES = {
    "views": VIEWS,
    "tensors": TENSORS,
    "subsets": SUBSETS,
    "proxies": PROXIES,
    "nulls": NULLS,
    "measures": MEASURES,
    "headlines": HEADLINES,
    "timings": TIMINGS,
    "bins": dict.fromkeys(BINS),
    "outcomes": OUTCOMES,
    "windows": vocabulary.WINDOWS,
    "samplings": vocabulary.SAMPLINGS,
    "sides of bins": vocabulary.BIN_SIDES,
    "sizes of bins": vocabulary.BIN_SIZES,
}
# Here words are used, not declared: how each is computed, what a default chooses, which row a number goes into, what a
# sentence or a sign says for each.
REGISTRIES = {
    ("evaluate/row_builders.py", "measures"),
    ("evaluate/evaluator.py", "timings"),
    ("observe/site_selection.py", "views"),
    ("evaluate/remote/partition.py", "views"),
    ("geometry/measure_registry.py", "measures"),
    ("evidence/nulls/registry.py", "nulls"),
    ("study/pair/pair_settings.py", "proxies"),
    ("study/verify/verify_settings.py", "proxies"),
    ("evidence/referee_checks.py", "proxies"),
    ("report/answer.py", "outcomes"),
    ("report/answer.py", "views"),
    ("report/answer.py", "windows"),
    ("report/signs.py", "outcomes"),
    ("report/sections/verdict_section.py", "outcomes"),
    ("report/paper_tables.py", "outcomes"),
    ("report/names.py", "proxies"),
    ("report/plain_words.py", "nulls"),
    ("report/plain_words.py", "proxies"),
    ("study/estimates.py", "views"),
}
JAVASCRIPT = {"chart.js": {"energy"}}  # an axis that is a share for this measure and a ratio for others


def lists(path):
    """The texts of every literal list, tuple, set, dictionary and ``Literal`` of a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            parts = node.elts
        elif isinstance(node, ast.Dict):
            parts = [key for key in node.keys if key is not None]
        else:
            continue
        yield node.lineno, {p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str)}


def second_lists(paths, root=SOURCE):
    found = []
    for path in paths:
        where = path.relative_to(root).as_posix()
        for line, words in lists(path):
            for kind, table in TABLES.items():
                shared = words & set(table)
                enough = len(shared) >= min(3, len(table))
                if enough and shared == words and (where, kind) not in REGISTRIES:
                    found.append(f"{where}:{line}: {kind} {sorted(shared)}")
    return found


def test_no_file_has_a_second_list_of_words():
    paths = [path for path in SOURCE.rglob("*.py") if path.name != "vocabulary.py"]
    assert second_lists(paths) == []
    for path in (SOURCE / "report" / "assets").glob("*.js"):
        quoted = set(re.findall(r'"([^"\n]+)"', path.read_text(encoding="utf-8")))
        named = {*NULLS, *PROXIES, *OUTCOMES, *MEASURES, *HEADLINES, *VIEWS, *SUBSETS, *TIMINGS}
        assert not (named - JAVASCRIPT.get(path.name, set())) & quoted, path.name


def test_the_search_for_second_lists_finds_one(tmp_path):
    planted = tmp_path / "planted.py"
    planted.write_text('ORDER = ("haar", "axes", "init")\nOTHER = {"haar": 1, "mine": 2}\n', encoding="utf-8")
    assert second_lists([planted], tmp_path) == ["planted.py:1: nulls ['axes', 'haar', 'init']"]


@pytest.mark.parametrize("kind", ["pair", "profile", "theory"])
def test_rows_hold_known_words_alone(kind):
    """Rows written before the vocabulary was there hold no word that it lacks."""
    rows = open_run(ROOT / "tests" / "store" / "version_1" / kind).table().to_pylist()
    known = {
        "view": VIEWS,
        "tensor": TENSORS,
        "proxy": PROXIES,
        "null": NULLS,
        "measure": MEASURES,
        "timing": TIMINGS,
    }
    for column, table in known.items():
        assert {row[column] for row in rows} <= {None, *table}, column
    bins = {vocabulary.bin_subset(s, z, k) for s in ("target", "input") for z in ("tokens", "types") for k in ALL_BINS}
    assert {row["subset"] for row in rows} <= {None, *SUBSETS, *bins, *vocabulary.SAMPLINGS}


ALL_BINS = (None, -1, 1, 2, 3, 4, 5)


def test_every_measure_that_is_registered_has_its_words():
    from anisoscope.evidence.nulls.registry import METHODS
    from anisoscope.geometry.measure_registry import methods

    for method in methods():
        word = MEASURES[method.name]
        assert word.label
        assert word.about
        assert {v for v in method.variants if v} <= {name for name, _ in word.variants} | {"probe"}
        if word.variants:
            assert next(iter(method.variants)) in ("", word.variants[0][0])
    assert set(METHODS) == set(NULLS)


def test_words_of_a_manifest_are_learnt_and_nonsense_is_left_alone():
    vocabulary.learn({"nulls": [{"name": "mine", "breaks": "b", "otherwise": "o", "views": ["weight"]}]})
    try:
        assert NULLS["mine"].views == ("weight",)
        assert not NULLS["haar"].needs
        for nonsense in (None, 3, "x", {"nulls": [{"name": 3}]}, {"nulls": [{"nome": "x"}]}, {"measures": [3]}):
            vocabulary.learn(nonsense)
        vocabulary.learn({"nulls": [{"name": "haar", "breaks": "evil", "otherwise": "evil", "views": []}]})
        assert NULLS["haar"].breaks != "evil"
    finally:
        vocabulary.remove("nulls", "mine")
    assert "mine" not in NULLS


def test_the_page_of_words_is_up_to_date():
    import docs.vocabulary as made

    assert (ROOT / "docs" / "vocabulary.md").read_text(encoding="utf-8") == made.page()
