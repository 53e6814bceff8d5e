"""Whatever the operating system answers to a file operation of a command: one line, no traceback, nothing lost."""

import contextlib
import errno
import hashlib
import io
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from anisoscope import open_run
from anisoscope.cli import main
from anisoscope.store.run import create_run
from anisoscope.study.reproduce.recipe_run import RESULT
from faults.conftest import ALL
from faults.serving import compiled, serving
from models.snapshots import save, tiny
from study.jobs import assert_same, comparable, corpus

ERRORS = (errno.ENOSPC, errno.EACCES, errno.EIO, errno.ENAMETOOLONG)
IMPORTED = (
    "anisoscope.cli",
    "anisoscope.report.make",
    "anisoscope.report.paper_figures",
    "anisoscope.study.pair.pair_study",
    "anisoscope.study.checkpoints.history_study",
    "anisoscope.study.profile.profile_study",
    "anisoscope.study.ablate.removal_study",
    "anisoscope.study.intervene.intervention_study",
    "anisoscope.study.verify.verify_study",
    "anisoscope.study.reproduce.recipe_run",
    "anisoscope.report.sections.recipe_page",
    "anisoscope.report.live",
    "anisoscope.study.measure.measure_study",
    "anisoscope.study.theory.theory_study",
    "matplotlib.backends.backend_svg",
    "pandas",
)
EXAMINED = "--text texts/*.txt --length 16 --sequences 8 --rank 2 --resamples 19 --proxies pca --views representation"
EXAMINED += " --no-targets --no-frequency --device cpu --threads 1"
REMOVED = "--text texts/*.txt --length 16 --sequences 8 --ranks 2 --draws 1 --layers 1 --device cpu --threads 1"
COMMANDS = {
    "rows": "rows run",
    "rows-csv": "rows run --out rows.csv",
    "rows-json": "rows run --out rows.json",
    "rows-parquet": "rows run --out rows.parquet",
    "rows-config": "rows run --config rows.toml --out rows.txt",
    "compare": "compare run other",
    "report": "report run",
    "report-both": "report run other --out both.html",
    "figures": "figures run --out drawn --format svg",
    "verify-run": "verify-run run",
    "doctor": "doctor",
    "doctor-model": "doctor model",
    "measure-npy": "measure a.npy",
    "measure-npz": "measure a.npz",
    "measure-safetensors": "measure a.safetensors",
    "measure-parquet": "measure a.parquet",
    "measure-csv": "measure a.csv",
    "measure-plugin": "measure a.npy --plugins plugin.py --json",
    "integrity": "integrity history",
    "theory": "theory --quick --draws 50 --replicates 4 --points 200 --out made",
    "pair": "pair --config pair.toml --out made",
    "pair-resume": "pair --resume stopped",
    "checkpoints": f"checkpoints history/checkpoint-0 history/checkpoint-10 --probe 0 {EXAMINED} --out made",
    "checkpoints-resume": "checkpoints --resume examined",
    "profile": f"profile model --no-gradients --batches 1 --measures usual {EXAMINED} --out made",
    "profile-resume": "profile --resume profiled",
    "ablate": f"ablate history/checkpoint-0 history/checkpoint-10 {REMOVED} --out made",
    "ablate-resume": "ablate --resume removed",
    "intervene": "intervene plan.toml --out made",
    "intervene-resume": "intervene --resume planned",
    "verify": "verify model --text texts/*.txt --length 16 --sequences 16 --rank 2 --layers 1 --resamples 19 "
    "--device cpu --threads 1 --proxies pca --out made",
    "verify-resume": "verify --resume checked",
    "reproduce": "reproduce recipe.toml --threads 1 --out made",
    "watch": "watch run --once",
}
PAIR = """
corpus = "texts/*.txt"
layers = 1
width = 16
heads = 2
vocabulary = 320
length = 16
batch = 8
steps = 4
held_out = 0.2
rank = 2
ranks = []
proxies = ["pca"]
resamples = 19
frequency = false
targets = false
probe = 0
evaluations = 1
observations = 2
checkpoints = 2
device = "cpu"
"""
PLAN = """
corpus = "texts/*.txt"
seeds = 1
steps = 2
layers = 1
width = 16
heads = 2
vocabulary = 320
length = 16
rank = 2
resamples = 19
views = ["representation"]
probes = false
[[arms]]
name = "null"
kind = "null"
"""
RECIPE = """
title = "Mine"
paper = "none"
source = "made up"
[[scales.tiny.runs]]
name = "model"
study = "profile"
model = "model"
[scales.tiny.runs.settings]
text = "texts/*.txt"
length = 16
sequences = 8
batches = 1
gradients = false
device = "cpu"
measures = "usual"
rank = 2
[[claims]]
name = "c"
says = "c"
source = "nowhere"
rule = "above"
where = { measure = "two_nn" }
"""
FEW = 3  # operations of a command tried in `make test`
SAMPLED = ("rows-csv", "report", "figures", "verify-run", "measure-npz", "doctor", "pair")
STOPPED = {
    "pair": "stopped",
    "checkpoints": "examined",
    "profile": "profiled",
    "ablate": "removed",
    "intervene": "planned",
    "verify": "checked",
}
STUDIES = dict.fromkeys(STOPPED, "made") | {f"{name}-resume": folder for name, folder in STOPPED.items()}
VARYING = {*STUDIES, "theory", "doctor", "reproduce"}  # what they write holds times
SLOW = {*STUDIES, "theory", "reproduce"}  # there each operation gets one of the errors, in turn
CHANGING = re.compile(r"[0-9a-f]{32}|\d+|tmp\w+|decoder|encoder|control|null")  # models and arms alike


def planted(path):
    with create_run(path, steps=4) as run:
        for step in range(3):
            run.write("a", [{"step": step, "measure": "loss", "variant": "train", "value": 1.0, "role": "decoder"}])
        run.write_tensors("x", {"x": np.eye(2)})
        run.close("finished")
    return path


def said(arguments):
    """Exit status and what went to standard error."""
    err = io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
        try:
            main(arguments)
        except SystemExit as ended:
            return ended.code, err.getvalue()
    return 0, err.getvalue()


def files(folder):
    """What lies in a folder, with a digest each; who locked a run last is left out."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {n: hashlib.sha256(p.read_bytes()).hexdigest() for n, p in found.items() if p.name != "writer.lock"}


def material(folder):
    """What the commands work on."""
    run = planted(folder / "run")
    shutil.copytree(run, folder / "other")
    x = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    np.save(folder / "a.npy", x)
    np.savez(folder / "a.npz", x=x)
    save_file({"x": x}, folder / "a.safetensors")
    pq.write_table(pa.table({f"c{k}": x[:, k] for k in range(4)}), folder / "a.parquet")
    np.savetxt(folder / "a.csv", x, delimiter=",", header="a,b,c,d", comments="")
    corpus(folder / "texts", documents=30)
    for step in (0, 10):
        save(tiny("gpt2", seed=step), folder / "history" / f"checkpoint-{step}")
    shutil.copytree(folder / "history" / "checkpoint-10", folder / "model")
    (folder / "pair.toml").write_text(PAIR)
    (folder / "plan.toml").write_text(PLAN)
    (folder / "recipe.toml").write_text(RECIPE)
    (folder / "rows.toml").write_text('measure = "loss"\n')
    (folder / "plugin.py").write_text("MADE = 1\n")


class Bench:
    """Commands in a folder that is as it was before each of them."""

    def __init__(self, server, where):
        self.server, self.kept, self.folder = server, where / "kept", where / "case"

    def run(self, name, **fault):
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.kept, self.folder)
        return self.server.run(COMMANDS[name].split(), self.folder, **fault)

    def stop(self, study):
        """Keep a study of this kind that was broken off, for the others to go on with: writing its manifest failed."""
        whole = self.run(study)
        assert whole.code == 0, whole.err
        named = [k for k, line in enumerate(whole.operations) if re.match(r"rename .*manifest\.json", line)]
        broken_off = self.run(study, number=named[len(named) * 2 // 3], error=errno.EIO)
        assert broken_off.code == 1, broken_off
        shutil.copytree(self.folder / "made", self.kept / STOPPED[study])

    def go_on(self, name):
        """Resume a study that was broken off; None if it had not begun."""
        if name == "reproduce":  # the same command in the folder that is there
            return self.server.run(COMMANDS[name].split(), self.folder)
        run = STUDIES[name]
        if not (self.folder / run / "manifest.json").exists():
            return None
        return self.server.run([name.removesuffix("-resume"), "--resume", run], self.folder)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    where = tmp_path_factory.mktemp("errors")
    library = compiled(where)
    if library is None:
        pytest.skip("errors are injected on Linux with a C compiler (cc)")
    with serving(library, where, IMPORTED) as server:
        found = Bench(server, where)
        found.kept.mkdir()
        material(found.kept)
        yield found


def tried(name, operations):
    """Numbers of the operations to fail: the first of those alike but for numbers in names, and if cheap the last."""
    alike = {}
    for number, line in enumerate(operations):
        alike.setdefault(CHANGING.sub("#", line), []).append(number)
    ends = (0,) if name in SLOW else (0, -1)
    chosen = sorted({numbers[end] for numbers in alike.values() for end in ends})
    return chosen if ALL else chosen[:: max(1, len(chosen) // FEW)]


@pytest.mark.parametrize("name", [name for name in COMMANDS if ALL or name in SAMPLED])
def test_an_error_at_any_operation_is_one_line_and_loses_nothing(bench, tmp_path, counted, name):
    if name.endswith("-resume"):
        bench.stop(name.removesuffix("-resume"))
    whole = bench.run(name)
    assert whole.code == 0, (whole.out, whole.err)
    assert whole.operations
    made, cases = files(bench.folder), 0
    if name in (*STUDIES, "reproduce"):
        run = STUDIES.get(name, "made")
        shutil.copytree(bench.folder / run, tmp_path / "whole" / run)
    for turn, number in enumerate(tried(name, whole.operations)):
        for error in ERRORS if ALL and name not in SLOW else (ERRORS[turn % len(ERRORS)],):
            what = (name, number, whole.operations[number], errno.errorcode[error])
            ended = bench.run(name, number=number, error=error, stays=error == errno.ENOSPC)
            check_said(ended, what)
            check_kept(bench, name, ended, made, what)
            if ended.code == 0 and name not in VARYING and "warning: " not in ended.err:
                assert ended.out == whole.out, what
                assert files(bench.folder) == made, what
            if name in (*STUDIES, "reproduce"):
                check_goes_on(bench, name, ended, tmp_path / "whole" / STUDIES.get(name, "made"), what)
            cases += 1
    counted(
        "an error of the operating system at any file operation of any command is one line and loses nothing", cases
    )


def check_said(ended, what):
    assert ended.code in (0, 1, 2), (*what, ended)
    for wrong in ("Traceback", "Exception ignored", "fault of anisoscope"):
        assert wrong not in ended.out + ended.err, (*what, ended.err)
    errors = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == (ended.code != 0) or what[0] == "integrity", (*what, ended.err)


def check_kept(bench, name, ended, made, what):
    """What was there is as it was, and a command that says it succeeded has made what it makes."""
    now = files(bench.folder)
    for path, digest in files(bench.kept).items():
        if not path.startswith(tuple(STOPPED.values())):
            assert now.get(path) == digest, (*what, path)
    assert not [path for path in now if ".tmp-" in path], what
    if ended.code == 0 and name not in STUDIES:
        assert now.keys() >= made.keys(), (*what, made.keys() - now.keys())


def check_goes_on(bench, name, ended, whole, what):
    """A study that was broken off ends as the one that was not: the same rows and weights, whole by its hashes."""
    if ended.code != 0:
        went_on = bench.go_on(name)
        if went_on is None:
            return
        assert went_on.code == 0, (*what, went_on.err)
    run = bench.folder / STUDIES.get(name, "made")
    if name == "reproduce":
        assert (run / RESULT).read_text() == (whole / RESULT).read_text(), what
        run, whole = run / "model", whole / "model"
    assert open_run(run).faults() == ([], []), what
    if name.startswith("pair"):
        assert_same(run, whole)
    else:
        assert comparable(open_run(run)) == comparable(open_run(whole)), what
