"""The measures on a GPU: the same answers as on the CPU, and their time. ``python -m bench.gpu`` on such a machine."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from anisoscope import (
    Directions,
    Moments,
    Reservoir,
    TokenCounts,
    average_cosine,
    cross_fit,
    cross_fit_weight,
    effective_rank,
    fit_subspace,
    gride,
    isoscore,
    judge,
    levina_bickel,
    neighbours,
    participation_ratio,
    partition_ratio,
    semi_nmf,
    top_share,
    two_nn,
)
from anisoscope.geometry.neighbours import BLOCK_ROWS
from anisoscope.testing import gaussian, with_duplicates
from bench.machine import RESULTS, publish
from bench.nulls import seconds


def agreement() -> dict[str, float]:
    """Largest relative difference between CPU and GPU, measure by measure."""
    x = with_duplicates(gaussian(3000, [4.0] * 4 + [1.0] * 60, mean=1.0), 0.1).float()
    there = x.cuda()
    gaps = {}
    for measure in (top_share, average_cosine, isoscore, participation_ratio, effective_rank, partition_ratio, two_nn,
                    levina_bickel, gride):  # fmt: skip
        gaps[measure.__name__] = abs(float(measure(there)) / float(measure(x)) - 1)
    gaps["isoscore corrected"] = abs(float(isoscore(there, corrected=True)) / float(isoscore(x, corrected=True)) - 1)
    gaps["neighbour indices"] = float((neighbours(there, 5).indices.cpu() != neighbours(x, 5).indices).double().mean())
    tokens = torch.randint(0, 50, (30, 100), generator=torch.Generator().manual_seed(0))
    batch = x.reshape(30, 100, -1)
    a, b = (Reservoir.of_sequences(batch.to(d), tokens.to(d), rows=700, seed=1).sample() for d in ("cpu", "cuda"))
    gaps["reservoir membership"] = float(not torch.equal(a.sequences, b.sequences.cpu()))
    counts = TokenCounts.of(tokens.cuda(), vocabulary=50).counts.cpu()
    gaps["token counts"] = float(not torch.equal(counts, TokenCounts.of(tokens, vocabulary=50).counts))
    gaps["directions"] = float((Directions.of(there).units.mean.cpu() - Directions.of(x).units.mean).abs().max())
    g = torch.randn(30, 100, 64, generator=torch.Generator().manual_seed(1))
    judged = []
    for cloud, gradient in ((batch, g), (batch.cuda(), g.cuda())):
        found = cross_fit(cloud, gradient, rank=4, nulls=("haar", "normal", "axes"))
        single = judge(gradient, fit_subspace(cloud.flatten(0, 1), method="svd", rank=4))
        weight = cross_fit_weight(cloud, gradient[..., :8], rank=4)
        values = (found.energy, found.enrichment["axes"].low, found.isotropy_gain, found.p["haar"], single.energy,
                  weight.energy, weight.enrichment["pairing"].value)  # fmt: skip
        judged.append(values)
    gaps["evidence"] = max(abs(u / v - 1) for u, v in zip(*judged, strict=True))
    gaps["semi_nmf loss"] = abs(semi_nmf(there, 8).loss / semi_nmf(x, 8).loss - 1)
    return gaps


def timings() -> dict[str, float]:
    out = {}
    for n, d in ((20_000, 768), (100_000, 768)):
        x = torch.randn(n, d, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out[f"two_nn {n} x {d}, s"] = seconds(lambda x=x: two_nn(x), "cuda", 3)
        out[f"two_nn {n} x {d}, extra MiB"] = (torch.cuda.max_memory_allocated() - before) / 2**20
        blocks = x.split(BLOCK_ROWS)
        out[f"plain float32 products {n} x {d}, s"] = seconds(lambda x=x, b=blocks: [y @ x.T for y in b], "cuda", 3)
    x = torch.randn(16_384, 768, device="cuda")
    out["moments 16384 x 768, ms"] = 1e3 * seconds(lambda: Moments.of(x), "cuda")
    out["moments second only, ms"] = 1e3 * seconds(lambda: Moments.of(x, higher=False), "cuda")
    out["plain x.T @ x, ms"] = 1e3 * seconds(lambda: x.T @ x, "cuda")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=str(RESULTS))
    options = parser.parse_args()
    gaps, times = agreement(), timings()
    lines = ["| largest relative difference from the CPU | |", "|---|---:|"]
    lines += [f"| {name} | {gap:.1e} |" for name, gap in gaps.items()]
    lines += [
        "",
        "| time and memory | |",
        "|---|---:|",
        *(f"| {name} | {value:.3f} |" for name, value in times.items()),
    ]
    record = {"agreement": gaps, "timings": times}
    publish("gpu", "On a GPU", "Made by `python -m bench.gpu`.", lines, record, Path(options.out))


if __name__ == "__main__":
    main()
