"""The command as a user meets it: a process of its own, its output, its exit code."""

import json
import math
import re
import subprocess
import sys

import numpy as np
import pytest

from anisoscope import cli, isoscore, two_nn
from anisoscope.cli.measure import _progress

X = np.random.default_rng(0).normal(size=(600, 4)) * [4, 2, 1, 1] + 1


def run(*arguments):
    command = [sys.executable, "-m", "anisoscope.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_table_and_json_of_a_file(tmp_path, capsys):
    np.save(tmp_path / "x.npy", X)
    cli.main(["measure", str(tmp_path / "x.npy"), "--json"])
    (result,) = json.loads(capsys.readouterr().out)
    assert (result["rows"], result["width"], result["sampled"]) == (600, 4, 600)
    values = {(row["measure"], row["variant"]): row for row in result["measures"]}
    assert values["isoscore", "plain"]["value"] == pytest.approx(float(isoscore(X)), rel=1e-9)
    fit = values["two_nn", "fit"]
    expected = two_nn(X)
    assert (fit["value"], fit["low"], fit["high"]) == pytest.approx((expected.value, expected.low, expected.high))
    for name in ("two_nn", "levina_bickel", "gride"):  # the rows are Gaussian: their control reads the same
        rows = [row for row in result["measures"] if row["measure"] == name]
        assert rows
        assert all(row["floor"] == pytest.approx(row["value"], rel=0.25) for row in rows)
    cli.main(["measure", str(tmp_path / "x.npy")])
    table = capsys.readouterr().out
    assert "of a dimension, what a Gaussian cloud of equal covariance and n reads" in table
    assert "interval of a dimension: sampling error at this n" in table
    for name in (
        "top_share",
        "average_cosine",
        "isoscore",
        "isoscore_star",
        "participation_ratio",
        "effective_rank",
        "rankme",
        "spectral_decay",
        "partition_ratio",
        "local_isotropy",
        "two_nn",
        "levina_bickel",
        "gride",
    ):
        assert name in table


def test_a_sample_says_how_large_it_is(tmp_path, capsys):
    np.save(tmp_path / "x.npy", X)
    cli.main(["measure", str(tmp_path / "x.npy"), "--json", "--sample", "100"])
    (result,) = json.loads(capsys.readouterr().out)
    n = {row["measure"]: row["n"] for row in result["measures"]}
    assert (n["isoscore"], n["two_nn"], n["partition_ratio"]) == (600, 100, 100)
    cli.main(["measure", str(tmp_path / "x.npy"), "--sample", "100"])
    assert "n = 100: seeded sample" in capsys.readouterr().out


def test_undefined_is_not_missing(tmp_path, capsys):
    np.save(tmp_path / "flat.npy", np.full((40, 3), 2.5))
    cli.main(["measure", str(tmp_path / "flat.npy"), "--json"])
    text = capsys.readouterr().out
    (result,) = json.loads(text, parse_constant=pytest.fail)  # strict JSON has no NaN of its own
    row = next(row for row in result["measures"] if row["measure"] == "isoscore")
    assert math.isnan(float(row["value"]))
    assert row["low"] is None
    assert "equal" in row["note"]


def test_names_are_text_and_columns_left_out_are_named(tmp_path, capsys):
    np.save(tmp_path / "layer[bold]:x:.npy", X)
    cli.main(["measure", str(tmp_path / "layer[bold]:x:.npy")])
    assert "layer[bold]:x:.npy: 600 rows" in capsys.readouterr().out
    (tmp_path / "t.csv").write_text("a,b,name\n" + "\n".join(f"{a},{b},x" for a, b in X[:, :2]))
    cli.main(["measure", str(tmp_path / "t.csv"), "--json"])
    assert json.loads(capsys.readouterr().out)[0]["columns_left_out"] == ["name"]


def test_fewest_rows(tmp_path, capsys):
    np.save(tmp_path / "x.npy", X[:3])
    cli.main(["measure", str(tmp_path / "x.npy")])
    assert "two_nn" in capsys.readouterr().out


def test_a_terminal_sees_how_far_it_is_and_a_pipe_nothing(monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    for force, expected in (("", ""), ("1", "layer[bold].npy\\n")):
        monkeypatch.setenv("FORCE_COLOR", force)
        monkeypatch.setenv("NO_COLOR", "1")
        with _progress("layer[bold].npy\n", 600) as advance:
            advance("reading", 150)
            advance("neighbours", 0)
        said = capsys.readouterr()
        assert said.out == ""
        assert expected in said.err
        assert bool(said.err) == bool(expected)
    assert "layer[bold].npy\\n: neighbours" in said.err


def test_demo_runs_as_a_process():
    done = run("measure", "demo")
    assert done.returncode == 0, done.stderr
    assert "4,000 rows × 64" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["measure"], 2, "at least one file"),
        (["measure", "none.npy"], 2, "must exist, got none.npy"),
        (["measure", "demo", "--sample", "1"], 2, "--sample must be at least 3"),
        (["measure", "demo", "--wat"], 2, "--wat"),
        (["measure", "demo", "--seed", "-1"], 2, "--seed must be at least 0"),
        (["mesure"], 2, "measure"),
        (["measure", "{text}"], 1, "cannot be read as .npy"),
        (["measure", "{nan}"], 2, "first: row 3"),
    ],
)
def test_errors_have_no_traceback(tmp_path, arguments, code, message):
    (tmp_path / "text.npy").write_text("hello")
    np.save(tmp_path / "nan.npy", np.where(np.arange(9)[:, None] == 3, np.nan, X[:9]))
    names = {"text": tmp_path / "text.npy", "nan": tmp_path / "nan.npy"}
    done = run(*[argument.format(**names) for argument in arguments])
    assert done.returncode == code
    assert re.search(re.escape(message), done.stderr), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("arguments", [["--help"], ["measure", "--help"], ["--version"], ["measure", "none.csv.gz"]])
def test_help_never_imports_torch(arguments):
    code = (
        "import sys; from anisoscope.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print(any(name in sys.modules for name in ('torch', 'numpy', 'jinja2', 'anisoscope.report')))"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    expected = "True" if arguments[-1].startswith("none") else "False"  # the last case proves the check can fail
    assert done.stdout.splitlines()[-1] == expected
