"""Uses that nobody meant, and what is said of them."""

import json

import numpy as np
import pytest

from anisoscope.cli import main
from anisoscope.store.run import create_run
from models.snapshots import save, tiny


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with create_run("run") as run:
        run.write("a", [{"step": 0, "measure": "loss", "variant": "train", "value": 1.0, "role": "decoder"}])
        run.close("finished")
    with create_run("bare") as run:
        run.close("finished")
    (tmp_path / "word.toml").write_text('measure = "loss"\nstep = 0\ncolumns = ["value"]\n')
    (tmp_path / "none.toml").write_text("step = true\n")
    (tmp_path / "deep.toml").write_text("a = " + "[" * 3000)
    (tmp_path / "twice.csv").write_text("a,a\n1,2\n3,4\n5,6\n")
    (tmp_path / "void").mkdir()
    np.save("a.npy", np.zeros((9, 2)))
    return tmp_path


def said(capsys, *arguments):
    try:
        main(list(map(str, arguments)))
    except SystemExit as ended:
        return ended.code, capsys.readouterr()
    return 0, capsys.readouterr()


def test_a_filter_in_a_file_is_a_word_a_number_or_a_list(here, capsys):
    assert said(capsys, "rows", "run", "--config", "word.toml")[1].out.split() == ["value", "1"]
    assert (
        said(capsys, "rows", "run", "--columns", "step,value,step", "--format", "csv")[1].out == "step,value\n0,1.0\n"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["rows", "run", "--config", "none.toml"], 2, "--step must be a word, a number, or a list of them"),
        (["rows", "run", "--config", "deep.toml"], 2, "a configuration must not be nested so deeply"),
        (["rows", "run", "--columns", ","], 2, "--columns must name at least 1"),
        (["measure", "a.npy", "--columns", ","], 2, "--columns must name at least 1"),
        (["measure", "twice.csv"], 2, "columns of twice.csv must have different names, got a twice"),
        (["figures", "bare"], 1, "bare has no rows that a figure shows"),
        (["pair", "--corpus", "void"], 2, "it exists, but is neither a text file nor a folder of them"),
        (["pair", "--first-seed", "99999999999999999999"], 2, "--first-seed must be below 2147483648"),
        (["pair", "--learning-rate", "inf"], 2, "--learning-rate must be finite"),
        (["profile", "model", "--seed", "99999999999999999999"], 2, "--seed must be below 2147483648"),
        (["profile", "model", "--dry-run"], 1, "it says -3 layers of width 16"),
    ],
)
def test_one_line_says_what_is_wrong(here, capsys, arguments, code, line):
    if "model" in arguments:
        save(tiny("gpt2"), here / "model")
        told = json.loads((here / "model/config.json").read_text())
        (here / "model/config.json").write_text(json.dumps(told | {"n_layer": -3}))
        capsys.readouterr()  # the bar of transformers
    found, text = said(capsys, *arguments)
    assert (found, text.err.count("\n")) == (code, 1), text.err
    assert line in text.err


def test_figures_name_what_they_leave_out(here, capsys):
    (here / "run" / "stray.parquet").write_bytes(b"PAR1")
    assert "1 file(s), damaged or not part of the run, left out: stray.parquet" in said(
        capsys, "figures", "run", "--format", "svg"
    )[1].err.replace("\n", " ")
