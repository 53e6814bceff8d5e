"""Every command on what every other one leaves behind: an answer or one line, never a traceback."""

import contextlib
import io

import pytest

from anisoscope.cli import main
from faults.conftest import ALL
from faults.test_errors import COMMANDS as FORMS
from faults.test_errors import material, planted, said

COMMANDS = {
    "rows": ["rows", "{it}"],
    "compare": ["compare", "{it}", "{other}"],
    "report": ["report", "{it}", "--out", "{out}/page.html"],
    "figures": ["figures", "{it}", "--out", "{out}/figures"],
    "verify-run": ["verify-run", "{it}"],
    "doctor": ["doctor", "{it}"],
    "measure": ["measure", "{it}"],
    "integrity": ["integrity", "{it}", "{other}"],
    "pair": ["pair", "--resume", "{it}"],
    "checkpoints": ["checkpoints", "--resume", "{it}"],
    "config": ["rows", "{other}", "--config", "{it}"],
    "corpus": ["pair", "--corpus", "{it}", "--steps", "0"],
    "profile": ["profile", "{it}", "--dry-run"],
    "profile-resume": ["profile", "--resume", "{it}"],
    "ablate": ["ablate", "{it}", "--dry-run"],
    "ablate-resume": ["ablate", "--resume", "{it}"],
    "intervene": ["intervene", "{it}", "--dry-run"],
    "intervene-resume": ["intervene", "--resume", "{it}"],
    "pilot": ["intervene", "--dry-run", "--pilot", "{it}"],
    "verify": ["verify", "{it}", "--dry-run"],
    "verify-resume": ["verify", "--resume", "{it}"],
    "reproduce": ["reproduce", "{it}", "--dry-run"],
    "reproduce-into": ["reproduce", "settle", "--text", "{it}", "--out", "{it}", "--dry-run"],
    "watch": ["watch", "{it}", "--once"],
}
RUNS = ("pair", "profile", "checkpoints", "ablate", "intervene", "verify", "reproduce")
SAID = {
    "measured.json": ["measure", "{on}/a.npy", "--json"],
    "compared.csv": ["compare", "{run}", "{on}/other", "--format", "csv"],
    "integrity.json": ["integrity", "{on}/history", "--format", "json"],
    "verified.json": ["verify-run", "{run}", "--format", "json"],
}


def spoken(arguments):
    """What a command writes to standard output."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main(arguments)
    return out.getvalue()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """What the commands leave behind."""
    where = tmp_path_factory.mktemp("made")
    run = planted(where / "run")
    if ALL:
        small = ["--draws", "50", "--replicates", "4", "--points", "200"]
        main(["theory", "--quick", *small, "--out", str(where / "theory")])
        main(["figures", str(where / "theory"), "--format", "svg"])
        material(where / "on")
        with contextlib.chdir(where / "on"):
            for name in RUNS:
                main([*FORMS[name].split()[:-1], str(where / name)])
        for name, command in SAID.items():
            (where / name).write_text(spoken([part.format(run=run, on=where / "on") for part in command]))
    for kind in ("csv", "json", "parquet", "txt"):
        main(["rows", str(run), "--out", str(where / f"rows.{kind}")])
    main(["report", str(run)])
    names = ("run", "rows.csv", "rows.json", "rows.parquet", "rows.txt", "run/report.html")
    names += ("theory", "theory/figures", *RUNS, "reproduce/model", *SAID) if ALL else ()
    inside = ("run/manifest.json", "run/rows-a.parquet", "run/x.safetensors", "run/writer.lock")
    return where, [where / name for name in (*names, *inside)]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_on_what_others_leave_is_an_answer_or_one_line(made, tmp_path, counted, name):
    where, others = made
    for number, it in enumerate(others):
        assert it.exists(), it
        out = tmp_path / str(number)
        out.mkdir()
        places = {"it": it, "other": where / "run", "out": out}
        code, err = said([part.format(**places) for part in COMMANDS[name]])
        assert code in (0, 1, 2, None), (name, it)
        assert "Traceback" not in err
        assert "fault of anisoscope" not in err, (name, it, err)
        assert code == 0 or err.splitlines()[-1:] == [] or "error: " in err or name == "integrity", (name, it, err)
    counted("a command on what another one leaves behind is an answer or one line", len(others))
