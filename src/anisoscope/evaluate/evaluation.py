"""What was found at some of the places of an observation, and how the findings of all places become its judgement.

Places are examined one by one, in one process or in several. What needs all of them comes last: the adjustment over
layers, and the effect over all layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anisoscope.evaluate.judge_sites import Evidences, JudgedCase
from anisoscope.evaluate.row_builders import Row, adjusted, pooled_rows
from anisoscope.evidence.pooled import PooledLayer
from anisoscope.vocabulary import PROXIES, TIMINGS, VIEWS


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Rows of an observation and, where they are kept, the bases of the proxies by timing and the spectra."""

    rows: list[Row]
    bases: dict[str, dict[str, Any]] = field(default_factory=dict)
    spectra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class PartialEvaluation:
    """Rows by section, not adjusted yet; by timing what each case adds to the effect over all layers."""

    stamp: Row
    sections: Mapping[str, list[Row]]
    layers: Mapping[str, list[tuple[JudgedCase, PooledLayer]]] = field(default_factory=dict)
    bases: dict[str, dict[str, Any]] = field(default_factory=dict)
    spectra: dict[str, Any] = field(default_factory=dict)
    rank_rule: str | None = None  # by which each place found its rank


def layers_of(found: Evidences) -> list[tuple[JudgedCase, PooledLayer]]:
    """What the cases of one timing add to the effect over all layers."""
    return [(case, PooledLayer.of(evidence)) for case, evidence in found.items()]


def combine(parts: Sequence[PartialEvaluation], margin: float) -> Evaluation:
    """The judgement of an observation; its rows do not depend on how its places were dealt out."""
    rows: list[Row] = []
    for section in dict.fromkeys(name for part in parts for name in part.sections):
        rows += sorted((r for part in parts for r in part.sections.get(section, [])), key=_place)
    rule = parts[0].rank_rule
    rows = adjusted([_by_rule(r, rule) for r in rows], margin)
    for timing in TIMINGS:
        layers = [one for part in parts for one in part.layers.get(timing, [])]
        pooled = pooled_rows(sorted(layers, key=lambda one: one[0].place.at), timing, parts[0].stamp, rule=rule)
        rows += [_by_rule(r, rule) for r in pooled]
    bases = {timing: {} for timing in dict.fromkeys(timing for part in parts for timing in part.bases)}
    for part in parts:
        for timing, found in part.bases.items():
            bases[timing] |= found
    return Evaluation(rows, bases, {name: one for part in parts for name, one in part.spectra.items()})


def _by_rule(row: Row, rule: str | None) -> Row:
    """A row of a proxy whose rank was found by a rule says so; there are no ranks beside it then."""
    if rule is None or row["proxy"] is None or PROXIES[row["proxy"]].rank is not None:
        return row
    return row | {"rank_rule": rule}


def _place(row: Row) -> tuple[int, int, str]:
    """Views in their order, in them layers and modules; rows of one place stay as they came."""
    view, layer = row["view"], row["layer"]
    known = list(VIEWS)
    return known.index(view) if view in known else -1, -1 if layer is None else layer, row["site"] or ""
