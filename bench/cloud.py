"""Measures of a cloud against their peers: time, accuracy, memory. ``make bench`` runs it.

All timings are taken in one run, each contestant warmed up, best of 3, two threads; peers in their own process and
environment on the same arrays, taking turns with us.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

import numpy as np
import torch
from sklearn.neighbors import NearestNeighbors

from anisoscope import Moments, isoscore, two_nn
from anisoscope.geometry.neighbours import BLOCK_ROWS
from bench.machine import best_of, publish
from bench.peers import Peers


def matmul_seconds(x_ND: torch.Tensor) -> float:
    """All N² inner products as plain float32 block products: what the machine can do."""
    blocks = x_ND.split(BLOCK_ROWS)
    return best_of(lambda: [block @ x_ND.T for block in blocks])


def exact_two_nn(x: np.ndarray) -> float:
    """The float64 answer: scikit-learn's brute force on the centred cloud, then distances by direct difference."""
    wide = x.astype(np.float64)
    wide -= wide.mean(0)
    _, index = NearestNeighbors(n_neighbors=6, algorithm="brute").fit(wide).kneighbors(wide)
    r = np.stack(
        [np.sort(np.linalg.norm(wide[others[1:]] - row, axis=1))[:2] for row, others in zip(wide, index, strict=True)]
    )
    log_mu = np.sort(np.log(r[:, 1] / r[:, 0]))
    keep = int(np.floor(len(x) * 0.9 + 1e-9))
    y = -np.log1p(-np.arange(1, keep + 1) / len(x))
    return float(y @ log_mu[:keep] / (log_mu[:keep] @ log_mu[:keep]))


def peak_extra_mib(rows: int, width: int) -> float:
    """Peak memory of a TwoNN beyond the process and its input, in a process of its own (Linux: VmHWM)."""
    # ru_maxrss would not do: a child starts with the peak of its parent.
    code = (
        "import torch; from anisoscope import two_nn; torch.set_num_threads(2)\n"
        "peak = lambda: int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]) / 1024\n"
        f"two_nn(torch.randn(300, 8)); x = torch.randn({rows}, {width}); before = peak()\n"
        "two_nn(x); print(peak() - before)"
    )
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def in_turns(peers: Peers, file: str, ours, names: list[str]) -> dict[str, float]:
    """Best of 3 for each, interleaved, after one round to warm up."""
    times: dict[str, list[float]] = {"anisoscope": [], **{name: [] for name in names}}
    for round_ in range(4):
        seconds = {"anisoscope": best_of(ours, 1)} if round_ else {"anisoscope": 0.0}
        seconds |= {name: peers.ask(do="time", peer=name, file=file) for name in names}
        if round_:
            for name, value in seconds.items():
                times[name].append(value)
    return {name: min(values) for name, values in times.items()}


def two_nn_rows(peers: Peers, check_large: bool) -> list[dict]:
    rows = []
    for n, d in ((2_000, 384), (20_000, 768)):
        x = np.random.default_rng(0).normal(size=(n, d)).astype(np.float32)
        tensor = torch.from_numpy(x)
        seconds = in_turns(peers, peers.put(x, f"x{n}"), lambda t=tensor: two_nn(t), ["skdim_two_nn", "dadapy_two_nn"])
        ideal = matmul_seconds(tensor)
        row = {"what": "TwoNN", "shape": f"{n} x {d}", "seconds": seconds, "matmul_seconds": ideal,
               "share_of_matmul_rate": ideal / seconds["anisoscope"]}  # fmt: skip
        if n <= 2_000 or check_large:
            exact = exact_two_nn(x)
            row["relative_error"] = abs(float(two_nn(tensor)) / exact - 1)
        rows.append(row)
    return rows


def isoscore_row(peers: Peers) -> dict:
    x = np.random.default_rng(0).normal(size=(5_000, 768)).astype(np.float32)
    tensor = torch.from_numpy(x)
    seconds = in_turns(peers, peers.put(x, "iso"), lambda: isoscore(tensor), ["isoscore"])
    return {"what": "IsoScore", "shape": "5000 x 768", "seconds": seconds}


def moments_row() -> dict:
    x = torch.randn(16_384, 768, generator=torch.Generator().manual_seed(0))
    acts = {"plain x.T @ x": lambda: x.T @ x, "anisoscope": lambda: Moments.of(x),
            "anisoscope, second only": lambda: Moments.of(x, higher=False)}  # fmt: skip
    for act in acts.values():
        act()
    times = {name: [] for name in acts}
    for _ in range(5):
        for name, act in acts.items():
            times[name].append(best_of(act, 1))
    return {"what": "Moments", "shape": "16384 x 768", "seconds": {name: min(t) for name, t in times.items()}}


def table(rows: list[dict]) -> list[str]:
    lines = ["| what | shape | contestant | seconds | ours is faster by | more |", "|---|---|---|---:|---:|---|"]
    for row in rows:
        for name, seconds in row["seconds"].items():
            more = []
            if name == "anisoscope":
                if "share_of_matmul_rate" in row:
                    more.append(f"{row['share_of_matmul_rate']:.0%} of the plain matmul rate")
                if "relative_error" in row:
                    more.append(f"off the float64 answer by {row['relative_error']:.1e}")
            ratio = seconds / row["seconds"]["anisoscope"]
            lines.append(
                f"| {row['what']} | {row['shape']} | {name} | {seconds:.4f} | {ratio:.2f}× | {'; '.join(more)} |"
            )
        if "extra_mib" in row:
            lines.append(
                f"| {row['what']} | {row['shape']} | anisoscope | | | peak extra memory {row['extra_mib']:.0f} MiB |"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", required=True, help="python of the peers' environment")
    parser.add_argument(
        "--quick", action="store_true", help="leave out the float64 check and the memory run at full size"
    )
    options = parser.parse_args()
    torch.set_num_threads(2)
    peers = Peers(options.peers)
    versions = peers.ask(do="versions")
    rows = [*two_nn_rows(peers, not options.quick), isoscore_row(peers), moments_row()]
    peers.close()
    if not options.quick:
        rows.append(
            {"what": "TwoNN", "shape": "100000 x 768", "seconds": {}, "extra_mib": peak_extra_mib(100_000, 768)}
        )
    names = ", ".join(f"{name} {number}" for name, number in versions.items())
    made_by = f"Made by `make bench`; one run, all warmed up, best of 3, two threads. Peers: {names}."
    publish("cloud", "Measures of a cloud against their peers", made_by, table(rows), {"peers": versions, "rows": rows})


if __name__ == "__main__":
    main()
