"""No traceback reaches a user: one line, an exit status, and the first failure rather than one of the clean-up."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading

import pytest

from anisoscope import cli, open_run
from anisoscope.cli import error_handler as guarding
from anisoscope.cli.error_handler import guarded
from anisoscope.errors import AnisoscopeError, broken
from anisoscope.store.files import Folder
from anisoscope.store.run import create_run
from anisoscope.study.pair.pair_settings import PairSettings
from anisoscope.study.resume_state import recorded, settings_in
from anisoscope.study.run_closing import closing

HOSTILE = "\x1b]0;owned\x07\x1b[31m[bold]:smile:\u202e"


@pytest.fixture
def run(tmp_path):
    with create_run(tmp_path / "run") as made:
        made.write("a", [{"step": 0, "measure": "loss", "value": 1.0, "note": HOSTILE, "token": HOSTILE}])
        made.close("finished")
    return tmp_path / "run"


def anisoscope(*arguments, shell=""):
    """A command in a process of its own; ``shell`` is what follows it there."""
    words = " ".join(f"'{word}'" for word in (sys.executable, "-m", "anisoscope.cli", *map(str, arguments)))
    return subprocess.run(["bash", "-c", f"{words} {shell}"], capture_output=True, text=True, timeout=120)


def raising(error):
    def act():
        raise error

    return act


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (broken("a must be b", "c", "d"), 2, "error: a must be b, got c; d\n"),
        (AnisoscopeError("no such thing"), 1, "error: no such thing\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (PermissionError(13, "Permission denied", "x/y"), 1, "error: cannot read or write x/y: Permission denied\n"),
        (OSError(28, "No space left on device"), 1, "error: cannot read or write: No space left on device\n"),
        (MemoryError(), 1, "error: there is not enough memory for this; ask for less, or use a machine with more\n"),
        (AnisoscopeError(HOSTILE), 1, "error: \\x1b]0;owned\\x07\\x1b[31m[bold]:smile:\\u202e\n"),
        (
            KeyError("x\ny"),
            1,
            "error: KeyError: 'x\\ny'; if this is a fault of anisoscope, ANISOSCOPE_TRACEBACK=1 shows where it is\n",
        ),
    ],
)
def test_every_failure_is_one_line_and_a_status(capsys, error, code, line):
    assert guarded(raising(error)) == code
    assert capsys.readouterr().err == line


@pytest.mark.parametrize(("breaks", "line"), [(True, "interrupted\n"), (False, "")])
def test_an_interrupt_that_a_library_swallowed_is_still_one(capsys, breaks, line):
    def act():
        with contextlib.suppress(KeyboardInterrupt):  # as an extension module does while it imports another one
            os.kill(os.getpid(), signal.SIGINT)
        if breaks:
            raise AttributeError("partially initialized module")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background a shell has it ignored
    try:
        assert guarded(act) == 130
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == line


def test_those_who_look_for_the_fault_get_the_traceback(monkeypatch):
    monkeypatch.setenv(guarding.SHOW, "1")
    with pytest.raises(ZeroDivisionError):
        guarded(raising(ZeroDivisionError("x")))


@pytest.mark.parametrize("command", ["report", "rows"])
def test_a_pipe_takes_what_is_made_and_stays_a_pipe(run, tmp_path, command):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    cli.main([command, str(run), "--out", str(pipe)])
    reader.join(20)
    assert read
    assert len(read[0]) > 10
    assert pipe.is_fifo()


@pytest.mark.parametrize("shell", [">/dev/full", ">&-", "| head -c 1", "2>&-", ">&- 2>&-", "2>/dev/full"])
def test_streams_that_cannot_be_written_give_no_traceback(run, shell):
    done = anisoscope("rows", run, "--format", "json", shell=shell)
    assert "Traceback" not in done.stdout + done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.returncode == (1 if shell == ">/dev/full" else 0)
    if shell == ">/dev/full":
        assert done.stderr == "error: cannot read or write: No space left on device\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["rows", "x" * 300],
        ["report", "x" * 5000],
        ["report", "{run}", "--out", "/proc/nowhere/x.html"],
        ["rows", "{run}", "--step", "9" * 20],
        ["rows", "{run}", "--layer", "1" + "0" * 400],
        ["verify-run", "/dev/null"],
        ["compare", "{run}", "/proc/self/mem"],
        ["measure", "/proc/self/mem"],
        ["integrity", "/proc/self/fd", "/dev/null"],
        ["rows", "{deep}"],
        ["report", "{deep}"],
        ["pair", "--resume", "{bare}"],
        ["checkpoints", "--resume", "{bare}"],
    ],
)
def test_odd_arguments_and_broken_manifests_are_one_line(run, tmp_path, capsys, arguments):
    from anisoscope.cli import main

    for name, manifest in (("deep", "[" * 50_000), ("bare", json.dumps({"schema_version": 2, "kind": "pair"}))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(manifest)
    places = {"run": run, "deep": tmp_path / "deep", "bare": tmp_path / "bare"}
    with pytest.raises(SystemExit) as ended:
        main([argument.format(**places) for argument in arguments])
    assert ended.value.code in (1, 2)
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_a_terminal_with_few_letters_gets_escapes(run):
    other = shutil.copytree(run, run.parent / "other")
    done = subprocess.run(
        [sys.executable, "-m", "anisoscope.cli", "compare", str(run), str(other)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"},
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_failed_run_is_unlocked_and_says_why(tmp_path):
    run = create_run(tmp_path / "run")
    with pytest.raises(ZeroDivisionError), closing(run):
        raise ZeroDivisionError("by zero")
    with open_run(tmp_path / "run", write=True) as again:
        assert again.manifest["status"] == "failed"
        assert again.manifest["reason"] == "ZeroDivisionError: by zero"
        with closing(again) as ending:
            ending.status = "finished"
    assert open_run(tmp_path / "run").manifest["reason"] is None


def test_the_first_failure_is_told_and_not_that_of_cleaning_up(tmp_path, monkeypatch):
    run = create_run(tmp_path / "run")

    def full(self, name, content):
        raise AnisoscopeError("cannot write: No space left on device")

    monkeypatch.setattr(Folder, "write", full)
    with pytest.raises(AnisoscopeError, match="the first"), closing(run):
        raise AnisoscopeError("the first")
    monkeypatch.undo()
    open_run(tmp_path / "run", write=True).close()  # nobody holds it


def test_an_interrupt_is_no_failure(tmp_path):
    run = create_run(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt), closing(run):
        raise KeyboardInterrupt
    assert open_run(tmp_path / "run").manifest["status"] == "interrupted"


@pytest.mark.parametrize("config", [None, 3, {"rank": "many"}, {"colour": "red"}, {"steps": 10**20, "rank": -1}])
def test_settings_of_a_manifest_that_are_none_are_one_error(config):
    with pytest.raises(AnisoscopeError, match="the manifest of r "):
        settings_in({"name": "r", "config": config}, PairSettings)
    with pytest.raises(AnisoscopeError, match=r"lacks hashes\.corpus"):
        recorded({"hashes": {}}, "hashes", "corpus")
