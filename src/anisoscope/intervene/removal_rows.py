"""The rows of removals: costs, what they exceed those of controls by, and how much was removed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from anisoscope.evaluate.row_builders import Row, at_columns, estimate_row, row
from anisoscope.evidence.inference import adjust
from anisoscope.intervene.directions import RemovedLayer
from anisoscope.intervene.effects import LossChange, LossLedger, cost_of
from anisoscope.verdict import outcome_of_difference
from anisoscope.vocabulary import BINS, EQUAL_DISPLACEMENT, REMOVAL_CONTROLS, WHOLE_STREAM, bin_subset

_FAMILY = ("proxy", "rank", "measure", "variant", "null", "subset")


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredRemovals:
    """Sums of losses under all removals, and what the removals were."""

    ledger: LossLedger
    places: tuple[RemovedLayer, ...]
    subset: str
    margin: float
    family: int  # layers that q is adjusted over


def removal_rows(measured: MeasuredRemovals) -> list[Row]:
    """All rows, with q over layers and outcomes."""
    rows = [_loss(measured)]
    done: set[int] = set()
    for place in measured.places:
        numbers = _Place(measured, place)
        if place.at.layer not in done:
            rows.append(numbers.whole())
            done.add(place.at.layer)
        rows += [*numbers.costs(), *numbers.excesses(), *numbers.variances()]
    return _judged(rows, measured.margin)


def _loss(measured: MeasuredRemovals) -> Row:
    ledger = measured.ledger
    found = cost_of(ledger.totals(None).sum(1)[None], ledger.counts.sum(1), fewest=ledger.fewest_in_fold)
    return _row({"subset": "all", "variant": "held-out", "measure": "loss"}, replace(found, p=None, detectable=None))


class _Place:
    """The numbers of one layer and rank. Sums are ``(R, n, F + 1)``: by draw, unit and bin."""

    def __init__(self, measured: MeasuredRemovals, place: RemovedLayer) -> None:
        self._measured, self._place = measured, place
        self._counts = measured.ledger.counts
        self._of_layer = at_columns(place.at) | {"view": "representation", "tensor": "activations"}
        self._of_layer |= {"subset": measured.subset, "width": place.width}
        self._of_proxy = self._of_layer | {"proxy": place.proxy.name, "rank": place.rank}

    def whole(self) -> Row:
        """The stream replaced by its mean: the scale of all costs of the layer."""
        return _row(self._of_layer, self._cost(self._sums(("whole", 0))), measure="removal_cost", variant=WHOLE_STREAM)

    def costs(self) -> Iterator[Row]:
        """The proxy's cost, overall and by bin, and those of controls."""
        own = self._sums((self._place.proxy.name, 0))
        for k, subset in self._parts():
            yield _row(self._of_proxy | subset, self._cost(own, k), measure="removal_cost")
        for control in REMOVAL_CONTROLS:
            found = self._cost(self._drawn((control,), control), over_draws=_is_random(control))
            yield _row(self._of_proxy, found, measure="removal_cost", null=control)

    def excesses(self) -> Iterator[Row]:
        """The proxy's cost minus that of each control: both removed whole, and at equal displacement."""
        for control in REMOVAL_CONTROLS:
            own, others = self._place.strengths(control)
            pairs = {
                None: (self._sums((self._place.proxy.name, 0)), self._drawn((control,), control)),
                EQUAL_DISPLACEMENT: (self._sums(("proxy", control)), self._drawn(("part", control), control)),
            }
            for variant, (proxy, drawn) in pairs.items():
                said: Row = {"measure": "removal_excess", "variant": variant, "null": control}
                if variant is not None:
                    said["parameter"] = own.mean_strength / others[0].mean_strength
                for k, subset in self._parts():
                    found = self._cost(proxy - drawn, k, over_draws=_is_random(control))
                    yield _row(self._of_proxy | subset, found, **said, floor=self._cost(drawn, k).value)

    def variances(self) -> Iterator[Row]:
        """The share of the stream's variance that was removed, of the judged folds."""
        place = self._place
        for control, frames in {None: (place.proxy,), **place.controls}.items():
            inside = sum(sum(frame.energy) for frame in frames) / len(frames)
            value = inside / sum(place.spread) if sum(place.spread) > 0 else math.nan
            yield row(**self._of_proxy, measure="removed_variance", null=control, value=value)

    def _parts(self) -> Iterator[tuple[int | None, Row]]:
        """All tokens together, and each bin of the target's frequency."""
        yield None, {}
        for k in range(len(BINS)):
            yield k, {"subset": bin_subset("target", "tokens", k + 1)}

    def _sums(self, key: tuple[object, ...]) -> Tensor:
        return self._measured.ledger.totals((self._place.at.layer, self._place.rank, key))[None]

    def _drawn(self, key: tuple[object, ...], control: str) -> Tensor:
        return torch.cat([self._sums((*key, draw)) for draw in range(len(self._place.controls[control]))])

    def _cost(self, sums_RnF: Tensor, k: int | None = None, *, over_draws: bool = False) -> LossChange:
        sums_Rn = sums_RnF.sum(2) if k is None else sums_RnF[:, :, k]
        counts_n = self._counts.sum(1) if k is None else self._counts[:, k]
        options = {"fewest": self._measured.ledger.fewest_in_fold, "family": self._measured.family}
        return cost_of(sums_Rn, counts_n, **options, over_draws=over_draws)


def _is_random(control: str) -> bool:
    return control != "next"


def _row(common: Row, found: LossChange, **said: object) -> Row:
    return estimate_row(common, found, p=found.p, detectable=found.detectable, **said)


def _judged(rows: list[Row], margin: float) -> list[Row]:
    """Q over layers, all other key columns equal, and the outcome of each excess."""
    families: dict[tuple[object, ...], list[Row]] = {}
    for one in rows:
        if one["p"] is not None:
            families.setdefault(tuple(one[name] for name in _FAMILY), []).append(one)
    for members in families.values():
        for one, q in zip(members, adjust([m["p"] for m in members]), strict=True):
            one["q"] = float(q)
    for one in rows:
        if one["measure"] == "removal_excess":
            one["outcome"] = outcome_of_difference(one, margin)
    return rows
