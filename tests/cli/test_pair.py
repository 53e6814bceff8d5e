"""``anisoscope pair`` at the command line: wrong use is said in one line, before anything heavy is loaded."""

import subprocess
import sys

import pytest

from anisoscope.cli import main
from study.jobs import corpus


def run(arguments, capsys):
    with pytest.raises(SystemExit) as done:
        main(arguments)
    return done.value.code, capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--preset", "huge"], 2, "preset must be one of tiny small pythia-160m"),
        (["--width", "130"], 2, "width must be a multiple of heads"),
        (["--steps", "many"], 2, "many"),
        (["--steps", "1.5"], 2, "--steps must be a whole number"),
        (["--stepz", "3"], 2, "stepz"),
        (["--config", "none.toml"], 1, "cannot read none.toml"),
        (["--resume", "none"], 1, "is no run"),
        (["--resume", "none", "--steps", "3"], 2, "must keep its own settings"),
        (["--corpus", "kvj"], 2, "kjv"),
        (["--out", "s3://bucket/run"], 2, "local folder"),
    ],
)
def test_wrong_use_is_said_in_one_line(arguments, code, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found, said = run(["pair", *arguments], capsys)
    assert found == code
    assert message in said.err
    assert "Traceback" not in said.err
    assert not list(tmp_path.glob("runs/*"))


def test_help_and_settings_need_no_torch():
    code = (
        "import sys\nfrom anisoscope.cli import main\n"
        "for a in (['pair', '--help'], ['pair', '--width', '130']):\n"
        "    try: main(a)\n"
        "    except SystemExit: pass\n"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")


@pytest.mark.filterwarnings("ignore")
def test_the_job_says_how_it_goes_and_where_its_report_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = "--layers 1 --width 16 --heads 2 --vocabulary 320 --length 16 --batch 12 --steps 4 --rank 4 --probe 0"
    small += " --held-out 0.2 --resamples 19 --proxies pca --ranks 2 --device cpu --checkpoints 0 --evaluations 1"
    main(["pair", "--corpus", corpus(tmp_path / "texts"), *small.split()])
    said = capsys.readouterr().out
    assert "decoder-0: step 4/4" in said
    assert "enrichment over haar by layer" in said
    pages = list(tmp_path.glob("runs/*-pair/report.html"))
    assert len(pages) == 1
    assert str(pages[0].relative_to(tmp_path)) in said
    assert "<html" in pages[0].read_text(encoding="utf-8")
