"""Intervals of the energy share: where size and share of a sequence go together, by document, and by rare tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch

from anisoscope import Subspace, judge
from anisoscope.testing import coupled_energies, rare_large_tokens, sequences_of_documents
from bench.calibration.cells import MISS_BAR, Row, coverage_row, missed, rate
from bench.calibration.section import Limit, Section

PROXY = Subspace(torch.eye(6, 2, dtype=torch.float64))
OPTIONS = {"resamples": 1, "isotropy": False}


def coupled_rows(repetitions: int) -> Iterator[Row]:
    """Sizes and shares of sequences that go together."""
    for sigma, tail in ((0.0, None), (1.0, None), (2.0, None), (0.0, 1.5)):
        for n in (16, 32, 64):
            issued = missing = 0
            widths = []
            for seed in range(repetitions):
                g, truth = coupled_energies(n, sigma=sigma, tail=tail, seed=seed)
                e = judge(g, PROXY, **OPTIONS).enrichment["haar"]
                if e.low is not None and e.high is not None:
                    issued += 1
                    missing += not e.low < truth < e.high
                    widths.append(math.log(e.high / e.low) / 2)
            width = f"× {math.exp(float(np.median(widths))):.2f}" if widths else "–"
            held = f"{1 - missing / issued:.3f}" if issued else "–"
            share = f"{issued / repetitions:.2f}"
            name = f"{sigma:g}" if tail is None else f"Pareto {tail:g}"
            yield [name, str(n), share, held, rate(missing, repetitions, MISS_BAR), width]


def unit_rows(repetitions: int) -> Iterator[Row]:
    """Sequences that are not independent, and a few tokens that hold the energy."""
    for n in (16, 32, 64):
        documents = n // 4 if n < 32 else n // 2
        by_sequence, by_document, rare = [], [], []
        for seed in range(repetitions):
            g, ids, truth = sequences_of_documents(documents, seed=seed)
            by_sequence.append(missed(judge(g, PROXY, **OPTIONS).enrichment["haar"], truth))
            by_document.append(missed(judge(g, PROXY, groups=ids, **OPTIONS).enrichment["haar"], truth))
            g, truth = rare_large_tokens(n, seed=seed)
            rare.append(missed(judge(g, PROXY, **OPTIONS).enrichment["haar"], truth))
        yield coverage_row("4 sequences a document, by document", documents, by_document)
        yield coverage_row("the same by sequence (wrong)", documents, by_sequence, None)
        yield coverage_row("one token in a hundred 100 times larger", n, rare)


SECTIONS = (
    Section(
        "intervals",
        "Intervals",
        "Sequences of log-normal size with deviation σ, or of Pareto size; large ones lie more inside the proxy "
        "(`coupled_energies`, {repetitions} repetitions). *Width*: the factor from the value to an end, in the median.",
        ["σ", "sequences", "issued", "covers", "issued and misses", "width"],
        coupled_rows,
        limits=(
            Limit(
                "Energies with Pareto tails of index 1.5 that go with the share make intervals miss more often than "
                "the bar allows (the last rows of *Intervals*).",
                rows="Pareto",
            ),
        ),
    ),
    Section(
        "units",
        "Units",
        "*Issued*: at least 8 effective units. The true odds ratio is known (`sequences_of_documents`, "
        "`rare_large_tokens`, {repetitions} repetitions). The second column counts documents in the first two "
        "constructions, else sequences.",
        ["construction", "units", "issued", "covers", "issued and misses"],
        unit_rows,
        limits=(
            Limit(
                "Documents are units only where they are known: `pair`, `profile` and `checkpoints` know those of "
                "their corpus, `Scope.step` takes `documents=`, `judge` and `cross_fit` take `groups=`. Else sequences "
                "of one document count as independent, and intervals are too narrow (the rows *wrong* under Units)."
            ),
            Limit(
                "Equal text in two documents is one unit where the corpus is known beforehand. `Scope.step` takes the "
                "ids of `documents=` as they are: its micro-batches come one by one, and the first copy has gone to "
                "its fold when the second is met (`anisoscope.data.tokens.joined_documents` gives both one id)."
            ),
        ),
    ),
)
