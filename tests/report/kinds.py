"""A small run of every kind, each made by its own command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from anisoscope import cli
from anisoscope.store.run import create_run, open_run
from models.snapshots import letters, save, tiny
from report.planted import RANK, STEPS, TOTAL, evidence, plant

STUDIES = ("profile", "checkpoints", "theory", "ablate", "intervene", "verify")
KINDS = ("pair", "scope", *STUDIES)
_TEXT = ["--length", "32", "--sequences", "16", "--device", "cpu", "--threads", "1"]
_PLAN = """
steps = 4
layers = 2
width = 16
heads = 2
vocabulary = 300
length = 16
rank = 2
resamples = 19
corpus = "zipf:1"
seeds = 3
[[arms]]
name = "istar"
kind = "istar"
doses = [0.1, 0.2]
"""


def made(kind: str, folder: Path, *more: str) -> Path:
    """A finished run of a kind; ``more`` are options of its command."""
    out = folder / "run"
    if kind == "pair":
        return plant(out, until=40)
    if kind == "scope":
        return _scope(out)
    cli.main([*_command(kind, folder), "--out", str(out), *more])
    return out


def _command(kind: str, folder: Path) -> list[str]:
    if kind == "theory":
        return ["theory", "--replicates", "6", "--points", "800", "--draws", "20"]
    if kind == "intervene":
        (folder / "plan.toml").write_text(_PLAN)
        return ["intervene", str(folder / "plan.toml")]
    text = ["--text", letters(folder), *_TEXT]
    if kind == "checkpoints":
        for step in (0, 10, 20, 30):
            save(tiny("llama", seed=step), folder / "history" / f"checkpoint-{step}")
        return ["checkpoints", str(folder / "history"), *text, "--rank", "2", "--resamples", "39", "--probe", "0"]
    model = str(save(tiny("llama"), folder / "model"))
    if kind == "ablate":
        second = str(save(tiny("llama", seed=1), folder / "second"))
        return ["ablate", model, second, *text, "--ranks", "2", "--draws", "2"]
    if kind == "profile":
        return ["profile", model, *text, "--rank", "2", "--resamples", "39", "--quick", "--ablate"]
    other = str(save(tiny("bert"), folder / "other"))
    return ["verify", model, "--held-out", other, *text, "--rank", "4", "--layers", "2", "--resamples", "39"]


def _scope(out: Path) -> Path:
    run = create_run(out, config={"rank": RANK}, kind="scope", steps=TOTAL)
    sink = run.sink("w", model="mine", seed=0)
    for step in STEPS[:6]:
        given = evidence("decoder", step, np.random.default_rng(step), True)
        sink.write([row for row in given if row["view"] == "representation"])
    run.close("finished")
    return out


def grown(path: Path, out: Path) -> Iterator[Path]:
    """The run as it was while it was made: its rows writer by writer and step by step, with the status running."""
    run = open_run(path)
    parts: dict[tuple[str, int], list[dict[str, object]]] = {}
    for row in run.table().to_pylist():
        names = [str(row[key]) for key in ("role", "model", "seed") if row[key] is not None]
        writer = "".join(c if c.isalnum() else "-" for c in "-".join(names)) or "w"
        parts.setdefault((writer, -1 if row["step"] is None else row["step"]), []).append(row)
    kept = ("created", "name", "status", "files", "id", "schema_version", "ended")
    about = {key: value for key, value in run.manifest.items() if key not in kept}
    copy = create_run(out, **about)
    for (writer, _), rows in parts.items():
        copy.write(writer, [{key: value for key, value in row.items() if key != "run"} for row in rows])
        yield out
    copy.close("interrupted")
