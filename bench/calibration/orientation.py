"""`haar`: how often it rejects where orientation is random, and how often it finds a planted effect."""

from __future__ import annotations

from collections.abc import Iterator

from anisoscope import cross_fit
from anisoscope.testing import LAWS, independent_clouds, planted_effect
from bench.calibration.cells import REJECTION_BAR, RESAMPLES, Row, generator, rate
from bench.calibration.section import Section

SEQUENCES = {24: 1.0, 12: 0.25, 96: 0.15}
"""How many sequences, and which share of the repetitions they get."""
ISOTROPIC, OWN = "isotropic gradients", "gradients with a spectrum of their own"
FACTORS = {ISOTROPIC: (1.02, 1.04, 1.07, 1.1, 1.21, 1.44), OWN: (1.1, 1.2, 1.3, 1.5)}


def null_rows(repetitions: int) -> Iterator[Row]:
    """P over `haar` and of the isotropy gain on clouds that know nothing of one another."""
    for n, part in SEQUENCES.items():
        tries = max(min(repetitions, 100), round(part * repetitions))
        for law, word in LAWS.items():
            haar = gain = refused = wrong = 0
            for seed in range(tries):
                x, g = independent_clouds(law, n=n, seed=seed)
                found = cross_fit(x, g, rank=6, resamples=RESAMPLES, generator=generator(seed))
                e = found.enrichment["haar"]
                haar += found.p["haar"] <= 0.05
                gain += (found.isotropy_gain_p or 1.0) <= 0.05
                refused += e.low is None
                wrong += e.low is not None and found.p["haar"] <= 0.05 and not e.low < 1 < (e.high or 1)
            rates = [rate(hits, tries, REJECTION_BAR) for hits in (haar, gain, wrong)]
            yield [f"`{law}`: {word.about}", str(n), *rates, f"{refused / tries:.2f}"]


def power_rows(repetitions: int) -> Iterator[Row]:
    """Gradients a little larger inside the activations' main directions."""
    for name, factors in FACTORS.items():
        for factor in factors:
            for n in (16, 32, 64):
                p = rule = 0
                for seed in range(repetitions):
                    x, g = planted_effect(n, factor=factor, own_spectrum=name == OWN, seed=seed)
                    found = cross_fit(x, g, rank=6, resamples=RESAMPLES, generator=generator(seed), isotropy=False)
                    low = found.enrichment["haar"].low
                    p += found.p["haar"] <= 0.05
                    rule += found.p["haar"] <= 0.05 and low is not None and low > 1
                yield [name, f"{factor:.2f}", str(n), rate(p, repetitions, None), rate(rule, repetitions, None)]


SECTIONS = (
    Section(
        "orientation",
        "Orientation: no effect",
        "Activations and gradients of one law, each in an orientation of its own (`independent_clouds`, sequences of "
        "16 tokens, D = 24, K = 6, {repetitions} repetitions with 24 sequences, "
        f"{SEQUENCES[12]:.2g} of them with 12 and {SEQUENCES[96]:.2g} with 96). "
        "*Both*: p ≤ 0.05 and the 95 % interval excludes 1, which is what a verdict asks for. *Refused*: no interval, "
        "for fewer than 8 effective units.",
        ["law", "sequences", "p over `haar`", "p of the isotropy gain", "both", "refused"],
        null_rows,
    ),
    Section(
        "power",
        "Orientation: a planted effect",
        "Gradients whose energy is larger by a factor in the six main directions of the activations "
        "(`planted_effect`, {repetitions} repetitions). Where gradients have a spectrum of their own, in a random "
        "orientation, chance moves their energy inside any directions, and more sequences do not help.",
        ["construction", "energy ×", "sequences", "p ≤ 0.05", "both"],
        power_rows,
        0.25,
    ),
)
