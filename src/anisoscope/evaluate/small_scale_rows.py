"""Rows about the small scale: whether the proxy is tangent at all, curvature, and whether the theory's premise holds.

Letters: N tokens, D width.

Neighbourhoods are looked for among some tokens of the second fold, and compared with the proxy of the first, so that a
proxy is not compared with what it was fitted on. First positions are left out.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from anisoscope.errors import BrokenRuleError
from anisoscope.evaluate.judge_sites import Each, Place, Proxies, Request, each_in_turn
from anisoscope.evaluate.row_builders import Row, at_columns, estimate_row, row, stamp
from anisoscope.evaluate.sampled_units import held_units
from anisoscope.evidence.frequency_evidence import BINS, by_type, frequency_bins
from anisoscope.evidence.premise import premise
from anisoscope.geometry.curvature import curvature
from anisoscope.geometry.dimension import two_nn
from anisoscope.geometry.subspace import Subspace
from anisoscope.geometry.tangency import tangency
from anisoscope.geometry.tangents import neighbours_for
from anisoscope.geometry.visible_curvature import visible_curvature
from anisoscope.observe.statistics import Observation
from anisoscope.stats.reservoir import Sample
from anisoscope.vocabulary import bin_subset

ROWS = 1024
POINTS = 64
FEWEST_POINTS = 16
LOCAL = 0.25  # share of all tokens beyond which neighbours are no longer near
OVERLAP = 2  # neighbourhoods that a row may lie in on average: more of them repeat one another, and take as long
CONTROLS = 9  # clouds without tangents: each takes as long as the cloud itself, and 19 tell little more
MOST_DIMENSIONS = 6  # of a quadratic fit: more need more neighbours than a thousand tokens hold, and take long
LEAST = 4  # sequences that a type must come in before its spread is known


def local_rows(observed: Observation, proxies: Proxies, request: Request, each: Each = each_in_turn) -> list[Row]:
    """Everything about neighbourhoods and about cancellation, layer by layer, for the first proxy."""
    views = ("weight", "representation")
    places = [p for view in views for p in proxies if p.view == view and p.proxy == request.proxies[0]]

    def judged(place: Place) -> list[Row]:
        common = stamp(observed) | at_columns(place.at) | {"view": place.view, "proxy": place.proxy}
        common |= {"rank": proxies[place][0].rank, "width": proxies[place][0].width, "timing": "rolling"}
        if place.view == "weight":
            return _premise(observed, place, proxies[place], common, request)
        return _neighbourhoods(observed, place, proxies[place][0], common, request)

    return [r for part in each(judged, [p for p in places if p.subset == "all"]) for r in part]


def _premise(
    observed: Observation, place: Place, pair: tuple[Subspace, Subspace], common: Row, request: Request
) -> list[Row]:
    """How much of the tangent and of the normal gradients of tokens is left when they are added up."""
    folds = [held_units(observed, place.at, fold, pair[1 - fold]) for fold in (0, 1)]
    found = premise(folds, draws=199 if request.resamples is None else min(request.resamples, 199), seed=request.seed)
    common = common | {"tensor": "gradients", "measure": "non_cancellation"}
    judged = {"outcome": found.outcome(request.margin), "detectable": found.detectable}
    rows = [
        estimate_row(common, found.tangent, p=found.p),
        estimate_row(common, found.normal, variant="normal part"),
        estimate_row(common, found.quotient, variant="tangent over normal", **judged),
    ]
    if found.tangent.floor is None:
        return rows
    return [*rows, row(**common, variant="random signs", value=found.tangent.floor, n=found.tangent.n)]


def _neighbourhoods(observed: Observation, place: Place, proxy: Subspace, common: Row, request: Request) -> list[Row]:
    whole = observed.cloud("representation", place.at, "activations", 1).sample("no-first")
    x = whole.values[:ROWS].float()
    common = common | {"tensor": "activations", "subset": "no-first"}
    if len(x) < 2 * POINTS:
        return [row(**common, measure="tangent_overlap", value=math.nan, note=f"only {len(x)} tokens to look among")]
    found = two_nn(x)
    if not math.isfinite(found.value):
        return [row(**common, measure="tangent_overlap", value=math.nan, note=found.note)]
    dim = max(1, min(round(found.value), x.shape[1] // 2 - 1))
    rows = _overlap(x, proxy, dim, common, request)
    rows += _curvature(x, proxy, dim, common)
    if observed.frequency is not None:
        rows += _seen_by_bin(whole, x, observed.frequency, dim, common)
    return rows


def _spaced(x: Tensor, number: int) -> Tensor:
    """Some rows to judge, evenly spaced."""
    return torch.arange(0, len(x), max(1, len(x) // number), device=x.device)


def _overlap(x: Tensor, proxy: Subspace, dim: int, common: Row, request: Request) -> list[Row]:
    """How tangent the proxy is, tested against clouds that have the same covariance and radii and no tangents."""
    near = neighbours_for(dim, len(x))
    if near > LOCAL * len(x):
        note = f"cannot tell: a tangent of {dim} dimensions takes {near} neighbours, and there are {len(x)} tokens"
        return [row(**common, measure="tangent_overlap", value=math.nan, note=note)]
    options = {"dim": dim, "points": _spaced(x, min(POINTS, max(FEWEST_POINTS, OVERLAP * len(x) // near)))}
    try:
        found = tangency(x, proxy, **options, draws=CONTROLS, seed=request.seed)
    except BrokenRuleError as error:
        return [row(**common, measure="tangent_overlap", value=math.nan, note=str(error))]
    common, share = common | {"measure": "tangent_overlap"}, found.share
    rows = [
        estimate_row(common, share, floor=found.control.value, p=found.p),
        estimate_row(common, found.control, variant="elliptical"),
        estimate_row(common, found, variant="over elliptical", p=found.p),
    ]
    if share.normal is not None:
        rows.append(estimate_row(common, share.normal, variant="normal part"))
    chance = {"value": share.floor, "low": share.null_low, "high": share.null_high, "n": share.n, "p": share.p}
    return [*rows, row(**common, **chance, variant="random proxy", null="haar")]


def _curvature(x: Tensor, proxy: Subspace, dim: int, common: Row) -> list[Row]:
    if dim > MOST_DIMENSIONS:
        note = f"not tried: the dimension is {dim}, and {len(x)} tokens allow {MOST_DIMENSIONS}"
        return [row(**common, measure="curvature", variant="rms", value=math.nan, note=note)]
    try:
        found = curvature(x, dim=dim, points=_spaced(x, POINTS // 2), along=proxy)
    except BrokenRuleError as error:
        return [row(**common, measure="curvature", variant="rms", value=math.nan, note=str(error))]
    named = {"rms": found.rms, "mean": found.mean, "along proxy": found.along, "along proxy over random": found.ratio}
    return [estimate_row(common, e, measure="curvature", variant=name) for name, e in named.items() if e is not None]


def _seen_by_bin(whole: Sample, x: Tensor, counts_V: Tensor, dim: int, common: Row) -> list[Row]:
    """Visible curvature around tokens of each bin, at the radius at which the types of that bin are seen."""
    bins_V = frequency_bins(counts_V, by="tokens")
    types = by_type(whole.values.double(), whole.tokens, whole.sequences, least=LEAST)
    bin_of_type, bin_of_row = bins_V[types.ids], bins_V[whole.tokens[: len(x)]]
    rows = []
    for k in range(BINS):
        here = common | {"subset": bin_subset("input", "tokens", k + 1), "proxy": None, "rank": None, "timing": None}
        spread, points = types.spread[bin_of_type == k], torch.nonzero(bin_of_row == k)[:, 0]
        points = points[_spaced(points, POINTS // 2)]
        # Two vectors of a type are √2 times as far apart as each is from their mean.
        radius = float((2 * spread.square().mean()).sqrt()) if len(spread) else math.nan
        told = {"measure": "bin_visible_curvature", "variant": "local tangents"}
        if not radius > 0 or len(points) < 2:
            rows.append(row(**here, **told, value=math.nan, note="too few tokens in this bin"))
            continue
        try:
            seen = visible_curvature(x, [radius], dim=dim, points=points).points[0]
        except BrokenRuleError as error:
            rows.append(row(**here, **told, value=math.nan, note=str(error)))
            continue
        if seen.n < len(points) / 2:
            seen = replace(seen, value=math.nan, low=None, high=None)  # those that are left are the dense places
        rows.append(estimate_row(here, seen, **told, radius=radius))
    return rows
