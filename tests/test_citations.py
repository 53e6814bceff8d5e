"""A claim of a paper is cited by its authors: nobody reads "the paper" and has to guess which."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KINDS = {".py", ".md", ".toml", ".js", ".html", ".ipynb", ".cff"}
UNNAMED = re.compile(
    r"(?<![\"“])\b(the|this|that|their|these)\s+(same\s+|original\s+)?papers?\b(?!-)(?![\"”])", re.IGNORECASE
)
NAMED = re.compile(r"et al\.|\(\d{4}[,)]|arXiv|doi\.org")
OF_BERNAS = re.compile(
    r"\bpublished\s+(bound|ratio|proposition)|\bclaim under test\b|\bthe theory\b(?! laboratory)", re.IGNORECASE
)


def texts():
    """What a user can read: the package with its help and docstrings, pages, notebooks."""
    folders = ("src", "docs", "notebooks", "bench")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in KINDS]
    paths += [path for path in ROOT.iterdir() if path.suffix in KINDS]
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in paths
        if "_build" not in path.parts
    }


def uncited(text):
    """Paragraphs that name a paper without saying whose it is; lines of code and comments wrap like those of pages."""
    paragraphs = re.split(r"\n\s*\n", text)
    return [found[0] for each in paragraphs if not NAMED.search(each) for found in UNNAMED.finditer(each)]


def test_no_paper_is_left_unnamed():
    found = {name: words for name, text in texts().items() if (words := uncited(text))}
    assert found == {}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("as in the paper", 1),
        ("# The\n paper's control", 1),
        ("the papers say so", 1),
        ("Bernas et al. (2026): the paper takes 20", 0),
        ("as Bernas et al. do (2026).\n\nThe paper takes 20", 1),
        ("figures for papers; a paper of yours", 0),
        ('never as "the paper" alone', 0),
    ],
)
def test_the_search_finds_what_it_should(text, count):
    assert len(uncited(text)) == count


def test_every_page_about_the_theory_cites_it():
    pages = {
        name: text for name, text in texts().items() if re.match(r"docs/|src/anisoscope/(cli|report)/|README", name)
    }
    about = {name for name, text in pages.items() if OF_BERNAS.search(text)}
    assert len(about) > 5
    assert {name for name in about if "Bernas" not in pages[name]} == set()


def test_help_says_whose_protocol_and_whose_theory_it_is():
    for command in ("report", "theory"):
        run = [sys.executable, "-m", "anisoscope", command, "--help"]
        shown = subprocess.run(run, capture_output=True, text=True, check=True).stdout
        assert "Bernas" in shown
