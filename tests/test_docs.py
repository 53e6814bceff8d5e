"""The documentation names what is there: files, links, words, public names; and nothing is left out of it."""

import ast
import re
from pathlib import Path

import pytest

import anisoscope
from anisoscope.vocabulary import NULLS

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "bench").rglob("*.md")])
LINK = re.compile(r"!?\[[^\]\n]*(?:\n[^\]\n]+)?\]\(([^)\s]+)\)")


def plain(path):
    """A page without its code blocks and without code in its lines."""
    text = re.sub(r"^(`{3,}).*?^\1", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]+`", "code", text)


def anchors(path):
    """The anchors that GitHub and MyST make of the headings of a page and of the pages that it includes."""
    text = path.read_text(encoding="utf-8")
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    own = {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}
    included = re.findall(r"^```\{include\} (\S+)$", text, re.MULTILINE)
    return own.union(*(anchors((path.parent / name).resolve()) for name in included))


def dead_links(page):
    """Links of a page that lead to no file, or to no heading of one."""
    dead = []
    for link in LINK.findall(plain(page)):
        if re.match(r"\w+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            dead.append(link)
    return dead


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_file_and_heading_that_are_there(page):
    assert dead_links(page) == []


def test_the_search_for_links_finds_dead_ones(tmp_path):
    page = tmp_path / "page.md"
    code = "`[y](code.md)`\n```\n[z](code.md)\n```\n"
    page.write_text(f"# A head\n[x](gone.md) {code}[w](#a-head) [v](#b) [u](page.md#c)\n")
    assert dead_links(page) == ["gone.md", "#b", "page.md#c"]


def test_the_index_has_four_parts_and_every_page_once():
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    parts = re.findall(r"```\{toctree\}\n:caption: (\w+)\n\n(.*?)```", text, re.DOTALL)
    assert [caption for caption, _ in parts] == ["Start", "Guides", "Reference", "Background"]
    listed = [name for _, names in parts for name in names.split()]
    assert sorted(listed) == sorted(path.stem for path in (ROOT / "docs").glob("*.md") if path.stem != "index")


def named_files(text):
    """Paths of files and folders that a page names in code."""
    return {name for name in re.findall(r"`([\w./-]+)`", text) if re.search(r"\.(py|js|toml|md)$|/$", name)}


def test_every_file_that_the_architecture_names_exists():
    named = named_files((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    assert len(named) > 60
    assert {n for n in named if not (ROOT / n).exists() and not (ROOT / "src" / "anisoscope" / n).exists()} == set()


def test_the_architecture_names_every_room():
    folders = {path.name for path in (ROOT / "src" / "anisoscope").iterdir() if (path / "__init__.py").exists()}
    named = named_files((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    assert {folder for folder in folders if f"{folder}/" not in named} == {"testing"}  # planted clouds: no room of work


def test_the_glossary_has_a_sentence_and_a_panel_for_every_null():
    terms = dict(re.findall(r"^\*\*([\w-]+)\*\*\n: (.+)$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE))
    assert set(NULLS) <= set(terms)
    panels = ast.parse((ROOT / "docs" / "nulls_picture.py").read_text())
    (drawn,) = [n.value for n in panels.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "PANELS"]
    assert isinstance(drawn, ast.Dict)
    assert {ast.literal_eval(key) for key in drawn.keys} == {"observed", *NULLS}
    assert (ROOT / "docs" / "nulls.png").stat().st_size > 20_000


def documented():
    """Modules of the reference with the members that it shows; None is all that are public."""
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    found = re.findall(r"automodule:: (\S+)\n   :members:(.*)", text)
    return {
        module: None if not members.strip() else {m.strip() for m in members.split(",")} for module, members in found
    }


def test_the_reference_shows_every_public_name():
    shown = documented()
    missing = []
    for name in anisoscope.__all__:
        if name == "__version__":
            continue
        module = getattr(anisoscope, name).__module__
        if module not in shown or not (shown[module] is None or name in shown[module]):
            missing.append(f"{name} of {module}")
    import anisoscope.regularizers as regularizers

    for name in regularizers.__all__:
        module = getattr(regularizers, name).__module__
        if module not in shown or not (shown[module] is None or name in shown[module]):
            missing.append(f"{name} of {module}")
    assert missing == []


def test_what_the_reference_lists_by_name_is_there():
    import importlib

    for module, members in documented().items():
        there = vars(importlib.import_module(module))
        assert {m for m in members or () if m not in there} == set(), module


def test_the_citation_is_valid_and_security_says_how_to_report():
    lines = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    for field in ("cff-version: 1.2.0", "message:", "title:", "authors:", "license: MIT", "2604.08764"):
        assert field in lines
    assert "advisory" in (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def test_versions_of_the_changelog_are_dated():
    heads = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert heads[0] == "Unreleased" or heads[0].startswith(anisoscope.__version__)
    assert len(heads) >= 2
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d{2}-\d{2}\)", head) for head in heads if head != "Unreleased")
