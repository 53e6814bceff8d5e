"""The rows of an observation: one number each, every column there, what is not known null."""

from __future__ import annotations

import math
from typing import Any

import torch

from anisoscope.evidence.inference import FEWEST_UNITS, adjust
from anisoscope.evidence.result import Evidence
from anisoscope.geometry.isotropy import effective_rank, isoscore_star, participation_ratio, top_share
from anisoscope.geometry.subspace import Subspace, principal_angles
from anisoscope.observe.statistics import Cloud, Observation
from anisoscope.stats.moments import Moments

Row = dict[str, Any]
Proxies = dict[tuple[str, int, str], tuple[Subspace, Subspace]]
_FIELDS = (
    "step",
    "tokens",
    "layer",
    "view",
    "points",
    "cloud",
    "proxy",
    "rank",
    "timing",
    "measure",
    "variant",
    "null",
    "value",
    "low",
    "high",
    "p",
    "q",
    "n",
    "note",
)
_CLOUD_MEASURES = (
    ("isoscore_star", isoscore_star),
    ("top_share", top_share),
    ("effective_rank", effective_rank),
    ("participation_ratio", participation_ratio),
)


def row(**given: Any) -> Row:
    """A row with every column; what is not given is null."""
    return {name: given.get(name) for name in _FIELDS} | {"cloud": given.get("cloud", "all")}


def cloud_rows(observation: Observation) -> list[Row]:
    """Isotropy of activations and gradients, both folds together."""
    rows = []
    for layer, site in sorted(observation.representation.items()):
        for points, folds in (("activations", site.activations), ("gradients", site.gradients)):
            moments = _merged(folds)
            if moments is None or float(moments.count) < 3:
                continue
            for measure, act in _CLOUD_MEASURES:
                found = act(moments)
                rows.append(
                    row(
                        step=observation.step,
                        tokens=observation.tokens,
                        layer=layer,
                        view="representation",
                        points=points,
                        measure=measure,
                        value=found.value,
                        low=found.low,
                        high=found.high,
                        n=found.n,
                        note=found.note,
                    )
                )
    return rows


def drift_rows(observation: Observation, now: Proxies, before: Proxies, *, since: str) -> list[Row]:
    """Mean principal angle in degrees to earlier proxies of the same fold: a moving subspace is no fading effect."""
    rows = []
    for key, pair in now.items():
        if key not in before:
            continue
        view, layer, method = key
        angles = torch.cat([principal_angles(a, b) for a, b in zip(pair, before[key], strict=True)])
        rows.append(
            row(
                step=observation.step,
                tokens=observation.tokens,
                layer=layer,
                view=view,
                points="activations",
                proxy=method,
                rank=pair[0].rank,
                timing="rolling",
                measure="angle",
                variant=f"since {since}",
                value=float(angles.mean().rad2deg()),
                n=angles.numel(),
            )
        )
    return rows


def evidence_rows(key: Any, found: Evidence, timing: str, observation: Observation) -> list[Row]:
    """Everything that one judgement says."""
    view, layer, method = key
    common = {
        "step": observation.step,
        "tokens": observation.tokens,
        "layer": layer,
        "view": view,
        "points": "gradients",
        "proxy": method,
        "rank": found.rank,
        "timing": timing,
        "n": found.n,
    }
    few = min(len(u.ids) for u in found.folds) < FEWEST_UNITS if found.folds else True
    note = f"a fold under {FEWEST_UNITS} sequences: no p and no intervals" if few else found.note
    rows = [row(**common, measure="energy", value=found.energy, note=note)]
    for null, e in found.enrichment.items():
        numbers = {} if few else {"low": e.low, "high": e.high, "p": found.p.get(null)}
        rows.append(
            row(**(common | {"n": e.n}), measure="enrichment", null=null, value=e.value, note=e.note or note, **numbers)
        )
    gains = {
        "isotropy_gain": (found.isotropy_gain, None, found.isotropy_gain_p),
        "isotropy_gain_normal": (found.isotropy_gain_null, "normal", None),
        "captured": (found.captured, None, None),
        "radial": (found.radial, None, None),
    }
    for measure, (value, null, p) in gains.items():
        if value is not None:
            rows.append(row(**common, measure=measure, null=null, value=value, p=None if few else p))
    if found.isotropy_gain_zeta0 is not None:
        rows.append(row(**common, measure="isotropy_gain", variant="zeta0", value=found.isotropy_gain_zeta0))
    return rows


def adjusted(rows: list[Row]) -> list[Row]:
    """Benjamini-Hochberg over layers, all other key columns equal."""
    groups: dict[Any, list[Row]] = {}
    for r in rows:
        if r["p"] is not None:
            key = tuple(r[name] for name in ("view", "proxy", "rank", "timing", "measure", "variant", "null"))
            groups.setdefault(key, []).append(r)
    for members in groups.values():
        for r, q in zip(members, adjust([m["p"] for m in members]), strict=True):
            r["q"] = None if math.isnan(q) else float(q)
    return rows


def _merged(folds: tuple[Cloud, Cloud]) -> Moments | None:
    parts = [cloud.moments for cloud in folds if cloud.moments is not None]
    return parts[0].merge(parts[1]) if len(parts) == 2 else (parts[0] if parts else None)
