"""What the scope costs beside bare training, interleaved in one run: ``python -m bench.overhead [--device cuda]``.

* *always*: pairs of blocks of steps, bare and observed with ``schedule="always"``, ratio of medians of the blocks.
* *default*: a whole training of ``--steps`` steps with the default schedule, judging and the drain at ``close()``
  included. The pace of a machine changes within minutes, so bare stretches lie between sections of the training; each
  section waits for its judgements, which counts as its cost, so that none falls into a bare stretch.

On a GPU the model has the shape of Pythia-160M and 32 768 tokens a step in bfloat16, eager and with compiled blocks; on
the CPU four layers of width 128 and 2 048 tokens a step.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from anisoscope import Scope
from bench.machine import RESULTS, publish

SHAPES = {
    "cuda": {"layers": 12, "width": 768, "heads": 12, "vocabulary": 50304, "sequences": 32, "length": 1024},
    "cpu": {"layers": 4, "width": 128, "heads": 4, "vocabulary": 4096, "sequences": 16, "length": 128},
}

WARM_UP = 20  # steps before the first that count
BREAKS = (0.7, 0.9)  # where a training on a GPU pauses: so late that all observations so far are judged
BREAKS_WITH_FREQUENCY = (0.9,)  # judgements take longer


class Training:
    """A model, its optimiser and batches that are there already."""

    def __init__(self, device: str, compiled: bool) -> None:
        shape = SHAPES[device]
        config = GPTNeoXConfig(
            hidden_size=shape["width"],
            num_hidden_layers=shape["layers"],
            num_attention_heads=shape["heads"],
            intermediate_size=4 * shape["width"],
            vocab_size=shape["vocabulary"],
            max_position_embeddings=shape["length"],
            attn_implementation="sdpa",  # pyright: ignore[reportCallIssue]
        )
        torch.manual_seed(0)
        self.device = device
        self.model = GPTNeoXForCausalLM(config).to(device).train()  # pyright: ignore[reportArgumentType]
        if compiled:
            for i, block in enumerate(self.model.gpt_neox.layers):
                self.model.gpt_neox.layers[i] = torch.compile(block)  # pyright: ignore[reportArgumentType]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=device == "cuda")
        generator = torch.Generator().manual_seed(1)
        size = (8, shape["sequences"], shape["length"])
        # Frequencies as in a language: a few ids make up most tokens.
        ids = (torch.rand(size, generator=generator).pow(4) * (shape["vocabulary"] - 1)).long()
        self.batches = list(ids.to(device))
        self.tokens = shape["sequences"] * shape["length"]

    def step(self, number: int, scope: Scope | None = None) -> None:
        """One optimiser step."""
        ids = self.batches[number % len(self.batches)]
        with scope.step() if scope is not None else nullcontext():
            with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
                loss = self.model(input_ids=ids, labels=ids, use_cache=False).loss
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def run(self, steps: int, scope: Scope | None = None) -> None:
        """Several steps."""
        for number in range(steps):
            self.step(number, scope)

    def timed(self, act: Callable[[], Any]) -> float:
        """Seconds, the device waited for before and after."""
        self._wait()
        began = time.perf_counter()
        act()
        self._wait()
        return time.perf_counter() - began

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def always(training: Training, *, rounds: int, block: int, views: tuple[str, ...]) -> tuple[float, float, float]:
    """Median seconds of a bare and of an observed step over blocks of steps, and the median ratio of such pairs.

    The window never ends inside the run, so only what happens at every step is measured.
    """
    scope = Scope(training.model, steps=10**9, schedule="always", views=views, strict=True)
    scope._step = 2 * 10**6  # inside a window of a million steps
    bare, observed = [], []
    for number in range(rounds + 1):
        pair = (
            training.timed(partial(training.run, block)) / block,
            training.timed(partial(training.run, block, scope)) / block,
        )
        if number >= 1:
            bare.append(pair[0])
            observed.append(pair[1])
    return (
        statistics.median(bare),
        statistics.median(observed),
        statistics.median(o / b for b, o in zip(bare, observed, strict=True)),
    )


def default(
    training: Training,
    *,
    steps: int,
    breaks: Sequence[int],
    bare_steps: int,
    frequency: bool = False,
    evaluate: str = "auto",
) -> dict[str, float]:
    """One observed training with bare stretches between its sections, each section against those around it."""
    training.run(WARM_UP)
    scope = Scope(training.model, steps=steps, strict=True, frequency=frequency, evaluate=evaluate)

    def watched(count: int) -> None:
        training.run(count, scope)
        scope.rows()  # waits for what is being judged

    bare, spent, expected = [training.timed(partial(training.run, bare_steps)) / bare_steps], 0.0, 0.0
    for start, end in pairwise((0, *breaks, steps)):
        took = training.timed(partial(watched, end - start))
        bare.append(training.timed(partial(training.run, bare_steps)) / bare_steps)
        spent += took
        expected += (end - start) * (bare[-2] + bare[-1]) / 2
    drain = training.timed(scope.close)
    return {
        "bare": expected / steps,
        "total": spent + drain,
        "overhead": (spent + drain) / expected - 1,
        "rows": len(scope.rows()),
        "spread": max(bare) / min(bare) - 1,
    }


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=SHAPES, default="cpu")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--only", choices=("always", "default"))
    parser.add_argument("--frequency", action="store_true", help="of the default schedule, with frequency=True")
    parser.add_argument("--compiled", choices=("eager", "blocks", "both"), default="both")
    parser.add_argument("--out")
    given = parser.parse_args()
    kinds = {"eager": (False,), "blocks": (True,), "both": (False, True)}[given.compiled]
    lines: list[str] = []
    for compiled in kinds if given.device == "cuda" else (False,):
        training = Training(given.device, compiled)
        name = "compiled blocks" if compiled else "eager"
        if given.only != "default":
            for views in (("representation",), ("representation", "weight")):
                if compiled and "weight" in views:
                    continue
                bare, observed, ratio = always(training, rounds=given.rounds, block=20, views=views)
                label = f"always on, {' and '.join(views)}"
                cost = f"{100 * (ratio - 1):+.2f} %"
                lines.append(f"| {name} | {label} | {1e3 * bare:.2f} | {1e3 * observed:.2f} | {cost} |")
                print(lines[-1], flush=True)
        if given.only != "always":
            on_cpu = given.device == "cpu"
            shares = BREAKS_WITH_FREQUENCY if given.frequency else BREAKS
            breaks = range(100, given.steps, 100) if on_cpu else [int(share * given.steps) for share in shares]
            bare_steps = 25 if on_cpu else 50
            options = {"breaks": breaks, "bare_steps": bare_steps, "frequency": given.frequency}
            found = default(training, steps=given.steps, **options)
            what = "default schedule with frequency" if given.frequency else "default schedule"
            label = f"{what}, {given.steps} steps; bare stretches differ by {100 * found['spread']:.1f} %"
            each = found["total"] / given.steps
            cost = f"{100 * found['overhead']:+.2f} %"
            lines.append(f"| {name} | {label} | {1e3 * found['bare']:.2f} | {1e3 * each:.2f} | {cost} |")
            print(lines[-1], flush=True)
    table = ["| model | scope | bare, ms a step | observed, ms a step | overhead |", "|---|---|---:|---:|---:|", *lines]
    shape = ", ".join(f"{name} {value}" for name, value in SHAPES[given.device].items())
    made_by = f"Made by `python -m bench.overhead --device {given.device}`: {shape}."
    folder = Path(given.out) if given.out else RESULTS
    publish(f"overhead-{given.device}", "Cost of the scope", made_by, table, {"rows": lines}, folder)


if __name__ == "__main__":
    main()
