"""What penalties cost a training step, interleaved with bare steps: ``python -m bench.regularizers [--device cuda]``.

Pairs of blocks of steps, bare and with a penalty on all layers or on one; the ratio is the median over pairs. Shapes
are those of ``bench.overhead``: on a GPU Pythia-160M with 32 768 tokens a step in bfloat16.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from anisoscope.regularizers import CosReg, CurvatureReg, IStar, Regularizer, SpectralDecay, TangentReg
from bench.machine import RESULTS, publish
from bench.overhead import SHAPES, WARM_UP, Training

PENALTIES: dict[str, Callable[[int], Any]] = {
    "CosReg": lambda width: CosReg(),
    "IStar": lambda width: IStar(),
    "TangentReg, rank 32": lambda width: TangentReg(torch.eye(width, 32)),
    "CurvatureReg": lambda width: CurvatureReg(),
    "SpectralDecay": lambda width: SpectralDecay(),
    "SpectralDecay, every pass": lambda width: SpectralDecay(every=1),
}


class Penalised(Training):
    """A training whose loss may have a penalty."""

    def penalised(self, steps: int, penalty: Regularizer) -> None:
        """Several steps with it."""
        with penalty:
            for number in range(steps):
                ids = self.batches[number % len(self.batches)]
                with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
                    loss = self.model(input_ids=ids, labels=ids, use_cache=False).loss
                (loss + penalty()).backward()
                self.optimizer.step()
                self.optimizer.zero_grad()


def cost(training: Penalised, penalty: Regularizer, *, rounds: int, block: int) -> tuple[float, float, float]:
    """Median seconds of a bare and of a penalised step, and the median ratio of such pairs."""
    bare, with_it = [], []
    for number in range(rounds + 1):
        pair = (
            training.timed(partial(training.run, block)) / block,
            training.timed(partial(training.penalised, block, penalty)) / block,
        )
        if number:  # the first is a warm-up
            bare.append(pair[0])
            with_it.append(pair[1])
    ratio = statistics.median(b / a for a, b in zip(bare, with_it, strict=True))
    return statistics.median(bare), statistics.median(with_it), ratio


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=SHAPES, default="cpu")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--block", type=int, default=20, help="steps a block, so many that each layer has its turn")
    parser.add_argument("--only", nargs="+", choices=PENALTIES, default=list(PENALTIES), help="these alone")
    parser.add_argument("--out")
    given = parser.parse_args()
    training = Penalised(given.device, compiled=False)
    training.run(WARM_UP)
    shape = SHAPES[given.device]
    lines = []
    for name in given.only:
        make = PENALTIES[name]
        for layers in (None, (shape["layers"] // 2,)):
            penalty = Regularizer(training.model, make(shape["width"]), weight=1e-3, layers=layers)
            bare, with_it, ratio = cost(training, penalty, rounds=given.rounds, block=given.block)
            where = "one layer" if layers else f"all {shape['layers']} layers"
            lines.append(f"| {name} | {where} | {1e3 * bare:.2f} | {1e3 * with_it:.2f} | {100 * (ratio - 1):+.1f} % |")
            print(lines[-1], flush=True)
    table = ["| penalty | on | bare, ms a step | with it, ms a step | cost |", "|---|---|---:|---:|---:|", *lines]
    told = ", ".join(f"{name} {value}" for name, value in shape.items())
    rows = "4,096 rows (IStar: 2,048, curvature: 1,024)"
    made_by = f"Made by `python -m bench.regularizers --device {given.device}`: {told}; {rows}."
    folder = Path(given.out) if given.out else RESULTS
    part = "" if given.only == list(PENALTIES) else "-part"
    publish(f"regularizers-{given.device}{part}", "Cost of penalties", made_by, table, {"rows": lines}, folder)


if __name__ == "__main__":
    main()
