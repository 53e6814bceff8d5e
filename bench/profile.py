"""Where the time of ``profile`` goes, and what ``--quick`` leaves of it: ``python -m bench.profile``.

A decoder with random weights and the width of SmolLM2-135M reads the King James Bible, with the default settings and
then with ``--quick``, in one process. Passes are timed as the profile makes them (taps and their statistics included)
and, once more, bare: the same text through the same model without taps. A machine that does other work too stretches
seconds by the clock, so seconds of all cores are given beside them.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from anisoscope.capture.sites import find_sites
from anisoscope.data.corpora import load_corpus
from anisoscope.data.tokenisers import train_bpe
from anisoscope.evaluate.evaluator import Evaluator
from anisoscope.jobs.progress_display import JobLines
from anisoscope.observe.offline import _only_embedding
from anisoscope.study.model_settings import ProfileSettings
from anisoscope.study.profile import profile_study as study
from anisoscope.study.setting_fields import made_of
from anisoscope.study.tokenized_text import loaded, read_text
from anisoscope.vocabulary import LABEL_NULLS
from bench.machine import publish

STAGES = ("passes", "layers", "judging")


class Clock:
    """Seconds by the clock and of all cores, by stage."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = dict.fromkeys(STAGES, 0.0)
        self.cpu: dict[str, float] = dict.fromkeys(STAGES, 0.0)

    def timed(self, stage: str, act: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, its time counted."""

        def run(*args: Any, **given: Any) -> Any:
            wall, cpu = time.perf_counter(), time.process_time()
            try:
                return act(*args, **given)
            finally:
                self.wall[stage] += time.perf_counter() - wall
                self.cpu[stage] += time.process_time() - cpu

        return run


def decoder(folder: Path, *, layers: int, width: int, vocabulary: int) -> Path:
    """A Llama with random weights and a tokeniser trained on the text."""
    import transformers

    tokeniser = train_bpe(load_corpus("kjv").documents, vocabulary=vocabulary)
    config = transformers.LlamaConfig(
        vocab_size=tokeniser.vocabulary,
        hidden_size=width,
        intermediate_size=width * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 192,
        tie_word_embeddings=True,
    )
    torch.manual_seed(1)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokeniser.backend.save(str(folder / "tokenizer.json"))
    return folder


def profiled(model: str, settings: ProfileSettings, folder: Path) -> dict[str, Any]:
    """One profile with the time of its stages."""
    clock = Clock()
    kept = {name: getattr(study, name) for name in ("vectors_of", "observe_model")}
    add, judged = study.Profile.add, Evaluator.judged
    for name, act in kept.items():
        setattr(study, name, clock.timed("passes", act))
    study.Profile.add, Evaluator.judged = clock.timed("layers", add), clock.timed("judging", judged)
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        study.profile(model, settings, JobLines(Console(file=io.StringIO())), out=folder)
    finally:
        for name, act in kept.items():
            setattr(study, name, act)
        study.Profile.add, Evaluator.judged = add, judged
    total = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    return {"wall": clock.wall | {"total": total["wall"]}, "cpu": clock.cpu | {"total": total["cpu"]}}


def bare_passes(model: str, settings: ProfileSettings) -> dict[str, float]:
    """All passes of a profile, of the twin and of the model, with nobody watching."""
    card, _ = study.planned(model, settings)
    each = study._sequences(card, settings)
    reading = read_text(card, settings, sequences=each * settings.batches)
    network = loaded(card, settings)
    labels = 1 + (len(LABEL_NULLS) if settings.targets else 0)
    torch.set_num_threads(settings.threads)
    wall, cpu = time.perf_counter(), time.process_time()
    with torch.no_grad():
        ids = torch.from_numpy(reading.data.train.ids[: each * settings.batches].astype("int64"))
        for part in (
            *ids.split(settings.chunk),
            *ids[:each].split(settings.chunk),
        ):  # the model's, and one for the twin
            network(input_ids=part)
    with _only_embedding(network, find_sites(network)):
        for batch in 2 * labels * reading.chunks(settings):
            network(**{name: tensor for name, tensor in batch.items() if name != "documents"}).loss.backward()
            network.zero_grad(set_to_none=True)
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a folder or GGUF file; by default a decoder with random weights")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=576)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--name", default="profile-cpu", help="of the files in bench/results")
    given = parser.parse_args()
    torch.set_num_threads(2)
    default, quick = (made_of(ProfileSettings, {"device": "cpu", "quick": quick}) for quick in (False, True))
    with tempfile.TemporaryDirectory() as folder:
        made = {"layers": given.layers, "width": given.width, "vocabulary": given.vocabulary}
        model = given.model or str(decoder(Path(folder) / "model", **made))
        card, _ = study.planned(model, default)
        found = {
            "bare": bare_passes(model, default),
            "default": profiled(model, default, Path(folder) / "default"),
            "quick": profiled(model, quick, Path(folder) / "quick"),
        }
    name = Path(given.model).name if given.model else "random weights"
    what = f"{name}, {card.layers} layers of width {card.width}, {card.parameters / 1e6:.0f} million parameters"
    publish(
        given.name,
        "Time of a profile",
        f"Made by `python -m bench.profile`: {what}, on `kjv`, two threads.",
        table(found),
        {"model": what, **found},
    )


def table(found: dict[str, Any]) -> list[str]:
    """Seconds of the stages, and what they are of the passes."""
    lines = [
        "| settings | passes, s | layers, s | judging, s | total, s | measures / passes | total / passes |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for settings in ("default", "quick"):
        for kind, label in (("wall", "by the clock"), ("cpu", "of all cores")):
            spent = found[settings][kind]
            measures = (spent["layers"] + spent["judging"]) / spent["passes"]
            cells = [f"{settings}, {label}", *(f"{spent[stage]:.1f}" for stage in (*STAGES, "total"))]
            cells += [f"{measures:.2f}", f"{spent['total'] / spent['passes']:.2f}"]
            lines.append("| " + " | ".join(cells) + " |")
    bare, default, quick = found["bare"], found["default"], found["quick"]
    lines += [
        "",
        f"The passes of the default settings bare, without taps: {bare['wall']:.1f} s by the clock, "
        f"{bare['cpu']:.1f} s of all cores; the total is {default['wall']['total'] / bare['wall']:.2f} and "
        f"{default['cpu']['total'] / bare['cpu']:.2f} times that. `--quick` takes "
        f"{quick['wall']['total'] / default['wall']['total']:.1%} of the default by the clock and "
        f"{quick['cpu']['total'] / default['cpu']['total']:.1%} of all cores.",
    ]
    return lines


if __name__ == "__main__":
    main()
