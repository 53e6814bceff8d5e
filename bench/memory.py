"""Memory of one observation over tokens and over width: ``python -m bench.memory``.

Each shape runs in a process of its own: the bytes of the statistics handed to the judge, and how far the peak of the
process lies above that of the same step without the scope.
"""

from __future__ import annotations

import resource
import subprocess
import sys

import torch

from bench.machine import publish

LAYERS, LENGTH, RESERVOIR = 4, 64, 1024
SHAPES = [(128, 64), (128, 256), (128, 1024), (256, 64), (256, 256), (512, 64), (512, 256)]


def one(width: int, sequences: int, observed: bool) -> None:
    """One step; prints bytes of the statistics and the peak in KiB."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    from anisoscope import CaptureOptions, Scope

    torch.manual_seed(0)
    config = GPTNeoXConfig(
        hidden_size=width,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        intermediate_size=2 * width,
        vocab_size=512,
        max_position_embeddings=LENGTH,
    )
    model = GPTNeoXForCausalLM(config)
    size = 0
    micro = 16  # sequences to a micro-batch: what the model itself needs does not grow with tokens

    def step() -> None:
        for start in range(0, sequences, micro):
            ids = torch.randint(0, 512, (micro, LENGTH), generator=torch.Generator().manual_seed(start))
            model(input_ids=ids, labels=ids).loss.backward()

    if observed:
        views = ("representation", "weight")
        scope = Scope(
            model,
            schedule=[0],
            views=views,
            resamples=19,
            strict=True,
            capture=CaptureOptions(reservoir_rows=RESERVOIR),
        )
        taken: list[int] = []
        hand_over = scope._worker.submit
        listened = lambda o: (taken.append(o.bytes), hand_over(o))[0]  # noqa: E731
        scope._worker.submit = listened  # pyright: ignore[reportAttributeAccessIssue]
        with scope.step():
            step()
        (size,) = taken
    else:
        step()
    print(size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def main() -> None:
    """Every shape, bare and observed."""
    lines = [
        f"{LAYERS} layers, sequences of {LENGTH}, `reservoir_rows` {RESERVOIR}, representation and weight views.",
        "",
        "| width D | tokens | statistics, MiB | of D² | of samples | peak above the bare step, MiB |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    record = []
    for width, sequences in SHAPES:
        found = []
        for observed in (False, True):
            command = [sys.executable, "-m", "bench.memory", str(width), str(sequences), str(int(observed))]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            found.append((int(said[-2]), int(said[-1])))
        size, peak = found[1][0] / 2**20, (found[1][1] - found[0][1]) / 2**10
        # 2 folds, first and rest, in float64: both clouds of L + 1 layers, inputs of L; and G (F = 2D) in float64
        squares = (2 * 2 * (2 * (LAYERS + 1) + LAYERS) + 2 * 2 * LAYERS) * width**2 * 8 / 2**20
        tokens = sequences * LENGTH
        record.append({"width": width, "tokens": tokens, "statistics": size, "peak": peak})
        lines.append(f"| {width} | {tokens} | {size:.1f} | {squares:.1f} | {size - squares:.1f} | {peak:.0f} |")
    publish("memory", "Memory of an observation", "Made by `python -m bench.memory`.", lines, {"rows": record})


if __name__ == "__main__":
    if len(sys.argv) > 1:
        one(int(sys.argv[1]), int(sys.argv[2]), bool(int(sys.argv[3])))
    else:
        main()
