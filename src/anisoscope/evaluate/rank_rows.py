"""Ablations of an observation: other ranks of the first proxy, and the tokens behind concepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from anisoscope.evaluate.judge_sites import Each, Evidences, Proxies, Question, Request, each_in_turn, fit_proxies
from anisoscope.evaluate.row_builders import Row, evidence_rows, place_columns, row, stamp
from anisoscope.observe.statistics import Observation
from anisoscope.vocabulary import MAIN_SUBSET, VIEWS

_CONCEPTS, _TOKENS = 8, 6


def rank_questions(observed: Observation, request: Request, each: Each = each_in_turn) -> list[Question]:
    """The first method at the other ranks that were asked for, against ``haar`` alone."""
    bare = replace(request, proxies=request.proxies[:1], subsets=(MAIN_SUBSET,), nulls=("haar",), ranks=())
    if not request.ranks:
        return []
    asked = {rank: replace(bare, rank=rank, isotropy=False) for rank in request.ranks}
    views = tuple(view.name for view in VIEWS.values() if view.kind != "embedding")
    if request.proxies[0] not in ("pca", "svd"):
        return [Question(fit_proxies(observed, one, each, views=views), one, {}) for one in asked.values()]
    highest = fit_proxies(observed, replace(bare, rank=max(request.ranks)), each, views=views)
    return [
        Question({place: (a.leading(rank), b.leading(rank)) for place, (a, b) in highest.items()}, one, {})
        for rank, one in asked.items()
    ]


def rank_rows(found: Sequence[Evidences], observed: Observation) -> list[Row]:
    """Energy and enrichment over ``haar`` at those ranks."""
    rows: list[Row] = []
    for evidences in found:
        judged = [r for case, e in evidences.items() for r in evidence_rows(case, e, "rolling", observed)]
        rows += [r for r in judged if r["measure"] in ("energy", "enrichment")]
    return rows


def concept_rows(observed: Observation, proxies: Proxies) -> list[Row]:
    """The strongest concepts of each layer with the tokens they are strongest on.

    ``item`` is the concept, in the order of their mean strength, ``place`` the token's place in it; the value is the
    token's share of all that the concept received.
    """
    rows: list[Row] = []
    for place, (first, _) in proxies.items():
        if place.proxy != "semi_nmf" or VIEWS[place.view].kind != "representation" or first.factors is None:
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
