"""Makes docs/picture.png, the picture of the README: two measures that mislead, and the same two put right.

Run: .venv/bin/python docs/picture.py
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

from anisoscope import isoscore, neighbours, two_nn
from anisoscope.geometry.neighbours import nearest
from anisoscope.testing import gaussian, with_duplicates

OURS, PLAIN, TRUTH = "#0b6e99", "#c2571a", "#777777"


def naive_two_nn(x):
    """TwoNN without care for copies, as in the peers."""
    distances, _ = nearest(x, 2)
    log_mu = np.sort(np.log((distances[:, 1] / distances[:, 0]).numpy()))
    keep = int(len(log_mu) * 0.9)
    y = -np.log1p(-np.arange(1, keep + 1) / len(log_mu))
    return y @ log_mu[:keep] / (log_mu[:keep] @ log_mu[:keep])


def main():
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    sizes = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
    for corrected, colour, label in ((False, PLAIN, "plain"), (True, OURS, "corrected")):
        scores = np.array(
            [[float(isoscore(gaussian(n, [1.0] * 64, seed=s), corrected=corrected)) for s in range(20)] for n in sizes]
        )
        left.plot(sizes, scores.mean(1), color=colour, marker="o", ms=3.5, label=label)
        left.fill_between(sizes, *np.quantile(scores, [0.05, 0.95], axis=1), color=colour, alpha=0.15, lw=0)
    left.axhline(1, color=TRUTH, lw=1, ls="--")
    left.axvline(64, color=TRUTH, lw=0.8, ls=":")
    left.annotate("N = D", (64, 0.05), color=TRUTH, ha="left", xytext=(4, 0), textcoords="offset points")
    left.set(xscale="log", xlabel="rows N", ylabel="IsoScore", title="Isotropic noise in R⁶⁴: truth 1", ylim=(0, 1.45))
    left.legend(frameon=False)

    shares = [0.0, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2]
    clouds = [with_duplicates(gaussian(2000, [1.0] * 10), share, noise=1e-7) for share in shares]
    right.plot(
        shares, [naive_two_nn(x) for x in clouds], color=PLAIN, marker="o", ms=3.5, label="copies taken for neighbours"
    )
    found = [two_nn(neighbours(x, 2)) for x in clouds]
    ends = [(e.value - (e.low or 0.0), (e.high or 0.0) - e.value) for e in found]  # two_nn always has both
    error = np.array(ends).T
    right.errorbar(shares, [e.value for e in found], error, color=OURS, marker="o", ms=3.5, label="copies removed")
    right.axhline(10, color=TRUTH, lw=1, ls="--")
    right.set(
        xlabel="share of rows copied, moved by 1e-7",
        ylabel="TwoNN dimension",
        title="Gaussian in R¹⁰: truth 10",
        ylim=(0, 12),
    )
    right.legend(frameon=False, loc="center right")
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(Path(__file__).with_name("picture.png"), dpi=150)


if __name__ == "__main__":
    torch.set_num_threads(2)
    main()
