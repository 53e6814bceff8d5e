"""A manifest in which any one field is of another kind: every command that reads it gives an answer or one line.

The checksum of the manifest is right here: it is what another release, a person or a script might write.
"""

import contextlib
import copy
import json

import pytest

from anisoscope.store.recorded import manifest_to_bytes
from anisoscope.store.run import create_run, open_run
from anisoscope.study.ablate.ablate_settings import AblateSettings
from anisoscope.study.intervene.intervene_settings import InterveneSettings
from anisoscope.study.model_settings import Examination, HistoryPlan, ProfileSettings
from anisoscope.study.pair.pair_settings import PairSettings
from anisoscope.study.verify.verify_settings import Verification
from faults.conftest import ALL
from faults.test_errors import said
from models.snapshots import letters, save, tiny

ODD = (None, -1, 10**20, 0.5, "x", "\x1b[31m", True, [], [1], {}, {"a": {"b": 1}}, [[]])
ARM = {"name": "istar", "kind": "istar", "doses": [0.1]}
SHARE = 2 if ALL else 97  # of the cases


def studies(folder):
    """A finished-looking manifest of every kind of study, with what is in a real one."""
    model, text = str(save(tiny("gpt2"), folder / "model")), letters(folder)
    read = {"text": text, "length": 32, "sequences": 16, "threads": 1, "rank": 2, "device": "cpu"}
    found = {
        "intervene": {"config": InterveneSettings(arms=[ARM], corpus=text, length=16), "seeds": [0]},
        "ablate": {
            "config": AblateSettings(**{k: v for k, v in read.items() if k in AblateSettings.model_fields}),
            "plan": {"models": [{"source": model, "name": "a", "step": 0, "objective": None}]},
            "corpus": {"corpus": {"name": text, "sha256": "0"}},
        },
        "checkpoints": {
            "config": Examination(**read),
            "plan": HistoryPlan().model_dump() | {"points": [[{"label": "a", "path": model, "name": None}, 0]]},
            "integrity": {"checkpoints": 1, "studied": ["a"], "left_out": {}, "findings": []},
            "seeds": [0],
        },
        "profile": {"config": ProfileSettings(**read), "asked": model},
        "verify": {"config": Verification(**read), "asked": [model], "held_out": []},
        "pair": {"config": PairSettings(corpus=text, layers=1, width=16, heads=2, rank=2, vocabulary=300)},
    }
    common = {"steps": 4, "done": ["a-0"], "failed": {"b-0": "why"}, "seconds": 1.0, "hashes": {"text-0": "0"}}
    common |= {
        "model": {"name": "a", "layers": 2, "width": 16},
        "role": "decoder",
        "units": "sequence",
        "axis": "steps",
    }
    common |= {"machine": {"threads": 1, "device": "x"}, "versions": {"torch": "1"}, "notes": ["a note"]}
    return {
        kind: common | {**about, "config": about["config"].model_dump(mode="json")} for kind, about in found.items()
    }


def places(value, path=()):
    """The keys that lead to every part of a manifest."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*path, key))


def changed(manifest, path, odd):
    found = copy.deepcopy(manifest)
    at = found
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = odd
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["intervene", "ablate", "checkpoints", "profile", "verify", "pair"])
def test_a_field_of_another_kind_is_an_answer_or_one_line(tmp_path, monkeypatch, counted, kind):
    monkeypatch.setattr("anisoscope.jobs.job_pool._serial", lambda *_: None)  # no job is begun
    with create_run(tmp_path / "run", kind=kind) as run:
        row = {"step": 0, "measure": "loss", "variant": "held-out", "value": 1.0, "model": "a", "seed": 0}
        run.write("a", [row | {"role": "decoder"}])
        run.update(**studies(tmp_path)[kind])
        run.close("interrupted")
    file, tried = tmp_path / "run" / "manifest.json", 0
    manifest = json.loads(json.dumps(open_run(tmp_path / "run").manifest))
    whole = file.read_bytes()
    fields = [path for path in places(manifest) if path]
    cases = [(path, odd) for path in fields for odd in ODD][::SHARE]
    commands = {
        "resume": [kind, "--resume", str(tmp_path / "run"), "--no-report"],
        "report": ["report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")],
        "watch": ["watch", str(tmp_path / "run"), "--once"],
    }
    faults = []
    for number, (path, odd) in enumerate(cases):
        name = list(commands)[number % len(commands)]
        with contextlib.suppress(TypeError, ValueError):
            file.write_bytes(manifest_to_bytes(changed(manifest, path, odd)))
            code, err = said(commands[name])
            errors = [line for line in err.splitlines() if line.startswith("error: ")]
            if "fault of anisoscope" in err or "Traceback" in err or len(errors) != (code in (1, 2)):
                faults.append((name, path, odd, code, err))
            tried += 1
        file.write_bytes(whole)
    assert faults == [], "\n".join(map(repr, faults))
    counted("a manifest in which a field is of another kind gives an answer or a one-line error", tried)
