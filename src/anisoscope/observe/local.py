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
from anisoscope.evidence.cancellation import non_cancellation
from anisoscope.evidence.frequency import BINS, by_type, frequency_bins
from anisoscope.geometry.curvature import curvature
from anisoscope.geometry.dimension import two_nn
from anisoscope.geometry.subspace import Subspace
from anisoscope.geometry.tangents import neighbours_for, tangent_overlap
from anisoscope.geometry.visible import visible_curvature
from anisoscope.observe.judging import Each, Place, Proxies, Request, each_in_turn
from anisoscope.observe.rows import Row, adjusted, estimate_row, row, stamp
from anisoscope.observe.statistics import Observed
from anisoscope.stats.reservoir import Sample

ROWS = 1024
POINTS = 64
FEWEST_POINTS = 16
LOCAL = 0.25  # share of all tokens beyond which neighbours are no longer near
OVERLAP = 2  # neighbourhoods that a row may lie in on average: more of them repeat one another, and take as long
MOST_DIMENSIONS = 6  # of a quadratic fit: more need more neighbours than a thousand tokens hold, and take long
LEAST = 4  # vectors of a type before its spread is known


def local_rows(observed: Observed, proxies: Proxies, request: Request, each: Each = each_in_turn) -> list[Row]:
    """Everything about neighbourhoods and about cancellation, layer by layer, for the first proxy."""
    places = [p for p in proxies if p.view == "representation" and p.proxy == request.proxies[0] and p.cloud == "all"]

    def judged(place: Place) -> list[Row]:
        common = stamp(observed) | {"layer": place.layer, "view": "representation", "proxy": place.proxy}
        common |= {"rank": proxies[place][0].rank, "timing": "rolling"}
        rows = _premise(observed, place, proxies[place], common, request)
        return rows + _neighbourhoods(observed, place, proxies[place][0], common)

    return adjusted([r for part in each(judged, places) for r in part])


def _premise(
    observed: Observed, place: Place, pair: tuple[Subspace, Subspace], common: Row, request: Request
) -> list[Row]:
    """How much of the tangent gradients is left when they are added up; with random signs almost nothing is."""
    if place.layer not in observed.layers("representation", "gradients"):
        return []
    parts, groups = [], []
    joint = torch.linalg.qr(torch.cat([subspace.basis for subspace in pair], 1)).Q  # few coordinates for both proxies
    for fold in (0, 1):
        sample = observed.cloud("representation", place.layer, "gradients", fold).sample()
        basis = pair[1 - fold].basis
        parts.append((sample.values.double() @ basis) @ (basis.T @ joint))
        groups.append(sample.sequences)
    found = non_cancellation(torch.cat(parts), torch.cat(groups), draws=min(request.resamples, 199), seed=request.seed)
    common = common | {"points": "gradients", "n": found.n}
    note = found.note or ("tangent gradients do not cancel" if found.clear else "cancellation is not excluded")
    numbers = {"value": found.value, "low": found.low, "high": found.high, "p": found.p, "note": note}
    return [
        row(**common, **numbers, measure="non_cancellation"),
        row(**common, measure="non_cancellation", variant="random signs", value=found.floor_high),
    ]


def _neighbourhoods(observed: Observed, place: Place, proxy: Subspace, common: Row) -> list[Row]:
    whole = observed.cloud("representation", place.layer, "activations", 1).sample("no-first")
    x = whole.values[:ROWS].float()
    common = common | {"points": "activations", "cloud": "no-first"}
    if len(x) < 2 * POINTS:
        return [row(**common, measure="tangent_overlap", value=math.nan, note=f"only {len(x)} tokens to look among")]
    found = two_nn(x)
    if not math.isfinite(found.value):
        return [row(**common, measure="tangent_overlap", value=math.nan, note=found.note)]
    dim = max(1, min(round(found.value), x.shape[1] // 2 - 1))
    rows = _overlap(x, proxy, dim, common)
    rows += _curvature(x, proxy, dim, common)
    if observed.frequency is not None:
        rows += _seen_by_bin(whole, x, observed.frequency, dim, common)
    return rows


def _spaced(x: Tensor, number: int) -> Tensor:
    """Some rows to judge, evenly spaced."""
    return torch.arange(0, len(x), max(1, len(x) // number), device=x.device)


def _overlap(x: Tensor, proxy: Subspace, dim: int, common: Row) -> list[Row]:
    near = neighbours_for(dim, len(x))
    if near > LOCAL * len(x):
        note = f"cannot tell: a tangent of {dim} dimensions takes {near} neighbours, and there are {len(x)} tokens"
        return [row(**common, measure="tangent_overlap", value=math.nan, note=note)]
    number = min(POINTS, max(FEWEST_POINTS, OVERLAP * len(x) // near))
    try:
        found = tangent_overlap(x, proxy, dim=dim, points=_spaced(x, number))
    except BrokenRuleError as error:
        return [row(**common, measure="tangent_overlap", value=math.nan, note=str(error))]
    rows = [estimate_row(common, found, measure="tangent_overlap", p=found.p)]
    if found.normal is not None:
        rows.append(estimate_row(common, found.normal, measure="tangent_overlap", variant="normal part"))
    chance = {"value": found.floor, "low": found.null_low, "high": found.null_high, "n": found.n}
    return [*rows, row(**common, **chance, measure="tangent_overlap", variant="random proxy", null="haar")]


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
    types = by_type(whole.values.double(), whole.tokens, least=LEAST)
    bin_of_type, bin_of_row = bins_V[types.ids], bins_V[whole.tokens[: len(x)]]
    rows = []
    for k in range(BINS):
        here = common | {"cloud": f"input tokens {k + 1}/{BINS}", "proxy": None, "rank": None, "timing": None}
        spread, points = types.spread[bin_of_type == k], torch.nonzero(bin_of_row == k)[:, 0][: POINTS // 2]
        radius = float(spread.square().mean().sqrt()) if len(spread) else math.nan
        told = {"measure": "bin_visible_curvature", "variant": "local tangents"}
        if not radius > 0 or len(points) < 2:
            rows.append(row(**here, **told, value=math.nan, note="too few tokens in this bin"))
            continue
        try:
            seen = visible_curvature(x, [radius], dim=dim, points=points).points[0]
        except BrokenRuleError as error:
            rows.append(row(**here, **told, value=math.nan, note=str(error)))
            continue
        said = f"seen at radius {radius:.3g}"
        rows.append(estimate_row(here, replace(seen, note=f"{said}; {seen.note}" if seen.note else said), **told))
    return rows
