"""What an observation takes of one block, and of whole models multiplied out: ``python -m bench.scaling``.

Letters: D width, F width inside the MLP.

A Llama of one block and one of two are observed with the defaults of ``Scope``; their difference is a block, what is
left of the first is the embedding and what enters the first block. Peaks are those of a step that is observed minus
those of a step that is not. Models of 7 B and 70 B are sums of these, not measured.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from anisoscope import Scope
from anisoscope.budget.footprint import embedding_bytes, layer_bytes
from anisoscope.evaluate.evaluator import Evaluator, EvaluatorSettings
from anisoscope.evaluate.judge_sites import Request
from anisoscope.observe.statistics import Observation
from bench.machine import RESULTS, publish

WIDTHS = {"cuda": (1024, 2048, 4096, 8192), "cpu": (128, 256)}
INNER = {1024: 4096, 2048: 8192, 4096: 11008, 8192: 28672}  # of the MLP; those of Llama 2 where it has that width
BATCH = {"cuda": (8, 2048), "cpu": (16, 64)}  # sequences and their length
VOCABULARY = 32_000
MODELS = {"7 B (32 × 4 096)": (4096, 32), "70 B (80 × 8 192)": (8192, 80)}
STEPS, OBSERVED, BARE = 12, (3, 6, 9), (2, 5, 8, 11)  # what an observation leaves for the next step is done there
NULLS = ("haar", "axes", "pairing", "init")


@dataclass(frozen=True)
class Cost:
    """Of one observed step: bytes kept, bytes beyond a bare step at the peak, and seconds."""

    kept: int
    peak: int
    planned: int
    added: float  # to the step, on the device
    moved: float
    evaluated: float | None

    def __sub__(self, other: Cost) -> Cost:
        evaluated = None if self.evaluated is None or other.evaluated is None else self.evaluated - other.evaluated
        return Cost(
            self.kept - other.kept,
            self.peak - other.peak,
            self.planned - other.planned,
            self.added - other.added,
            self.moved - other.moved,
            evaluated,
        )


def measure(device: str, width: int, blocks: int, *, evaluate: bool) -> Cost:
    """One model in training: bare steps and observed ones in turn."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=INNER.get(width, 4 * width),
        num_hidden_layers=blocks,
        num_attention_heads=max(1, width // 128),
        num_key_value_heads=max(1, width // 128),
        use_cache=False,
    )
    with torch.device(device):
        model = LlamaForCausalLM(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scope = Scope(model, steps=100, schedule=list(OBSERVED), evaluate="host", strict=True)
    seen: list[Observation] = []
    scope._worker.submit = seen.append  # type: ignore[method-assign]
    peaks, seconds = [], []
    for step in range(STEPS):
        ids = torch.randint(VOCABULARY, BATCH[device], device=device)
        _begin(device)
        began = time.perf_counter()
        if step in OBSERVED:
            seen.clear()
        with scope.step():
            # The autocast of the usual bf16 training.
            with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
                loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        _end(device)
        seconds.append(time.perf_counter() - began)
        peaks.append(torch.cuda.max_memory_allocated() if device == "cuda" else 0)
    scope._settle()
    observed = seen[-1]
    began = time.perf_counter()
    host = observed.to(torch.device("cpu"))
    moved = time.perf_counter() - began
    evaluated = None
    if evaluate:
        judge = Evaluator(
            EvaluatorSettings(Request(("pca",), 32, ("all",), NULLS, None, 0), None, device=torch.device(device))
        )
        times = []
        for _ in range(2):  # the first makes tables of draws
            began = time.perf_counter()
            judge.judged(observed)
            _end(device)
            times.append(time.perf_counter() - began)
        evaluated = times[-1]
    planned = sum(layer_bytes(scope.sites, scope.views, rows=8192, label_nulls=0).values())
    planned += embedding_bytes(scope.sites, scope.views, rows=8192, label_nulls=0)
    bare = statistics.median(seconds[step] for step in BARE)
    found = Cost(
        observed.bytes,
        max(peaks[step] for step in OBSERVED) - peaks[2],  # before the first observation, which is held on to
        planned,
        statistics.median(seconds[step] + seconds[step + 1] - 2 * bare for step in OBSERVED),
        moved,
        evaluated,
    )
    del model, optimizer, scope, observed, host, seen
    gc.collect()
    return found


def _begin(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()


def _end(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Measure all widths and publish after each, so that a run that is cut short leaves what it has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--evaluated-up-to", type=int, default=2048, help="width up to which evaluation is timed")
    parser.add_argument("--out")
    given = parser.parse_args()
    found: dict[int, tuple[Cost, Cost]] = {}
    for width in WIDTHS[given.device]:
        evaluate = width <= given.evaluated_up_to
        one, two = (measure(given.device, width, blocks, evaluate=evaluate) for blocks in (1, 2))
        found[width] = two - one, one - (two - one)
        _publish(given.device, found, Path(given.out) if given.out else RESULTS)


def _publish(device: str, found: dict[int, tuple[Cost, Cost]], folder: Path) -> None:
    columns = "kept, GiB | peak, GiB | planned, GiB | added to the step, s | moved, s | evaluated, s |"
    lines = [
        f"| of one block | {columns}",
        "|---|---:|---:|---:|---:|---:|---:|",
        *(_line(f"D = {width:,}", block) for width, (block, _) in found.items()),
        "",
        f"| embedding and what enters the first block | {columns}",
        "|---|---:|---:|---:|---:|---:|---:|",
        *(_line(f"D = {width:,}", rest) for width, (_, rest) in found.items()),
    ]
    whole = [
        _line(name, _times(found[width][0], blocks, found[width][1]))
        for name, (width, blocks) in MODELS.items()
        if width in found
    ]
    if whole:
        lines += ["", f"| multiplied out | {columns}", "|---|---:|---:|---:|---:|---:|---:|", *whole]
    sequences, length = BATCH[device]
    about = (
        f"Made by `python -m bench.scaling --device {device}`. Llama blocks, {sequences} × {length} tokens a step, "
        f"bf16 autocast on a GPU, vocabulary {VOCABULARY:,}, all defaults of `Scope` (three views, 8 192 rows kept of "
        "a fold). *Kept* is also what each rank sends when ranks are reduced; *peak* is beyond that of a bare step; "
        "*planned* is what `memory=` counts with; *moved* is a plain copy to the host; *evaluated* is PCA of rank 32, "
        "rolling, in the training's process on the device."
    )
    record = {"rows": {str(width): [vars(block), vars(rest)] for width, (block, rest) in found.items()}}
    publish(f"scaling-{device}", "Memory and time by width", about, lines, record, folder)


def _times(block: Cost, count: int, rest: Cost) -> Cost:
    evaluated = None if block.evaluated is None or rest.evaluated is None else count * block.evaluated + rest.evaluated
    return Cost(
        count * block.kept + rest.kept,
        count * block.peak + rest.peak,
        count * block.planned + rest.planned,
        count * block.added + rest.added,
        count * block.moved + rest.moved,
        evaluated,
    )


def _line(name: str, cost: Cost) -> str:
    sizes = " | ".join(f"{size / 2**30:.2f}" for size in (cost.kept, cost.peak, cost.planned))
    evaluated = "–" if cost.evaluated is None else f"{cost.evaluated:.2f}"
    return f"| {name} | {sizes} | {cost.added:.3f} | {cost.moved:.2f} | {evaluated} |"


if __name__ == "__main__":
    main()
