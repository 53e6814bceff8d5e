"""Every reader gets damaged files: an answer or an error of ours, soon, and within a stated amount of memory."""

import contextlib
import io
import json
import os
import resource
import time
import tomllib
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from anisoscope.data import enwik8
from anisoscope.data.cloud_files import open_cloud
from anisoscope.data.tokeniser_files import load_tokeniser
from anisoscope.errors import AnisoscopeError, BrokenRuleError
from anisoscope.jobs.job_pool import JobResources
from anisoscope.models.cards import describe
from anisoscope.models.fingerprints import fingerprint
from anisoscope.models.located import locate
from anisoscope.store.recorded import manifest_from_bytes
from anisoscope.store.run import create_run, open_run
from anisoscope.study.ablate import removal_study as ablate
from anisoscope.study.ablate.ablate_settings import AblateSettings
from anisoscope.study.checkpoints import history_study as checkpoints
from anisoscope.study.intervene import intervention_study as intervene
from anisoscope.study.intervene.intervene_settings import InterveneSettings
from anisoscope.study.model_settings import Examination, HistoryPlan, ProfileSettings
from anisoscope.study.profile import profile_study as profile
from anisoscope.study.reproduce.recipe import Recipe, load_recipe
from anisoscope.study.reproduce.recipe_run import _begin
from anisoscope.study.setting_fields import made_of, read_toml
from anisoscope.study.verify import verify_study as verify
from anisoscope.study.verify.verify_settings import Verification
from faults.conftest import ALL
from models.snapshots import save as save_model
from models.snapshots import tiny

MUTANTS = 300 if ALL else 12
SECONDS, BYTES = 10, 512 << 20  # a mutant may take no longer, and the process may grow no more over all of them
X = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)


def npy():
    found = io.BytesIO()
    np.save(found, X)
    return found.getvalue()


def npz():
    found = io.BytesIO()
    np.savez_compressed(found, x=X)
    return found.getvalue()


def parquet():
    found = io.BytesIO()
    pq.write_table(pa.table({f"c{k}": X[:, k] for k in range(5)}), found)
    return found.getvalue()


def gguf(folder):
    from gguf import GGUFWriter

    writer = GGUFWriter(folder / "made.gguf", "llama")
    writer.add_tensor("a.weight", X)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return (folder / "made.gguf").read_bytes()


def run_of(folder):
    with create_run(folder / "made") as run:
        run.write(
            "a", [{"step": 0, "layer": k, "measure": "loss", "value": float(k), "note": "x" * k} for k in range(9)]
        )
        run.close("interrupted")
    return folder / "made"


def cloud(name):
    def read(folder, content):
        (folder / name).write_bytes(content)
        for _ in open_cloud(folder / name).chunks():
            pass

    return read


def weights(name):
    def read(folder, content):
        (folder / name).write_bytes(content)
        fingerprint(folder / name)

    return read


def index(folder, content):
    (folder / "model.safetensors.index.json").write_bytes(content)
    fingerprint(folder)


def part(folder, content):
    made = folder / "made"
    made.mkdir(exist_ok=True)
    (made / "manifest.json").write_text('{"schema_version": 2}')
    (made / "rows-a-000000000.parquet").write_bytes(content)
    open_run(made).rows()


def manifest(folder, content):
    manifest_from_bytes(content, "here")


def toml(folder, content):
    (folder / "a.toml").write_bytes(content)
    read_toml(folder / "a.toml")


def recipe(folder, content):
    (folder / "a.toml").write_bytes(content)
    load_recipe(str(folder / "a.toml"))


def plan(folder, content):
    (folder / "a.toml").write_bytes(content)
    made_of(InterveneSettings, read_toml(folder / "a.toml"))


def begun(folder, content):
    """What a folder of `reproduce` says that it is for."""
    (folder / "recipe.json").write_bytes(content)
    _begin(folder, *RECIPE)


def resumed(go_on):
    def read(folder, content):
        made = folder / "made"
        made.mkdir(exist_ok=True)
        (made / "manifest.json").write_bytes(content)
        go_on(made)

    return read


def with_jobs(kind):
    return lambda made: kind.resumed(made, JobResources(), Refusing())


def manifest_of(kind):
    """A manifest of a study in which every job is done: nothing is trained or measured when it is read well."""

    def make(folder):
        with create_run(folder / "begun", kind=kind, **STUDIES[kind]) as run:
            run.close("finished")
        return (folder / "begun" / "manifest.json").read_bytes()

    return make


def described(folder, content):
    """A model's configuration."""
    (folder / "config.json").write_bytes(content)
    describe(locate(str(folder)))


def tokeniser(folder, content):
    (folder / "tokenizer.json").write_bytes(content)
    load_tokeniser(str(folder / "tokenizer.json"))


def configuration(folder):
    config = save_model(tiny("gpt2"), folder / "gpt2") / "config.json"
    return config.read_bytes()


def dump(folder, content):
    (folder / "dump.xml").write_bytes(content)
    enwik8.load(folder / "dump.xml")


WIKI = (
    b"<page><title>A</title><text>'''A''' is [[b|c]] {{d}} &lt;ref&gt;e&lt;/ref&gt; == f == [http://g h]</text></page>"
)
PLAN = b"""steps = 3
corpus = "zipf:1"
seeds = 2
[[arms]]
name = "istar"
kind = "istar"
doses = [0.1, 0.2]
layers = [1]
"""
RECIPE_TOML = b"""title = "Mine"
paper = "none"
source = "made up"
[[scales.tiny.runs]]
name = "a"
study = "profile"
model = "somewhere"
settings = { text = "kjv", length = 32 }
[[claims]]
name = "c"
says = "c"
source = "nowhere"
rule = "above"
where = { measure = "two_nn" }
"""
RECIPE = (made_of(Recipe, tomllib.loads(RECIPE_TOML.decode())),)
RECIPE += (RECIPE[0].scales["tiny"].runs, "tiny")
ARM = {"name": "istar", "kind": "istar", "doses": [0.1]}
STUDIES = {
    "intervene": {"config": InterveneSettings(arms=[ARM], corpus="zipf:1").model_dump(mode="json"), "done": []},
    "ablate": {
        "config": AblateSettings().model_dump(mode="json"),
        "plan": {"models": [{"source": "nowhere", "name": "a", "step": 0, "objective": None}]},
        "done": ["a-0"],
        "failed": {},
    },
    "checkpoints": {
        "config": Examination().model_dump(mode="json"),
        "plan": HistoryPlan().model_dump() | {"points": [[{"label": "a", "path": "nowhere", "name": None}, 0]]},
        "done": ["a-0"],
        "failed": {},
    },
    "profile": {
        "config": ProfileSettings().model_dump(mode="json"),
        "asked": "nowhere",
        "hashes": {"text": "0", "model": "0"},
        "done": ["model-layers"],
    },
    "verify": {
        "config": Verification().model_dump(mode="json"),
        "asked": ["nowhere"],
        "held_out": [],
        "hashes": {"text-0": "0", "model-0": "0"},
        "done": ["00-nowhere-layer-000"],
    },
}
STUDIES = {kind: about | {"failed": {}} for kind, about in STUDIES.items()}


class Refusing:
    """An overseer who lets no job begin."""

    def __getattr__(self, name):
        return lambda *_: (_ for _ in ()).throw(AnisoscopeError("nothing is begun here"))


READERS = {
    "npy": (lambda folder: npy(), cloud("a.npy")),
    "npz": (lambda folder: npz(), cloud("a.npz")),
    "safetensors": (lambda folder: save({"x": X}), cloud("a.safetensors")),
    "parquet": (lambda folder: parquet(), cloud("a.parquet")),
    "csv": (lambda folder: b"a,b\n" + b"1.5,2\n" * 20, cloud("a.csv")),
    "part": (lambda folder: (run_of(folder) / "rows-a-000000000.parquet").read_bytes(), part),
    "manifest": (lambda folder: (run_of(folder) / "manifest.json").read_bytes(), manifest),
    "header": (lambda folder: save({"a": X, "b": X[:3]}), weights("model.safetensors")),
    "index": (lambda folder: json.dumps({"weight_map": {"a": "model-1.safetensors"}}).encode(), index),
    "gguf": (gguf, weights("a.gguf")),
    "toml": (lambda folder: b'steps = 3\nranks = [2, 4]\n[table]\nname = "x"\n', toml),
    "recipe": (lambda folder: RECIPE_TOML, recipe),
    "plan": (lambda folder: PLAN, plan),
    "recipe begun": (lambda folder: (_begin(folder, *RECIPE), (folder / "recipe.json").read_bytes())[1], begun),
    "intervene resumed": (manifest_of("intervene"), resumed(with_jobs(intervene))),
    "ablate resumed": (manifest_of("ablate"), resumed(with_jobs(ablate))),
    "checkpoints resumed": (manifest_of("checkpoints"), resumed(with_jobs(checkpoints))),
    "profile resumed": (manifest_of("profile"), resumed(lambda made: profile.resume(made, Refusing()))),
    "verify resumed": (manifest_of("verify"), resumed(lambda made: verify.resumed(made, Refusing()))),
    "model configuration": (configuration, described),
    "tokeniser": (lambda folder: (save_model(tiny("gpt2"), folder / "t") / "tokenizer.json").read_bytes(), tokeniser),
    "mediawiki": (lambda folder: WIKI * 3, dump),
}
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(("flip", "byte", "cut", "insert", "repeat", "number")),
        st.floats(0, 1, exclude_max=True),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=5,
)


def mutated(content, changes):
    found = bytearray(content)
    for kind, where, value in changes:
        at = int(where * len(found)) if found else 0
        if kind == "flip" and found:
            found[at] ^= 1 << value % 8
        elif kind == "byte" and found:
            found[at] = value
        elif kind == "cut":
            del found[at:]
        elif kind == "insert":
            found[at:at] = bytes([value]) * (1 + value % 7)
        elif kind == "repeat":
            found[at:at] = found[at : at + value]
        elif kind == "number":  # sizes and offsets are of 4 and 8 bytes
            found[at : at + 8] = (value << 40 | value).to_bytes(8, "little")
    return bytes(found)


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_give_an_answer_or_an_error_of_ours(tmp_path, counted, name):
    make, read = READERS[name]
    content, tried = make(tmp_path), 0
    read(tmp_path, content) if name != "index" else None  # whole, it is read
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    @settings(
        max_examples=MUTANTS, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(CHANGES)
    def attempt(changes):
        nonlocal tried
        tried += 1
        began = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with contextlib.suppress(AnisoscopeError, BrokenRuleError):
                read(tmp_path, mutated(content, changes))
        assert time.monotonic() - began < SECONDS

    attempt()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before < BYTES
    assert os.path.isdir(tmp_path)
    counted("a damaged file gives an answer or a one-line error, in 10 s and 512 MiB", tried)
