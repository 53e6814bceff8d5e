"""A run and its page are handed on: they do not say whose machine they were made on."""

from pathlib import Path

from anisoscope.report.make import make_report
from anisoscope.store.home import without_home
from anisoscope.store.run import create_run, open_run


def test_manifest_and_page_hold_no_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "someone"))
    home = tmp_path / "someone"
    about = {"machine": {"command": f"anisoscope pair --corpus {home}/texts"}, "corpus": {"files": [f"{home}/a.txt"]}}
    run = create_run(home / "run", config={"corpus": f"{home}/texts"}, **about)
    run.write("a", [{"step": 0, "measure": "loss", "value": 1.0}])
    run.close("finished")
    manifest = open_run(home / "run").manifest
    assert manifest["config"]["corpus"] == f"{home}/texts"  # as it was given: a resume needs it
    assert str(home) not in str({k: v for k, v in manifest.items() if k != "config"})
    assert str(home) not in make_report([str(home / "run")])


def test_only_whole_folders_are_replaced():
    home = str(Path.home())
    assert without_home(f"{home}/x {home}") == "~/x ~"
    assert without_home([f"{home}er/x", f"/mnt{home}/x", 3, None]) == [f"{home}er/x", f"/mnt{home}/x", 3, None]
