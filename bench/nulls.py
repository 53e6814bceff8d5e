"""Cost of the nulls as multiples of one ``eigvalsh`` of the same size in the same run. Part of ``make bench``.

D = 768, K = 32, 999 controls, 199 frames, tables already built (their cost is given apart); one site, and twelve at
once against a batched ``eigvalsh`` of twelve. ``python -m bench.nulls --device cuda`` does the same on a GPU.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from anisoscope.evidence.isotropy_gain import isotropy_gains
from anisoscope.evidence.random_tables import frame_squares, haar_frames, haar_weights
from anisoscope.evidence.shared import Shared
from anisoscope.evidence.spectral import axes_draws, haar_draws, haar_draws_of_folds, normal_draws
from bench.machine import RESULTS, publish

WIDTH, RANK, DRAWS, FRAMES = 768, 32, 999, 199


def seconds(act, device: str, repeats: int = 7) -> float:
    """Best of several, after two to warm up; waits for the device."""
    times = []
    for i in range(repeats + 2):
        _wait(device)
        start = time.perf_counter()
        act()
        _wait(device)
        if i >= 2:
            times.append(time.perf_counter() - start)
    return min(times)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measure(sites: int, device: str) -> dict:
    generator = torch.Generator().manual_seed(0)
    scale = torch.linspace(2, 0.1, WIDTH, dtype=torch.float64)
    g = torch.randn(sites, 2048, WIDTH, generator=generator, dtype=torch.float64) * scale
    second = (g.mT @ g).to(device)
    covariance = second / 2047
    basis = torch.linalg.qr(torch.randn(sites, WIDTH, RANK, generator=generator, dtype=torch.float64)).Q.to(device)
    unit = seconds(lambda: torch.linalg.eigvalsh(second), device)

    def energy():
        haar_draws(second, RANK, DRAWS, 0)

    def with_normal():
        energy()
        normal_draws(second, basis, DRAWS, 0)

    def with_gain():
        with_normal()
        for c, q in zip(covariance, basis, strict=True):
            isotropy_gains([c], [q], FRAMES, 0)

    others = basis.roll(1, 2)

    def two_folds(proxies: int = 1):
        """Both folds of every site, by one rotation: energy and isotropy gain of some proxies of one cloud."""
        for m, c, q, p in zip(second, covariance, basis, others, strict=True):
            shared, seconds_, covariances = Shared(), [m, 0.9 * m], [c, 0.9 * c]
            for _ in range(proxies):
                haar_draws_of_folds(seconds_, [q, p], DRAWS, 0, shared)
                isotropy_gains(covariances, [q, p], FRAMES, 0, shared)

    acts = {"energy, 999 haar": energy, "and normal": with_normal, "and isotropy gain": with_gain,
            "two folds, haar and gain": two_folds,
            "of six proxies of one cloud": lambda: two_folds(6),
            "axes alone": lambda: axes_draws(second, basis, DRAWS, 0)}  # fmt: skip
    return {"sites": sites, "device": device, "eigvalsh_seconds": unit,
            "multiples": {name: seconds(act, device) / unit for name, act in acts.items()}}  # fmt: skip


def tables() -> dict:
    """What building the shared tables costs once."""
    out = {}
    for name, make in (("weights", haar_weights), ("squares", frame_squares), ("frames", haar_frames)):
        start = time.perf_counter()
        make(WIDTH, 2 * RANK if name == "squares" else RANK, FRAMES if name == "frames" else DRAWS, 12345)
        out[name] = time.perf_counter() - start
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--out", default=str(RESULTS))
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(2)
    rows, built = [measure(sites, options.device) for sites in (1, 12)], tables()
    names = list(rows[0]["multiples"])
    made_by = (
        f"Made by `python -m bench.nulls --device {options.device}`: D = {WIDTH}, K = {RANK}, {DRAWS} controls, "
        f"{FRAMES} frames, tables built; multiples of one `eigvalsh` (batched over sites) in the same run. Building "
        f"the tables once: weights {built['weights']:.2f} s, squares of frames {built['squares']:.2f} s, frames "
        f"{built['frames']:.2f} s."
    )
    lines = [f"| sites | eigvalsh, ms | {' | '.join(names)} |", f"|---:|---:|{'---:|' * len(names)}"]
    for row in rows:
        multiples = " | ".join(f"{value:.2f}" for value in row["multiples"].values())
        lines.append(f"| {row['sites']} | {1e3 * row['eigvalsh_seconds']:.1f} | {multiples} |")
    title = f"Cost of the nulls, {options.device}"
    publish(f"nulls-{options.device}", title, made_by, lines, {"rows": rows, "tables": built}, Path(options.out))


if __name__ == "__main__":
    main()
