"""Memory and time of the frequency statistics at large vocabularies: ``python -m bench.frequency``.

A table of embeddings is there already (it belongs to the model); what is measured is what an observation adds to it:
reading it, keeping trajectories, and judging. Peaks are of the whole process, each case in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import torch

from anisoscope.evaluate.frequency_rows import trajectory_rows
from anisoscope.evaluate.judge_sites import Request
from anisoscope.evaluate.trajectories import Trajectories
from anisoscope.observe.embedding_tables import read_table
from bench.machine import publish

CASES = ((32_768, 256), (32_768, 1024), (256_000, 1024), (256_000, 4096))
ROWS = 8192  # types that are followed: the scope's reservoir_rows


def one(vocabulary: int, width: int) -> dict[str, float]:
    """Three observations of one table."""
    torch.manual_seed(0)
    table = torch.randn(vocabulary, width, dtype=torch.bfloat16)
    counts = (1e6 / torch.arange(1, vocabulary + 1)).long()
    before = _peak()
    found, request = Trajectories(), Request(("pca",), 32, ("all",), ("haar",), 199, 0)
    took = []
    for _ in range(3):
        table.mul_(1.01)
        began = time.perf_counter()
        reading = read_table(table, counts, rows=ROWS, seed=0)
        found.add({"input": reading})
        trajectory_rows(found, counts, request, step=0)
        took.append(time.perf_counter() - began)
    return {"added": _peak() - before, "seconds": took[-1]}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, type=int)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one(*given.one)))
        return
    lines, rows = [], []
    for vocabulary, width in CASES:
        command = [sys.executable, "-m", "bench.frequency", "--one", str(vocabulary), str(width)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        stated = ROWS * width * (4 + 8) / 2**20  # the rows read, and the mean of their trajectory
        whole = vocabulary * width * 2 / 2**20
        rows.append({"vocabulary": vocabulary, "width": width, "stated": stated, **found})
        cells = (vocabulary, width, f"{whole:.0f}", f"{stated:.0f}", f"{found['added']:.0f}", f"{found['seconds']:.2f}")
        lines.append("| " + " | ".join(map(str, cells)) + " |")
        print(lines[-1], flush=True)
    head = "| V | D | the table itself, bf16, MiB | kept, MiB | added at most, MiB | s an observation |"
    made_by = f"Made by `python -m bench.frequency`: {ROWS} types are followed, whatever the vocabulary."
    publish(
        "frequency-cpu", "Frequency at large vocabularies", made_by, [head, "|---:" * 6 + "|", *lines], {"rows": rows}
    )


if __name__ == "__main__":
    main()
