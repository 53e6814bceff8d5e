"""The few numbers of an observation that belong on a dashboard."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

from anisoscope.observe.rows import Row

_SHOWN = (
    ("enrichment", {"view": "representation", "measure": "enrichment", "null": "haar", "timing": "rolling"}),
    ("enrichment_weight", {"view": "weight", "measure": "enrichment", "null": "haar", "timing": "rolling"}),
    ("enrichment_pairing", {"view": "weight", "measure": "enrichment", "null": "pairing", "timing": "rolling"}),
    ("enrichment_targets", {"view": "representation", "measure": "enrichment", "null": "targets", "timing": "rolling"}),
    ("isotropy_gain", {"view": "representation", "measure": "isotropy_gain", "variant": None, "timing": "rolling"}),
    ("isoscore_activations", {"measure": "isoscore_star", "points": "activations"}),
    ("isoscore_gradients", {"measure": "isoscore_star", "points": "gradients"}),
    ("dimension", {"measure": "two_nn"}),
)


def headline(rows: Iterable[Row], prefix: str = "anisoscope/") -> dict[str, float]:
    """Medians over layers of what an observation is looked at for, of all tokens and the first proxy.

    >>> layer = {"view": "representation", "measure": "enrichment", "null": "haar", "timing": "rolling", "proxy": "pca"}
    >>> headline([layer | {"cloud": "all", "step": 8, "value": value} for value in (2.0, 3.0, 9.0)])
    {'anisoscope/step': 8.0, 'anisoscope/enrichment': 3.0}
    >>> main, other = (layer | {"cloud": "all", "step": 8, "rank": k, "value": float(k)} for k in (32, 4))
    >>> headline([main, other])["anisoscope/enrichment"]
    32.0
    """
    rows = list(rows)
    steps = [row["step"] for row in rows if row["step"] is not None]
    found = {f"{prefix}step": float(max(steps))} if steps else {}
    proxy, rank = next(((row["proxy"], row.get("rank")) for row in rows if row["proxy"] is not None), (None, None))
    for name, key in _SHOWN:
        values = [
            row["value"]
            for row in rows
            if row["cloud"] == "all"
            and row["proxy"] in (None, proxy)
            and row.get("rank") in (None, rank)  # other ranks are ablations and come later
            and all(row.get(column) == wanted for column, wanted in key.items())
            and row["value"] is not None
            and math.isfinite(row["value"])
        ]
        if values:
            found[prefix + name] = statistics.median(values)
    if any(row["measure"] == "skipped" for row in rows):
        found[f"{prefix}skipped"] = float(sum(row["measure"] == "skipped" for row in rows))
    return found


def by_step(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows of one observation together, in the order of steps."""
    steps: dict[int, list[Row]] = {}
    for row in rows:
        steps.setdefault(row["step"], []).append(row)
    return [steps[step] for step in sorted(steps)]
