"""The rows of an observation: one number each, every column there, what is not known null."""

from __future__ import annotations

import math
from typing import Any

import torch

from anisoscope.evidence.inference import FEWEST_UNITS, adjust
from anisoscope.evidence.result import Evidence
from anisoscope.geometry.dimension import two_nn
from anisoscope.geometry.isotropy import isoscore_star, participation_ratio, plain_average_cosine, spectral_measures
from anisoscope.geometry.results import Estimate
from anisoscope.geometry.subspace import principal_angles
from anisoscope.observe.judging import Case, Each, Proxies, each_in_turn
from anisoscope.observe.statistics import Observed

Row = dict[str, Any]
NOTE_IS_A_TOKEN = ("concept", "type_place")  # whoever has a tokeniser makes text of the id in the note
_FIELDS = (
    "step",
    "tokens",
    "layer",
    "site",
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


def row(**given: Any) -> Row:
    """A row with every column; what is not given is null."""
    return {name: given.get(name) for name in _FIELDS} | {"cloud": given.get("cloud", "all")}


def estimate_row(common: Row, found: Estimate, **given: Any) -> Row:
    """A row with the numbers of an estimate."""
    numbers = {"value": found.value, "low": found.low, "high": found.high, "n": found.n, "note": found.note}
    return row(**(common | numbers | given))


def cloud_rows(observed: Observed, each: Each = each_in_turn) -> list[Row]:
    """Isotropy of activations and gradients, both folds together, with and without first positions.

    Spectral measures are of all tokens; the average cosine, which moments do not hold, is of the sequences kept.
    """
    clouds = [
        (layer, points, cloud)
        for points in ("activations", "gradients")
        for layer in observed.layers("representation", points)
        for cloud in ("all", "no-first")
    ]

    def measured(which: tuple[int, str, str]) -> list[Row]:
        layer, points, cloud = which
        first, second = (observed.cloud("representation", layer, points, fold) for fold in (0, 1))
        moments = first.of(cloud).merge(second.of(cloud))
        if float(moments.count) < 3:
            return []
        kept = [fold.sample(cloud).values for fold in (first, second)]
        found: dict[str, Estimate] = {
            "isoscore_star": isoscore_star(moments),
            "participation_ratio": participation_ratio(moments),
            **spectral_measures(moments),
        }
        if sum(map(len, kept)) >= 2:
            found["average_cosine"] = plain_average_cosine(*kept)
        common = {"layer": layer, "view": "representation", "points": points, "cloud": cloud}
        return [
            row(
                **stamp(observed),
                **common,
                measure=measure,
                value=estimate.value,
                low=estimate.low,
                high=estimate.high,
                n=estimate.n,
                note=estimate.note,
            )
            for measure, estimate in found.items()
        ]

    return [row for rows in each(measured, clouds) for row in rows]


def dimension_rows(observed: Observed, fewest: int) -> list[Row]:
    """Intrinsic dimension of the probe, layer by layer."""
    rows = []
    for layer, kept in sorted((observed.probe or {}).items()):
        sample = kept.sample()
        for cloud, chosen in (("all", sample.positions >= 0), ("no-first", sample.positions > 0)):
            found = two_nn(sample.values[chosen])
            few = f"{found.n} unique rows, fewer than {fewest}" if found.n < fewest else None
            rows.append(
                row(
                    **stamp(observed),
                    layer=layer,
                    view="representation",
                    points="activations",
                    cloud=cloud,
                    measure="two_nn",
                    variant="probe",
                    value=found.value,
                    low=found.low,
                    high=found.high,
                    n=found.n,
                    note="; ".join(note for note in (found.note, few) if note) or None,
                )
            )
    return rows


def drift_rows(observed: Observed, now: Proxies, before: Proxies, *, since: str) -> list[Row]:
    """Mean principal angle in degrees to earlier proxies of the same fold: a moving subspace is no fading effect."""
    rows = []
    for place, pair in now.items():
        if place not in before:
            continue
        angles = torch.cat([principal_angles(a, b) for a, b in zip(pair, before[place], strict=True)])
        rows.append(
            row(
                **stamp(observed),
                layer=place.layer,
                view=place.view,
                points="activations",
                cloud=place.cloud,
                proxy=place.proxy,
                rank=pair[0].rank,
                timing="rolling",
                measure="angle",
                variant=f"since {since}",
                value=float(angles.mean().rad2deg()),
                n=angles.numel(),
            )
        )
    return rows


def evidence_rows(case: Case, found: Evidence, timing: str, observed: Observed) -> list[Row]:
    """Everything that one judgement says."""
    place, points = case.place, case.points
    common = stamp(observed) | {
        "layer": place.layer,
        "view": place.view,
        "points": points,
        "cloud": place.cloud,
        "proxy": place.proxy,
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


def skipped_row(step: int, why: str, tokens: int | None = None) -> Row:
    """An observation that did not come about, and the reason."""
    return row(step=step, tokens=tokens, cloud=None, measure="skipped", note=why)


def undetermined_row(observed: Observed, what: str, why: str) -> Row:
    """A null that could not be had at this observation, or what is to be known of the points ``what``."""
    if what.startswith("targets"):
        return row(**stamp(observed), cloud=None, measure="enrichment", null=what, value=math.nan, note=why)
    return row(**stamp(observed), view="embedding", points=what, cloud=None, measure="note", note=why)


def stamp(observed: Observed) -> Row:
    """When it was."""
    return {"step": observed.step, "tokens": observed.tokens}


def adjusted(rows: list[Row]) -> list[Row]:
    """Benjamini-Hochberg over layers, all other key columns equal."""
    groups: dict[Any, list[Row]] = {}
    for r in rows:
        if r["p"] is not None:
            key = tuple(
                r[name] for name in ("view", "points", "cloud", "proxy", "rank", "timing", "measure", "variant", "null")
            )
            groups.setdefault(key, []).append(r)
    for members in groups.values():
        for r, q in zip(members, adjust([m["p"] for m in members]), strict=True):
            r["q"] = None if math.isnan(q) else float(q)
    return rows
