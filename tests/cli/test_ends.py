"""How commands begin and end: wrong names before anything heavy, one check of devices, status 130, the answer last."""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from anisoscope import cli
from anisoscope.cpu_cores import usable_cores
from anisoscope.data.tokens import prepare
from anisoscope.errors import AnisoscopeError, BrokenRuleError
from anisoscope.store.run import create_run, open_run
from anisoscope.study import device
from anisoscope.study.device import require_device, resolve_device
from models.snapshots import letters, save, tiny

SOURCE = Path(__file__).parents[2] / "src"
FAST = ["--length", "32", "--sequences", "16", "--rank", "4", "--resamples", "19", "--device", "cpu", "--threads", "1"]
PAIR = "--layers 1 --width 16 --heads 2 --vocabulary 320 --length 16 --batch 12 --steps 2 --rank 4 --probe 0 --ranks 2"
STAGES = ("twin-layers", "twin-gradients", "model-layers")
PAIR += " --resamples 19 --proxies pca --device cpu --checkpoints 0 --evaluations 1 --no-targets --no-frequency"


@pytest.mark.parametrize(
    ("own", "found"), [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")]
)
def test_threads_do_not_spin_unless_they_are_told_to(own, found):
    code = "import os, sys; from anisoscope import cli; cli.main(['--version'])"
    code += "; print('torch' in sys.modules, os.environ.get('GOMP_SPINCOUNT'))"
    inherited = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    environment = {**inherited, **own, "PYTHONPATH": str(SOURCE)}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.split()[-2:] == ["False", found]


def ended(*arguments):
    with pytest.raises(SystemExit) as stopped:
        cli.main(list(map(str, arguments)))
    return stopped.value.code


# The first words of every command that has --device; a test below finds that none is left out.
WITH_DEVICE = {
    "pair": ["pair", "--corpus", "kjv"],
    "profile": ["profile", "x/y"],
    "checkpoints": ["checkpoints", "x/y", "--revisions", "auto"],
    "ablate": ["ablate", "x/y"],
    "verify": ["verify", "x/y"],
    "reproduce": ["reproduce", "tangent"],
}


def absent_devices():
    """Each command with devices that a machine without a visible GPU, which is no Mac, does not have."""
    for command in WITH_DEVICE.values():
        for name in ("cuda", "cuda:1"):
            yield [*command, "--device", name], f"--device {name} must have GPU number"
        if sys.platform != "darwin":
            yield [*command, "--device", "mps"], "--device mps must have an Apple GPU"
        yield [*command, "--device", "tpu"], "--device must be auto, cpu, cuda, cuda:1"


def test_no_command_with_a_device_is_left_out(capsys):
    cli.main(["--help"])
    commands = re.findall(r"^│ ([a-z-]+) ", capsys.readouterr().out, re.MULTILINE)
    assert len(commands) > 15
    found = set()
    for command in commands:
        cli.main([command, "--help"])
        if "--device " in capsys.readouterr().out:
            found.add(command)
    assert found == set(WITH_DEVICE)


def test_wrong_names_fail_before_torch_is_imported(tmp_path):
    create_run(tmp_path / "taken", kind="scope").close("finished")
    (tmp_path / "file").write_text("x")
    cases = [
        (["pair", "--corpus", "nowhere.txt"], 2, "the text files of a corpus must exist"),
        (["pair", "--corpus", "kjw"], 2, "did you mean kjv"),
        (["pair", "--corpus", "enwik8:gone.xml"], 2, "the file of enwik8 must exist"),
        (["pair", "--tokeniser", "./gone.json"], 2, "a tokeniser must exist"),
        (["pair", "--out", str(tmp_path / "taken")], 1, "holds a run already"),
        (["pair", "--out", str(tmp_path / "file" / "run")], 2, "--out must be a folder"),
        (["pair", "--resume", str(tmp_path / "gone")], 1, "there is no such folder"),
        (["pair", "--resume", str(tmp_path / "taken")], 2, "--resume must name a run of pair, got one of scope"),
        (["pair", "--device", "tpu"], 2, "--device must be auto, cpu, cuda, cuda:1 … or mps"),
        (["profile", "./gone"], 2, "a model on this disk must exist"),
        (["profile", "a/b/c"], 2, "a model on this disk must exist"),
        (["profile", "x/y", "--text", "nowhere.txt"], 2, "the text files of a corpus must exist"),
        (["profile", "--resume", str(tmp_path / "taken")], 2, "--resume must name a run of profile"),
        (["profile"], 2, "profile needs a MODEL"),
        (["checkpoints", "./gone"], 2, "a checkpoint must exist"),
        (["checkpoints", "EleutherAI/mine"], 2, "add --revisions auto"),
        (["integrity", "EleutherAI/mine"], 2, "add --revisions auto"),
        (["theory", "--out", str(tmp_path / "taken")], 1, "holds a run already"),
        (["ablate", "./gone"], 2, "a model on this disk must exist"),
        (["ablate", "x/y", "--text", "kjw"], 2, "did you mean kjv"),
        (["ablate", "--resume", str(tmp_path / "taken")], 2, "--resume must name a run of ablate"),
        (["verify", "./gone"], 2, "a model on this disk must exist"),
        (["verify", "x/y", "--held-out", "./gone"], 2, "a model on this disk must exist"),
        (["verify", "x/y", "--out", str(tmp_path / "taken")], 1, "holds a run already"),
        (["verify", "--resume", str(tmp_path / "taken")], 2, "--resume must name a run of verify"),
        (["verify"], 2, "verify needs a MODEL"),
        (["intervene", "--out", str(tmp_path / "taken")], 1, "holds a run already"),
        (["intervene", "--resume", str(tmp_path / "taken")], 2, "--resume must name a run of intervene"),
        (["reproduce", "tangent", "--text", "kjw"], 2, "did you mean kjv"),
        (["reproduce", "shape", "--model", "decoder=./gone"], 2, "a model on this disk must exist"),
        (["theory", "--device", "cuda"], 2, "Unknown option: --device"),
        (["intervene", "--device", "cuda"], 2, "Unknown option: --device"),
        *((given, 2, said) for given, said in absent_devices()),
    ]
    code = (
        "import contextlib, io, json, sys\n"
        "from anisoscope.cli import main\n"
        "for arguments, status, message in json.loads(sys.argv[1]):\n"
        "    said = io.StringIO()\n"
        "    try:\n"
        "        with contextlib.redirect_stderr(said): main(arguments)\n"
        "    except SystemExit as stopped:\n"
        "        assert stopped.code == status, (arguments, stopped.code, said.getvalue())\n"
        "    assert message in said.getvalue(), (arguments, said.getvalue())\n"
        "    assert said.getvalue().count('\\n') == 1, said.getvalue()\n"
        "assert 'torch' not in sys.modules\n"
    )
    without_gpu = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, "-c", code, json.dumps(cases)], check=True, cwd=tmp_path, env=without_gpu)


def test_devices_are_checked_in_one_place(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert resolve_device("auto") == resolve_device("cpu") == "cpu"
    for name, said in (("cuda", "no GPU that torch can use"), ("cuda:1", "GPU number 1"), ("mps", "an Apple GPU")):
        with pytest.raises(ValueError, match=said):
            resolve_device(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert (resolve_device("auto"), resolve_device("cuda"), resolve_device("cuda:0")) == ("cuda", "cuda", "cuda:0")
    with pytest.raises(ValueError, match="GPU number 1, got 1 GPU;"):
        resolve_device("cuda:1")


def test_what_is_certain_of_devices_without_torch(monkeypatch):
    built = []
    monkeypatch.setattr(device, "version", lambda name: built[-1])
    monkeypatch.setattr(device.sys, "platform", "linux")
    monkeypatch.setattr(device, "_has_cuda_driver", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    built.append("2.13.0+cu130")
    require_device("cuda:7")  # only torch knows how many the driver has
    for visible, wrong in (("0", "cuda:1"), ("0,2", "cuda:2"), ("", "cuda"), ("-1", "cuda")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        with pytest.raises(ValueError, match=f"--device {wrong} must have GPU number"):
            require_device(wrong)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    require_device("cuda:1")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    built.append("2.13.0+rocm6.4")  # AMD's GPUs are called cuda too, and need no library of NVIDIA
    monkeypatch.setattr(device, "_has_cuda_driver", lambda: False)
    require_device("cuda")
    for build in ("2.13.0+cu130", "2.13.0+cpu"):
        built.append(build)
        with pytest.raises(ValueError, match="no GPU that torch can use; use --device auto"):
            require_device("cuda")
    with pytest.raises(ValueError, match="must have an Apple GPU"):
        require_device("mps")
    monkeypatch.setattr(device.sys, "platform", "darwin")
    require_device("mps")  # torch tells whether it can be used


def test_cores_follow_the_binding_and_omp_num_threads(monkeypatch):
    import os

    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 3, 5}, raising=False)
    for asked, cores in ((None, 3), ("2", 2), ("8", 3), ("1,2", 1), ("all", 3)):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        if asked is not None:
            monkeypatch.setenv("OMP_NUM_THREADS", asked)
        assert usable_cores() == cores


@pytest.mark.parametrize("how", ["module", "script"])
def test_ctrl_c_while_the_command_line_is_imported_is_one_line_and_130(tmp_path, how):
    """The signal comes when a library of the command line is being imported."""
    code = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(30)\n"
    (tmp_path / "cyclopts.py").write_text(code)
    script = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    script += "from anisoscope.__main__ import start; start()"
    command = {"module": ["-m", "anisoscope", "theory"], "script": ["-c", script, "theory"]}[how]
    ended = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(SOURCE)])},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job ignores it
    )
    assert (ended.returncode, ended.stderr) == (130, "interrupted\n")
    with open(SOURCE.parent / "pyproject.toml", "rb") as file:
        assert tomllib.load(file)["project"]["scripts"]["anisoscope"] == "anisoscope.__main__:start"


def test_the_package_is_a_command():
    ended = subprocess.run([sys.executable, "-m", "anisoscope", "--help"], capture_output=True, text=True, check=True)
    assert "Usage: anisoscope COMMAND" in ended.stdout


def plain(path):
    rows = [row for row in open_run(path).table().to_pylist() if row["measure"] != "cost"]
    return sorted(repr({name: value for name, value in row.items() if name != "run"}) for row in rows)


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profiled")
    model, text = save(tiny("bert"), folder / "bert"), letters(tmp_path_factory.mktemp("text"))
    common = ["profile", str(model), "--text", str(text), *FAST, "--quick"]
    cli.main([*common, "--out", str(folder / "whole")])
    return common, folder / "whole"


@pytest.mark.parametrize(
    "after", [pytest.param(k, marks=pytest.mark.slow) if k != "model-layers" else k for k in STAGES]
)
def test_a_profile_that_was_stopped_goes_on_to_the_same_rows(profiled, tmp_path, monkeypatch, capsys, after):
    from anisoscope.study.profile import profile_study as profile

    common, whole = profiled
    write = profile._Profiling._write

    def stopping(self, writer, rows, step):
        write(self, writer, rows, step)
        if writer == after:
            raise KeyboardInterrupt

    monkeypatch.setattr(profile._Profiling, "_write", stopping)
    capsys.readouterr()
    assert ended(*common, "--out", tmp_path / "run") == 130
    out, err = capsys.readouterr()
    assert f"anisoscope profile --resume {tmp_path / 'run'}" in err.replace("\n", "")
    assert "failed" not in out + err
    assert open_run(tmp_path / "run").manifest["status"] == "interrupted"
    monkeypatch.setattr(profile._Profiling, "_write", write)
    cli.main(["profile", "--resume", str(tmp_path / "run")])
    out = capsys.readouterr().out
    assert plain(tmp_path / "run") == plain(whole)
    assert open_run(tmp_path / "run").finished
    assert "twin: layers" not in out  # what is done is not done again
    lines = out.splitlines()
    table = lines.index(next(line for line in lines if line.startswith("layer")))
    assert [line.split()[0] for line in lines[table + 1 : table + 4]] == ["0", "1", "2"]
    assert any(line.startswith("took ") for line in lines)


def test_a_finished_profile_has_nothing_left_and_keeps_its_settings(profiled, capsys):
    _, whole = profiled
    cli.main(["profile", "--resume", str(whole), "--no-report"])
    assert "nothing left to do" in capsys.readouterr().out
    assert ended("profile", "--resume", whole, "--rank", 4) == 2
    assert "must keep its own settings, got --resume with rank" in capsys.readouterr().err


def corpus(folder, documents=40, words=60):
    folder.mkdir()
    for number in range(documents):
        (folder / f"{number}.txt").write_text(" ".join(f"w{(number * 7 + k * k) % 50}" for k in range(words)))
    return folder


def test_a_stopped_pair_ends_with_130_and_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    from anisoscope.study.pair import pair_study as pair

    monkeypatch.setattr(pair, "train", lambda *given: False)  # as after Ctrl-C
    assert ended("pair", "--corpus", corpus(tmp_path / "t"), *PAIR.split(), "--out", tmp_path / "run") == 130
    out = capsys.readouterr().out
    assert f"stopped. Resume with: anisoscope pair --resume {tmp_path / 'run'}" in out
    assert "rows: anisoscope rows" in out.splitlines()[-1]


def test_a_held_out_text_of_fewer_sequences_than_a_batch_is_evaluated(tmp_path, capsys):
    texts = corpus(tmp_path / "t", documents=40)
    cli.main(["pair", "--corpus", str(texts), *PAIR.split(), "--held-out", "0.02", "--out", str(tmp_path / "run")])
    losses = [r["value"] for r in open_run(tmp_path / "run").table().to_pylist() if r["variant"] == "held-out"]
    assert losses
    assert all(value > 0 for value in losses)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("verdict: ") for line in lines)
    assert any(line.startswith("took ") for line in lines)


TEXT = "In the beginning was a line, and it was long enough to be cut.\n" * 30


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x00".join(TEXT.encode().split(b" ")),
        TEXT.replace("\n", " ").encode(),
        b"\xef\xbb\xbf" + TEXT.encode(),
        TEXT.replace("\n", "\r\n").encode(),
        TEXT.replace("\n", "\r").encode(),
    ],
    ids=["NUL", "one line", "byte-order mark", "CRLF", "CR"],
)
def test_odd_files_are_read(tmp_path, raw):
    (tmp_path / "a.txt").write_bytes(raw)
    (tmp_path / "b.txt").write_bytes(raw + b" and more of the same, said again")
    data = prepare(str(tmp_path), length=16, vocabulary=300, held_out=0.5)
    assert len(data.train.ids)
    assert len(data.held.ids)


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_other_encodings_are_an_error_that_names_the_file(tmp_path, encoding):
    (tmp_path / "a.txt").write_bytes(("é" + TEXT).encode(encoding))
    with pytest.raises(AnisoscopeError, match=r"a\.txt is not UTF-8 text: byte 0x.* convert it"):
        prepare(str(tmp_path), length=16, vocabulary=300)


def test_documents_that_are_too_short_are_an_error_before_the_training(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(f"{number}")
    with pytest.raises(BrokenRuleError, match=r"must have at least .* use longer documents"):
        prepare(str(tmp_path), length=16, vocabulary=300)
