"""Ablations of an observation: other ranks of the first proxy, and the tokens behind concepts."""

from __future__ import annotations

from dataclasses import replace

from anisoscope.observe.judging import Each, Proxies, Request, each_in_turn, fit_proxies, judge_observation
from anisoscope.observe.rows import Row, adjusted, evidence_rows, place_columns, row, stamp
from anisoscope.observe.statistics import Observation

_CONCEPTS, _TOKENS = 8, 6


def rank_rows(observed: Observation, request: Request, each: Each = each_in_turn) -> list[Row]:
    """Energy and enrichment over ``haar`` of the first method at the other ranks that were asked for."""
    rows: list[Row] = []
    for rank in request.ranks:
        asked = replace(
            request,
            rank=rank,
            proxies=request.proxies[:1],
            subsets=("all",),
            nulls=("haar",),
            ranks=(),
            isotropy=False,
        )
        proxies = fit_proxies(observed, asked, each, views=("representation", "weight"))
        found = judge_observation(observed, proxies, asked, {}, each)
        judged = [r for case, e in found.items() for r in evidence_rows(case, e, "rolling", observed)]
        rows += adjusted([r for r in judged if r["measure"] in ("energy", "enrichment")])
    return rows


def concept_rows(observed: Observation, proxies: Proxies) -> list[Row]:
    """The strongest concepts of each layer with the tokens they are strongest on.

    ``item`` is the concept, in the order of their mean strength, ``place`` the token's place in it; the value is the
    token's share of all that the concept received.
    """
    rows: list[Row] = []
    for place, (first, _) in proxies.items():
        if place.proxy != "semi_nmf" or place.view != "representation" or first.factors is None:
            continue
        tokens = observed.cloud(place.view, place.at, "activations", 0).sample(place.subset).tokens
        common = stamp(observed) | place_columns(place) | {"tensor": "activations", "timing": "rolling"}
        common |= {"rank": first.rank, "width": first.width, "measure": "concept"}
        by_concept = first.top_tokens(tokens, count=_TOKENS)
        strongest = first.factors.codes.sum(0).argsort(descending=True)[:_CONCEPTS].tolist()
        for k, concept in enumerate(strongest):
            for r, token in enumerate(by_concept[concept]):
                numbers = {"value": token.share, "n": token.count, "token_id": int(token.token)}
                rows.append(row(**common, **numbers, item=k, place=r))
    return rows
