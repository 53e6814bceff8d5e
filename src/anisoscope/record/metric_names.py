"""Rows as the numbers of a dashboard: one name a curve, made of the words of its rows."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable
from typing import Literal

from anisoscope.evaluate.row_builders import Row
from anisoscope.vocabulary import HEADLINES, MAIN_SUBSET, MAIN_TENSOR, MAIN_TIMING, MEASURES, is_main, rank_of

PREFIX = "anisoscope"
STEP = f"{PREFIX}/step"
Detail = Literal["layers", "medians", "none"]
_USUAL_VIEW = "representation"
_MEASURES = {headline.where["measure"] for headline in HEADLINES.values()}


def metrics(rows: Iterable[Row], detail: Detail = "layers") -> dict[str, float]:
    """The numbers of one observation by name.

    A name is ``anisoscope/<measure>/<null>/layer_03``, with ``/low`` and ``/high`` for the 95 % interval and
    ``…/median`` over layers. What is not the usual stands between null and layer: a variant, another view than the
    representation, another tensor than the gradients, the timing ``anchored``. They are of all tokens, the first proxy
    and its rank. ``detail="medians"`` leaves the layers out.

    >>> row = {"step": 8, "view": "representation", "measure": "enrichment", "null": "haar", "timing": "rolling"}
    >>> row |= {"proxy": "pca", "tensor": "gradients", "subset": "all", "low": 1.5, "high": 3.5}
    >>> found = metrics([row | {"layer": 0, "value": 2.0}, row | {"layer": 3, "value": 3.0}])
    >>> found["anisoscope/enrichment/haar/layer_03"], found["anisoscope/enrichment/haar/layer_03/low"]
    (3.0, 1.5)
    >>> found["anisoscope/enrichment/haar/median"], found["anisoscope/step"]
    (2.5, 8.0)
    """
    if detail == "none":
        return {}
    rows = list(rows)
    found: dict[str, float] = {}
    layers: dict[str, list[float]] = {}
    # The main proxy and rank come first; others are ablations and come later.
    proxy, rank = next(((r["proxy"], rank_of(r)) for r in rows if r["proxy"] is not None), (None, None))
    for row in rows:
        if not _is_shown(row) or not is_main(row, proxy, rank):
            continue
        name = _name(row)
        if row.get("layer") is None:
            found |= _with_interval(name, row)
            continue
        layers.setdefault(name, []).append(row["value"])
        if detail == "layers":
            found |= _with_interval(_layer_name(name, row, found), row)
    found |= {f"{name}/median": statistics.median(values) for name, values in layers.items()}
    found |= {f"{PREFIX}/cost/{row['variant']}": row["value"] for row in rows if row["measure"] == "cost"}
    skipped = sum(row["measure"] == "skipped" for row in rows)
    if skipped:
        found[f"{PREFIX}/skipped"] = float(skipped)
    steps = [row["step"] for row in rows if row["step"] is not None]
    return found | ({STEP: float(max(steps))} if steps else {})


def headlines(found: dict[str, float]) -> dict[str, float]:
    """The few of them that a console or a history of logs has room for: medians over layers of what ``compare`` shows.

    >>> headlines({"anisoscope/enrichment/haar/median": 2.0, "anisoscope/enrichment/haar/layer_01": 2.0})
    {'anisoscope/enrichment/haar/median': 2.0}
    """
    names = {STEP}
    for headline in HEADLINES.values():
        proxy = "" if "timing" in headline.where else None  # what has a timing is of a proxy
        where = {"view": _USUAL_VIEW, "timing": MAIN_TIMING, "proxy": proxy} | headline.where
        variants = (None, *(name for name, _ in MEASURES[str(where["measure"])].variants))
        names |= {f"{_name(where | {'variant': variant})}/median" for variant in variants}
    return {name: value for name, value in found.items() if name in names}


def _is_shown(row: Row) -> bool:
    value = row.get("value")
    return (
        (row.get("proxy") is not None or row["measure"] in _MEASURES)
        and row.get("subset") == MAIN_SUBSET
        and value is not None
        and math.isfinite(value)
        and row.get("token_id") is None
        and row.get("radius") is None
    )


def _name(row: Row) -> str:
    """Without the layer."""
    unusual = {"view": _USUAL_VIEW, "timing": MAIN_TIMING}
    if row.get("proxy") is not None:  # of a proxy the gradients are the usual, of a measure no tensor is
        unusual["tensor"] = MAIN_TENSOR
    words = [row["measure"], row.get("null"), row.get("variant")]
    words += [row.get(column) for column in ("view", "tensor", "timing") if row.get(column) != unusual.get(column)]
    return "/".join([PREFIX, *(_plain(word) for word in words if word)])


def _layer_name(name: str, row: Row, taken: dict[str, float]) -> str:
    """With the layer; the second place of a layer, such as another map of the block, adds its module."""
    own = f"{name}/layer_{row['layer']:02d}"
    return own if own not in taken else f"{own}/{_plain(row.get('site') or 'other')}"


def _with_interval(name: str, row: Row) -> dict[str, float]:
    ends = {f"{name}/{end}": row.get(end) for end in ("low", "high")}
    return {name: row["value"]} | {key: end for key, end in ends.items() if end is not None and math.isfinite(end)}


def _plain(word: str) -> str:
    return re.sub(r"[^\w.-]+", "_", word)
