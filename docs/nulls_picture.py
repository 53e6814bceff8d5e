"""Makes docs/nulls.png, the picture of the glossary: what each null puts in the place of what was observed.

Run: .venv/bin/python -m docs.nulls_picture
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from anisoscope.vocabulary import NULLS

CLOUD, GRADIENT, PROXY, NULL = "#9aa5ab", "#0b6e99", "#222222", "#c2571a"
REACH = 2.6


def direction(angle):
    return np.array([np.cos(angle), np.sin(angle)])


class Toy:
    """Activations and gradients of one layer in the plane; the proxy is the first principal direction of the first."""

    def __init__(self, spread=(1.1, 0.35), angle=0.6, seed=0):
        self.rng = np.random.default_rng(seed)
        turn = np.stack([direction(angle), direction(angle + np.pi / 2)])
        self.x = (self.rng.standard_normal((90, 2)) * spread) @ turn
        self.g = (self.rng.standard_normal((14, 2)) * (0.9 * np.array(spread) + (0.1, 0))) @ turn
        values, vectors = np.linalg.eigh(self.x.T @ self.x)
        first = vectors[:, np.argmax(values)]
        self.proxy = np.arctan2(first[1], first[0]) % np.pi


def cloud(axis, toy, *, gradients=True):
    axis.scatter(*toy.x.T, s=5, color=CLOUD, lw=0)
    if gradients:
        zero = np.zeros(len(toy.g))
        axis.quiver(zero, zero, *toy.g.T, color=GRADIENT, angles="xy", scale_units="xy", scale=1, width=0.008)


def line(axis, angle, colour, **options):
    ends = np.stack([-REACH * direction(angle), REACH * direction(angle)])
    axis.plot(*ends.T, color=colour, **({"lw": 2} | options))


def observed(axis):
    toy = Toy()
    cloud(axis, toy)
    line(axis, toy.proxy, PROXY)


def haar(axis):
    toy = Toy()
    cloud(axis, toy)
    for angle in toy.rng.uniform(0, np.pi, 12):
        line(axis, angle, NULL, lw=1, alpha=0.7)


def normal(axis):
    toy = Toy()
    cloud(axis, toy)
    line(axis, toy.proxy, PROXY, lw=1, ls=":")
    line(axis, toy.proxy + np.pi / 2, NULL)


def axes(axis):
    toy = Toy()
    cloud(axis, toy)
    axis.axhline(0, color=PROXY, lw=0.6)
    axis.axvline(0, color=PROXY, lw=0.6)
    line(axis, toy.proxy, PROXY, lw=1, ls=":")
    line(axis, -toy.proxy, NULL)


def init(axis):
    toy = Toy(spread=(0.8, 0.75), seed=4)
    cloud(axis, toy)
    line(axis, toy.proxy, NULL)


def matched(axis, groups):
    """Inputs on the left, error signals on the right, and which of them meet."""
    count = sum(map(len, groups))
    heights = np.linspace(2.0, -2.0, count)
    place, shades = 0, [GRADIENT, PROXY, "#6a8f3c"]
    for shade, group in zip(shades, groups, strict=True):
        for other in group:
            axis.plot([-1.5, 1.5], [heights[place], heights[other]], color=NULL, lw=1.2)
            axis.scatter([-1.5], [heights[place]], color=shade, s=36, zorder=3)
            place += 1
    members = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    axis.scatter([1.5] * count, heights, color=[shades[each] for each in members], s=36, marker="s", zorder=3)
    axis.text(-1.5, -2.55, "inputs x", ha="center", fontsize=8)
    axis.text(1.5, -2.55, "errors δ", ha="center", fontsize=8)


def pairing(axis):
    matched(axis, [[3, 4, 5], [6, 7, 8], [0, 1, 2]])  # whole sequences of three tokens


def tokens(axis):
    matched(axis, [[4, 8, 1], [0, 6, 3], [7, 2, 5]])


def bars(axis, before, after):
    places = np.arange(len(before))
    axis.bar(places * 0.8 - 1.9, before, width=0.3, bottom=-2, color=GRADIENT)
    axis.bar(places * 0.8 - 1.55, after, width=0.3, bottom=-2, color=NULL)
    axis.text(0, -2.55, "how often each label comes", ha="center", fontsize=8)


def rows_of_labels(axis, after):
    for text, height, colour in (("the cat sat on the", 2.1, GRADIENT), (after, 1.5, NULL)):
        for place, word in enumerate(text.split()):
            axis.text(1.15 * place - 2.3, height, word, ha="center", fontsize=8, color=colour)


def targets(axis):
    rows_of_labels(axis, "sat the on the cat")
    law = [2.6, 1.3, 0.9, 0.7, 0.5]
    bars(axis, law, law)


def targets_uniform(axis):
    rows_of_labels(axis, "tea up fog cat elm")
    bars(axis, [2.6, 1.3, 0.9, 0.7, 0.5], [1.2] * 5)


PANELS = {
    "observed": observed,
    "haar": haar,
    "normal": normal,
    "axes": axes,
    "init": init,
    "pairing": pairing,
    "pairing-token": tokens,
    "targets": targets,
    "targets-uniform": targets_uniform,
}


def main():
    assert set(PANELS) == {"observed", *NULLS}
    figure, places = plt.subplots(3, 3, figsize=(8.4, 8.4), layout="constrained")
    for (name, draw), axis in zip(PANELS.items(), places.flat, strict=True):
        draw(axis)
        axis.set(xlim=(-2.9, 2.9), ylim=(-2.9, 2.9), xticks=[], yticks=[], aspect="equal")
        axis.set_title(name, fontsize=11, family="monospace")
        for spine in axis.spines.values():
            spine.set_color("#cccccc")
    figure.savefig(Path(__file__).with_name("nulls.png"), dpi=110)


if __name__ == "__main__":
    main()
