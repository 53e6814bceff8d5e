"""Rows about frequency: where frequent types lie, how they spread, and whose gradients a proxy captures.

Letters: N tokens, n types, V vocabulary, D width.

First positions are left out of contextual vectors: in many decoders they are a sink that says nothing about its token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from anisoscope.capture.sites import SiteKey
from anisoscope.evaluate.judge_sites import Each, Place, Proxies, Request, each_in_turn
from anisoscope.evaluate.row_builders import Row, at_columns, estimate_row, row, stamp
from anisoscope.evaluate.trajectories import Trajectories
from anisoscope.evidence.correlation import correlations
from anisoscope.evidence.energy import row_energies
from anisoscope.evidence.frequency_evidence import (
    BINS,
    ByUnit,
    Trend,
    Types,
    by_type,
    enrichment_by_bin,
    frequency_bins,
    isotropy_losses,
    ratio_by_bin,
    shares_by_bin,
)
from anisoscope.geometry.results import Estimate
from anisoscope.geometry.subspace import Subspace
from anisoscope.observe.statistics import Name, Observation
from anisoscope.stats.reservoir import Reservoir, Sample
from anisoscope.vocabulary import BIN_SIZES, VIEWS, bin_subset

LEAST = 4  # sequences that a type must come in before it has a mean and a spread
SHOWN = 64  # types of a table whose places have rows, for a scatter


def frequency_rows(observed: Observation, proxies: Proxies, request: Request, each: Each = each_in_turn) -> list[Row]:
    """All that an observation says about frequency; nothing where counts are not known."""
    counts = observed.frequency
    if counts is None or not bool((counts > 0).any()):
        return []
    binned = {by: frequency_bins(counts, by=by) for by in BIN_SIZES}
    rows = _table_rows(observed, counts)
    places = [place for place in proxies if _judged(place, request)]

    def judged(place: Place) -> list[Row]:
        return _place_rows(observed, place, proxies[place], counts, binned, request)

    return rows + [r for part in each(judged, places) for r in part]


def _judged(place: Place, request: Request) -> bool:
    return place.view in ("representation", "embedding") and place.proxy == request.proxies[0] and place.subset == "all"


def trajectory_rows(
    trajectories: Trajectories,
    counts_V: Tensor,
    request: Request,
    *,
    step: int,
    tokens: int | None = None,
    embedding_site: str = "",
) -> list[Row]:
    """Correlations of log count with how far embeddings, and contextual vectors by type, have wandered so far."""
    when = {"step": step, "tokens": tokens}
    found = [
        (when | _table_columns(name, embedding_site), trajectory.wandered())
        for name, trajectory in trajectories.tables.items()
    ]
    contextual = {"view": "representation", "tensor": "activations", "subset": "no-first"}
    for at, types in trajectories.contexts.items():
        found.append((when | contextual | at_columns(at), types.wandered()))
    rows: list[Row] = []
    for common, wandered in found:
        if wandered is not None:
            ids, counts_V = wandered.ids, counts_V.to(wandered.ids.device)
            seen = ids < len(counts_V)
            seen[seen.clone()] = counts_V[ids[seen]] > 0
            x, y = counts_V[ids[seen]].double().log(), wandered.variance[seen]
            rows += _correlation_rows(common, x, {"trajectory": y}, wandered.norm[seen])
    return rows


def _table_columns(name: str, embedding_site: str) -> Row:
    """A table of embeddings; of the output table the module's name is not known."""
    return {
        "layer": 0,
        "view": "embedding",
        "tensor": name,
        "site": (embedding_site or None) if name == "input" else None,
    }


def _table_rows(observed: Observation, counts_V: Tensor) -> list[Row]:
    """Correlations of log count with where the embeddings lie."""
    rows: list[Row] = []
    for name, reading in observed.tables.items():
        counts = counts_V[reading.ids]
        seen = counts > 0
        x, table = counts[seen].double().log(), reading.rows[seen].double()
        norm = table.norm(dim=1)
        common = stamp(observed) | _table_columns(name, observed.embedding_site)
        measured = {f"distance, {c}": (table - getattr(reading, c)).norm(dim=1) for c in ("plain", "weighted")}
        rows += _correlation_rows(common, x, measured, norm)
        rows += _shown(common, reading.ids[seen], counts[seen], measured)
    return rows


def _shown(common: Row, ids: Tensor, counts: Tensor, measured: dict[str, Tensor]) -> list[Row]:
    """Some types from the rarest to the most frequent with their distances; ``item`` counts them, n is their count."""
    order = counts.argsort(stable=True)
    spaced = torch.linspace(0, max(len(order) - 1, 0), SHOWN, device=order.device).round().long().unique()
    chosen = order[spaced] if len(order) else order
    found = []
    for what, y in measured.items():
        for number, k in enumerate(chosen.tolist()):
            numbers = {"value": float(y[k]), "n": int(counts[k]), "token_id": int(ids[k]), "item": number}
            found.append(row(**common, **numbers, measure="type_place", variant=what))
    return found


def _correlation_rows(common: Row, x: Tensor, measured: dict[str, Tensor], held: Tensor) -> list[Row]:
    rows = []
    for what, y in measured.items():
        for how, found in correlations(x, y, held).items():
            rows.append(estimate_row(common, found, measure="frequency_correlation", variant=f"{what}, {how}"))
    return rows


def _place_rows(
    observed: Observation,
    place: Place,
    pair: tuple[Subspace, Subspace],
    counts_V: Tensor,
    binned: dict[str, Tensor],
    request: Request,
) -> list[Row]:
    rows: list[Row] = []
    tensors = [tensor for tensor in VIEWS[place.view].judged_on if tensor not in ("update-raw", "change")]
    for tensor in tensors:
        if place.at in observed.sites(place.view, tensor):
            rows += _gradient_rows(observed, place, tensor, pair, binned)
    if place.view == "representation" and place.at in observed.sites("representation", "activations"):
        rows += _context_rows(observed, place, pair, counts_V, binned, request)
    return rows


def _gradient_rows(
    observed: Observation, place: Place, tensor: str, pair: tuple[Subspace, Subspace], binned: dict[str, Tensor]
) -> list[Row]:
    """Enrichment, energy and lost isotropy by bin of the input token and of the target."""
    common = stamp(observed) | at_columns(place.at) | {"view": place.view, "tensor": tensor, "timing": "rolling"}
    common |= {"proxy": place.proxy, "rank": pair[0].rank, "width": pair[0].width}
    clouds = [observed.cloud(place.view, place.at, tensor, fold) for fold in (0, 1)]
    samples, second = [cloud.sample() for cloud in clouds], clouds[0].of("all").second + clouds[1].of("all").second
    columns = []
    for fold, sample in enumerate(samples):
        inside, outside, _ = row_energies(sample.values, pair[1 - fold])
        loss = isotropy_losses(sample.values, second)
        columns.append({"inside": inside, "outside": outside, "energy": inside + outside, "loss": loss})
    rows: list[Row] = []
    for which, tokens in _sides(observed, place.view, samples):
        for by, bins_V in binned.items():
            folds = [
                ByUnit.of(column, _bins(bins_V, token), sample.sequences)
                for column, token, sample in zip(columns, tokens, samples, strict=True)
            ]
            units = folds[0].and_also(folds[1])
            enriched, trend = enrichment_by_bin(units, rank=pair[0].rank, width=pair[0].width)
            bins = which, by
            rows += _bin_rows(common, bins, "bin_enrichment", enriched, null="haar")
            rows.append(_trend_row(common, bins, "bin_enrichment", trend))
            rows += _bin_rows(common, bins, "bin_energy", shares_by_bin(units, "energy"))
            # Every loss holds the second moment of all rows, so losses are not independent and have no interval.
            rows += _bin_rows(common, bins, "bin_isotropy_loss", shares_by_bin(units, "loss", intervals=False))
    return rows


def _sides(observed: Observation, view: str, samples: list[Sample]) -> Iterator[tuple[str, list[Tensor]]]:
    """The tokens whose frequency counts: those that went in, and those that were asked for where they are known."""
    yield "input", [sample.tokens for sample in samples]
    if view != "representation":
        return
    kept = [observed.statistics.get(Name("tokens", 0, "targets", fold, "kept")) for fold in (0, 1)]
    if all(isinstance(part, Reservoir) for part in kept):
        found = [part.sample() for part in kept if isinstance(part, Reservoir)]
        if all(torch.equal(a.sequences, b.sequences) for a, b in zip(found, samples, strict=True)):
            yield "target", [part.values[:, 0] for part in found]


def _bins(bins_V: Tensor, tokens_N: Tensor) -> Tensor:
    """The bin of each token; −1 for positions that nothing was asked of."""
    return torch.where(tokens_N >= 0, bins_V[tokens_N.clamp_min(0)], -1)


@dataclass(frozen=True, slots=True, eq=False)
class _Context:
    """Contextual vectors of both folds, without first positions."""

    values: Tensor
    tokens: Tensor
    sequences: Tensor
    fold: Tensor

    @classmethod
    def of(cls, observed: Observation, at: SiteKey) -> _Context:
        parts = [observed.cloud("representation", at, "activations", fold).sample("no-first") for fold in (0, 1)]
        fold = torch.cat([torch.full_like(part.tokens, k) for k, part in enumerate(parts)])
        values, tokens = torch.cat([p.values.double() for p in parts]), torch.cat([p.tokens for p in parts])
        return cls(values, tokens, torch.cat([p.sequences for p in parts]), fold)


def _context_rows(
    observed: Observation,
    place: Place,
    pair: tuple[Subspace, Subspace],
    counts_V: Tensor,
    binned: dict[str, Tensor],
    request: Request,
) -> list[Row]:
    """Type means against frequency, spread about them, and how much of that spread leaves the proxy."""
    context = _Context.of(observed, place.at)
    types = by_type(context.values, context.tokens, context.sequences, least=LEAST)
    common = stamp(observed) | at_columns(place.at) | {"view": "representation", "tensor": "activations"}
    common |= {"subset": "no-first", "width": pair[0].width}
    if not len(types.ids):
        note = f"no type comes in {LEAST} sequences"
        return [row(**common, measure="frequency_correlation", value=math.nan, note=note)]
    known = counts_V[types.ids] > 0
    measured = {
        "distance, plain": types.distance(types.means.mean(0)),
        "distance, weighted": types.distance(context.values.mean(0)),
        "spread": types.spread,
    }
    x, norm = counts_V[types.ids][known].double().log(), types.means.norm(dim=1)
    rows = _correlation_rows(common, x, {name: y[known] for name, y in measured.items()}, norm[known])
    scale = float((context.values - context.values.mean(0)).square().sum(1).mean())
    for by, bins_V in binned.items():
        squares = {"square": types.spread.square() / scale, "one": torch.ones_like(types.spread)}
        units = ByUnit.of(squares, bins_V[types.ids], types.ids)
        spread, trend = ratio_by_bin(units, "square", "one")
        rows += _bin_rows(common, ("input", by), "bin_spread", [_root(found) for found in spread])
        rows.append(_trend_row(common, ("input", by), "bin_spread", Trend(_halved(trend.slope), trend.p)))
        seen, trend = ratio_by_bin(_around_means(context, types, pair, bins_V), "outside", "inside")
        fitted = common | {"proxy": place.proxy, "rank": pair[0].rank, "timing": "rolling"}
        rows += _bin_rows(fitted, ("input", by), "bin_visible_curvature", seen)
        rows.append(_trend_row(fitted, ("input", by), "bin_visible_curvature", trend))
    return rows


def _around_means(context: _Context, types: Types, pair: tuple[Subspace, Subspace], bins_V: Tensor) -> ByUnit:
    """Variance about the type's mean inside and outside the proxy that was fitted on the other fold."""
    parts = []
    for fold in (0, 1):
        chosen = (context.fold == fold) & (types.place >= 0)
        place = types.place[chosen]
        inside, outside, _ = row_energies(context.values[chosen] - types.means[place], pair[1 - fold])
        parts.append((inside, outside, place))
    inside, outside, place = (torch.cat(part) for part in zip(*parts, strict=True))
    ids = types.ids[place]
    return ByUnit.of({"inside": inside, "outside": outside}, bins_V[ids], ids)


def _root(found: Estimate) -> Estimate:
    ends = [None if end is None else math.sqrt(end) for end in (found.low, found.high)]
    return replace(found, value=math.sqrt(found.value), low=ends[0], high=ends[1])


def _halved(found: Estimate) -> Estimate:
    ends = [None if end is None else end / 2 for end in (found.low, found.high)]
    return replace(found, value=found.value / 2, low=ends[0], high=ends[1])


def _bin_rows(
    common: Row, bins: tuple[str, str], measure: str, found: list[Estimate], null: str | None = None
) -> list[Row]:
    names = [bin_subset(*bins, k) for k in (*range(1, BINS + 1), -1)]  # the last only of shares
    return [
        estimate_row(common | {"subset": name}, estimate, measure=measure, null=null)
        for name, estimate in zip(names, found, strict=False)
    ]


def _trend_row(common: Row, bins: tuple[str, str], measure: str, found: Trend) -> Row:
    return estimate_row(common | {"subset": bin_subset(*bins)}, found.slope, measure=f"{measure}_trend", p=found.p)
