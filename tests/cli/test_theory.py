"""`theory` as a user types it."""

import subprocess
import sys

import pytest

from anisoscope import cli
from anisoscope.store.run import open_run

FAST = ["theory", "--quick", "--draws", "30", "--replicates", "5", "--points", "400"]


def refused(capsys, *arguments):
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        cli.main(list(map(str, arguments)))
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return stopped.value.code, err + out


def test_a_laboratory_ends_with_its_claims_a_page_and_rows(capsys, tmp_path):
    cli.main([*FAST, "--out", str(tmp_path / "run")])
    out = capsys.readouterr().out
    assert "6 of 6 done: bounds" in out
    lines = {line.split("  ")[0]: line for line in out.splitlines()}
    assert lines["tangent variance against the radius t"].endswith("holds")
    assert lines["normal/tangent gradient against t, tokens all round"].endswith("does not hold")
    assert lines["corrected, βt/γ"].endswith("30 of 30")
    assert f"report: {tmp_path / 'run' / 'report.html'}" in out
    assert open_run(tmp_path / "run").finished
    code, said = refused(capsys, *FAST, "--out", tmp_path / "run")
    assert code == 1
    assert "holds a run already" in said


def test_wrong_use_is_told_in_one_line(capsys, tmp_path):
    cases = [
        (["--radius", "-1"], "--radius"),
        (["--radius", "3"], "half the radius of curvature"),
        (["--dims", "0,2"], "dimension from 1"),
        (["--dims", "two"], "--dims must be a whole number, got 'two'"),
        (["--draws", "0"], "--draws must be at least 1"),
        (["--draws", "1.5"], "--draws must be a whole number, got '1.5'"),
        (["--seed", "1e3"], "--seed must be a whole number"),
        (["--replicates", "6.5"], "--replicates must be a whole number"),
        (["--points", "many"], "--points must be a whole number"),
        (["--dims", ","], "--dims: a manifold must have a dimension"),
        (["--exponents", "nan,0,1,2,3"], "exponents from 0 to 3"),
        (["--falloff", "nan"], "--falloff"),
        (["--exponents", "1"], "at least 4 different exponents"),
        (["--exponents", "1,x"], "--exponents must be a number, got 'x'"),
    ]
    for arguments, message in cases:
        code, said = refused(capsys, "theory", "--quick", *arguments, "--out", tmp_path / "run")
        assert code == 2, (arguments, said)
        assert message in said
    assert not (tmp_path / "run").exists()


def test_ctrl_c_leaves_a_run_that_says_interrupted(capsys, tmp_path, monkeypatch):
    from anisoscope.study.theory import theory_study as theory

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(theory, "random_cases", stopped)
    code, said = refused(capsys, *FAST, "--out", tmp_path / "run")
    assert code == 130
    assert "interrupted" in said
    assert open_run(tmp_path / "run").manifest["status"] == "interrupted"
    cli.main(["report", str(tmp_path / "run")])
    assert "Unfinished." in (tmp_path / "run" / "report.html").read_text()


def test_help_has_examples_and_imports_no_torch():
    code = "import sys; from anisoscope import cli\ntry: cli.main(['theory', '--help'])\nexcept SystemExit: pass\n"
    code += "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'scipy')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "For example:" in done.stdout
    assert "--falloff" in done.stdout
    assert "Seed of every draw." in done.stdout
