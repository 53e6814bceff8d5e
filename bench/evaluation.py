"""What evaluating observations costs: ``python -m bench.evaluation --part PART [--device cuda] [--evaluate host]``.

* ``scope``: a training with the defaults of ``Scope`` against bare stretches of the same training, the drain at
  ``close()`` included (``--steps``, ``--frequency``).
* ``pair``: ``anisoscope pair`` with all defaults (on a GPU the preset ``small``) against the same trainings without a
  scope, before and after it.
* ``one``: one evaluation of an observation of such a pair, with and without frequency, in each place it can be done.

Every part is a run of its own; its page is ``bench/results/evaluation-DEVICE-PART….md``.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from anisoscope.evaluate import evaluator as judging
from anisoscope.evaluate.evaluation import Evaluation
from anisoscope.evaluate.evaluator import Evaluator, EvaluatorSettings
from anisoscope.evaluate.remote.evaluator_pool import EvaluatorPool, evaluators_for_cores
from anisoscope.evaluate.row_builders import skipped_row
from anisoscope.observe.statistics import Observation
from anisoscope.study.pair import pair_study as study
from anisoscope.study.pair import trainer_run as training
from anisoscope.study.pair.pair_settings import settings_of
from anisoscope.study.pair.training_display import Lines
from bench.machine import RESULTS, publish

PRESETS = {"cuda": "small", "cpu": "tiny"}
CAPTURED = 4  # observations that an evaluation is timed on: step 0, one more, and two after the anchor


def scope(device: str, steps: int, frequency: bool, evaluate: str) -> list[str]:
    """A line of the table: bare, observed, ratio."""
    from bench.overhead import Training, default

    own = Training(device, compiled=False)
    options = {"steps": steps, "breaks": [], "bare_steps": 50, "frequency": frequency, "evaluate": evaluate}
    found = default(own, **options)
    what = f"`Scope` defaults{', frequency' if frequency else ''}, {steps} steps, evaluated on {evaluate}"
    bare = found["bare"] * steps
    ratio = f"{found['total'] / bare:.3f} ×; bare stretches differ by {100 * found['spread']:.1f} %"
    return [f"| {what} | {bare:.1f} | {found['total']:.1f} | {ratio} |"]


def pair(device: str, evaluate: str, *, once: bool) -> list[str]:
    """A line of the table, with bare trainings before and, unless ``once``, after the observed ones."""
    preset = PRESETS[device]
    settings = settings_of(preset, {"evaluate": evaluate} | ({} if device == "cuda" else {"device": "cpu"}))
    before = _trained(settings, watched=False)
    observed = _trained(settings, watched=True)
    after = before if once else _trained(settings, watched=False)
    bare = (before + after) / 2
    differ = "one bare run" if once else f"bare runs differ by {100 * abs(before - after) / bare:.1f} %"
    ratio = f"{observed / bare:.2f} ×; {differ}"
    return [
        f"| `pair --preset {preset}`, all defaults, evaluated on {evaluate} | {bare:.1f} | {observed:.1f} | {ratio} |"
    ]


def _trained(settings: Any, *, watched: bool) -> float:
    """Seconds of both trainings, without reading the corpus."""
    from rich.console import Console
    from transformers import TrainerCallback

    class Nothing(TrainerCallback):
        """In the place of the scope."""

        def __init__(self, **options: Any) -> None:
            del options

    display = Lines(Console(quiet=True))
    data = study._prepared(settings, display)
    original, prepared = training.ScopeCallback, study._prepared
    folder = Path(tempfile.mkdtemp())
    try:
        training.ScopeCallback = original if watched else Nothing  # type: ignore[misc]
        study._prepared = lambda *_: data
        began = time.perf_counter()
        study.pair(settings, display, out=folder / "run")
        return time.perf_counter() - began
    finally:
        training.ScopeCallback, study._prepared = original, prepared  # type: ignore[misc]
        shutil.rmtree(folder)


def one(device: str, told: Callable[[list[str]], None]) -> None:
    """Lines of the table: seconds of the last of a few evaluations, by place, with frequency and without.

    All lines so far are ``told`` after each, so that a run that is cut short leaves what it has measured.
    """
    brief, observations = _captured(device)
    here = [o.to(torch.device("cpu")) for o in observations]
    places: dict[str, Callable[[], Any]] = {}
    if device == "cpu":
        places["in this process"] = lambda: Evaluator(brief)
    else:
        gpu = torch.device("cuda", 0)
        places["on the GPU, in the training's process"] = lambda: Evaluator(replace(brief, device=gpu))
        many = evaluators_for_cores()
        places[f"on the host, {many} processes"] = lambda: EvaluatorPool(brief, most=many)
        for few in (4, 8):
            places[f"on the GPU, {few} processes"] = lambda few=few: EvaluatorPool(replace(brief, device=gpu), most=few)
    lines = []
    for place, made in places.items():
        for frequency in (True, False):
            given = here if frequency else [replace(o, frequency=None, tables={}) for o in here]
            judge, took = made(), []
            for observed in given:
                began = time.perf_counter()
                judge.judged(observed)
                if device == "cuda":
                    torch.cuda.synchronize()
                took.append(time.perf_counter() - began)
            judge.release()
            each = ", ".join(f"{seconds:.2f}" for seconds in took[:-1])
            lines.append(f"| {place}{'' if frequency else ', without frequency'} | {each} | {took[-1]:.2f} |")
            told(lines)


def _captured(device: str) -> tuple[EvaluatorSettings, list[Observation]]:
    """The first observations of the decoder of a pair, not judged, and what they would be judged by."""
    kept: list[Observation] = []
    briefs: list[EvaluatorSettings] = []

    class Capture(judging.Evaluator):
        """Keeps what it is given."""

        def __init__(self, brief: EvaluatorSettings) -> None:
            super().__init__(brief)
            briefs.append(brief)

        def judged(self, observed: Observation) -> Evaluation:
            if len(kept) < CAPTURED:
                kept.append(observed)
            return Evaluation([skipped_row(observed.step, "captured")])

    from anisoscope.evaluate.remote import auto as beside

    given = {"steps": CAPTURED + 4, "checkpoints": 0, "evaluate": "host"} | (
        {} if device == "cuda" else {"device": "cpu"}
    )
    original, spare = beside.Evaluator, beside.cores_are_spare
    try:
        beside.Evaluator, beside.cores_are_spare = Capture, lambda: False  # type: ignore[misc]
        _trained(settings_of(PRESETS[device], given), watched=True)
    finally:
        beside.Evaluator, beside.cores_are_spare = original, spare  # type: ignore[misc]
    # The anchor lies before the last two, so that anchored proxies are fitted once and then used.
    return replace(briefs[0], anchor=kept[-3].step, resumable=False, device=None), kept


def main() -> None:
    """Measure one part and publish it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("scope", "pair", "one"), required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--frequency", action="store_true")
    parser.add_argument("--once", action="store_true", help="of pair, one bare run instead of two")
    parser.add_argument("--evaluate", choices=("auto", "device", "host"), default="auto")
    parser.add_argument("--out")
    given = parser.parse_args()
    name = f"evaluation-{given.device}-{given.part}"
    if given.part == "scope":
        lines = scope(given.device, given.steps, given.frequency, given.evaluate)
        name += f"-{given.steps}{'-frequency' if given.frequency else ''}-{given.evaluate}"
    elif given.part == "pair":
        lines = pair(given.device, given.evaluate, once=given.once)
        name += f"-{given.evaluate}"
    else:
        lines = []
    head = ["| what | bare, s | observed, s | ratio |", "|---|---:|---:|---|"]
    made_by = f"Made by `python -m bench.evaluation --part {given.part} --device {given.device}`."
    folder = Path(given.out) if given.out else RESULTS
    about = name, "Cost of evaluation", made_by
    if given.part == "one":
        head = ["| one evaluation | first ones, s | the last, s |", "|---|---:|---:|"]
        one(given.device, lambda found: publish(*about, [*head, *found], {"rows": found}, folder))
    else:
        publish(*about, [*head, *lines], {"rows": lines}, folder)


if __name__ == "__main__":
    main()
