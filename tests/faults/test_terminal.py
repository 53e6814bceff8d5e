"""Nothing in a file, a name or a run paints the terminal of whoever runs a command on it, whatever the command."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from anisoscope.store.recorded import manifest_to_bytes
from anisoscope.store.run import create_run, open_run
from faults.serving import serving
from faults.test_errors import EXAMINED, IMPORTED, PAIR, PLAN, RECIPE, REMOVED
from models.snapshots import save, tiny
from study.jobs import corpus

HOSTILE = "\x1b]0;owned\x07\x1b[31m[bold]:smile:\u202e"
ESCAPES = ("\x1b]", "\x1b[31m[", "\x07", "\u202e", "😄")
FORMS = {
    "rows": "rows RUN",
    "rows of some columns": "rows RUN --columns note,token",
    "rows by a filter that none meets": "rows RUN --measure HOSTILE",
    "rows of a column that is none": "rows RUN --columns HOSTILE",
    "rows as CSV": "rows RUN --format csv",
    "rows as JSON": "rows RUN --format json",
    "rows into a folder": "rows RUN --out HOSTILE/no/rows.csv",
    "compare": "compare RUN OTHER",
    "compare as CSV": "compare RUN OTHER --format csv",
    "compare as JSON": "compare RUN OTHER --format json",
    "report": "report RUN",
    "report of none": "report HOSTILE",
    "figures": "figures RUN --format svg",
    "verify-run": "verify-run RUN",
    "verify-run as JSON": "verify-run RUN --format json",
    "measure npz": "measure HOSTILE.npz",
    "measure safetensors": "measure HOSTILE.safetensors",
    "measure parquet": "measure HOSTILE.parquet --columns HOSTILE",
    "measure csv": "measure HOSTILE.csv --columns HOSTILE",
    "measure as JSON": "measure HOSTILE.npz --json",
    "measure with a plugin": "measure HOSTILE.npz --plugins HOSTILE.py",
    "integrity": "integrity HISTORY",
    "integrity as JSON": "integrity HISTORY --format json",
    "doctor": "doctor",
    "theory": "theory --quick --draws 50 --replicates 4 --points 200 --out HOSTILE",
    "pair": "pair --config pair.toml --out HOSTILE",
    "pair of a corpus that is none": "pair --corpus HOSTILE --out made",
    "pair resumed": "pair --resume STOPPED",
    "checkpoints planned": f"checkpoints HISTORY --dry-run {EXAMINED}",
    "checkpoints": f"checkpoints HISTORY --probe 0 {EXAMINED} --out HOSTILE",
    "checkpoints resumed": "checkpoints --resume STOPPED",
    "profile planned": f"profile MODEL --dry-run {EXAMINED}",
    "profile": f"profile MODEL --no-gradients --batches 1 --measures usual {EXAMINED} --out HOSTILE",
    "profile of none": "profile HOSTILE",
    "profile resumed": "profile --resume STOPPED",
    "ablate planned": "ablate MODEL --text texts/*.txt --length 16 --ranks 2 --dry-run",
    "ablate": f"ablate HISTORY {REMOVED} --out HOSTILE",
    "ablate of a run": "ablate RUN --dry-run",
    "ablate resumed": "ablate --resume STOPPED",
    "intervene planned": "intervene plan.toml --dry-run",
    "intervene of none": "intervene HOSTILE",
    "intervene of an odd plan": "intervene HOSTILE.toml",
    "intervene with a pilot": "intervene plan.toml --dry-run --seeds 3 --pilot RUN",
    "intervene resumed": "intervene --resume STOPPED",
    "verify planned": "verify MODEL --text texts/*.txt --length 16 --rank 2 --dry-run",
    "verify": "verify MODEL --text texts/*.txt --length 16 --sequences 16 --rank 2 --layers 1 --resamples 19 "
    "--device cpu --threads 1 --proxies pca --out HOSTILE",
    "verify resumed": "verify --resume STOPPED",
    "reproduce planned": "reproduce recipe.toml --dry-run",
    "reproduce": "reproduce recipe.toml --threads 1 --out HOSTILE",
    "reproduce of none": "reproduce HOSTILE",
    "reproduce with another model": "reproduce recipe.toml --model HOSTILE=MODEL",
    "watch": "watch RUN --once",
    "watch of none": "watch HOSTILE --once",
    "watch without a page": "watch RUN --no-serve --every 0.2",
    "a configuration": "rows RUN --config HOSTILE.toml",
    "an option that is none": "rows RUN --HOSTILE 3",
    "a command that is none": "HOSTILE",
}
QUIET = {"doctor", "intervene planned"}  # says nothing of what is in the folder


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    where = tmp_path_factory.mktemp("terminal")
    folder = where / HOSTILE
    folder.mkdir()
    material(folder)
    with serving(None, where, IMPORTED) as server:
        yield server, folder


def material(folder):
    """Hostile text wherever a file can hold some."""
    about = {HOSTILE: HOSTILE, "config": {HOSTILE: HOSTILE, "note": HOSTILE}}
    for name, status in (("RUN", "finished"), ("OTHER", "finished"), ("STOPPED", "interrupted")):
        with create_run(folder / f"{HOSTILE}{name}", kind=HOSTILE, steps=4, **about) as run:
            texts = {"note": HOSTILE, "token": HOSTILE, "model": HOSTILE, "role": HOSTILE}
            for step in (0, 4):
                run.write("a", [{"step": step, "measure": "loss", "variant": "train", "value": 1.0} | texts])
            run.close(status)
    other = open_run(folder / f"{HOSTILE}OTHER")
    (folder / f"{HOSTILE}OTHER" / "manifest.json").write_bytes(
        manifest_to_bytes(other.manifest | {"config": {HOSTILE: 1}})
    )
    (folder / f"{HOSTILE}RUN" / f"stray{HOSTILE}.parquet").write_bytes(b"PAR1")
    x = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    np.savez(folder / f"{HOSTILE}.npz", **{HOSTILE: x})
    save_file({HOSTILE: x}, folder / f"{HOSTILE}.safetensors", {HOSTILE: HOSTILE})
    pq.write_table(pa.table({HOSTILE: ["a"], "x": [1.0]}), folder / f"{HOSTILE}.parquet")
    np.savetxt(folder / f"{HOSTILE}.csv", x, delimiter=",", header=f"{HOSTILE},b,c,d", comments="")
    (folder / f"{HOSTILE}.toml").write_text(f"{json.dumps(HOSTILE, ensure_ascii=True)} = 3\n")
    (folder / f"{HOSTILE}.py").write_text(f"raise ValueError({HOSTILE!r})\n")
    corpus(folder / "texts", documents=30)
    (folder / "pair.toml").write_text(PAIR)
    (folder / "plan.toml").write_text(PLAN)
    named = json.dumps(f"{HOSTILE}MODEL")[1:-1]
    (folder / "recipe.toml").write_text(
        RECIPE.replace('"Mine"', json.dumps(HOSTILE))
        .replace('model = "model"', f'model = "{named}"')
        .replace('says = "c"', f"says = {json.dumps(HOSTILE)}")
        .replace('name = "c"', f"name = {json.dumps(HOSTILE)}")
    )
    for step in (0, 10):
        checkpoint = save(tiny("gpt2", seed=step), folder / f"{HOSTILE}HISTORY" / f"checkpoint-{step}")
    shutil.copytree(checkpoint, folder / f"{HOSTILE}HISTORY" / f"checkpoint-{HOSTILE}")
    (folder / f"{HOSTILE}HISTORY" / f"checkpoint-{HOSTILE}" / "model.safetensors").write_bytes(b"damaged")
    model = shutil.copytree(checkpoint, folder / f"{HOSTILE}MODEL")
    told = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(told | {HOSTILE: HOSTILE, "_name_or_path": HOSTILE}))


def words(form):
    """The arguments of a form, with hostile names in place; of a history all checkpoints are named."""
    for word in form.split():
        if word in ("RUN", "OTHER", "STOPPED", "MODEL"):
            yield HOSTILE + word
        elif word == "HISTORY":
            yield from (f"{HOSTILE}HISTORY/checkpoint-{label}" for label in ("0", "10", HOSTILE))
        else:
            yield word.replace("HOSTILE", HOSTILE)


@pytest.mark.parametrize("form", FORMS)
def test_nothing_in_a_file_paints_a_terminal(served, tmp_path, counted, form):
    server, material = served
    folder = shutil.copytree(material, tmp_path / HOSTILE)
    ended = server.run(list(words(FORMS[form])), folder, terminal=True)
    assert ended.code is not None
    assert not [escape for escape in ESCAPES if escape in ended.out], ended.out
    assert "Traceback" not in ended.out
    assert "owned" in ended.out or form in QUIET, ended.out
    counted("hostile text in files, names and runs does not paint a terminal", 1)
