"""Rows of a run as a user asks for them: expectations are picked by hand from what was planted."""

import csv
import io
import json
import math
import os
import pty
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from anisoscope import cli
from anisoscope.escape_text import visible
from anisoscope.store.files import Folder
from anisoscope.store.run import create_run
from anisoscope.store.schema import COLUMNS

HOSTILE = '[red]not a colour[/red] \x1b[31m two\nlines \u202e \x9b7m, "quoted"'
SHOWN = '[red]not a colour[/red] \\x1b[31m two\\nlines \\u202e \\x9b7m, "quoted"'
COMMON = {"view": "representation", "subset": "all"}


def planted(step):
    """Two layers: an enrichment, an undefined isoscore with a note, and a loss without a layer."""
    rows = []
    for layer in (0, 1):
        rows.append(
            COMMON
            | {"step": step, "layer": layer, "proxy": "pca", "rank": 8, "timing": "rolling", "null": "haar"}
            | {"measure": "enrichment", "value": 1.5 + layer + step / 100, "q": 0.01 if layer else 0.5, "n": 64}
        )
        rows.append(
            COMMON | {"step": step, "layer": layer, "measure": "isoscore_star", "value": math.nan, "note": HOSTILE}
        )
    return [*rows, {"step": step, "measure": "loss", "variant": "held-out", "value": 8.0 - step / 100}]


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    with create_run(folder) as made:
        for role in ("decoder", "encoder"):
            for step in (0, 100):
                made.sink(role, role=role, seed=3).write(planted(step))
    return folder


@pytest.fixture
def asked(run, capsysbinary):
    """What a command prints, as text."""

    def ask(*arguments, of=None):
        capsysbinary.readouterr()
        cli.main(["rows", str(of or run), *map(str, arguments)])
        out, err = capsysbinary.readouterr()
        return out if "parquet" in arguments else out.decode(), err.decode()

    return ask


def rows_of(asked, *arguments):
    return json.loads(asked(*arguments, "--format", "json")[0], parse_constant=pytest.fail)


def process(*arguments, **options):
    command = [sys.executable, "-m", "anisoscope.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False, **options)


def test_json_keeps_every_column_and_null_is_not_nan(asked):
    rows = rows_of(asked)
    assert len(rows) == 20
    assert all(list(row) == list(COLUMNS) for row in rows)
    expected = {"run": "run", "role": "decoder", "seed": 3} | planted(0)[1] | {"value": "NaN"}
    assert rows[1] == {name: expected.get(name) for name in COLUMNS}


def test_csv_says_the_same_as_json(asked):
    text, _ = asked("--format", "csv")
    found = list(csv.DictReader(io.StringIO(text, newline="")))
    for row, expected in zip(found, rows_of(asked), strict=True):
        assert row == {name: "" if value is None else visible(str(value)) for name, value in expected.items()}
    assert found[1]["note"] == visible(HOSTILE) != HOSTILE
    assert text.splitlines()[1].endswith(",0.5,,,,64,")  # null is an empty field


def test_parquet_is_the_table_itself(run, asked, tmp_path):
    out, _ = asked("--format", "parquet", "--step", 100, "--role", "encoder")
    table = pq.read_table(io.BytesIO(out))
    assert table.schema.names == list(COLUMNS)
    assert table["value"].to_pylist()[0::2] == [2.5, 3.5, 7.0]
    assert table["value"].null_count == 0
    assert table["low"].null_count == 5
    asked("--out", tmp_path / "all.parquet")
    assert pq.read_table(tmp_path / "all.parquet").num_rows == 20
    assert process("rows", run, "--format", "parquet").stdout[:4] == b"PAR1"


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (["--measure", "enrichment", "--role", "decoder"], [1.5, 2.5, 2.5, 3.5]),
        (["--measure", "enrichment,loss", "--role", "decoder", "--step", "0"], [1.5, 2.5, 8.0]),
        (["--measure", "enrichment", "--measure", "loss", "--role", "decoder", "--step", "0"], [1.5, 2.5, 8.0]),
        (["--null", "haar", "--layer", "1", "--step", "last"], [3.5, 3.5]),
        (["--null", "haar", "--layer", "0", "--step", "first,100"], [1.5, 2.5, 1.5, 2.5]),
        (["--measure", "loss", "--step", "first"], [8.0, 8.0]),
        (["--proxy", "pca", "--timing", "rolling", "--view", "representation", "--where", "layer=1"], [2.5, 3.5] * 2),
        (["--where", "q<=0.05", "--where", "role=encoder"], [2.5, 3.5]),
        (["--where", "q!=0.5", "--where", "measure!=isoscore_star", "--role", "decoder"], [2.5, 8.0, 3.5, 7.0]),
        (["--where", "layer=", "--where", "value > 7"], [8.0, 8.0]),
        (["--where", "value>=3.5", "--where", "value<8", "--where", "layer!="], [3.5, 3.5]),
        (["--where", "value=NaN", "--step", "0", "--role", "decoder"], ["NaN", "NaN"]),
        (["--where", "value!=NaN", "--step", "0", "--role", "decoder"], [1.5, 2.5, 8.0]),
        (["--where", "q!=NaN", "--measure", "loss", "--step", "0"], [8.0, 8.0]),
        (["--where", f"note={HOSTILE}", "--step", "0", "--role", "encoder"], ["NaN", "NaN"]),
    ],
)
def test_filters_find_what_was_planted(asked, filters, expected):
    assert [row["value"] for row in rows_of(asked, *filters)] == expected


def test_a_table_leaves_out_what_is_empty_and_says_once_what_is_the_same(asked):
    out, err = asked("--measure", "enrichment", "--role", "decoder")
    lines = out.splitlines()
    assert lines[0] == (
        "in all rows: run run, role decoder, seed 3, view representation, subset all, proxy pca, rank 8, "
        "timing rolling, measure enrichment, null haar"
    )
    assert lines[1].split() == ["step", "layer", "value", "q", "n"]
    assert [line.split() for line in lines[2:]] == [
        ["0", "0", "1.5", "0.5", "64"],
        ["0", "1", "2.5", "0.01", "64"],
        ["100", "0", "2.5", "0.5", "64"],
        ["100", "1", "3.5", "0.01", "64"],
    ]
    assert err == ""


def test_columns_are_those_asked_for_in_that_order(asked):
    out, _ = asked("--columns", "value,low, measure", "--measure", "loss", "--role", "decoder")
    assert [line.split() for line in out.splitlines()] == [["value", "low", "measure"], ["8", "loss"], ["7", "loss"]]
    (first, *_) = rows_of(asked, "--columns", "step,value", "--measure", "loss")
    assert list(first.items()) == [("step", 0), ("value", 8.0)]


def test_a_limit_says_how_many_rows_are_left_out(asked):
    out, _ = asked("--limit", 3)
    assert out.splitlines()[-1] == "17 more of 20 rows left out; --limit 0 shows all"
    assert len(asked("--limit", 0)[0].splitlines()) == 22
    out, err = asked("--limit", 3, "--format", "csv", "--columns", "step")
    assert out == "step\n0\n0\n0\n"
    assert "17 more of 20" in err


def test_strings_of_a_run_are_text(asked):
    out, _ = asked("--measure", "isoscore_star")
    assert SHOWN in out
    assert not {"\x1b", "\x9b", "\u202e"} & set(out)
    text, _ = asked("--measure", "isoscore_star", "--format", "json")
    assert not {"\x1b", "\x9b", "\u202e"} & set(text)
    assert json.loads(text)[0]["note"] == HOSTILE


def on_terminal(columns, *arguments):
    """What a user sees on a terminal of that width, and the exit code."""
    screen, terminal = pty.openpty()
    environment = os.environ | {"COLUMNS": str(columns), "TERM": "xterm", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "anisoscope.cli", *map(str, arguments)]
    with subprocess.Popen(command, stdout=terminal, stderr=subprocess.PIPE, env=environment) as shown:
        os.close(terminal)
        seen = b""
        try:
            while part := os.read(screen, 65536):
                seen += part
        except OSError:  # Linux says so when the other end is closed
            pass
        error = shown.stderr.read().decode()
    os.close(screen)
    return seen.decode().replace("\r\n", "\n"), error, shown.returncode


def test_on_a_terminal_it_is_a_table_without_its_markup_read(tmp_path):
    with create_run(tmp_path / "run") as made:
        for step in range(60):
            made.write("a", [{"step": step, "tokens": step, "measure": "[red]x", "value": 0.5, "note": HOSTILE}])
    out, _, code = on_terminal(200, "rows", tmp_path / "run", "--columns", "step,measure,note")
    assert code == 0
    assert f"59  [red]x   {SHOWN}" not in out
    assert f"49  [red]x   {SHOWN}" in out
    assert "10 more of 60 rows left out" in out
    assert "\x1b[31m" not in out
    narrow, _, _ = on_terminal(24, "rows", tmp_path / "run", "--limit", "1")
    assert "no room for tokens" in narrow
    out, error, code = on_terminal(80, "rows", tmp_path / "run", "--format", "parquet")
    assert (out, code) == ("", 2)
    assert "must not go to a terminal" in error


def test_a_damaged_part_is_named_and_the_rest_is_shown(run, asked):
    part = run / "rows-encoder-000000100.parquet"
    part.write_bytes(part.read_bytes()[:50])
    for format in ("table", "csv", "json", "parquet"):
        out, err = asked("--format", format)
        assert out
        assert part.name in err
        assert "warning" in err
    assert len(rows_of(asked)) == 15


def test_urls_are_read_and_written(asked, tmp_path):
    with create_run(f"memory://{tmp_path.name}/run") as made:
        made.write("a", [{"step": 0, "measure": "energy", "value": 0.5}])
    out, _ = asked("--format", "csv", "--columns", "measure,value", of=f"memory://{tmp_path.name}/run")
    assert out == "measure,value\nenergy,0.5\n"
    asked("--out", f"memory://{tmp_path.name}/copy.csv", "--measure", "loss", "--columns", "value")
    assert Folder(f"memory://{tmp_path.name}").read("copy.csv") == b"value\n8.0\n7.0\n8.0\n7.0\n"


def test_out_is_written_whole_and_never_among_the_parts(run, asked, tmp_path):
    for name in ("rows.csv", "rows.json", "rows.txt"):
        out, _ = asked("--out", tmp_path / name, "--measure", "loss")
        assert out == ""
    assert (tmp_path / "rows.csv").read_text().splitlines()[0] == ",".join(COLUMNS)
    assert len(json.loads((tmp_path / "rows.json").read_text())) == 4
    assert (tmp_path / "rows.txt").read_text().startswith("in all rows: run run, seed 3, measure loss")
    assert process("rows", run, "--out", run / "rows-a.parquet").returncode == 2
    assert process("rows", run, "--out", tmp_path).returncode == 1
    asked("--format", "csv", "--out", os.devnull)
    assert not os.path.isfile(os.devnull)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.csv", "rows.json", "rows.txt", "run"]


def test_when_nothing_is_found_it_says_what_there_is(asked):
    out, err = asked("--measure", "enrichmnt")
    assert out == "no rows\n"
    assert "no row has measure enrichmnt; there are: enrichment, isoscore_star, loss" in err
    out, err = asked("--measure", "loss", "--where", "value>100", "--format", "csv")
    assert out == ",".join(COLUMNS) + "\n"
    assert "none of 20 rows meets all conditions" in err
    assert asked("--step", "last", "--measure", "none", "--format", "json")[0] == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["{run}/none"], 1, "is no run"),
        (["{parent}"], 1, "there are runs in it: {parent}/run"),
        (["nosuch://place"], 1, "Protocol not known"),
        (["{run}", "--columns", "mesure"], 2, "did you mean measure"),
        (["{run}", "--where", "laier=3"], 2, "did you mean layer"),
        (["{run}", "--where", "layer"], 2, "must be column=value"),
        (["{run}", "--where", "layer=three"], 2, "layer holds whole numbers, got 'three'"),
        (["{run}", "--where", f"layer={2**63}"], 2, "layer holds whole numbers"),
        (["{run}", "--where", "value<NaN"], 2, "neither less nor greater"),
        (["{run}", "--where", "value<"], 2, "must be followed by a value"),
        (["{run}", "--layer", "1.5"], 2, "whole numbers"),
        (["{run}", "--format", "xml"], 2, "parquet"),
        (["{run}", "--limit", "-1"], 2, "at least 0"),
        (["{run}", "--limit", "99999999999999999999"], 2, "--limit must have at most 18 digits"),
        (["{run}", "--out", "{run}/manifest.json/x.csv"], 1, "cannot write"),
        ([], 2, "RUN"),
    ],
)
def test_errors_are_one_line_without_a_traceback(run, arguments, code, message):
    names = {"run": run, "parent": run.parent}
    done = process("rows", *[argument.format(**names) for argument in arguments], text=True)
    assert done.returncode == code, done.stderr
    assert message.format(**names) in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads as Linux lists them")
def test_reading_starts_no_thread_that_could_abort_the_exit(run):
    code = """
import os, sys
import pyarrow.parquet, pyarrow.compute
from anisoscope import cli
before = len(os.listdir("/proc/self/task"))
cli.main(["rows", sys.argv[1], "--measure", "loss,energy", "--where", "value!=3", "--format", "json"])
sys.exit(len(os.listdir("/proc/self/task")) - before)
"""
    done = subprocess.run([sys.executable, "-c", code, run], capture_output=True)
    assert done.returncode == 0, done.stderr


def test_a_reader_that_goes_away_is_no_traceback(run):
    command = f"{sys.executable} -m anisoscope.cli rows {run} --format csv | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stdout == ",".join(COLUMNS) + "\n"
    assert done.stderr == ""


@pytest.mark.parametrize(
    "arguments", [["rows", "--help"], ["compare", "--help"], ["doctor", "--help"], ["rows", "{run}"]]
)
def test_torch_is_never_imported(run, arguments):
    code = (
        "import sys; from anisoscope.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    )
    arguments = [argument.format(run=run) for argument in arguments]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    # The last case reads a run, which needs numpy: it proves that the check can fail.
    assert done.stdout.splitlines()[-1] == ("[]" if arguments[-1] == "--help" else "['numpy']")
