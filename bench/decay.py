"""How often the interval of a spectral decay holds the estimator's mean: ``python -m bench.decay [REPETITIONS]``.

Each law draws clouds of n sequences of T tokens in D dimensions. Its mean is that of the same clouds.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from anisoscope import spectral_decay
from anisoscope.geometry.results import Estimate

RESULT = Path(__file__).parent / "results" / "decay-intervals.md"


@dataclass(frozen=True, slots=True)
class Law:
    """Sequences whose tokens have a part in common, with this spectrum; t rows have a common divisor a token."""

    spectrum: str  # an exponent, or floor, spike, falling
    n: int = 32
    length: int = 16
    width: int = 64
    shared: float = 0.0  # correlation of two tokens of a sequence
    t: int | None = None  # degrees of freedom; None is Gaussian
    sizes: float = 0.0  # deviation of the logarithm of a sequence's size

    @property
    def spread(self) -> Tensor:
        """Standard deviations of the coordinates."""
        i_D = torch.arange(1, self.width + 1.0, dtype=torch.float64)
        if self.spectrum == "floor":
            return (i_D**-1.5 + 0.01).sqrt()
        if self.spectrum == "spike":
            return (torch.where(i_D <= 3, 50.0, 1.0) * i_D**-0.7).sqrt()
        if self.spectrum == "falling":
            return ((-i_D / 15).exp() + 0.001).sqrt()
        return i_D ** (-float(self.spectrum) / 2)

    def draw(self, generator: torch.Generator) -> Tensor:
        """One cloud, ``(n·T, D)``."""
        shape, double = (self.n, self.length, self.width), torch.float64
        own = torch.randn(shape, generator=generator, dtype=double)
        common = torch.randn(self.n, 1, self.width, generator=generator, dtype=double)
        rows = (1 - self.shared) ** 0.5 * own + self.shared**0.5 * common
        if self.t:
            rows /= torch.randn(*shape[:2], self.t, generator=generator, dtype=double).square().mean(-1, True).sqrt()
        if self.sizes:
            rows *= (self.sizes * torch.randn(self.n, 1, 1, generator=generator, dtype=double)).exp()
        return (rows * self.spread).flatten(0, 1)

    def estimates(self, repetitions: int, *, seed: int = 0) -> list[Estimate]:
        """The decay of that many clouds, with intervals over sequences."""
        generator = torch.Generator().manual_seed(seed)
        groups = torch.arange(self.n).repeat_interleave(self.length)
        return [spectral_decay(self.draw(generator), groups=groups) for _ in range(repetitions)]

    def __str__(self) -> str:
        rows = "Gaussian" if self.t is None else f"t{self.t}"
        sizes = f", sizes of sequences e^({self.sizes} z)" if self.sizes else ""
        return f"{self.spectrum} | {self.n} × {self.length} × {self.width} | {self.shared} | {rows}{sizes}"


LAWS = (
    Law("0"),
    Law("0.25"),
    Law("0.5"),
    Law("0.5", shared=0.3),
    Law("1"),
    Law("1", shared=0.3),
    Law("2"),
    Law("1", t=4),
    Law("1", shared=0.3, t=4),
    Law("2", shared=0.3, t=4),
    Law("0.5", n=64, width=96, shared=0.1),
    Law("1", n=64, width=96, shared=0.1),
    Law("2", n=64, width=96, shared=0.1),
    Law("floor", n=48, width=80, shared=0.2),
    Law("spike", n=48, width=80, shared=0.2),
    Law("falling", n=48, width=80, shared=0.2),
    Law("0.7", n=40, length=24, width=128, shared=0.4),
    Law("0.5", n=16, shared=0.5),
    Law("1", n=12, length=32),
    Law("1", shared=0.1, sizes=0.5),
)


def covered(found: list[Estimate]) -> tuple[float, float, float]:
    """The share of intervals that hold the mean; error over deviation; width over that of 1.96 deviations."""
    values = np.array([one.value for one in found])
    mean, deviation = values.mean(), values.std(ddof=1)
    low, high, error = (np.array([float(getattr(one, name)) for one in found]) for name in ("low", "high", "se"))
    held = float(np.mean((low <= mean) & (mean <= high)))
    return held, float(np.sqrt(np.square(error).mean()) / deviation), float((high - low).mean() / (3.92 * deviation))


def main() -> None:
    """Write the table."""
    torch.set_num_threads(1)
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    lines = [
        f"# Intervals of spectral decay over {repetitions} clouds a law",
        "",
        "Made by `python -m bench.decay`. *held*: the estimator's mean lies inside the 95 % interval; *error*: the",
        "standard error (root mean square) over the deviation of the estimator; *width*: of the interval, over",
        "2 × 1.96 deviations.",
        "",
        "| spectrum | n × T × D | shared | rows | held | error | width |",
        "|---|---|---:|---|---:|---:|---:|",
    ]
    for law in LAWS:
        held, error, width = covered(law.estimates(repetitions))
        lines.append(f"| {law} | {100 * held:.1f} % | {error:.2f} | {width:.2f} |")
        print(lines[-1], flush=True)
    RESULT.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
