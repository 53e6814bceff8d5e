"""The doctor looks at this machine; what is broken here is broken by the test."""

import importlib
import json
import os
import re
import subprocess
import sys
from importlib import metadata

import numpy
import pytest
import torch
from packaging.specifiers import SpecifierSet

from anisoscope import __version__, cli
from anisoscope.cli import machine_probes as probes


@pytest.fixture
def findings(capsys):
    """Run the doctor; returns the exit code and the findings by name."""

    def examine():
        code = 0
        try:
            cli.main(["doctor", "--json"])
        except SystemExit as stopped:
            code = stopped.code
        said = json.loads(capsys.readouterr().out)
        assert said["ok"] == (code == 0)
        return code, {each["name"]: each for each in said["findings"]}

    return examine


def lack(monkeypatch, *names):
    """Let packages be missing."""
    version = metadata.version

    def without(name):
        if name in names:
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", without)


def test_it_tells_what_is_here(findings):
    code, found = findings()
    assert code == 0
    assert found["python"]["value"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert found["anisoscope"]["value"].startswith(__version__)
    assert found["torch"]["value"] == torch.__version__
    assert found["numpy"]["value"] == numpy.__version__
    assert f"torch uses {torch.get_num_threads()}" in found["threads"]["value"]
    assert re.fullmatch(r"[\d.]+ GiB free of [\d.]+ GiB at .*", found["disk"]["value"])
    assert os.getcwd() in found["disk"]["value"]
    assert found["temporary directory"]["status"] == "ok"
    assert {"memory", "cores", "chromium", "extra train", "extra dev"} <= set(found)
    assert ("cuda:0" in found) == torch.cuda.is_available()
    assert {each["status"] for each in found.values()} <= {"ok", "missing"}


def test_a_missing_extra_comes_with_the_line_that_gets_it(findings, monkeypatch):
    lack(monkeypatch, "transformers", "matplotlib")
    code, found = findings()
    assert code == 0
    assert found["extra train"]["status"] == "missing"
    assert "transformers" in found["extra train"]["value"]
    assert found["extra train"]["fix"] == 'pip install "anisoscope[train]"'
    assert found["extra report"]["value"] == "lacks matplotlib"
    assert {"transformers", "matplotlib"} <= set(re.findall(r"\w+", found["extra dev"]["value"]))


def test_an_extra_that_is_too_old_is_missing(findings, monkeypatch):
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "4.9.1" if name == "transformers" else version(name))
    _, found = findings()
    assert "transformers>=4.48 (has 4.9.1)" in found["extra train"]["value"]


def test_a_core_package_that_is_missing_or_does_not_load_is_a_failure(findings, monkeypatch):
    lack(monkeypatch, "pyarrow")
    code, found = findings()
    assert code == 1
    assert found["pyarrow"]["status"] == "missing"
    assert found["pyarrow"]["fix"] == 'pip install "pyarrow>=15"'
    monkeypatch.undo()
    load = importlib.import_module

    def torn(name, *rest):
        if name == "sklearn":
            raise OSError("libgomp.so.1: cannot open shared object file\nmore")
        return load(name, *rest)

    monkeypatch.setattr(probes.importlib, "import_module", torn)
    code, found = findings()
    assert code == 1
    assert found["scikit-learn"]["status"] == "broken"
    assert "libgomp" in found["scikit-learn"]["value"]
    assert found["scipy"]["status"] == "ok"


def test_a_probe_that_fails_is_a_line(findings, monkeypatch):
    def fails(*args, **kwargs):
        raise RuntimeError("[red]no such\nthing")

    monkeypatch.setattr(probes.shutil, "disk_usage", fails)
    monkeypatch.setattr(torch.cuda, "is_available", fails)
    monkeypatch.setattr(probes.tempfile, "NamedTemporaryFile", lambda **_: (_ for _ in ()).throw(OSError(28, "full")))
    code, found = findings()
    assert code == 0
    assert (found["disk"]["status"], found["disk"]["value"]) == ("unknown", "RuntimeError: [red]no such")
    assert found["devices"]["status"] == "unknown"
    assert found["temporary directory"]["status"] == "broken"
    assert found["memory"]["status"] == "ok"


def test_without_a_browser_it_says_how_to_get_one(findings, monkeypatch, tmp_path):
    monkeypatch.setattr(probes.shutil, "which", lambda name: None)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PLAYWRIGHT_BROWSERS_PATH", raising=False)
    _, found = findings()
    assert found["chromium"]["status"] == "missing"
    assert "playwright install chromium" in found["chromium"]["fix"]
    (tmp_path / "chromium-1" / "chrome-linux").mkdir(parents=True)
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    _, found = findings()
    assert found["chromium"]["value"] == str(tmp_path / "chromium-1")


@pytest.mark.parametrize(
    ("version", "wanted", "wrong"),
    [
        ("2.13.0+cpu", ">=2.6", None),
        ("2.5.9", ">=2.6", "older than 2.6"),
        ("15", ">=15", None),
        ("4.48.0rc1", ">=4.48", None),
        ("2.6.0a0+ecf3bae40a.nv25.01", ">=2.6", None),
        ("3.0", ">=2,<3", "not <3"),
        ("1.0", ">=1,!=1.0", "not !=1.0"),
        ("of last Tuesday", ">=2", None),
    ],
)
def test_versions_are_numbers_not_text(version, wanted, wrong):
    assert probes.misfit(version, SpecifierSet(wanted)) == wrong


def test_an_extra_asks_for_what_this_machine_needs_and_for_other_extras(monkeypatch):
    asked = [
        "numpy>=1.26",
        "tomli>=2; python_version < '3'",
        "torch[opt]>=2; python_version >= '3'",
        "wandb (>=0.19) ; extra == 'dev'",
        "pywin32; sys_platform == 'nowhere' and extra == 'dev'",
        "anisoscope[lightning,ray]; extra == 'dev'",
        "lightning>=999; extra == 'lightning'",
        "anisoscope[dev]; extra == 'ray'",
    ]
    monkeypatch.setattr(metadata, "requires", lambda name: asked)
    lack(monkeypatch, "wandb")
    assert [each.name for each in probes.requirements()] == ["numpy", "torch"]
    assert [each.name for each in probes.requirements("dev")] == ["wandb", "anisoscope"]
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "2.4" if name == "lightning" else version(name))
    assert list(probes._lacking("dev", frozenset())) == ["wandb", "lightning>=999 (has 2.4)"]
    assert probes._versions("lightning") == "lightning 2.4"
    assert probes._versions("ray") == "anisoscope[dev]"


@pytest.mark.parametrize(
    ("error", "status"),
    [(ModuleNotFoundError("No module named 'packaging'"), "missing"), (SyntaxError("torn"), "broken")],
)
def test_without_packaging_it_says_so_and_what_else_it_can(findings, monkeypatch, error, status):
    load = importlib.import_module

    def torn(name, *rest):
        if name.startswith("packaging"):
            raise error
        return load(name, *rest)

    monkeypatch.setattr(probes.importlib, "import_module", torn)
    if status == "missing":
        for name in [name for name in sys.modules if name.partition(".")[0] == "packaging"]:
            monkeypatch.setitem(sys.modules, name, None)  # so that every import of it fails
    code, found = findings()
    assert code == 1
    assert found["packaging"]["status"] == status
    assert found["packaging"]["fix"] == "pip install --force-reinstall packaging"
    assert found["disk"]["status"] == "ok"
    if status == "missing":
        assert found["extras"]["status"] == "unknown"
        assert found["extras"]["value"].startswith("ModuleNotFoundError")


def test_as_a_process_it_prints_a_line_for_each_finding():
    command = [sys.executable, "-m", "anisoscope.cli", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(re.match(r"(ok|missing|broken|unknown) +\S", line) for line in done.stdout.splitlines())
    assert re.search(r"^ok +torch ", done.stdout, re.M)


def kept_configuration(tmp_path, kind, **options):
    import transformers

    getattr(transformers, kind)(**options).save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def test_of_a_model_it_says_what_is_watched_and_why(tmp_path, capsys):
    """Of a configuration alone: there are no weights."""
    folder = kept_configuration(tmp_path, "T5Config", num_layers=3, d_model=32, vocab_size=90)
    cli.main(["doctor", folder])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("T5ForConditionalGeneration: traced: the residual stream passes decoder.block.0, ")
    table = {line.split()[0]: line.split()[1:3] for line in lines[1:]}
    expected = {view: ["3", "1-3"] for view in ("representation", "encoder-representation", "weight", "encoder-weight")}
    assert table == {"view": ["sites", "layers"], **expected, "embedding": ["1", "0"]}


def test_of_a_mixture_of_experts_it_has_the_routers_and_the_note(tmp_path, capsys):
    folder = kept_configuration(tmp_path, "MixtralConfig", num_hidden_layers=2, architectures=["MixtralForCausalLM"])
    cli.main(["doctor", folder, "--json"])
    said = json.loads(capsys.readouterr().out)
    assert said["model"] == "MixtralForCausalLM"
    assert said["how"].startswith("traced")
    assert [(site["view"], site["layer"]) for site in said["sites"]] == [
        ("representation", 1),
        ("representation", 2),
        ("embedding", 0),
    ]
    assert [(router["layer"], router["experts"]) for router in said["routers"]] == [(1, 8), (2, 8)]
    assert any("mixture of experts in model.layers.0, model.layers.1: no weight view" in note for note in said["notes"])


def test_a_model_that_is_not_there_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["doctor", str(tmp_path / "nothing")])
    assert stopped.value.code == 2
    assert "must exist" in capsys.readouterr().err
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(SystemExit) as stopped:
        cli.main(["doctor", str(tmp_path)])
    assert stopped.value.code == 1
    assert "cannot be read" in capsys.readouterr().err
