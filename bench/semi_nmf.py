"""Semi-NMF on real activations against overcomplete 0.3.0, from the same start. Part of ``make bench``.

SmolLM2-135M, block 20, first positions left out, 8 192 × 576, K = 32. The peer makes 500 multiplicative updates, its
cap; we are timed to the iteration that reaches its error, and then left to converge. Turns are taken; best of 3.
"""

from __future__ import annotations

import argparse

import torch

from anisoscope import semi_nmf
from bench.activations import smollm2_activations
from bench.machine import best_of, publish
from bench.peers import Peers

RANK = 32
UPDATES = 500
SEEDS = (0, 1, 2)


def contest(peers: Peers, x: torch.Tensor, seed: int) -> dict:
    start = torch.rand(len(x), RANK, generator=torch.Generator().manual_seed(seed))
    files = {"file": peers.put(x.numpy(), "x"), "codes": peers.put(start.numpy(), f"z{seed}")}
    runs = [peers.ask(do="semi_nmf", iterations=str(UPDATES), **files) for _ in range(3)]
    if any(isinstance(run, str) for run in runs):
        raise SystemExit(f"overcomplete failed: {runs}")
    theirs, error = min(run[0] for run in runs), runs[0][1]
    fit = semi_nmf(x, RANK, start=start)
    reach = next(i for i, loss in enumerate(fit.loss_trace) if loss <= error)
    ours = best_of(lambda: semi_nmf(x, RANK, start=start, iterations=reach, tolerance=0))
    whole = best_of(lambda: semi_nmf(x, RANK, start=start), 1)
    return {
        "seed": seed, "peer_seconds": theirs, "peer_error": error, "seconds_to_its_error": ours,
        "iterations_to_its_error": reach, "sooner": theirs / ours, "seconds_to_converge": whole,
        "error_converged": fit.loss, "iterations": len(fit.loss_trace) - 1, "converged": fit.converged,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", required=True, help="python of the peers' environment")
    options = parser.parse_args()
    torch.set_num_threads(2)
    x, _ = smollm2_activations()
    peers = Peers(options.peers)
    rows = [contest(peers, x, seed) for seed in SEEDS]
    versions = peers.ask(do="versions")
    peers.close()
    made_by = (
        f"Made by `make bench`: SmolLM2-135M, block 20, first positions left out, {x.shape[0]} × {x.shape[1]}, "
        f"K = {RANK}; {UPDATES} updates of overcomplete {versions['overcomplete']} from the same random codes; "
        "best of 3, two threads."
    )
    lines = [
        "| start | overcomplete, s | its error | ours to that error, s | sooner by | our error at rest | s |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| seed {r['seed']} | {r['peer_seconds']:.2f} | {r['peer_error']:.6f} | {r['seconds_to_its_error']:.3f} | "
        f"{r['sooner']:.1f}× | {r['error_converged']:.6f} | {r['seconds_to_converge']:.2f} |"
        for r in rows
    ]
    record = {"peers": versions, "rows": rows}
    publish("semi_nmf", "Semi-NMF against multiplicative updates", made_by, lines, record)


if __name__ == "__main__":
    main()
