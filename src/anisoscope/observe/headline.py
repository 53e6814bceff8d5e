"""The few numbers of an observation that belong on a dashboard."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from anisoscope.observe.rows import Row
from anisoscope.vocabulary import HEADLINES, headline_values, is_main


def headline(rows: Iterable[Row], prefix: str = "anisoscope/") -> dict[str, float]:
    """Medians over layers of what an observation is looked at for, of all tokens and the first proxy.

    >>> layer = {"view": "representation", "measure": "enrichment", "null": "haar", "timing": "rolling", "proxy": "pca"}
    >>> layer |= {"tensor": "gradients", "subset": "all", "step": 8}
    >>> headline([layer | {"value": value} for value in (2.0, 3.0, 9.0)])
    {'anisoscope/step': 8.0, 'anisoscope/enrichment_haar': 3.0}
    >>> main, other = (layer | {"rank": k, "value": float(k)} for k in (32, 4))
    >>> headline([main, other])["anisoscope/enrichment_haar"]
    32.0
    """
    rows = list(rows)
    steps = [row["step"] for row in rows if row["step"] is not None]
    found = {f"{prefix}step": float(max(steps))} if steps else {}
    # The main proxy and rank come first; others are ablations and come later.
    proxy, rank = next(((r["proxy"], r.get("rank")) for r in rows if r["proxy"] is not None), (None, None))
    main = [row for row in rows if is_main(row, proxy, rank)]
    for name in HEADLINES:
        values = headline_values(main, name)
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
