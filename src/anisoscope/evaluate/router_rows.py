"""Rows about routers: how evenly a mixture of experts shares the tokens of a step out. Letters: E experts."""

from __future__ import annotations

import math

from torch import Tensor

from anisoscope.evaluate.row_builders import Row, at_columns, row, stamp
from anisoscope.observe.statistics import Observation
from anisoscope.vocabulary import MEASURES


def router_rows(observed: Observation) -> list[Row]:
    """Three numbers a layer: busiest over mean load, effective number of experts, share of experts without a token.

    The effective number is the exponential of the entropy of the shares, between 1 and E; ``width`` is E and ``n`` how
    many assignments were counted, k for a token that goes to k experts.
    """
    rows: list[Row] = []
    word = MEASURES["router_load"]
    for name, load_E in observed.statistics.items():
        if name.view != "router":
            continue
        assert isinstance(load_E, Tensor), "loads are sums"
        counts_E = load_E.double().cpu()
        total, experts = float(counts_E.sum()), len(counts_E)
        if not total:
            continue
        shares_E = counts_E / total
        entropy = -float((shares_E * shares_E.clamp_min(1e-300).log()).sum())
        numbers = {
            "busiest": (float(shares_E.max()) * experts, 1.0),
            "effective": (min(float(experts), math.exp(entropy)), None),
            "unused": (float((counts_E == 0).double().mean()), None),
        }
        common = stamp(observed) | at_columns(name.at) | {"view": name.tensor, "measure": word.name}
        common |= {"width": experts, "n": round(total)}
        rows += [
            row(**common, variant=word.row_variant(kind), value=value, floor=floor)
            for kind, (value, floor) in numbers.items()
        ]
    return rows
