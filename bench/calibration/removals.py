"""Intervals of the cost of a removal: by the law of a unit's change, and over draws of a control."""

from __future__ import annotations

from collections.abc import Iterator

from anisoscope.intervene.effects import cost_of
from anisoscope.testing.costs import LAWS, unit_costs
from bench.calibration.cells import Row, coverage_row, missed
from bench.calibration.section import Limit, Section


def cost_rows(repetitions: int) -> Iterator[Row]:
    """One draw, all laws; then draws of a control that differ."""
    for law in LAWS:
        for n in (16, 32, 64):
            found = []
            for seed in range(repetitions):
                changes, tokens, truth = unit_costs(n, law=law, seed=seed)
                found.append(missed(cost_of(changes, tokens), truth))
            yield coverage_row(law, n, found)
    for draws in (2, 4, 8):
        for over_draws in (True, False):
            found = []
            for seed in range(repetitions):
                changes, tokens, truth = unit_costs(32, draws=draws, between=0.1, seed=seed)
                found.append(missed(cost_of(changes, tokens, over_draws=over_draws), truth))
            name = f"normal, {draws} draws of a control" + ("" if over_draws else ", their own error left out (wrong)")
            yield coverage_row(name, 32, found) if over_draws else coverage_row(name, 32, found, None)


SECTIONS = (
    Section(
        "removals",
        "Costs of removals",
        "Changes of loss by unit (`unit_costs`): a unit's own mean is normal, log-normal (σ = 1, 1.5), or large in one "
        "unit of ten (rare); lengths vary and tokens have noise. Controls: their draws differ with deviation 0.1. "
        "{repetitions} repetitions a row.",
        ["law", "units", "issued", "covers where issued", "issued and misses"],
        cost_rows,
        limits=(
            Limit(
                "Removals whose cost sits in one unit of ten: with 16 units, where an interval is issued at all, it "
                "misses too often, for those few units are often not in the text.",
                "rare",
            ),
        ),
    ),
)
