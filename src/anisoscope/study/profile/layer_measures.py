"""The layer profile of one model: isotropy and dimension of every layer, over batches of vectors.

Letters: n sequences, T positions, N vectors, D width, L layers.

Each batch draws the same places of the text for every layer, so that layers differ by the network alone, and as many
vectors for each selection of tokens, so that dimensions may be compared.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from anisoscope.capture.calls import Batch
from anisoscope.capture.sites import SiteKey, Sites, unwrapped
from anisoscope.capture.taps import Listener, Taps
from anisoscope.data.tokens import Sequences
from anisoscope.errors import AnisoscopeError
from anisoscope.evaluate.row_builders import Row, at_columns, row
from anisoscope.jobs.side_by_side import Apply
from anisoscope.study.measure.measure_study import Measured, MeasureRow, Which, measure_selections
from anisoscope.vocabulary import MEASURES

Told = Callable[[float, str], None]


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """Places of a batch of sequences, ``(n, T)``: for each selection of tokens which were drawn."""

    chosen: dict[str, np.ndarray]

    @property
    def any(self) -> np.ndarray:
        """Places that some selection wants."""
        return np.logical_or.reduce(list(self.chosen.values()))


def draw(part: Sequences, special_ids: Sequence[int], *, vectors: int, seed: int) -> Draw:
    """Draw ``vectors`` places for each selection, the same ones as far as they can be."""
    inside = np.arange(part.ids.shape[1]) < part.lengths[:, None]
    later = inside & (np.arange(part.ids.shape[1]) > 0)
    eligible = {"all": inside, "no-first": later}
    special = np.isin(part.ids, np.asarray(special_ids, dtype=part.ids.dtype))
    if (special & later).any():
        eligible["no-special"] = later & ~special
    order = np.random.default_rng([seed, 4]).permutation(inside.size)
    found = {}
    for cloud, may in eligible.items():
        places = order[may.reshape(-1)[order]][:vectors]
        chosen = np.zeros(inside.size, bool)
        chosen[places] = True
        found[cloud] = chosen.reshape(inside.shape)
    return Draw(found)


def sequences_needed(vectors: int, length: int, frame: int) -> int:
    """How many whole sequences hold so many vectors that are neither first nor special."""
    return math.ceil(vectors / max(length - max(frame, 1) - 1, 1)) + 1


@dataclass(slots=True, eq=False)
class _Picked(Listener):
    """Keeps the chosen rows of every layer."""

    chosen: Tensor = field(default_factory=lambda: torch.zeros(0))  # (B, T), of the call under way
    sites: dict[SiteKey, list[Tensor]] = field(default_factory=dict)

    def activation(self, at: SiteKey, x_BTD: Tensor, batch: Batch) -> None:
        """Keep some rows."""
        if not batch.encoder:  # of an encoder-decoder, the layers of the decoder
            self.sites.setdefault(at, []).append(x_BTD[self.chosen.to(x_BTD.device)].cpu())


@dataclass(frozen=True, slots=True, eq=False)
class Vectors:
    """Vectors of a layer that some selection of tokens wants ``(N, D)``, and which of them each selection has."""

    values: Tensor
    rows: Mapping[str, Tensor]

    def of(self, subset: str) -> Tensor:
        """Those of one selection."""
        return self.values[self.rows[subset]]


def vectors_of(
    model: nn.Module, sites: Sites, part: Sequences, drawn: Draw, *, chunk: int, told: Told = lambda share, what: None
) -> dict[SiteKey, Vectors]:
    """The drawn vectors of every layer."""
    device = next(model.parameters()).device
    wanted, fewer = drawn.any, _fewer_logits(model)
    picked = _Picked()
    with torch.no_grad(), Taps(model, sites, picked, evaluations=True) as taps:
        for start in range(0, len(part.ids), chunk):
            rows = slice(start, start + chunk)
            if not wanted[rows].any():
                continue
            ids = torch.from_numpy(part.ids[rows].astype(np.int64))
            mask = torch.arange(ids.shape[1])[None] < torch.from_numpy(part.lengths[rows].astype(np.int64))[:, None]
            picked.chosen = torch.from_numpy(wanted[rows])
            model(input_ids=ids.to(device), attention_mask=mask.long().to(device), **fewer)
            taps.require_no_error()
            told(min(1.0, (start + chunk) / len(part.ids)), "forward")
    if not picked.sites:
        raise AnisoscopeError("no layer was seen: is the model the one whose sites were found?")
    rows = {subset: torch.from_numpy(np.flatnonzero(chosen[wanted])) for subset, chosen in drawn.chosen.items()}
    return {at: Vectors(torch.cat(picked.sites.pop(at)), rows) for at in sorted(picked.sites)}


def _fewer_logits(model: nn.Module) -> dict[str, int]:
    """For models that can, the logits of one position alone: nobody looks at them here."""
    known = inspect.signature(unwrapped(model).forward).parameters
    return {"logits_to_keep": 1} if "logits_to_keep" in known else {}


@dataclass(frozen=True, slots=True)
class Key:
    """What a number of the profile is."""

    at: SiteKey
    subset: str
    measure: str
    variant: str | None


@dataclass(slots=True, eq=False)
class Profile:
    """The measures of every batch; a batch adds one row to each key."""

    found: dict[Key, list[MeasureRow]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(
        self,
        vectors: Mapping[SiteKey, Vectors],
        *,
        seed: int,
        which: Which = "all",
        apply: Apply = map,
        told: Told = lambda share, what: None,
    ) -> None:
        """Measure one batch, by all measures or those that ``which`` says; ``apply`` is a ``map`` over layers."""

        def measured(at: SiteKey) -> dict[str, Measured]:
            own = vectors[at]
            if not bool(torch.isfinite(own.values.sum(0, dtype=torch.float64)).all()):
                raise AnisoscopeError(
                    f"layer {at.layer} has activations that are not finite: the checkpoint is damaged"
                )
            return measure_selections(own.values, own.rows, seed=seed, which=which)

        sites = list(vectors)
        for number, (at, found) in enumerate(zip(sites, apply(measured, sites), strict=True)):
            for subset, one in found.items():
                self._take(at, subset, one)
            told((number + 1) / len(sites), f"layer {at.layer}")

    def _take(self, at: SiteKey, subset: str, measured: Measured) -> None:
        for one in measured.table:
            variant = MEASURES[one.measure].row_variant(one.variant)
            self.found.setdefault(Key(at, subset, one.measure, variant), []).append(one)

    def values(self, measure: str, subset: str, variant: str | None = None) -> tuple[np.ndarray, list[int]]:
        """One measure as ``(batches, L)``, and the layers, without those that rest on far fewer vectors."""
        found = {
            key.at.layer: batches
            for key, batches in sorted(self.found.items(), key=lambda item: item[0].at)
            if key.measure == measure and key.subset == subset and key.variant == variant
        }
        fewest = {layer: min(one.n for one in batches) for layer, batches in found.items()}
        kept = [layer for layer in found if 2 * fewest[layer] >= max(fewest.values())]
        return np.asarray([[one.value for one in found[layer]] for layer in kept]).T, kept

    def rows(self, **stamp: object) -> list[Row]:
        """One row a number: the mean over batches with its 95 % interval (Student's t) and, in words, the deviation."""
        return [_summary(key, batches) | stamp for key, batches in self.found.items()]


def _summary(key: Key, batches: list[MeasureRow]) -> Row:
    values = np.asarray([one.value for one in batches])
    notes = list(dict.fromkeys(one.note for one in batches if one.note))
    mean, low, high = mean_interval(values)
    if len(values) > 1 and math.isfinite(mean):
        notes.insert(0, f"deviation {values.std(ddof=1):.3g} over {len(values)} batches")
    floors = [one.floor for one in batches if one.floor is not None]
    radii = [one.radius for one in batches if one.radius is not None]
    spread = float(values.std(ddof=1)) if len(values) > 1 else None
    return row(
        **at_columns(key.at),
        view="representation",
        tensor="activations",
        subset=key.subset,
        width=batches[0].width,
        measure=key.measure,
        variant=key.variant,
        value=mean,
        floor=float(np.mean(floors)) if floors else None,
        low=low,
        high=high,
        se=None if spread is None or not math.isfinite(spread) else spread / math.sqrt(len(values)),
        units=float(len(values)),
        radius=float(np.mean(radii)) if radii else None,
        n=min(one.n for one in batches),
        note="; ".join(notes[:4]) or None,
    )


def mean_interval(values: np.ndarray) -> tuple[float, float | None, float | None]:
    """Mean and 95 % interval of it; with a single value none is invented.

    >>> mean_interval(np.array([1.0, 2.0, 3.0]))[0]
    2.0
    """
    mean = float(values.mean())
    if len(values) < 2 or not np.isfinite(values).all():
        return mean, None, None
    half = float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
    return mean, mean - half, mean + half
