"""What spectra and relations cost in CPU time on one thread: ``python -m bench.relations`` writes a table."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from anisoscope import linear_cka, neighbourhood_overlap, rankme, spectral_decay

RESULT = Path(__file__).parent / "results" / "relations-cpu.md"
SIZES = ((32, 64, 256), (32, 64, 768))


def seconds(act, repeats: int = 3) -> float:
    best = float("inf")
    for _ in range(repeats):
        began = time.process_time()
        act()
        best = min(best, time.process_time() - began)
    return best


def main() -> None:
    torch.set_num_threads(1)
    lines = [
        "# CPU seconds on one thread, best of 3",
        "",
        "| n × T × D | `spectral_decay` | with groups | `rankme` | `linear_cka` | `neighbourhood_overlap` | across |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for n, length, width in SIZES:
        generator = torch.Generator().manual_seed(0)
        x, y = torch.randn(2, n, length, width, generator=generator)
        rows, groups = x.flatten(0, 1), torch.arange(n).repeat_interleave(length)
        acts = (
            lambda rows=rows: spectral_decay(rows),
            lambda rows=rows, groups=groups: spectral_decay(rows, groups=groups),
            lambda rows=rows: rankme(rows),
            lambda x=x, y=y: linear_cka(x, y),
            lambda x=x, y=y: neighbourhood_overlap(x, y),
            lambda x=x, y=y: neighbourhood_overlap(x, y, across=True),
        )
        cells = " | ".join(f"{seconds(act):.3f}" for act in acts)
        lines.append(f"| {n} × {length} × {width} | {cells} |")
        print(lines[-1], flush=True)
    RESULT.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
