"""Runs side by side: numbers are checked against medians worked out here, from planted rows."""

import csv
import io
import json
import math
import subprocess
import sys

import pytest

from anisoscope import cli
from anisoscope.report.comparing import HEADLINES, Line, at_fractions, differences, lines, subjects
from anisoscope.store.run import create_run, open_run

SIGNAL = {"view": "representation", "tensor": "gradients", "subset": "all", "proxy": "pca", "timing": "rolling"}


def enrichment(step, layer, value, **other):
    return SIGNAL | {"step": step, "layer": layer, "measure": "enrichment", "null": "haar", "value": value} | other


def plant(path, observations, *, config=None, role="decoder", seed=0, **about):
    """A run whose enrichment over haar is ``observations[step][layer]``."""
    with create_run(path, config=config, **about) as run:
        sink = run.sink(role, role=role, seed=seed)
        for step, values in observations.items():
            sink.write([enrichment(step, layer, value) for layer, value in enumerate(values)])
    return open_run(path)


def compared(*runs, **options):
    return lines(subjects(runs), **options)


def values(line):
    return [None if cell is None else cell.value for cell in line.cells]


@pytest.fixture
def two(tmp_path):
    """One trained for 1000 steps, the other for 200: the same fractions are other steps."""
    long = {0: [1.0, 2.0, 9.0], 110: [2.0, 4.0, 3.0], 300: [5.0], 690: [6.0, math.nan], 917: [math.nan]}
    short = {0: [1.5], 20: [2.5, 3.5], 60: [4.0], 150: [8.0], 199: [10.0]}
    plant(tmp_path / "long", long, config={"rank": 8, "optim": {"lr": 0.1, "beta": [0.9, 0.99]}}, steps=1000)
    plant(tmp_path / "short", short, config={"rank": 8, "optim": {"lr": 0.2, "beta": [0.9, 0.99]}, "extra": None})
    return tmp_path / "long", tmp_path / "short"


def test_runs_are_aligned_by_fraction_of_training(two):
    first, second = compared(*map(open_run, two))
    assert (first.measure, first.run, first.role, first.seed) == ("enrichment_haar", "long", "decoder", 0)
    assert values(first)[:4] == [2.0, 3.0, 5.0, 6.0]
    assert math.isnan(values(first)[4])  # observed and undefined is not the same as not observed
    assert [cell.step for cell in first.cells] == [0, 110, 300, 690, 917]
    assert [cell.layers for cell in first.cells] == [3, 3, 1, 1, 0]
    # Without steps in the manifest the largest step, 199, is the end: 150 is 0.754 of it.
    assert values(second) == [1.5, 3.0, 4.0, 8.0, 10.0]
    assert second.cells[3].at == pytest.approx(150 / 199)


def test_the_length_of_training_may_stand_in_the_configuration(tmp_path):
    run = plant(tmp_path / "a", {0: [1.0], 50: [2.0]}, config={"steps": 100})
    (line,) = compared(run, fractions=(0, 0.5, 1))
    assert values(line) == [1.0, 2.0, None]


def test_an_observation_stands_at_one_fraction_and_within_the_tolerance():
    observed = {0: [1.0], 80: [2.0], 500: [3.0]}

    def steps(fractions, tolerance):
        cells = at_fractions(observed, 1000, fractions=fractions, tolerance=tolerance)
        return [cell and cell.step for cell in cells]

    assert steps((0, 0.1, 0.5, 1), 0.1) == [0, 80, 500, None]
    assert steps((0, 0.1, 0.45, 0.5), 0.1) == [0, 80, None, 500]
    assert steps((0.18,), 0.1) == [80]
    assert steps((0.181,), 0.1) == [None]
    for step in range(11):  # 0.8 − 0.7 is more than 0.1 in floating point; rounding must not decide
        for fraction in (step / 10 - 0.1, step / 10 + 0.1):
            assert at_fractions({step: [1.0]}, 10, fractions=(fraction,), tolerance=0.1)[0] is not None
            tenth = round(fraction, 1)
            assert at_fractions({step: [1.0]}, 10, fractions=(tenth,), tolerance=0.1)[0] is not None
    assert steps((0.4, 0.6), 0.1) == [500, None]  # as near to both: the earlier
    assert steps((0.29,), 1.0) == [80]  # as near from both sides: the earlier observation
    assert at_fractions({}, None, fractions=(0, 1)) == (None, None)
    assert at_fractions({0: [1.0]}, 0, fractions=(0, 1))[0].value == 1.0


def test_only_rows_of_the_headline_count(tmp_path):
    with create_run(tmp_path / "a") as run:
        run.write(
            "a",
            [
                enrichment(0, 0, 3.0),
                enrichment(0, 1, 5.0),
                enrichment(0, 0, 100.0, subset="no-first"),
                enrichment(0, 0, 100.0, timing="anchored"),
                enrichment(0, 0, 100.0, proxy="semi-nmf"),
                enrichment(0, 0, 100.0, rank=4),
                enrichment(0, 0, 100.0, view="embedding"),
                enrichment(0, 0, 100.0, null="axes"),
                enrichment(0, None, math.nan, null="targets", subset=None, view=None),
                enrichment(0, 0, 7.0, view="weight", null="pairing"),
                enrichment(0, 0, 2.0, measure="isotropy_gain", null=None),
                enrichment(0, 0, 100.0, measure="isotropy_gain", null=None, variant="zeta0"),
                {
                    "step": 0,
                    "layer": 0,
                    "tensor": "activations",
                    "subset": "all",
                    "measure": "isoscore_star",
                    "value": 0.1,
                },
                {
                    "step": 0,
                    "layer": 0,
                    "tensor": "gradients",
                    "subset": "all",
                    "measure": "isoscore_star",
                    "value": 0.2,
                },
                {"step": 0, "layer": 0, "tensor": "activations", "subset": "all", "measure": "two_nn", "value": 12.0},
                {"step": 0, "measure": "loss", "variant": "held-out", "value": 4.5},
                {"step": 0, "measure": "loss", "variant": "train", "value": 100.0},
            ],
        )
    found = {line.measure: values(line) for line in compared(open_run(tmp_path / "a"), fractions=(0,))}
    assert found == {
        "enrichment_haar": [4.0],
        "enrichment_pairing": [7.0],
        "isotropy_gain": [2.0],
        "isoscore_activations": [0.1],
        "isoscore_gradients": [0.2],
        "two_nn": [12.0],
        "loss": [4.5],
    }
    assert list(found) == [name for name in HEADLINES if name in found]


def test_roles_and_seeds_are_never_mixed_and_a_gap_is_seen(tmp_path):
    with create_run(tmp_path / "a") as run:
        for role, seed, value in (("decoder", 0, 1.0), ("decoder", 1, 2.0), ("encoder", 0, 3.0)):
            run.sink(f"{role}-{seed}", role=role, seed=seed).write([enrichment(0, 0, value)])
        run.sink("loss", role="encoder", seed=0).write(
            [{"step": 1, "measure": "loss", "variant": "held-out", "value": 9.0}]
        )
    create_run(tmp_path / "empty").close()
    found = compared(open_run(tmp_path / "a"), open_run(tmp_path / "empty"), fractions=(0,), tolerance=1)
    assert [(line.measure, line.run, line.role, line.seed, values(line)) for line in found] == [
        ("enrichment_haar", "a", "decoder", 0, [1.0]),
        ("enrichment_haar", "a", "decoder", 1, [2.0]),
        ("enrichment_haar", "a", "encoder", 0, [3.0]),
        ("enrichment_haar", "empty", None, None, [None]),
        ("loss", "a", "encoder", 0, [9.0]),
        ("loss", "a", "decoder", None, [None]),
        ("loss", "empty", None, None, [None]),
    ]


def test_what_differs_is_named_and_absent_is_not_null(two):
    found = {each.key: each.values for each in differences(subjects(list(map(open_run, two))))}
    assert found == {"extra": {"short": None}, "optim.lr": {"long": 0.1, "short": 0.2}}


def test_runs_that_share_a_name_are_told_apart(tmp_path):
    runs = [plant(tmp_path / name / "run", {0: [1.0]}) for name in ("a", "b")]
    assert [line.run for line in compared(*runs)] == [str(tmp_path / "a" / "run"), str(tmp_path / "b" / "run")]
    with pytest.raises(ValueError, match="different ones"):
        subjects([runs[0], runs[0]])
    with pytest.raises(ValueError, match="must be headlines"):
        compared(*runs, measures=["enrichment"])


def test_a_table_begins_with_what_differs(two, capsys):
    cli.main(["compare", *map(str, two)])
    out, err = capsys.readouterr()
    rows = [line.split() for line in out.splitlines()]
    assert ["long", "running", "1000", "manifest", "5", str(two[0])] in rows
    assert ["short", "running", "199", "largest", "step", "5", str(two[1])] in rows
    assert rows.index(["optim.lr", "0.1", "0.2"]) < rows.index(["measure", "run", "0", "0.1", "0.3", "0.7", "1"])
    assert ["extra", "–", "null"] in rows
    assert ["enrichment_haar", "long", "2", "3", "5", "6", "NaN"] in rows
    assert ["enrichment_haar", "short", "1.5", "3", "4", "8", "10"] in rows
    assert "within ±0.1" in out
    assert "in no run: enrichment_weight, enrichment_pairing" in out
    assert err == ""


def test_csv_and_json_say_at_which_step(two, capsys):
    arguments = ["compare", *map(str, two), "--measure", "enrichment_haar", "--fractions", "1,0.5", "--format"]
    cli.main([*arguments, "csv"])
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["run"], row["fraction"], row["value"], row["step"], row["layers"]) for row in table] == [
        ("long", "0.5", "", "", ""),
        ("long", "1.0", "NaN", "917", "0"),
        ("short", "0.5", "", "", ""),
        ("short", "1.0", "10.0", "199", "1"),
    ]
    cli.main([*arguments, "json"])
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert [cell["value"] for cell in found["headlines"]] == [None, "NaN", None, 10.0]
    assert [run["steps"] for run in found["runs"]] == [1000, 199]
    assert {"setting": "extra", "values": {"short": None}} in found["differences"]


def test_strings_of_runs_are_text_and_damage_is_named(tmp_path, capsys):
    hostile = "[red]a\x1b[31m\nb\u202e"
    for name, config in (("a", {hostile: hostile, "same": 1}), ("b", {"same": 1})):
        with create_run(tmp_path / name, config=config) as run:
            run.write("a", [enrichment(0, 0, 1.0, role=hostile), enrichment(0, 0, 1.0, role="decoder")])
            run.write("a", [enrichment(10, 0, 2.0)])
    part = tmp_path / "b" / "rows-a-000000010.parquet"
    part.write_bytes(b"")
    cli.main(["compare", str(tmp_path / "a"), str(tmp_path / "b")])
    out, err = capsys.readouterr()
    assert out.count("[red]a\\x1b[31m\\nb\\u202e") == 4  # the setting and its value, and the role in each run
    assert not {"\x1b", "\u202e"} & set(out)
    assert part.name in err


@pytest.mark.parametrize("config", [None, [], "text", {"steps": "many"}, {"steps": True}, {"steps": -1}])
def test_a_strange_manifest_is_read_all_the_same(tmp_path, config):
    run = plant(tmp_path / "a", {0: [1.0], 10: [2.0]})
    run.manifest = run.manifest | {"config": config, "steps": None}
    (line,) = compared(run, fractions=(0, 1))
    assert isinstance(line, Line)
    assert values(line) == [1.0, 2.0]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "at least two runs"),
        (["{long}"], 2, "at least two runs"),
        (["{long}", "{long}/"], 2, "different ones"),
        (["{long}", "{long}-none"], 1, "is no run"),
        (["{long}", "{short}", "--measure", "enrichment_har"], 2, "did you mean enrichment_haar"),
        (["{long}", "{short}", "--fractions", "0,2"], 2, "--fractions must be numbers in 0 … 1"),
        (["{long}", "{short}", "--fractions", "0,half"], 2, "--fractions must be a number"),
        (["{long}", "{short}", "--fractions", "nan"], 2, "--fractions must be"),
        (["{long}", "{short}", "--tolerance", "nan"], 2, "--tolerance must be"),
        (["{long}", "{short}", "--format", "parquet"], 2, "csv"),
    ],
)
def test_errors_are_one_line_without_a_traceback(two, arguments, code, message):
    given = [argument.format(long=two[0], short=two[1]) for argument in arguments]
    command = [sys.executable, "-m", "anisoscope.cli", "compare", *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_torch_is_never_imported(two):
    code = "import sys; from anisoscope.cli import main; main(sys.argv[1:]); print('torch' in sys.modules)"
    command = [sys.executable, "-c", code, "compare", *map(str, two)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
