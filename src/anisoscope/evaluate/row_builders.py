"""The rows of an observation: one number each, every column there, what is not known null."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from anisoscope.capture.sites import SiteKey
from anisoscope.evaluate.judge_sites import Each, JudgedCase, Place, Proxies, each_in_turn
from anisoscope.evaluate.measure_intervals import kept_units
from anisoscope.evidence.inference import FEWEST_UNITS, adjust
from anisoscope.evidence.pooled import PooledLayer, pool
from anisoscope.evidence.result import Evidence
from anisoscope.geometry.cloud_parts import Material, joined
from anisoscope.geometry.measure_registry import methods
from anisoscope.geometry.results import Estimate, ScalePoint
from anisoscope.geometry.selections import neighbours_of_selections
from anisoscope.geometry.subspace import principal_angles
from anisoscope.observe.observation_cost import Cost
from anisoscope.observe.statistics import Observation
from anisoscope.stats.unit_directions import UnitSum
from anisoscope.store.schema import COLUMNS
from anisoscope.verdict import MARGIN, outcome_of, outcome_over
from anisoscope.vocabulary import CAPTURED_SUBSETS, LABEL_NULLS, MEASURES, VIEWS, rank_of

Row = dict[str, Any]
OF_A_RUN = ("run", "model", "role", "seed")
"""Columns that whoever writes the rows adds to all of them."""
CLUSTERED_ROWS = 4096
"""Rows of an observation that the clusters of local isotropy are formed of."""
_FIELDS = tuple(name for name in COLUMNS if name not in OF_A_RUN)
_FAMILY = ("view", "tensor", "subset", "proxy", "timing", "measure", "variant", "null")


def row(**given: Any) -> Row:
    """A row with every column; what is not given is null."""
    return {name: given.get(name) for name in _FIELDS} | {"subset": given.get("subset", "all")}


def estimate_row(common: Row, found: Estimate, **given: Any) -> Row:
    """A row with the numbers of an estimate."""
    numbers = {
        name: getattr(found, name)
        for name in ("value", "floor", "low", "high", "low90", "high90", "se", "df", "units", "n", "note")
    }
    if isinstance(found, ScalePoint):
        numbers["radius"] = found.radius
    return row(**(common | numbers | given))


def at_columns(at: SiteKey) -> Row:
    """Layer and module."""
    return {"layer": at.layer, "site": at.name or None}


def place_columns(place: Place) -> Row:
    """Where a proxy was fitted."""
    return at_columns(place.at) | {"view": place.view, "subset": place.subset, "proxy": place.proxy}


def measure_rows(
    observed: Observation, each: Each = each_in_turn, *, tensors: Sequence[str] = ("activations", "gradients")
) -> list[Row]:
    """Registered measures of activations and gradients, both folds together, with and without first positions.

    Measures of moments are of all tokens; those that need rows are of the sequences kept.
    """
    cases = [
        (view.name, at, tensor, subset)
        for view in VIEWS.values()
        if view.kind == "representation"
        for tensor in tensors
        for at in observed.sites(view.name, tensor)
        for subset in CAPTURED_SUBSETS
    ]
    asked = [method for method in methods(training=True) if method.needs != "neighbours"]

    def measured(which: tuple[str, SiteKey, str, str]) -> list[Row]:
        view, at, tensor, subset = which
        first, second = (observed.cloud(view, at, tensor, fold) for fold in (0, 1))
        moments = first.of(subset).merge(second.of(subset))
        if float(moments.count) < 3:
            return []
        samples = [fold.sample(subset) for fold in (first, second)]
        kept = [sample.values for sample in samples]
        enough = sum(map(len, kept)) >= 2
        material = Material(
            moments=moments,
            directions=(lambda: UnitSum.of(*kept)) if enough else None,
            sample=joined(kept) if enough else None,
            most_clustered=CLUSTERED_ROWS,
        )
        common = stamp(observed) | at_columns(at) | {"view": view, "tensor": tensor, "subset": subset}
        common |= {"width": moments.width}
        units = kept_units(material, samples)  # before measures: the decomposition it needs serves them too
        return [
            estimate_row(
                common,
                estimate if units is None else units.estimate(method, estimate, variant),
                measure=method.name,
                variant=MEASURES[method.name].row_variant(variant),
            )
            for method in asked
            if tensor in method.tensors
            for variant, estimate in method.estimates(material, usual=True)
        ]

    return [row for rows in each(measured, cases) for row in rows]


def probe_rows(observed: Observation, fewest: int, each: Each = each_in_turn) -> list[Row]:
    """Registered measures of neighbours, on the probe, layer by layer."""
    asked = [method for method in methods(training=True) if method.needs == "neighbours"]
    k = max((method.k for method in asked), default=0)

    def measured(at: SiteKey) -> list[Row]:
        sample = observed.probe[at].sample()
        places = {"all": sample.positions >= 0, "no-first": sample.positions > 0}
        selections = {subset: places[subset].nonzero()[:, 0] for subset in CAPTURED_SUBSETS}
        searched = neighbours_of_selections(sample.values, selections, k) if k else {}
        common = stamp(observed) | at_columns(at) | {"view": "representation", "tensor": "activations"}
        rows = []
        for subset, neighbours in searched.items():
            x_ND = sample.values[selections[subset]]
            material = Material(sample=lambda x=x_ND: x, neighbours=lambda found=neighbours: found, k=k)
            own = common | {"subset": subset, "width": x_ND.shape[1], "variant": "probe"}
            for method in asked:
                for _, found in method.estimates(material, usual=True):
                    few = f"{found.n} unique rows, fewer than {fewest}" if found.n < fewest else None
                    note = "; ".join(note for note in (found.note, few) if note) or None
                    rows.append(estimate_row(own, found, measure=method.name, note=note))
        return rows

    return [row for rows in each(measured, sorted(observed.probe)) for row in rows]


def drift_rows(observed: Observation, now: Proxies, before: Proxies, *, since: str) -> list[Row]:
    """Mean principal angle in degrees to earlier proxies of the same fold: a moving subspace is no fading effect."""
    rows = []
    for place, pair in now.items():
        if place in before:
            angles = torch.cat([principal_angles(a, b) for a, b in zip(pair, before[place], strict=True)])
            rows.append(angle_row(stamp(observed) | place_columns(place), pair[0].rank, angles, since))
    return rows


def angle_row(common: Row, rank: int, angles: torch.Tensor, since: str) -> Row:
    """One row of drift."""
    common = common | {"tensor": "activations", "rank": rank, "timing": "rolling"}
    numbers = {"value": float(angles.mean().rad2deg()), "n": angles.numel()}
    return row(**common, measure="angle", variant=f"since {since}", **numbers)


def evidence_rows(case: JudgedCase, found: Evidence, timing: str, observed: Observation) -> list[Row]:
    """Everything that one judgement says."""
    common = stamp(observed) | place_columns(case.place)
    common |= {"tensor": case.tensor, "rank": found.rank, "width": found.width, "timing": timing, "n": found.n}
    few = found.folds is not None and min(len(u.ids) for u in found.folds) < FEWEST_UNITS
    note = f"a fold under {FEWEST_UNITS} sequences: no p and no intervals" if few else found.note
    if found.folds is None and note is None:
        note = "no interval: its parts by sequence are not known"
    rows = [row(**common, measure="energy", value=found.energy, floor=found.rank / found.width, note=note)]
    for null, e in found.enrichment.items():
        said = {"measure": "enrichment", "null": null, "note": e.note or note}
        if few:
            rows.append(row(**(common | said), value=e.value, floor=e.floor) | {"n": e.n})
        else:
            p = found.p_paper if null == "normal" else found.p.get(null)
            floor = None if p is None or null == "normal" else found.p_floor.get(null)
            rows.append(estimate_row(common, e, **said, p=p, q_floor=floor, detectable=found.detectable.get(null)))
    drawn = {"p": None if few else found.isotropy_gain_p}
    drawn["q_floor"] = None if drawn["p"] is None else found.isotropy_gain_p_floor
    # The captured share is the gain over a constant of the cloud: one p serves both.
    for measure, e in (("isotropy_gain", found.isotropy_gain_estimate), ("captured", found.captured_estimate)):
        if e is not None:
            bare = Estimate(value=e.value, n=e.n, floor=e.floor) if few else e
            rows.append(estimate_row(common, bare, measure=measure, n=found.n, **drawn))
    for measure, value, null in (
        ("isotropy_gain_normal", found.isotropy_gain_null, "normal"),
        ("radial", found.radial, None),
    ):
        if value is not None:
            rows.append(row(**common, measure=measure, null=null, value=value))
    if found.isotropy_gain_zeta0 is not None:
        rows.append(row(**common, measure="isotropy_gain", variant="zeta0", value=found.isotropy_gain_zeta0))
    return rows


def fit_rows(observed: Observation, proxies: Proxies, timing: str) -> list[Row]:
    """Of every semi-NMF the loss that it ended with, beside that of its span, and whether it had come to rest."""
    rows = []
    for place, pair in proxies.items():
        factors = [subspace.factors for subspace in pair if subspace.factors is not None]
        if len(factors) < len(pair):
            continue
        common = stamp(observed) | place_columns(place) | {"tensor": VIEWS[place.view].fitted_on, "timing": timing}
        common |= {"rank": pair[0].rank, "width": pair[0].width, "n": sum(subspace.n for subspace in pair)}
        rounds = " and ".join(str(len(one.loss_trace) - 1) for one in factors)
        loss = sum(one.loss_trace[-1] for one in factors) / len(factors)
        span = 1 - sum(subspace.explained for subspace in pair) / len(pair)
        note = f"after {rounds} iterations"
        rows.append(row(**common, measure="semi_nmf_loss", value=loss, floor=span, note=note))
        share = sum(one.converged for one in factors) / len(factors)
        rows.append(row(**common, measure="semi_nmf_converged", value=share, note=note))
    return rows


def skipped_row(step: int, why: str, tokens: int | None = None) -> Row:
    """An observation that did not come about, and the reason."""
    return row(step=step, tokens=tokens, subset=None, measure="skipped", note=why)


def cost_rows(step: int, tokens: int | None, cost: Cost) -> list[Row]:
    """What an observation cost; what took no time is left out."""
    return [
        row(step=step, tokens=tokens, subset=None, measure="cost", variant=kind, value=seconds)
        for kind, seconds in asdict(cost).items()
        if seconds
    ]


def undetermined_row(observed: Observation, what: str | SiteKey, why: str) -> Row:
    """A null that could not be had at this observation, a place left out, or what is to be known of a tensor."""
    if isinstance(what, SiteKey):
        return row(**stamp(observed), **at_columns(what), subset=None, measure="note", note=why)
    if what in LABEL_NULLS:
        return row(**stamp(observed), subset=None, measure="enrichment", null=what, value=math.nan, note=why)
    return row(**stamp(observed), view="embedding", tensor=what, subset=None, measure="note", note=why)


def rank_notes(observed: Observation, notes: Mapping[Place, str]) -> list[Row]:
    """What is to be known of ranks that places found for themselves."""
    common = stamp(observed)
    return [row(**common, **place_columns(place), measure="note", note=note) for place, note in notes.items()]


def other_rank_rows(
    found: Mapping[JudgedCase, Evidence], initial: Mapping[JudgedCase, Evidence], timing: str, observed: Observation
) -> list[Row]:
    """Where step 0 had a proxy of another rank: ``init`` is not measured there, and why."""
    rows = []
    for case, e in found.items():
        start = initial.get(case)
        if start is not None and start.rank != e.rank:
            common = stamp(observed) | place_columns(case.place) | {"tensor": case.tensor, "timing": timing}
            common |= {"rank": e.rank, "width": e.width, "measure": "enrichment", "null": "init"}
            note = f"step 0 had a proxy of rank {start.rank} here, this one has {e.rank}: their shares do not compare"
            rows.append(row(**common, value=math.nan, note=note))
    return rows


def stamp(observed: Observation) -> Row:
    """When it was."""
    return {"step": observed.step, "tokens": observed.tokens}


def with_token_texts(rows: list[Row], text: Callable[[int], str]) -> list[Row]:
    """Rows about tokens with the text of their token."""
    return [r if r["token_id"] is None else r | {"token": text(r["token_id"])} for r in rows]


def adjusted(rows: list[Row], margin: float = MARGIN) -> list[Row]:
    """Benjamini-Hochberg over layers, all other key columns equal; then the outcome of each row against its null.

    The p of Bernas et al. (2026) over ``normal`` is shown and not adjusted: it decides nothing.
    """
    groups: dict[Any, list[Row]] = {}
    for r in rows:
        if r["p"] is not None and r["null"] != "normal":
            groups.setdefault((*(r[name] for name in _FAMILY), rank_of(r)), []).append(r)
    for members in groups.values():
        for r, q in zip(members, adjust([m["p"] for m in members]), strict=True):
            r["q"] = None if math.isnan(q) else float(q)
            if r["q_floor"] is not None:  # so far the smallest p of this row: adjusted as that of a lone layer
                r["q_floor"] = min(1.0, len(members) * r["q_floor"])
    for r in rows:
        if r["measure"] == "enrichment" and r["null"] != "normal":
            r["outcome"] = outcome_of(r, margin).outcome
        elif r["measure"] in ("isotropy_gain", "captured") and r["variant"] is None:
            r["outcome"] = outcome_over(r, r["floor"])
        elif r["measure"] == "tangent_overlap" and r["variant"] == "over elliptical":
            r["outcome"] = outcome_over(r, 0.0)  # a difference
    return rows


def pooled_rows(
    found: Sequence[tuple[JudgedCase, PooledLayer]], timing: str, when: Row, *, rule: str | None = None
) -> list[Row]:
    """Over all layers: the mean log odds ratio over each null, with its interval by units that layers share.

    Where layers found their ranks by a ``rule``, they are pooled whatever these are.
    """
    groups: dict[tuple[Any, ...], list[PooledLayer]] = {}
    for case, layer in found:
        place = case.place
        rank = layer.rank if rule is None else None
        groups.setdefault((place.view, place.subset, place.proxy, case.tensor, rank), []).append(layer)
    rows = []
    for (view, subset, proxy, tensor, rank), members in groups.items():
        ranks = {layer.rank for layer in members}
        rank = rank if rank is not None or len(ranks) > 1 else ranks.pop()
        common = when | {"view": view, "subset": subset, "proxy": proxy, "tensor": tensor, "rank": rank}
        common |= {"timing": timing, "width": members[0].width, "measure": "pooled_enrichment"}
        for null in dict.fromkeys(null for layer in members for null in layer.enrichment):
            pooled = pool(members, null)
            if pooled is not None:
                rows.append(estimate_row(common, pooled, null=null))
    return rows
