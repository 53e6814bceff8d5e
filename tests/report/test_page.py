"""The page as a file: small, closed to the network, and deaf to what rows would like to tell it."""

import json
import math
import random
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from anisoscope.cli import main
from anisoscope.errors import AnisoscopeError
from anisoscope.report.make import make_report, write_whole
from anisoscope.store.run import create_run, open_run
from anisoscope.store.schema import COLUMNS
from report.planted import plant


class Elements(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]


@pytest.fixture(scope="module")
def page(planted):
    return make_report([str(planted / "good")])


def test_the_page_is_small_and_names_no_address(page):
    assert len(page.encode()) < 5_000_000
    addresses = set(re.findall(r"https?://[^\s\"'<]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of a vocabulary, never fetched
    found = Elements(page)
    for tag, name, value in found.attributes:
        if name in ("src", "href", "action", "data"):
            assert value.startswith(("#", "data:")), (tag, name, value)
        assert not name.startswith("on")
        assert name != "style", "the policy forbids style attributes"


def test_hostile_strings_make_no_elements(page):
    found = Elements(page)
    assert found.tags.count("script") == 4
    assert "img" not in found.tags
    assert "\x00" not in page
    assert "\u202e" not in page
    assert "x" * 300 not in page


def test_the_policy_lets_only_the_own_script_run(page):
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page).group(1)
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert policy.count("sha256-") == 2


def test_the_embedded_data_are_json_without_markup(page):
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S).group(1)
    assert not set(data) & set("<>&\u2028\u2029")
    assert {figure["id"] for figure in json.loads(data)} >= {"ladder", "emergence", "views", "dimension", "drift"}


def test_hostile_names_of_runs_and_models_are_text(tmp_path):
    name = "</title><script>alert(1)</script>"
    run = create_run(tmp_path / "run")
    run.update(name=name)
    row = {"step": 0, "model": name, "measure": "loss", "variant": "train", "value": 1.0}
    run.write("w", [row | {"step": 0}])
    run.write("w", [row | {"step": 1}])
    run.close("finished")
    made = make_report([str(tmp_path / "run")])
    assert Elements(made).tags.count("script") == 4
    assert "&lt;/title&gt;&lt;script&gt;" in made


@pytest.mark.slow
def test_long_runs_are_thinned_until_they_fit(planted):
    whole = make_report([str(planted / "good")])
    small = make_report([str(planted / "good")], largest=len(whole.encode()) - 20_000)
    assert len(small.encode()) <= len(whole.encode()) - 20_000
    assert "curves show 12 observations at most" in small
    with pytest.raises(AnisoscopeError, match="larger than 1,000 bytes"):
        make_report([str(planted / "good")], largest=1000)


def rewritten(path, rows):
    run = create_run(path)
    for i, row in enumerate(rows):
        run.write(f"w{i}", [row])
    run.close("finished")
    return str(path)


@pytest.mark.parametrize("seed", range(6))
def test_no_missing_field_or_strange_number_breaks_the_page(planted, tmp_path, seed):
    rng = random.Random(seed)
    rows = rng.sample(open_run(planted / "good").table().to_pylist(), 60)
    for row in rows:
        row.update(dict.fromkeys(rng.sample(list(COLUMNS), rng.choice([0, 1, 3]))))
        if rng.random() < 0.2:
            row["value"] = rng.choice([math.nan, math.inf, 0.0, -1.0])
            row["high"] = rng.choice([math.nan, math.inf, None])
    made = make_report([rewritten(tmp_path / "run", rows)])
    assert made.count("<section") - made.count('<section id="claims"') == 12


def test_a_report_of_a_damaged_run_says_what_is_missing(tmp_path):
    path = plant(tmp_path / "torn", until=20)
    (path / "rows-decoder-0-000000020.parquet").write_bytes(b"PAR1 torn")
    assert "rows-decoder-0-000000020.parquet" in make_report([str(path)])


def test_the_commands_write_files_and_name_them(planted, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["report", str(planted / "half")])
    main(["report", str(planted / "half"), str(planted / "good"), "--out", "two.html"])
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(str(planted / "half" / "report.html"))
    assert (tmp_path / "two.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert not list(tmp_path.glob(".tmp*"))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["report"], 2, "at least one run"),
        (["report", "no-such-run"], 1, "no run"),
        (["figures", "no-such-run"], 1, "no run"),
        (["report", "no-such-run", "--out", "."], 2, "must name a file"),
        (["figures", "x", "--format", "gif"], 2, "format"),
    ],
)
def test_wrong_use_is_told_in_one_line(arguments, code, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == code
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(AnisoscopeError, match="cannot write"):
        write_whole(tmp_path / "file" / "report.html", b"x")


def test_the_report_never_imports_torch(planted, tmp_path):
    out = tmp_path / "r.html"
    code = (
        "import sys; from anisoscope.cli import main; "
        f"main(['report', {str(planted / 'half')!r}, '--out', {str(out)!r}]); "
        "print(sorted({'torch', 'matplotlib', 'scipy', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
