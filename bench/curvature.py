"""Cost of curvature against the number of rows and the width; accuracy on planted surfaces.

A sphere with noise of 1 % of its radius in total norm, so that the ladder of neighbour counts is climbed to the end;
256 points judged. ``python -m bench.curvature --device cuda`` does the same on a GPU; ``--surfaces`` adds the table of
errors on the seven surfaces of ``tests/geometry/manifolds.py``, at N = 20 000.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from anisoscope import curvature, tangent_overlap, visible_curvature
from anisoscope.testing import sphere
from bench.machine import publish

ROWS = (2048, 4096, 8192, 16384, 32768)
WIDTHS = (32, 64, 128, 256, 512, 768)
ROWS_KEPT, WIDTH_KEPT, POINTS = 8192, 256, 256
MARGIN = 0.2


def cloud(rows: int, width: int, device: str) -> torch.Tensor:
    noise = torch.randn(rows, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (sphere(rows, dim=2, width=width) + 0.01 / math.sqrt(width) * noise).to(device)


def seconds(act: Callable[[], object], device: str, repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        act()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def timed(rows: int, width: int, device: str) -> dict:
    x = cloud(rows, width, device)
    points = torch.arange(POINTS)
    found = curvature(x, dim=2, points=points)
    return {
        "rows": rows,
        "width": width,
        "curvature": seconds(lambda: curvature(x, dim=2, points=points), device),
        "visible": seconds(lambda: visible_curvature(x, [0.2, 0.4], dim=2, points=points), device),
        "overlap": seconds(lambda: tangent_overlap(x, torch.eye(width)[:, :16], dim=2, points=points), device),
        "value": float(found),
        "neighbours": found.neighbours,
    }


def errors(device: str) -> list[dict]:
    """Relative errors of the planted surfaces, and intervals relative to the truth."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from geometry import manifolds  # pyright: ignore[reportMissingImports]

    rows = []
    for name, draw in manifolds.SURFACES.items():
        for width in (20, 768):
            for noise in (0.0, 0.01):
                surface = manifolds.turned(draw(20_000, 0), width, noise=noise)
                radius = float((surface.x - surface.x.mean(0)).square().sum(1).mean().sqrt())
                inside = surface.inside(MARGIN * radius)
                x = surface.x.to(device)
                start = time.perf_counter()
                found = curvature(x, dim=2, points=inside)
                took = time.perf_counter() - start
                rows.append({"surface": name, "width": width, "noise": noise, "neighbours": found.neighbours})
                for kind, truth in zip(("rms", "mean"), surface.truth(inside), strict=True):
                    estimate = getattr(found, kind)
                    ends = (estimate.value, estimate.low, estimate.high)
                    rows[-1][kind] = [end / truth - 1 for end in ends]
                rows[-1]["seconds"] = took
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--surfaces", action="store_true", help="add the table of errors, some minutes")
    options = parser.parse_args()
    device = options.device
    timings = [timed(rows, WIDTH_KEPT, device) for rows in ROWS]
    timings += [timed(ROWS_KEPT, width, device) for width in WIDTHS]
    lines = ["| N | D | curvature, s | visible, two radii, s | overlap, s |", "|---:|---:|---:|---:|---:|"]
    lines += [
        f"| {t['rows']} | {t['width']} | {t['curvature']:.2f} | {t['visible']:.2f} | {t['overlap']:.2f} |"
        for t in timings
    ]
    record: dict = {"timings": timings}
    if options.surfaces:
        record["surfaces"] = errors(device)
        lines += [
            "",
            "Errors and 95 % intervals relative to the truth over all points inside, N = 20 000, 1 024 judged:",
            "",
            "| surface | D | noise | neighbours | rms | its interval | mean | its interval | s |",
            "|---|---:|---:|---:|---:|---|---:|---|---:|",
        ]
        lines += [
            f"| {e['surface']} | {e['width']} | {e['noise']:.0%} | {e['neighbours']} | "
            + " | ".join(f"{e[k][0]:+.2%} | {e[k][1]:+.1%} … {e[k][2]:+.1%}" for k in ("rms", "mean"))
            + f" | {e['seconds']:.1f} |"
            for e in record["surfaces"]
        ]
    command = f"python -m bench.curvature --device {device}" + (" --surfaces" if options.surfaces else "")
    made_by = f"Made by `{command}`: a sphere with noise of 1 % of its radius, {POINTS} points judged, best of 3."
    publish(f"curvature-{device}", f"Cost and error of curvature, {device}", made_by, lines, record)


if __name__ == "__main__":
    main()
