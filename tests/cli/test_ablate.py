"""`ablate` as a user types it."""

import re

import pytest
import torch

from anisoscope import cli
from anisoscope.report.make import make_report
from anisoscope.store.run import create_run, open_run
from models.snapshots import letters, save, tiny

FAST = ["--length", "32", "--sequences", "32", "--ranks", "2", "--draws", "1", "--device", "cpu", "--threads", "1"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return letters(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "mine"
    for step in (0, 20):
        model = tiny("gpt_neox")
        torch.manual_seed(step)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        save(model, folder / f"checkpoint-{step}")
    return folder


def told(capsys, *arguments):
    capsys.readouterr()
    cli.main(list(map(str, arguments)))
    return capsys.readouterr().out


def refused(capsys, *arguments):
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        cli.main(list(map(str, arguments)))
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return stopped.value.code, " ".join((err + out).split())


def test_a_folder_of_checkpoints_ends_with_costs_rows_and_a_page(capsys, history, text, tmp_path):
    out = told(capsys, "ablate", history, "--text", text, *FAST, "--out", tmp_path / "run")
    assert len(re.findall(r"^mine +(0|20) ", out, re.MULTILINE)) == 2 * 3
    rows = open_run(tmp_path / "run").table().to_pylist()
    assert {(r["model"], r["step"]) for r in rows} == {("mine", 0), ("mine", 20)}
    assert {r["null"] for r in rows if r["measure"] == "removal_excess"} == {"haar", "normal", "next"}
    page = (tmp_path / "run" / "report.html").read_text()
    for words in ("Removing directions from the stream", "What removing directions costs", "at equal displacement"):
        assert words in page


def test_a_dry_run_says_what_it_would_take_and_makes_nothing(capsys, history, text, tmp_path):
    out = told(capsys, "ablate", history / "checkpoint-20", "--text", text, *FAST, "--dry-run", "--out", tmp_path / "r")
    assert "causal, 2 layers of width 16" in out
    assert re.search(r"26 passes of the text, about \d+:\d\d", out)
    assert not (tmp_path / "r").exists()


def test_a_study_that_was_stopped_goes_on_to_the_same_rows(capsys, history, text, tmp_path):
    whole, broken_off = tmp_path / "whole", tmp_path / "half"
    for folder in (whole, broken_off):
        told(capsys, "ablate", history, "--text", text, *FAST, "--no-report", "--out", folder)
    run = open_run(broken_off, write=True)
    before = run.table().to_pylist()
    run.remove_file(next(part.name for part in broken_off.glob("*20*.parquet")))
    run.update(done=["mine-0"], status="interrupted")
    run.close("interrupted")
    told(capsys, "ablate", "--resume", broken_off)
    after, expected = (open_run(f).table().to_pylist() for f in (broken_off, whole))
    assert len(after) == len(before)
    assert repr([row | {"run": ""} for row in after]) == repr([row | {"run": ""} for row in expected])
    assert "nothing left to do" in told(capsys, "ablate", "--resume", broken_off, "--no-report")


def test_the_models_of_a_training_run_are_found(capsys, history, text, tmp_path):
    run = create_run(tmp_path / "trained", kind="pair", steps=40)
    run.close("finished")
    save(tiny("gpt_neox"), tmp_path / "trained" / "models" / "decoder-0")
    save(tiny("bert"), tmp_path / "trained" / "models" / "encoder-0")
    out = told(capsys, "ablate", tmp_path / "trained", "--text", text, *FAST, "--dry-run")
    assert "decoder-0, step 40: causal" in out
    assert "encoder-0, step 40: masked" in out


def test_a_profile_shows_removals_beside_gradients(capsys, history, text, tmp_path):
    given = ["--text", text, "--length", "32", "--sequences", "16", "--rank", "2", "--device", "cpu", "--threads", "1"]
    options = ["--ablate", "--quick", "--resamples", "19", "--out", tmp_path / "run", "--no-report"]
    told(capsys, "profile", history / "checkpoint-20", *given, *options)
    rows = open_run(tmp_path / "run").table().to_pylist()
    costs = [r for r in rows if r["measure"] == "removal_cost" and r["null"] is None and r["variant"] is None]
    assert {r["layer"] for r in costs} == {0, 1, 2}
    page = make_report([str(tmp_path / "run")])
    assert page.index('"enrichment-layers"') < page.index('"removal-cost"')


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "ablate needs a model"),
        (["./nowhere"], "must exist"),
        (["{0}", "--ranks", "9"], "at most half of the width, 8, got 9; lower it with --ranks"),
        (["{0}", "--layers", "5"], r"--layers must lie in 0…2"),
        (["{0}", "--layers", "1", "--every", "2"], "exclude each other"),
        (["{0}", "--proxy", "pac"], "--proxy"),
        (["{0}", "{0}"], "must differ in name or step"),
        (["--resume", "{0}", "--ranks", "2"], "must keep its own settings"),
        (["{0}", "--margin", "0"], "must be above 0"),
    ],
)
def test_wrong_use_is_told_in_a_line(capsys, history, text, arguments, message):
    given = [argument.format(history / "checkpoint-20") for argument in arguments]
    options = [] if "--resume" in given else ["--text", text, "--length", "32", "--sequences", "32", "--device", "cpu"]
    options = options if "--ranks" in given or "--resume" in given else [*options, "--ranks", "2"]
    code, said = refused(capsys, "ablate", *given, *options)
    assert code == 2
    assert message in said
