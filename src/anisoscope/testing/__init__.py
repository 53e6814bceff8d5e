"""Clouds with known answers: for our tests, and for anyone who wants to try a measure or a null before believing it.

Letters: N rows, D width, d intrinsic dimension, n sequences, T positions. Every cloud is float64 and drawn from
``seed`` alone. ``docs/calibration.md`` tells how nulls and intervals fare on them.
"""

from __future__ import annotations

from anisoscope.testing.costs import unit_costs
from anisoscope.testing.laws import LAWS, Law, cloud_of_law, independent_clouds, planted_effect
from anisoscope.testing.planted_clouds import (
    RADII,
    cone,
    elliptical,
    gaussian,
    lattice,
    noisy_lattice,
    parallel_sheets,
    plane,
    rotation,
    rounded,
    sphere,
    with_duplicates,
)
from anisoscope.testing.planted_layers import noisy_profile, planted_layers
from anisoscope.testing.sequences import (
    coupled_energies,
    paired_properties,
    partly_cancelling,
    rare_large_tokens,
    sequences_of_documents,
)
from anisoscope.testing.sides import (
    coupled_on_one_side,
    embedding_batch,
    leaning_by_length,
    two_labellings,
    unequal_dispersion,
)

__all__ = [
    "LAWS",
    "RADII",
    "Law",
    "cloud_of_law",
    "cone",
    "coupled_energies",
    "coupled_on_one_side",
    "elliptical",
    "embedding_batch",
    "gaussian",
    "independent_clouds",
    "lattice",
    "leaning_by_length",
    "noisy_lattice",
    "noisy_profile",
    "paired_properties",
    "parallel_sheets",
    "partly_cancelling",
    "plane",
    "planted_effect",
    "planted_layers",
    "rare_large_tokens",
    "rotation",
    "rounded",
    "sequences_of_documents",
    "sphere",
    "two_labellings",
    "unequal_dispersion",
    "unit_costs",
    "with_duplicates",
]
